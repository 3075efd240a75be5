"""The port to a driver: what the rooms above need of it, as protocols and plain values."""

import asyncio
import enum
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import anyio
from bson.binary import Binary
from pymongo.write_concern import WriteConcern

from aioretry._commands.command import Command, CommandLimits, Reading
from aioretry._drivers.transaction_runs import Runs
from aioretry.deadlines import Deadline

T = TypeVar("T")
if TYPE_CHECKING:  # checkers know it without that package
    from typing_extensions import TypeVar as WithDefault

    DocumentT = WithDefault("DocumentT", bound=Mapping[str, Any], default=dict[str, Any])
else:
    DocumentT = TypeVar("DocumentT", bound=Mapping[str, Any])

Address: TypeAlias = tuple[str, int | None]

DOUBT_AFTER = 3.0
"""How long a server may be silent, in seconds. A busy one takes some tenths for an answer over an
open connection; the default election timeout is 10, and a cable that is back after 2 is no loss."""


_FIRST_RETRYING_WIRE_VERSION = 6  # MongoDB 3.6


@dataclass(frozen=True, slots=True)
class Policy:
    """What the client's options say about attempts."""

    retry_writes: bool = True
    retry_reads: bool = True
    max_adaptive_retries: int = 2
    overload_retargeting: bool = False
    wait_queue_timeout: float | None = None
    """How long one may wait for a connection, in seconds; None sets no limit."""


class ServerKind(enum.Enum):
    """What a server that takes writes is."""

    STANDALONE = enum.auto()
    PRIMARY = enum.auto()
    MONGOS = enum.auto()
    LOAD_BALANCER = enum.auto()
    OTHER = enum.auto()


@dataclass(frozen=True, slots=True)
class ServerView:
    """What the driver knew of a server at one moment."""

    address: Address
    kind: ServerKind
    max_wire_version: int
    has_sessions: bool
    topology_version: tuple[object, int] | None
    """Process id and counter, as the server last reported them."""

    round_trip_time: float
    """The average time of a heartbeat, in seconds."""

    limits: CommandLimits
    operation_count: Callable[[], int] = field(repr=False, compare=False)
    """Returns how many operations are using or awaiting its connections now."""

    source: object = field(repr=False)
    """The driver's description; another object means that the driver heard from the server."""

    session_minutes: int | None = None
    """How long the server remembers a session that is not used, in minutes, if that is known."""

    hosts: Collection[Address] = ()
    """The members of its replica set, as it names them itself."""

    @property
    def can_retry_writes(self) -> bool:
        """Whether it takes transaction ids (retryable-writes, "Supported Server Versions")."""
        match self.kind:
            case ServerKind.LOAD_BALANCER:
                return True
            case ServerKind.PRIMARY | ServerKind.MONGOS:
                return self.has_sessions and self.max_wire_version >= _FIRST_RETRYING_WIRE_VERSION
            case _:
                return False


@dataclass(frozen=True, slots=True)
class TopologyView:
    """What the driver knew of a deployment at one moment."""

    writable: Mapping[Address, ServerView]
    """The servers that a write may go to."""

    latency_window: float
    """How much slower than the fastest a server may be to be chosen, in seconds."""

    source: object = field(repr=False)
    """What the driver knows it by; its ``repr`` tells the whole story in an error message."""

    readable: Callable[[Any], Mapping[Address, ServerView]] | None = field(
        default=None, repr=False, compare=False
    )
    """Returns the servers that a read preference allows, where that makes a difference."""

    def servers_for(self, reading: Reading | None) -> Mapping[Address, ServerView]:
        """Return the servers that a command may go to.

        Args:
            reading: How it reads; None if it writes.
        """
        if reading is None or reading.is_of_primary or self.readable is None:
            return self.writable
        return self.readable(reading.preference)

    @property
    def takers(self) -> Collection[Address]:
        """The servers that have said themselves that they take writes.

        A direct connection goes to whatever server it is given, and nobody asks a load balancer.
        """
        return [
            server.address
            for server in self.writable.values()
            if server.kind not in {ServerKind.OTHER, ServerKind.LOAD_BALANCER}
        ]

    def has_lost(self, server: ServerView) -> bool:
        """Tell whether a server takes no more writes as the one that it was."""
        known = self.writable.get(server.address)
        if known is None:
            return True
        if known.topology_version is None or server.topology_version is None:
            return False
        return known.topology_version[0] != server.topology_version[0]


