"""The port to a driver, over the simulated replica set and a network that errs."""

import asyncio
import contextlib
import contextvars
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from bson.codec_options import CodecOptions
from bson.int64 import Int64
from pymongo.errors import AutoReconnect, InvalidOperation, NetworkTimeout, NotPrimaryError
from pymongo.helpers_shared import _check_command_response

from aioretry._commands.command import CommandLimits
from aioretry._commands.encoded import shown
from aioretry._drivers.motor import encode_documents
from aioretry._drivers.port import (
    AttemptCall,
    ConnectionCounts,
    Expired,
    Failed,
    NoServer,
    Receiver,
    Replied,
    ServerKind,
    ServerView,
    ThreadCounts,
    TopologyView,
    Unprepared,
)
from tests.simulation.members import Member, ReplicaSet, Request
from tests.simulation.routers import Router
from tests.simulation.state import Command

WIRE_VERSIONS = {(4, 4): 9, (5, 0): 13, (6, 0): 17}
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
CONNECT_TIMEOUT = 20.0
ASKED_AGAIN = 0.05
PATIENCE = 0.25
VANISHED_FOR = 60.0
"""After how long a connection ends at the latest over which nothing comes any more, in seconds."""


NOTHING_WRITTEN = "NoWritesPerformed"  # some say so, some don't

_ERRORS = {"writeErrors", "writeConcernError"}

OPERATION: contextvars.ContextVar[int] = contextvars.ContextVar("OPERATION", default=-1)
"""Which of the operations of a run an attempt belongs to."""


@dataclass(frozen=True, slots=True)
class Network:
    """How often what goes wrong with a message; each is a probability."""

    lost: float = 0.0
    """The command never arrives, and the connection breaks."""

    late: float = 0.0
    """The connection breaks, and the command arrives after that."""

    unanswered: float = 0.0
    """The command is executed, and the connection breaks before the reply."""

    slow: float = 0.0
    """The reply takes seconds."""

    silent: float = 0.0
    """The command is executed, and no reply ever comes; the connection ends after a while."""

    vanished: float = 0.0
    """The command never arrives, and nobody hears of that; the connection ends after a while."""

    forgotten: float = 0.0
    """The entries of what was done before have left the oplog by the time when it arrives."""

    overloaded: float = 0.0
    """The server refuses it, because it has too much to do."""

    opening: float = 0.3
    """A connection has to be opened first."""

    unopened: float = 0.0
    """That fails."""

    @property
    def befalls(self) -> float:
        """How often something happens to a command, or to the answer to it, on its way."""
        return self.breaks + self.silent + self.vanished + self.overloaded

    @property
    def hangs(self) -> bool:
        """Whether an answer may be waited for in vain."""
        return any((self.slow, self.silent, self.vanished))

    @property
    def holds(self) -> bool:
        """Whether connections may be held up for seconds."""
        return any((self.lost, self.late, self.hangs))

    @property
    def breaks(self) -> float:
        """How often a connection breaks at least."""
        return self.lost + self.late + self.unanswered


class Description:
    """What the driver has heard at one moment.

    Args:
        primaries: The addresses of those that take writes.
    """

    def __init__(self, primaries: Iterable[Any]) -> None:
        self._primaries = [*primaries]

    def __repr__(self) -> str:
        return f"<Description {self._primaries}>"


class Session:
    """A server session, as the driver holds it."""

    def __init__(self, driver: "SimulatedDriver") -> None:
        self._driver = driver
        self.id: bytes | None = None
        self.number = 0
        self.is_dirty = False
        self.is_given_back = False

    def next_number(self) -> int:
        """Take a number; the session is taken from the pool for the first."""
        self.lease()
        self.number += 1
        return Int64(self.number)

    def latest_number(self) -> int:
        """Return the number that was taken last."""
        return Int64(self.number)

    def lease(self) -> None:
        """Take it from the pool."""
        if self.id is None:
            self.id, self.number = (
                self._driver.pool.pop()
                if self._driver.pool
                else (
                    self._driver.new_id(),
                    0,
                )
            )

    def open(self, *, has_sessions: bool) -> Any:
        """No session object is needed."""
        raise NotImplementedError

    def close(self, *, discard: bool) -> None:
        """Pool it, or keep it until nobody holds it any more."""
        if self.id is None:
            return
        if self.is_given_back:
            raise AssertionError("a session was given back twice")
        if discard or self.is_dirty:
            finalizer = weakref.finalize(self, self._driver.end_session, self.id)
            finalizer.atexit = False
            self._finalizer = finalizer
        else:
            self.is_given_back = True
            if (finalizer := getattr(self, "_finalizer", None)) is not None:
                finalizer.detach()
            self._driver.pool.append((self.id, self.number))


