"""Routers in front of the replica set, which send again by themselves what was not answered."""

import weakref
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation.commands import (
    ABORT,
    COMMIT,
    MAX_TIME,
    NO_SUCH_TRANSACTION,
    RETRYABLE,
    Command,
    error_of,
    is_retryable,
    labels_of,
)
from tests.simulation.members import Member, Request
from tests.simulation.replica_set import ReplicaSet
from tests.simulation.state import State

HOST_UNREACHABLE = 6
NO_PRIMARY_FOUND = 133  # FailedToSatisfyReadPreference
SENDINGS = 3
FOR_A_PRIMARY = 20.0
LOOKED_EVERY = 0.1

_UNREACHABLE = {"ok": 0.0, "code": HOST_UNREACHABLE, "codeName": "HostUnreachable"}
_TOO_LATE = {"ok": 0.0, "code": MAX_TIME, "codeName": "MaxTimeMSExpired", "errmsg": ""}


class Router:
    """A router: for a driver a server that takes writes.

    What it answers is what its last sending met, and says nothing of the ones before. It sends
    nothing any more when the time is over that the command may take.

    It knows the transactions that were begun over it. Whoever commits another one is told how that
    has ended at the shard; what is still open there is aborted.

    Args:
        replica_set: The only shard.
        number: Which one it is.
        random: How long everything takes, and what goes wrong.
        breaks: How often its connection to the shard breaks, as a probability.
    """

    is_router = is_primary = True
    term = 0

    def __init__(self, replica_set: ReplicaSet, number: int, random: Random, breaks: float) -> None:
        self.address = (f"router{number}", 27017)
        self.name = f"r{number}"
        self.is_up = True
        self.is_frozen = False
        self.inbox: list[Request] = []
        self._set = replica_set
        self._random = random
        self._breaks = breaks
        self._postponed: list[tuple[Any, ...]] = []
        """What is to be done when it is awake again."""

        self._transactions: dict[bytes | None, int | None] = {}
        self.process = 100 + number

    def __repr__(self) -> str:
        return self.name

    @property
    def topology_version(self) -> tuple[int, int]:
        """What its hello says."""
        return self.process, 0

    @property
    def state(self) -> State:
        """What the primary stores."""
        return (self._set.primary or self._set.members[0]).state

    def receive(self, request: Request) -> None:
        """Take a command."""
        if not self.is_up:
            return
        request.since = min(request.since, self._set.loop.time())
        if self.is_frozen:
            request.has_slept = True
            self.inbox.append(request)
        else:
            sendings = SENDINGS if request.command.may_be_repeated else 1
            if request.command.in_transaction:
                refused = self._go_on_with_transaction(request)
                if refused is not None:
                    self.answer(request, refused, self.process)
                    return
            if request.max_time is not None:  # it counts from when the command is read
                request.until = self._set.loop.time() + request.max_time
                self.later(request.max_time, self._give_up, weakref.ref(request), self.process)
            self._send(request, sendings, self.process)

    def _go_on_with_transaction(self, request: Request) -> dict[str, Any] | None:
        """Have a shard told of its part of a transaction; return the answer to who has none."""
        command = request.command
        body = {name: each for name, each in command.body.items() if name != "recoveryToken"}
        if body.get("startTransaction"):
            self._transactions[command.session] = command.number
        elif self._transactions.get(command.session) != command.number:
            if command.name != COMMIT or "recoveryToken" not in command.body:
                text = "NoSuchTransaction"
                return error_of(NO_SUCH_TRANSACTION, text, command, self._set.version).reply
            body["recovers"] = True
        request.command = replace(command, body=body)
        return None

    def kill(self) -> None:
        """Die at once; what it has passed on is executed all the same."""
        self._transactions.clear()
        self._postponed.clear()
        self.is_up = self.is_frozen = False
        self.inbox.clear()
        self.process += 10

    def start(self) -> None:
        """Begin again."""
        self.is_up = True

    def freeze(self) -> None:
        """Do nothing for a while."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on."""
        self.is_frozen = False
        postponed, self._postponed = self._postponed, []
        for call, *args in postponed:
            self.later(0.0, call, *args)
        inbox, self.inbox = self.inbox, []
        for request in inbox:
            self.receive(request)

    def postpones(self, call: Any, *args: Any) -> bool:
        """Tell whether it is asleep; something is called when it is awake then."""
        if self.is_frozen:
            self._postponed.append((call, *args))
        return self.is_frozen

    def _give_up(self, reference: "weakref.ref[Request]", process: int) -> None:
        is_asleep = self.postpones(self._give_up, reference, process)
        if not is_asleep and (request := reference()) is not None:
            self.answer(request, _TOO_LATE, process)

    def _send(
        self, request: Request, sendings: int, process: int, patience: float = FOR_A_PRIMARY
    ) -> None:
        member = self._target(request.command)
        if process != self.process:
            return
        if self.postpones(self._send, request, sendings, process, patience):
            return
        if self._set.loop.time() >= request.until:
            self.answer(request, _TOO_LATE, process)
            return
        if member is None:
            if patience <= 0:
                nobody = {"ok": 0.0, "code": NO_PRIMARY_FOUND, "errmsg": "no primary"}
                self.answer(request, nobody, process)
            else:
                left = patience - LOOKED_EVERY
                self.later(LOOKED_EVERY, self._send, request, sendings, process, left)
            return
        sending = _Sending(self, request, member, sendings - 1)
        self.later(LOOKED_EVERY, sending.look)
        draw = self._random.random()
        if draw < self._breaks / 2:  # it never arrives
            self.later(self._random.uniform(0, 0.1), sending.fail)
            return
        if draw < self._breaks:  # it arrives, and is not answered
            self.later(self._random.uniform(0.005, 0.1), sending.fail)
            sending.is_deaf = True
        inner = replace(request, answer=sending.hear, is_over=False)
        self.later(self._random.uniform(0.0002, 0.003), member.receive, inner)

    def _target(self, command: Command) -> Member | None:
        """Return whom a command is for now, or None if there is nobody."""
        if command.reads_anywhere and not command.in_transaction:
            return self._random.choice([one for one in self._set.members if one.votes] or [None])
        return self._set.primary

    def again(
        self, request: Request, sendings: int, process: int, reply: Mapping[str, Any]
    ) -> None:
        """Send it once more, or answer with what came of this time."""
        if sendings:
            self._send(request, sendings, process)
        else:
            self.answer(request, reply, process)

    def answer(self, request: Request, reply: Mapping[str, Any], process: int) -> None:
        """Answer, unless the process that was asked has died."""
        if process == self.process and not request.is_over:
            request.is_over = True
            request.answer(dict(reply))

    def later(self, seconds: float, call: Any, *args: Any) -> None:
        """Call something later."""
        self._set.loop.call_later(seconds, call, *args)


