"""The port to a driver, over the simulated replica set and a network that errs."""

import asyncio
import contextlib
import contextvars
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from bson.codec_options import CodecOptions
from bson.int64 import Int64
from pymongo import AsyncMongoClient
from pymongo.errors import AutoReconnect, InvalidOperation, NetworkTimeout, NotPrimaryError
from pymongo.helpers_shared import _check_command_response

from aioretry._commands.command import CommandLimits
from aioretry._commands.encoded import shown
from aioretry._drivers import motor, pymongo_async
from aioretry._drivers.engine.driver import EngineDriver
from aioretry._drivers.engine.ending import SessionEnding
from aioretry._drivers.engine.steps import preference_at
from aioretry._drivers.motor import encode_documents
from aioretry._drivers.motor.calls import BlockingCalls
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
from aioretry._drivers.pymongo_async.calls import AsyncioCalls
from tests.simulation.commands import Command
from tests.simulation.members import Member, Request
from tests.simulation.replica_set import ReplicaSet
from tests.simulation.routers import Router

WIRE_VERSIONS = {(4, 4): 9, (5, 0): 13, (6, 0): 17}
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
CONNECT_TIMEOUT = 20.0
OPENED_AT_ONCE = 2
"""How many connections to a server are opened at a time."""

ASKED_AGAIN = 0.05
PATIENCE = 0.25
NOTICED_WITHIN = 0.2
"""How long a server has to take writes for nobody to overlook it, in seconds."""

SILENT_FOR = 3.0
"""After how long a server is doubted that answers nobody, in seconds."""

VANISHED_FOR = 60.0
"""After how long a connection ends at the latest over which nothing comes any more, in seconds."""


NOTHING_WRITTEN = "NoWritesPerformed"  # some say so, some don't

_ERRORS = {"writeErrors", "writeConcernError"}
_HIDDEN = {"topologyVersion", "operationTime", "$clusterTime"}

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


class Line:
    """A connection, as far as a session has to know it."""

    active = True
    closed = False
    supports_sessions = True
    logical_session_timeout_minutes = None  # those that are pooled stay so

    def __init__(self, address: Any, wire_version: int) -> None:
        self.address = address
        self.max_wire_version = wire_version

    def send_cluster_time(self, command: Any, session: Any, client: Any) -> None:
        """Nobody needs it."""


class _OfTopology:
    """What is asked of a client whose topology nobody has opened."""

    delegate: Any

    def topology(self) -> Any:
        """Return what is needed of it."""
        topology = self.delegate._topology
        description = SimpleNamespace(logical_session_timeout_minutes=None)
        return SimpleNamespace(
            description=description, get_server_session=topology.get_server_session
        )


class _Blocking(_OfTopology, BlockingCalls):
    """Those of Motor's client."""


class _Coroutines(_OfTopology, AsyncioCalls):
    """Those of PyMongo's client of coroutines."""