@dataclass(slots=True)
class Replied:
    """The server has answered."""

    reply: Mapping[str, Any]


@dataclass(slots=True)
class Failed:
    """The attempt has met an error, of the server's or of the way to it."""

    error: Exception
    sent: bool
    """Whether the command may have reached the server."""

    is_server_well: bool = False
    """Whether the connection broke, but its server has answered after that as the one it was.

    So it is as well if the time was over before it could answer.
    """


@dataclass(slots=True)
class NoServer:
    """Nothing was tried: there is no server that takes writes, or it was lost just then."""


@dataclass(slots=True)
class NoRoom:
    """Nothing was tried: the server has no connection for it now, others may have one."""


@dataclass(slots=True)
class Unprepared:
    """Nothing was tried: what was to be sent could not be made."""

    reason: Exception


@dataclass(slots=True)
class Expired:
    """Nothing was tried, or the attempt outlived the deadline and was left behind."""


NotTried: TypeAlias = NoServer | NoRoom | Unprepared | Expired
AttemptResult: TypeAlias = Replied | Failed | NotTried
"""What came of an attempt."""


class Token:
    """Who came first: the sending of a command, or the decision not to send it.

    Shared by the event loop and the thread that makes the attempt, if one does. Once it is
    *sending* it can't be revoked, and once it is *revoked* nothing is sent.
    """

    __slots__ = ("_decided", "is_sending")

    def __init__(self) -> None:
        self._decided = threading.Lock()
        self.is_sending: bool = False

    def begin_sending(self) -> bool:
        """Turn to *sending*; return False if it was decided before."""
        if not self._decided.acquire(blocking=False):
            return False
        self.is_sending = True
        return True

    def revoke(self) -> bool:
        """Turn to *revoked*; return False if it was decided before."""
        return self._decided.acquire(blocking=False)

    @property
    def is_revoked(self) -> bool:
        """Whether nothing will be sent; for whoever would send it."""
        return self._decided.locked() and not self.is_sending


class ServerSession(Protocol):
    """A session of the server, held by an operation."""

    def next_number(self) -> int:
        """Take the next transaction number from the session's own counter."""
        ...

    def latest_number(self) -> int:
        """Return the number that was taken last.

        Raises:
            InvalidOperation: The session was ended.
        """
        ...

    def open(self, *, has_sessions: bool) -> Any:
        """Return a session object of the driver over it, for one attempt.

        None if it is an implicit one and the server has no sessions.
        """
        ...

    def close(self, *, discard: bool) -> None:
        """Give it back to the driver, which pools it unless it is to be discarded.

        One that is discarded can still be used, and be given back later after all; it is ended when
        nobody holds it any more.
        """
        ...


class TransactionSession(ServerSession, Protocol):
    """The session of a transaction."""

    @property
    def has_begun(self) -> bool:
        """Whether a server may know of the transaction."""
        ...

    @property
    def pinned(self) -> Address | None:
        """The router that alone knows the transaction; None if any server will do."""
        ...

    def pin(self, address: Address) -> None:
        """Have all that comes in the transaction go to a router."""
        ...

    def unpin(self) -> None:
        """Have what comes next go to any."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """What is to be known of a transaction."""

    read_preference: Any
    """PyMongo's; where another than the primary is asked for, reads are refused."""

    write_concern: WriteConcern
    max_commit_time_ms: int | None
    """How long a commit may take on the server, in milliseconds; None sets no limit."""

    recovery_token: Mapping[str, Any] | None
    """What routers know it by; None where there are none."""

    router: Address | None = None
    """The router that alone knows it, also where it is pinned no more; None where any will do."""


class HeldSession(Protocol):
    """An operation's hold on a server session, which begins with its first attempt."""

    turn: anyio.Lock | None
    """Held by the command that uses a session which others may use at the same time."""

    @property
    def session(self) -> ServerSession | None:
        """The session, also after the end of the lease; None if no attempt has needed it."""
        ...

    def carry(self) -> ServerSession:
        """Take part in the hold for one attempt; called by whoever makes it."""
        ...

    def drop(self) -> None:
        """End taking part."""
        ...