class _Sending:
    """One sending to the shard."""

    def __init__(self, router: Router, request: Request, member: Member, left: int) -> None:
        self._router = router
        self._request = request
        self._member = member
        self._process = member.process
        self._routers_process = router.process
        self._left = left
        self.is_over = self.is_deaf = False

    def look(self) -> None:
        """Fail if the member is gone, or hangs while there is another primary."""
        if self.is_over:
            return
        member, router = self._member, self._router
        is_gone = not member.is_up or member.process != self._process
        if is_gone or (member.is_frozen and router._target(self._request.command) is not None):
            self.fail()
        else:
            self._router.later(LOOKED_EVERY, self.look)

    def fail(self) -> None:
        """The connection breaks."""
        if not self._router.postpones(self.fail) and not self.is_over:
            labels = labels_of(HOST_UNREACHABLE, self._request.command, self._router._set.version)
            self._end({**_UNREACHABLE, "errmsg": "", "errorLabels": labels})

    def hear(self, reply: Mapping[str, Any]) -> None:
        """Take the answer."""
        if self.is_over or self.is_deaf:
            return
        if self._router.postpones(self.hear, reply):
            return
        plain = {name: value for name, value in reply.items() if name != "topologyVersion"}
        if "writeConcernError" in plain:
            plain.pop("errorLabels", None)  # of a shard's concern none is passed on
        command = self._request.command
        if command.in_transaction and plain["ok"] and command.name not in {COMMIT, ABORT}:
            plain["recoveryToken"] = {} if command.reads else {"recoveryShardId": "shard0"}
        self._end(plain)

    def _end(self, reply: Mapping[str, Any]) -> None:
        self.is_over = True
        is_labelled = RETRYABLE in reply.get("errorLabels", ())
        is_read = self._request.command.reads and is_retryable(reply.get("code"))
        left = self._left if is_labelled or is_read else 0  # none if it may not be repeated
        self._router.again(self._request, left, self._routers_process, reply)
