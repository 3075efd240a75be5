"""Routers in front of the replica set, which send again by themselves what was not answered."""

import weakref
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation.members import MAX_TIME, RETRYABLE, Member, ReplicaSet, Request
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

    Args:
        replica_set: The only shard.
        number: Which one it is.
        random: How long everything takes, and what goes wrong.
        breaks: How often its connection to the shard breaks, as a probability.
    """

    is_primary = True
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
            sendings = SENDINGS if request.command.number is not None else 1
            if request.max_time is not None:  # it counts from when the command is read
                request.until = self._set.loop.time() + request.max_time
                self.later(request.max_time, self._give_up, weakref.ref(request), self.process)
            self._send(request, sendings, self.process)

    def kill(self) -> None:
        """Die at once; what it has passed on is executed all the same."""
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
        inbox, self.inbox = self.inbox, []
        for request in inbox:
            self.receive(request)

    def _give_up(self, reference: "weakref.ref[Request]", process: int) -> None:
        if self.is_frozen:
            self.later(LOOKED_EVERY, self._give_up, reference, process)
        elif (request := reference()) is not None:
            self.answer(request, _TOO_LATE, process)

    def _send(
        self, request: Request, sendings: int, process: int, patience: float = FOR_A_PRIMARY
    ) -> None:
        primary = self._set.primary
        if process != self.process:
            return
        if self.is_frozen:
            self.later(LOOKED_EVERY, self._send, request, sendings, process, patience)
            return
        if self._set.loop.time() >= request.until:
            self.answer(request, _TOO_LATE, process)
            return
        if primary is None:
            if patience <= 0:
                nobody = {"ok": 0.0, "code": NO_PRIMARY_FOUND, "errmsg": "no primary"}
                self.answer(request, nobody, process)
            else:
                left = patience - LOOKED_EVERY
                self.later(LOOKED_EVERY, self._send, request, sendings, process, left)
            return
        sending = _Sending(self, request, primary, sendings - 1)
        self.later(LOOKED_EVERY, sending.look)
        draw = self._random.random()
        if draw < self._breaks / 2:  # it never arrives
            self.later(self._random.uniform(0, 0.1), sending.fail)
            return
        if draw < self._breaks:  # it arrives, and is not answered
            self.later(self._random.uniform(0.005, 0.1), sending.fail)
            sending.is_deaf = True
        inner = replace(request, answer=sending.hear, is_over=False)
        self.later(self._random.uniform(0.0002, 0.003), primary.receive, inner)

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
        member, primary = self._member, self._router._set.primary
        is_gone = not member.is_up or member.process != self._process
        if is_gone or (member.is_frozen and primary not in {None, member}):
            self.fail()
        else:
            self._router.later(LOOKED_EVERY, self.look)

    def fail(self) -> None:
        """The connection breaks."""
        if self._router.is_frozen:
            self._router.later(LOOKED_EVERY, self.fail)
        elif not self.is_over:
            labels = [] if self._request.command.number is None else [RETRYABLE]
            self._end({**_UNREACHABLE, "errmsg": "", "errorLabels": labels})

    def hear(self, reply: Mapping[str, Any]) -> None:
        """Take the answer."""
        if self.is_over or self.is_deaf:
            return
        if self._router.is_frozen:
            self._router.later(LOOKED_EVERY, self.hear, reply)
            return
        plain = {name: value for name, value in reply.items() if name != "topologyVersion"}
        if "writeConcernError" in plain:
            plain.pop("errorLabels", None)  # of a shard's concern none is passed on
        self._end(plain)

    def _end(self, reply: Mapping[str, Any]) -> None:
        self.is_over = True
        left = self._left if RETRYABLE in reply.get("errorLabels", ()) else 0
        self._router.again(self._request, left, self._routers_process, reply)