class TransactionNumber(Protocol):
    """The transaction number of one command, the same on every attempt."""

    def take(self, session: ServerSession) -> int:
        """Return it, taking it from the session's counter the first time."""
        ...


@dataclass(frozen=True, slots=True)
class ThreadCounts:
    """How the threads that carry a client's attempts are doing."""

    threads: int
    """How many threads there are."""

    idle: int
    """How many of them have nothing to do."""

    queued: int
    """How many attempts wait for their turn, for a connection or for a thread."""

    abandoned: int
    """How many threads carry an attempt that was given up because its server was deposed."""

    def __add__(self, other: "ThreadCounts") -> "ThreadCounts":
        return ThreadCounts(
            self.threads + other.threads,
            self.idle + other.idle,
            self.queued + other.queued,
            self.abandoned + other.abandoned,
        )


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """How many connections to one server a client's pool has."""

    used: int
    """How many carry something now, or are being opened."""

    idle: int
    """How many are open and have nothing to do."""

    most: int = 0
    """How many there may be; 0 if there is no limit."""


@dataclass(frozen=True, slots=True)
class Sending:
    """A command on its way."""

    body: Mapping[str, Any]
    """The command, with what its session adds once it is sent."""

    connection_id: int
    """What the driver knows its connection by."""

    server_connection_id: int | None
    """What the server knows it by."""

    at: float
    """When there was a connection for it, in seconds of the event loop's clock."""


@dataclass(slots=True)
class AttemptCall:
    """One attempt to be made: what is sent where."""

    command: Command[Any]
    lease: HeldSession
    number: TransactionNumber
    server: ServerView
    may_have_transaction_id: bool
    """Whether it has a transaction id, unless it holds multi-document writes."""

    options: Mapping[str, Any]
    """What is sent beside the command's own fields."""

    deadline: Deadline | None
    operation_id: int
    """What those who are shown commands know the operation by."""

    leaves_doubt: bool = True
    """Whether somebody has to find out what became of it if it gets no answer."""

    is_watched: bool = False
    """Whether somebody is to know what is sent."""

    sending: Sending | None = None
    """That, once it is known."""

    token: Token = field(default_factory=Token)
    is_waiting: bool = False
    """Whether it waits for the server now, so that it may be given up and made again."""

    carrier: Any = None
    """What the driver knows the attempt by."""

    @property
    def has_transaction_id(self) -> bool:
        """Whether the command carries a transaction id, once it is prepared."""
        return self.may_have_transaction_id and not self.command.holds_multi


class Receiver(Protocol):
    """Who waits for what comes of an attempt."""

    def land(self, result: AttemptResult) -> None:
        """Take it."""
        ...

    def make_way(self) -> None:
        """Let others try who found no room."""
        ...


class SessionCalls(Protocol):
    """What is asked of the sessions that users start, to run transactions in them."""

    def runs_of(self, session: Any) -> Runs:
        """Return the runs of a session's transactions, which whatever is sent in it belongs to."""
        ...

    def renewed(self, session: Any) -> Any:
        """Return another session of the same options and times, in which nothing is in progress."""
        ...

    def take_transaction(self, session: Any) -> Any:
        """Take a session's transaction away from it, and from whoever still writes in it.

        Returns:
            The driver's session that has the transaction, to be aborted; all that is asked here of
            a session can be asked of it, too.
        """
        ...

    def has_pending(self, session: Any) -> bool:
        """Tell whether a command of it is under way."""
        ...

    def latest(self, session: Any) -> Mapping[str, Any]:
        """Return the command of transactions that was made ready last in a session; {} if none."""
        ...

    def may_arrive(self, session: Any) -> bool:
        """Tell whether a command of it is under way, or was lost."""
        ...

    def has_begun_transaction(self, session: Any) -> bool:
        """Tell whether a transaction is in progress of which the server may know."""
        ...

    def transaction_options(self, session: Any) -> TransactionOptions:
        """Return what is to be known of a session's transaction."""
        ...

    def begin_commit(self, session: Any) -> object | None:
        """Have a session commit from now on.

        Returns:
            The transaction; None if it takes no command: nothing was sent in it.

        Raises:
            InvalidOperation: There is no transaction, or it was aborted, or the session was ended.
        """
        ...

    def begin_abort(self, session: Any) -> object | None:
        """Have a session abort from now on; returns and raises as :meth:`begin_commit`."""
        ...

    def keep_open(self, session: Any) -> None:
        """Have a session whose transaction is gone be in one, of which nothing is sent."""
        ...

    def end_commit(self, transaction: Any, *, unpin: bool) -> None:
        """Have a transaction be in progress no more, because it was committed, or may be.

        Args:
            transaction: The transaction.
            unpin: Whether it may be committed once more by another router.
        """
        ...

    def end_abort(self, transaction: Any) -> None:
        """Have a transaction be in progress no more, because it was aborted, or may be."""
        ...

    def drivers_commit(self, session: Any) -> asyncio.Future[None]:
        """Commit as the driver does."""
        ...

    def drivers_abort(self, session: Any) -> asyncio.Future[None]:
        """Abort as the driver does."""
        ...

    def end(self, session: Any) -> None:
        """End a session in which nothing is in progress; nothing is sent."""
        ...