class UserSession(Session):
    """A session that the user has started, and ends."""

    in_transaction = False

    def close(self, *, discard: bool) -> None:
        """It is the user's."""
        self.is_dirty = self.is_dirty or discard


class Attempt:
    """An attempt under way.

    Args:
        driver: The driver.
        call: What is tried.
        receiver: Is told what came of it.
    """

    def __init__(self, driver: "SimulatedDriver", call: AttemptCall, receiver: Receiver) -> None:
        self._driver = driver
        self._call = call
        self._receiver: Receiver | None = receiver
        self._context = contextvars.copy_context()
        self.operation = OPERATION.get()
        self._session: Any = None
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.address = call.server.address
        self.member: Any = driver.member_at(call.server.address)
        self.random = driver.random_of_attempt()
        self.is_opening = False

    def begin(self) -> None:
        """Open a connection, or send at once."""
        driver, network = self._driver, self._driver.network
        if self.random.random() >= network.opening:
            self._send_or_land()
            return
        self.is_opening = True
        driver.opening[self.address] += 1
        if self.member.is_frozen:
            self._after(CONNECT_TIMEOUT, self._fail, _timeout("could not connect"))
        elif not self.member.is_up:
            error = AutoReconnect("connection refused")
            error.__cause__ = ConnectionRefusedError()
            self._after(0.001, self._fail, error)
        elif self.random.random() < network.unopened:
            driver.faults += 1
            self._after(self.random.uniform(0, 1), self._fail, AutoReconnect("could not connect"))
        else:
            self._after(self.random.uniform(0.001, 0.05), self._opened)

    def _opened(self) -> None:
        self._end_opening()
        receiver = self._receiver
        if self._driver.lost(self._call.server):
            self._land(NoServer())
        else:
            self._send_or_land()
        if receiver is not None:
            receiver.make_way()

    def _end_opening(self) -> None:
        if self.is_opening:
            self.is_opening = False
            self._driver.opening[self.address] -= 1

    def _send_or_land(self) -> None:
        result = self._send()
        if result is not None:
            self._driver.loop.call_soon(self._land, result)

    def _send(self) -> Any:
        call = self._call
        if call.token.is_revoked:
            return Expired()
        if call.command.prepare is not None:
            try:
                call.command.prepare(LIMITS, encode_documents)
            except Exception as exc:  # noqa: BLE001 - told by the write
                return Unprepared(exc)
        try:
            self._session = session = call.lease.carry()
        except InvalidOperation as exc:
            return Failed(exc, sent=False)
        number = None
        try:
            session.lease()
            if call.has_transaction_id:
                number = int(call.number.take(session))
        except InvalidOperation as exc:
            return Failed(exc, sent=False)
        call.is_waiting = True
        max_time = None
        if call.deadline is not None and call.deadline.is_limited:
            max_time = call.deadline.remaining() - call.server.round_trip_time
            if max_time < 0.001:
                return Expired()
        if not call.token.begin_sending():
            return Expired()
        self._transmit(session, number, max_time)
        return None

    def _transmit(self, session: Any, number: int | None, max_time: float | None) -> None:
        command = self._call.command
        body = shown(command.body, CodecOptions())
        concern: Mapping[str, Any] = self._call.options.get("writeConcern", {})
        self._request = request = Request(
            Command(command.name, body, session.id, number),
            concern.get("w", "majority") == "majority",
            concern.get("wtimeout", 0) / 1000 or None,
            max_time,
            self._answered,
        )
        driver, network, draw = self._driver, self._driver.network, self.random.random()
        driver.has_sent(self.operation, body, session.id)
        driver.note(
            f"op {self.operation} sends {command.name} {session.id!r}/{number} to {self.member}"
        )
        latency = self.random.uniform(0.0002, 0.003)
        driver.faults += draw < network.befalls
        if draw < network.lost:
            self._after(self.random.uniform(0, 1), self._break)
        elif (draw := draw - network.lost) < network.late:
            breaks = self.random.uniform(0, 0.5)
            self._after(breaks, self._break)
            # The server has read it from its socket.
            term = self.member.term
            driver.later(self.random.uniform(0, 3), self._receive_late, request, term)
        elif (draw := draw - network.late) < network.unanswered:
            driver.later(latency, self.member.receive, request)
            request.answer = lambda _: self._after(latency, self._break)
        elif (draw := draw - network.unanswered) < network.silent:
            driver.later(latency, self.member.receive, request)
            request.answer = lambda _: None
            self._after(self.random.uniform(5, VANISHED_FOR), self._break)
        elif (draw := draw - network.silent) < network.vanished:
            self._after(self.random.uniform(5, VANISHED_FOR), self._break)
        elif (draw := draw - network.vanished) < network.overloaded:
            refusal = {
                "ok": 0.0,
                "code": 462,
                "errmsg": "IngressRequestRateLimitExceeded",
                "errorLabels": [
                    *("SystemOverloadedError", "RetryableError"),
                    *self.random.choice([[], [NOTHING_WRITTEN]]),
                ],
                "topologyVersion": self.member.topology_version,
            }
            self._after(latency, self._answered, refusal)
        else:
            driver.later(latency, self._receive_there, request)

    def _receive_late(self, request: Request, term: int) -> None:
        # Nothing lies there until a member has lost its office and won it back.
        if not self.member.is_primary or self.member.term == term:
            self.member.receive(request)

    def _receive_there(self, request: Request) -> None:
        if self.member.is_up:
            if self.random.random() < self._driver.network.forgotten:
                self._driver.faults += 1
                self.member.state.lose_history()
            self.member.receive(request)
        elif self._request is request:
            self._break()

    def _answered(self, reply: Mapping[str, Any]) -> None:
        network = self._driver.network
        latency = self.random.uniform(0.0002, 0.003)
        if self.random.random() < network.slow:
            self._driver.faults += 1
            latency = self.random.uniform(0.5, 8)
        self._after(latency, self._take, reply)

    def _take(self, reply: Mapping[str, Any]) -> None:
        driver = self._driver
        reply = {name: value for name, value in reply.items() if name != "topologyVersion"}
        try:
            _check_command_response(reply, driver.wire_version)
        except Exception as exc:  # noqa: BLE001 - told by the write
            if isinstance(exc, NotPrimaryError):
                driver.lose(self.address)
            self._land(Failed(exc, sent=True))
        else:
            concern = reply.get("writeConcernError") or {}
            if concern.get("code") in {189, 11602, 91, 10107}:
                driver.lose(self.address)
            self._land(Replied(reply))

    def _break(self) -> None:
        """The connection ends."""
        self._forget_session()
        if self._request is not None:
            self._request.is_over = True
        error = AutoReconnect(f"{self.member}: connection closed")
        if self.member.is_up and not self.member.is_frozen:
            self._after(self.random.uniform(0.0005, 0.01), self._land, Failed(error, True, True))
        else:
            self._after(PATIENCE if self.member.is_frozen else 0.001, self._end_broken, error)

    def _end_broken(self, error: Exception) -> None:
        self._driver.lose(self.address)
        self._land(Failed(error, sent=True))

    def _fail(self, error: Exception) -> None:
        """No connection could be opened."""
        self._driver.lose(self.address)
        receiver = self._receiver
        self._land(Failed(error, sent=False))
        if receiver is not None:
            receiver.make_way()

    def connection_lost(self) -> None:
        """The server's process is gone."""
        if self._request is not None and self._receiver is not None:
            self._after(self.random.uniform(0.0001, 0.002), self._break)

    def abandon(self) -> None:
        """End without a result."""
        self._forget_session()
        self._close()
        self._receiver = None

    def time_out(self) -> None:
        """End because it has taken too long."""
        self._forget_session()
        self._land(Failed(_timeout("timed out"), sent=self._call.token.is_sending))

    def _forget_session(self) -> None:
        if self._session is not None:
            self._session.is_dirty = True

    def _after(self, seconds: float, call: Any, *args: Any) -> None:
        if self._receiver is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._driver.later(seconds, call, *args)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._request is not None:
            self._request.is_over = True
        self._end_opening()
        self._driver.has_ended(self)
        if self._session is not None:
            self._call.lease.drop()
            self._session = None

    def _land(self, result: Any) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        self._close()
        self._call.carrier = None
        self._driver.note(f"op {self.operation} {_told(result)}")
        if isinstance(result, Replied) and result.reply.keys().isdisjoint(_ERRORS):
            self._driver.has_answered(self.operation)
        self._context.run(receiver.land, result)