class _Ending(SessionEnding):
    """Ends sessions that can't be used again, at once."""

    end: Callable[[bytes], None]

    def add(self, server_session: Any) -> None:
        """End one."""
        self._kept.pop(id(server_session), None)
        self.end(id_of(server_session))

    def _send(self) -> None:
        raise AssertionError("each was ended when it was added")


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
        self._line = Line(self.address, driver.wire_version)

    def begin(self) -> None:
        """Open a connection, or send at once."""
        driver, network = self._driver, self._driver.network
        if self.random.random() >= network.opening:
            self._send_or_land()
            return
        self.is_opening = True
        driver.opening[self.address] += 1
        driver.keep()
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
        if self._call.command.reading is None and self._driver.lost(self._call.server):
            self._land(NoServer())
        else:
            self._context.run(self._send_or_land)
        if receiver is not None:
            receiver.make_way()

    def _end_opening(self) -> None:
        if self.is_opening:
            self.is_opening = False
            self._driver.opening[self.address] -= 1
            self._driver.keep()

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
            body = self._body(session)
        except InvalidOperation as exc:
            return Failed(exc, sent=False)
        max_time = None
        if call.deadline is not None and call.deadline.is_limited:
            max_time = call.deadline.remaining() - call.server.round_trip_time
        if (max_time is not None and max_time < 0.001) or not call.token.begin_sending():
            session.take_back()
            return Expired()
        session.begin_sending()
        self._transmit(body, max_time)
        return None

    def _body(self, session: Any) -> dict[str, Any]:
        """Return the command, as the engine sends it."""
        call = self._call
        own = shown(call.command.body, CodecOptions(), is_sent=False)
        body: dict[str, Any] = {**own, **call.options}
        if call.has_transaction_id:
            body["txnNumber"] = Int64(call.number.take(session))
        call.is_waiting = True
        session.stamp(body, self._line, has_sessions=True)
        reading = call.command.reading
        if reading is not None:
            session.stamp_read(body, self._line, reading.concern)
            preference = preference_at(call)
            if preference.mode:
                body["$readPreference"] = preference.document
        return body

    def _transmit(self, body: dict[str, Any], max_time: float | None) -> None:
        concern: Mapping[str, Any] = body.get("writeConcern", {})
        command = Command(
            self._call.command.name, body, bytes(body["lsid"]["id"]), body.get("txnNumber")
        )
        self._request = request = Request(
            command,
            concern.get("w", "majority") == "majority",
            concern.get("wtimeout", 0) / 1000 or None,
            max_time,
            self._answered,
        )
        driver, network, draw = self._driver, self._driver.network, self.random.random()
        driver.has_sent(self.operation, command)
        session = driver.name_of(command.session)
        driver.note(
            f"op {self.operation} sends {command.name} {session}/{command.number} to {self.member}"
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
            driver.later(latency, self._receive_there, request)
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
        self._context.run(self._session.hear, reply)
        reply = {name: value for name, value in reply.items() if name not in _HIDDEN}
        try:
            _check_command_response(reply, driver.wire_version)
        except Exception as exc:  # noqa: BLE001 - told by the write
            if isinstance(exc, NotPrimaryError):
                driver.lose(self.address)
            self._land(Failed(exc, sent=True))
        else:
            concern = reply.get("writeConcernError") or {}
            if concern.get("code") in {189, 11602, 91, 10107} and not driver.has_routers:
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

    @property
    def reads_in_vain(self) -> bool:
        """Whether a read waits for a server that answers nobody."""
        is_sent = self._request is not None and self._call.command.reading is not None
        return is_sent and self.member.is_frozen

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
        self._line.closed = True
        if self._session is not None:
            self._session.mark_dirty()

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
        self._line.active = False
        self._end_opening()
        self._driver.has_ended(self)
        if self._session is not None:
            self._call.lease.drop()
            self._session = None
        self._call.carrier = None
        del self._call  # what comes late has its attempt, which then keeps no session

    def _land(self, result: Any) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        self._close()
        self._driver.note(f"op {self.operation} {_told(result)}")
        if isinstance(result, Replied) and result.reply.keys().isdisjoint(_ERRORS):
            self._driver.has_answered(self.operation, self._request.command)
        self._context.run(receiver.land, result)


class Kept(NamedTuple):
    """Who keeps others from being sent, from some time on."""

    at: float
    """When that begins, in seconds."""

    operations: Sequence[int] = ()
    """Of which operations attempts are under way."""

    is_shut: bool = False
    """Whether as many connections as may be are being opened to each server that takes writes."""


class SimulatedDriver(EngineDriver):
    """The port, with the engine's own sessions over PyMongo's.

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
        self.opening: Counter[Any] = Counter()
        self.under_way: list[Attempt] = []
        self.changes = 0
        """How often it was heard that a server is another thing now."""

        self.wire_version = WIRE_VERSIONS[replica_set.version]
        self._servers: list[Any] = [*routers] or [*replica_set.members]
        self._kind = ServerKind.MONGOS if routers else ServerKind.PRIMARY
        self.has_routers = bool(routers)
        self.ended: set[bytes | None] = set()
        """The sessions that servers were told to forget; what arrives late may begin them again.

        Of those that users had, and that PyMongo does not pool, nobody tells them.
        """

        self._set = replica_set
        self._random = random
        self._seed = seed
        self._size = size
        self._names: dict[bytes | None, str] = {}
        self._made: Counter[int] = Counter()
        self.faults = 0
        """How many messages and connections something has happened to."""

        self.has_begun: Callable[[], None] = lambda: None
        """Told of each attempt, also of those that send nothing."""

        self.has_sent: Callable[[int, Command], None] = lambda *_: None
        """Told the operation and the command whenever one is sent."""

        self.has_answered: Callable[[int, Command], None] = lambda *_: None
        """Told of each command that was executed well, with its operation, when the answer came."""

        self.kept = [Kept(0.0)]
        """Who has kept others from being sent, oldest first."""

        self.seen_until = -math.inf
        """Until when a server that takes writes was known last, if that was for long enough to be
        noticed, in seconds."""

        self._seen_since = 0.0
        self._known: dict[Any, ServerView] = {}
        self._others: dict[Any, ServerView] = {}
        self._term = 0
        self._view = TopologyView({}, 0.015, source=Description(()))
        self._is_closed = False
        self._is_probing = False
        if not routers:
            replica_set.has_changed = self.hears_of
            replica_set.has_frozen = self.doubts
        for server in self._servers:
            self._learn(server)

    def of(self, client: Any, *_: Any, **__: Any) -> "SimulatedDriver":
        """Be the driver of a client of PyMongo's."""
        has_coroutines = isinstance(client, AsyncMongoClient)
        self._calls = _Coroutines(client) if has_coroutines else _Blocking(client)
        calls = pymongo_async.session_calls if has_coroutines else motor.session_calls
        self._own_of = calls.own
        self._ending = ending = _Ending(self._calls)
        ending.end = self.end_session
        client._topology.pop_all_sessions = list  # nobody is told when it is closed
        client._topology.return_server_session = self._take_back
        return self

    def _own(self, session: object) -> Any:
        return self._own_of(session)

    # What the engine makes of these, sockets and threads, is simulated here as a whole.

    def _room(self, loop: Any) -> Any: ...

    def _close_own(self) -> None: ...

    def _can_use(self, loop: Any) -> bool:
        return True

    def _take_back(self, server_session: Any) -> None:
        if server_session.dirty:
            self.ended.add(id_of(server_session))
        self._calls.delegate._topology._session_pool.return_server_session(server_session)

    @property
    def pooled(self) -> set[bytes]:
        """The sessions that nobody uses now."""
        return {id_of(one) for one in self._calls.delegate._topology._session_pool}

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
        self._lacks(address)
        self.later(self._random.uniform(0.002, 0.55), self._learn, self.member_at(address))

    def _lacks(self, address: Any) -> None:
        known = self._known.pop(address, None), self._others.pop(address, None)
        if any(known):
            self._renew()

    def doubts(self, server: Any) -> None:
        """Find out after a while that a server answers nobody, if somebody reads there."""
        self.later(SILENT_FOR + self._random.random(), self._find_silent, server)

    def _find_silent(self, server: Any) -> None:
        if not server.is_frozen:
            return
        for attempt in [*self.under_way]:
            if attempt.member is server and attempt.reads_in_vain:
                self.lose(server.address)
                attempt.connection_lost()
        self.doubts(server)

    def hears_of(self, member: Any) -> None:
        """Hear, sooner or later, that a server is another thing now, or hear no more of it."""
        if member.is_frozen:
            self.doubts(member)
        if not member.is_up:
            for attempt in [*self.under_way]:
                if attempt.member is member:
                    attempt.connection_lost()
        self.later(self._random.choice([0.001, 0.01, 0.1, 0.5]), self._learn, member)

    def _learn(self, member: Member) -> None:
        if member.is_frozen:
            self.later(self._random.uniform(5, 20), self._miss, member)
            return
        address, is_primary = member.address, member.is_primary and member.term >= self._term
        known = (self._known if is_primary else self._others).get(address)
        version = member.topology_version
        if member.is_up and known is not None and known.topology_version == version:
            return
        self._lacks(address)
        if not member.is_up:
            return
        if is_primary and member.term > self._term:
            self._term = member.term
            self._known.clear()
        (self._known if is_primary else self._others)[address] = self._view_of(member, is_primary)
        self._renew()

    def _miss(self, member: Member) -> None:
        if member.is_frozen:
            self._lacks(member.address)
            self.later(self._random.uniform(0.5, 5), self._learn, member)
        else:
            self._learn(member)

    def _view_of(self, member: Member, is_primary: bool) -> ServerView:
        return ServerView(
            member.address,
            self._kind if is_primary else ServerKind.OTHER,
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
        self.keep()
        known, others = {**self._known}, {**self._others}
        now = self.loop.time()
        if not self._view.writable:
            self._seen_since = now
        elif now - self._seen_since > NOTICED_WITHIN:
            self.seen_until = now
        by_mode = (known, known or others, others, others or known, {**known, **others})
        self._view = TopologyView(
            known,
            0.015,
            source=Description(known),
            readable=None if self.has_routers else lambda preference: by_mode[preference.mode],
        )

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
        if used >= self._size or self.opening[address] >= OPENED_AT_ONCE:
            return False
        self.has_begun()
        attempt = Attempt(self, call, receiver)
        self.under_way.append(attempt)
        self.keep()
        call.carrier = attempt
        attempt.begin()
        return True

    def has_ended(self, attempt: Attempt) -> None:
        """Forget an attempt."""
        with contextlib.suppress(ValueError):
            self.under_way.remove(attempt)
            self.keep()

    def keep(self) -> None:
        """Take note of who keeps others from being sent."""
        is_shut = all(self.opening[address] >= OPENED_AT_ONCE for address in self._known)
        operations = [one.operation for one in self.under_way]
        self.kept.append(Kept(self.loop.time(), operations, is_shut and bool(self._known)))

    def abandon(self, call: AttemptCall) -> bool:
        """End an attempt without a result."""
        attempt: Attempt | None = call.carrier
        if attempt is None:
            return False
        attempt.abandon()
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

    def name_of(self, session: bytes | None) -> str:
        """Return what a session is called in a trace."""
        return self._names.setdefault(session, f"s{len(self._names)}")

    def end_session(self, session_id: bytes) -> None:
        """Have the servers forget a session, later."""
        self.ended.add(session_id)
        self._set.end_sessions([session_id])

    def close(self) -> None:
        """Do nothing any more."""
        self._is_closed = True
        self._ending.close()

    async def wait_closed(self) -> None:
        """There are no tasks."""


def id_of(server_session: Any) -> bytes:
    """Return the id of a server session of PyMongo's."""
    return bytes(server_session.session_id["id"])


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