class Driver(Protocol):
    """What the coordinator needs of a driver."""

    def view(self) -> TopologyView:
        """Return what is known of the deployment; no I/O, no lock.

        Raises:
            InvalidOperation: The client was closed.
        """
        ...

    def attempt(
        self, loop: asyncio.AbstractEventLoop, call: AttemptCall, receiver: Receiver
    ) -> bool:
        """Make an attempt, and tell its result in a later turn of the event loop.

        Returns:
            False if it has no room for it now: no connection to that server, and as many being
            opened as may be, or no thread. It tells when that may have changed: whenever an attempt
            lands, or makes way.

        Raises:
            InvalidOperation: The client was closed.
        """
        ...

    def abandon(self, call: AttemptCall) -> bool:
        """Have an attempt that is sending hold up nobody any more, and end soon.

        Returns:
            False if it must be waited for: it is ending, or too many were abandoned already.
        """
        ...

    def time_out(self, call: AttemptCall) -> bool:
        """End an attempt that is sending because its deadline is over.

        Returns:
            False if it ends by itself soon; True if its result was delivered.
        """
        ...

    def counts(self) -> ThreadCounts:
        """Return how the threads are doing that carry attempts."""
        ...

    def connections(self) -> Mapping[Address, ConnectionCounts]:
        """Return how many connections there are to each server."""
        ...

    def unattended(self) -> float | None:
        """Return for how many seconds no server was looked at, if the driver should have; or None.

        Raises:
            InvalidOperation: The client was closed.
        """
        ...

    def close(self) -> None:
        """Begin nothing more; what is under way may go on, and is not waited for."""
        ...

    def start_probing(self) -> None:
        """Make the driver look for a server, from now on and without waiting."""
        ...

    def stop_probing(self) -> None:
        """Let the driver look as it likes."""
        ...

    def session(self) -> ServerSession:
        """Lease a server session from the driver's pool; no I/O."""
        ...

    def user_session(self, session: object) -> ServerSession:
        """Return a server session that the user has started.

        Raises:
            TypeError: It is not a session.
            InvalidOperation: It is another client's session.
        """
        ...

    def transaction_session(self, session: object) -> TransactionSession:
        """Return the same for a statement of the transaction that is in progress on it."""
        ...

    def ending_session(self, session: object) -> TransactionSession:
        """Return a session of the transaction in progress on one, by which it can be ended.

        Whatever becomes of that one, the transaction can be ended by this one, also once more. One
        that is discarded is leased to nobody, and that one goes on with another server session when
        something else begins in it. It may be given back after all.
        """
        ...

    def session_of(self, session_id: Binary) -> ServerSession:
        """Return a server session of a chosen id, which is never pooled; no I/O.

        Args:
            session_id: A UUID of version 4, of binary subtype 4.
        """
        ...

    def discard(self, session: Any, *, is_over: bool) -> None:
        """End a session of the driver's that was taken for its transaction.

        Args:
            session: The session.
            is_over: Whether the transaction was ended; else its end takes the transaction with it.
        """
        ...

    def add_label(self, error: BaseException, label: str) -> None:
        """Add a label to an error of the driver, so that ``has_error_label()`` tells it."""
        ...