class SimulatedDriver:
    """The port.

    Args:
        loop: The event loop.
        replica_set: The servers.
        routers: Those in front of it that are asked, if there are some.
        random: How long it takes to hear of things.
        network: What goes wrong.
        seed: Decides what becomes of each attempt.
        note: Takes a line of what happens.
        size: How many connections a server may have.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica_set: ReplicaSet,
        routers: Sequence[Router],
        random: Random,
        network: Network,
        seed: int,
        note: Callable[[str], None],
        size: int,
    ) -> None:
        self.loop = loop
        self.network = network
        self.note = note
        self.pool: list[tuple[bytes, int]] = []
        self.opening: Counter[Any] = Counter()
        self.under_way: list[Attempt] = []
        self.changes = 0
        """How often it was heard that a server is another thing now."""

        self.wire_version = WIRE_VERSIONS[replica_set.version]
        self._servers: list[Any] = [*routers] or [*replica_set.members]
        self._kind = ServerKind.MONGOS if routers else ServerKind.PRIMARY
        self.user_sessions: dict[Any, UserSession] = {}
        """What stands behind each session of the user's."""

        self.ended: set[bytes] = set()
        """The sessions that servers were told to forget; what arrives late may begin them again."""

        self._set = replica_set
        self._random = random
        self._seed = seed
        self._size = size
        self._ids = 0
        self._made: Counter[int] = Counter()
        self.faults = 0
        """How many messages and connections something has happened to."""

        self.has_sent: Callable[[int, Mapping[str, Any], bytes], None] = lambda *_: None
        """Told the operation, the command and its session whenever one is sent."""

        self.has_answered: Callable[[int], None] = lambda _: None
        """Told the operation whenever a command of it was executed well, and the answer came."""

        self.kept: list[tuple[float, list[int]]] = [(0.0, [])]
        """Of which operations attempts were under way, from when on."""

        self._known: dict[Any, ServerView] = {}
        self._term = 0
        self._view = TopologyView({}, 0.015, source=Description(()))
        self._is_closed = False
        self._is_probing = False
        if not routers:
            replica_set.has_changed = self.hears_of
        for server in self._servers:
            self._learn(server)

    @property
    def servers(self) -> Sequence[Any]:
        """The members, or the routers in front of them."""
        return self._servers

    # What it knows.

    def view(self) -> TopologyView:
        """Return what is known."""
        if self._is_closed:
            raise InvalidOperation("Cannot use the client after close")
        return self._view

    def lost(self, server: ServerView) -> bool:
        """Tell whether a server is known to be another one by now."""
        return self._view.has_lost(server)

    def member_at(self, address: Any) -> Any:
        """Return the member, or router, at an address."""
        return next(one for one in self._servers if one.address == address)

    def lose(self, address: Any) -> None:
        """Take a server for none, until it is heard of again."""
        if self._known.pop(address, None) is not None:
            self._renew()
        self.later(self._random.uniform(0.002, 0.55), self._learn, self.member_at(address))

    def hears_of(self, member: Any) -> None:
        """Hear, sooner or later, that a server is another thing now, or hear no more of it."""
        if not member.is_up:
            for attempt in [*self.under_way]:
                if attempt.member is member:
                    attempt.connection_lost()
        self.later(self._random.choice([0.001, 0.01, 0.1, 0.5]), self._learn, member)

    def _learn(self, member: Member) -> None:
        if member.is_frozen:
            self.later(self._random.uniform(5, 20), self._miss, member)
            return
        known = self._known.get(member.address)
        is_primary = member.is_up and member.is_primary and member.term >= self._term
        if not is_primary:
            if known is not None:
                del self._known[member.address]
                self._renew()
            return
        if member.term > self._term:
            self._term = member.term
            self._known.clear()
        if known is None or known.topology_version != member.topology_version:
            self._known[member.address] = self._view_of(member)
            self._renew()

    def _miss(self, member: Member) -> None:
        if member.is_frozen:
            if self._known.pop(member.address, None) is not None:
                self._renew()
            self.later(self._random.uniform(0.5, 5), self._learn, member)
        else:
            self._learn(member)

    def _view_of(self, member: Member) -> ServerView:
        return ServerView(
            member.address,
            self._kind,
            self.wire_version,
            True,
            member.topology_version,
            0.002,
            LIMITS,
            lambda: sum(one.address == member.address for one in self.under_way),
            Description((member.address,)),
            30,
        )

    def _renew(self) -> None:
        self.changes += 1
        self._view = TopologyView(dict(self._known), 0.015, source=Description(self._known))

    # What it does.

    def later(self, seconds: float, call: Any, *args: Any) -> asyncio.TimerHandle:
        """Call something in nobody's context."""
        return self.loop.call_later(seconds, call, *args, context=contextvars.Context())

    def random_of_attempt(self) -> Random:
        """Return what decides of an attempt, whatever else happens in the run."""
        operation = OPERATION.get()
        self._made[operation] += 1
        return Random(f"{self._seed}/{operation}/{self._made[operation]}")

    def attempt(self, loop, call: AttemptCall, receiver: Receiver) -> bool:
        """Make an attempt, if there is a connection for it."""
        del loop
        if self._is_closed:
            raise InvalidOperation("Cannot use the client after close")
        address = call.server.address
        used = sum(one.address == address for one in self.under_way)
        if used >= self._size or self.opening[address] >= 2:
            return False
        attempt = Attempt(self, call, receiver)
        self.under_way.append(attempt)
        self._keep()
        call.carrier = attempt
        attempt.begin()
        return True

    def has_ended(self, attempt: Attempt) -> None:
        """Forget an attempt."""
        with contextlib.suppress(ValueError):
            self.under_way.remove(attempt)
            self._keep()

    def _keep(self) -> None:
        self.kept.append((self.loop.time(), [one.operation for one in self.under_way]))

    def abandon(self, call: AttemptCall) -> bool:
        """End an attempt without a result."""
        attempt: Attempt | None = call.carrier
        if attempt is None:
            return False
        attempt.abandon()
        call.carrier = None
        return True

    def time_out(self, call: AttemptCall) -> bool:
        """End an attempt with an error."""
        attempt: Attempt | None = call.carrier
        if attempt is None or call.command.may_block:
            return False
        attempt.time_out()
        return True

    def counts(self) -> ThreadCounts:
        """There are no threads."""
        return ThreadCounts(0, 0, 0, 0)

    def connections(self) -> Mapping[Any, ConnectionCounts]:
        """Return how many are used."""
        return {}

    def start_probing(self) -> None:
        """Look at all servers, and again and again."""
        if not self._is_probing:
            self._is_probing = True
            self._probe()

    def _probe(self) -> None:
        if self._is_probing and not self._is_closed:
            for member in self._servers:
                if not member.is_frozen:
                    self.later(self._random.uniform(0.001, 0.01), self._learn, member)
            self.later(ASKED_AGAIN, self._probe)

    def stop_probing(self) -> None:
        """Look as usual."""
        self._is_probing = False

    def new_id(self) -> bytes:
        """Return the id of a new session."""
        self._ids += 1
        return b"s%d" % self._ids

    def session(self) -> Session:
        """Lease a session."""
        return Session(self)

    def user_session(self, session: Any) -> Session:
        """Return a session of the user's."""
        return self.user_sessions[session]

    def session_of(self, session_id: Any) -> Session:
        """Return a session of a chosen id."""
        session = UserSession(self)
        session.id = bytes(session_id)
        return session  # its end is somebody else's, too

    def end_session(self, session_id: bytes) -> None:
        """Have the servers forget a session, later."""
        self.ended.add(session_id)
        self._set.sessions.pop(session_id, None)

    def abort(self, session: Any) -> Any:
        """There are no transactions."""
        raise NotImplementedError

    def add_label(self, error: BaseException, label: str) -> None:
        """Add a label to an error."""
        add: Any = getattr(error, "_add_error_label", None)
        if add is not None:
            add(label)

    def close(self) -> None:
        """Do nothing any more."""
        self._is_closed = True

    async def wait_closed(self) -> None:
        """There are no tasks."""


def _timeout(text: str) -> NetworkTimeout:
    return NetworkTimeout(text)


def _told(result: Any) -> str:
    match result:
        case Replied():
            return f"is answered {dict(result.reply)}"
        case Failed():
            return f"fails with {result.error!r}, sent={result.sent}"
        case _:
            return f"ends with {type(result).__name__}"
