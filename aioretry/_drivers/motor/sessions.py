"""Sessions of PyMongo's, leased and of the user's."""

import contextlib
import contextvars
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import pymongo
from bson.binary import Binary
from bson.int64 import Int64
from motor.motor_asyncio import AsyncIOMotorClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import InvalidOperation, PyMongoError
from pymongo.lock import _create_lock
from pymongo.read_preferences import ReadPreference

from aioretry import deadlines
from aioretry._drivers.motor.ending import SessionEnding
from aioretry._drivers.port import ServerSession
from aioretry._drivers.transaction_runs import Runs

_is_retry: ContextVar[bool] = ContextVar("aioretry_is_retry", default=False)
"""Whether a commit or abort was sent already, in its context."""

S = TypeVar("S", bound=AsyncIOMotorClientSession)


def user_session(delegate: pymongo.MongoClient[Any], session: object) -> ServerSession:
    """Return a session that the user started, for the ``lsid`` and the counter that it has.

    Raises:
        TypeError: It is not a session.
        InvalidOperation: It is another client's session.
    """
    own = session.delegate if isinstance(session, AsyncIOMotorClientSession) else session
    if not isinstance(own, ClientSession):
        raise TypeError(
            "session must be what `await client.start_session()` returned, "
            f"not {type(session).__name__}"
        )
    if own.client is not delegate:
        raise InvalidOperation("Can only use session with the MongoClient that started it")
    return _UserSession(own)


def runs_of(session: AsyncIOMotorClientSession) -> Runs:
    """Return the runs of a session's transactions, which whatever is sent in it belongs to."""
    delegate: Any = session.delegate
    stamp = vars(delegate).get("_apply_to")
    if not isinstance(stamp, _Guarded):
        runs = Runs()
        _keep_apart(delegate, runs)
        return runs
    return stamp.runs


def renewed(session: S) -> S:
    """Return another session of the same options and times, in which nothing is in progress."""
    return type(session)(_like(session.delegate), session.client)


def take_transaction(session: AsyncIOMotorClientSession) -> Any:
    """Take a session's transaction away from it, and from whoever still writes in it.

    A cancelled operation goes on in its thread. Once PyMongo's session says that the transaction is
    aborted, such an operation is sent *outside* of it, and applied. So this one never says so: the
    user's session goes on with another one.

    Args:
        session: The user's session, with a transaction in progress.

    Returns:
        PyMongo's session that has the transaction, to be aborted.
    """
    old: Any = session.delegate
    new = _like(old)
    _keep_apart(new, runs_of(session))
    session.delegate = new
    return old


class _Air:
    """The commands of a session that were made ready and not answered; lost ones stay in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[int, list[Any]] = {}  # by the thread, which hears the answer

    def add(self, connection: Any) -> None:
        """Note one that is about to be sent by this thread."""
        with self._lock:
            self._connections.setdefault(threading.get_ident(), []).append(connection)

    def remove(self) -> None:
        """Note that the latest one of this thread was answered."""
        with self._lock:
            mine = self._connections.get(threading.get_ident())
            if mine:
                mine.pop()

    @property
    def is_pending(self) -> bool:
        """Whether one waits for its answer, or is about to be sent."""
        return any(one.active and not one.closed for one in self._all())

    @property
    def has_lost(self) -> bool:
        """Whether the connection of one broke, or was closed since it could not be encoded."""
        return any(one.closed for one in self._all())

    def _all(self) -> list[Any]:
        with self._lock:
            return [one for each in self._connections.values() for one in each]


class _Guarded:
    """A method of a session, or of its transaction, that is for runs that have not ended."""

    def __init__(self, owner: Any, method: Callable[..., None], runs: Runs) -> None:
        self.runs = runs
        self._owner = weakref.ref(owner)  # which has this one
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        with self.runs.sending():
            self._method(self._owner(), *args, **kwargs)


class _Stamp(_Guarded):
    """What adds a session to a command."""

    def __call__(
        self, command: Any, is_retryable: bool, read_preference: Any, connection: Any
    ) -> None:
        # A connection that was opened while its server changed its state believes for good that
        # there are no sessions, and PyMongo would refuse every transaction over it. If the driver
        # has just lost the server, the server itself is to answer.
        session: Any = self._owner()
        servers = session.client.topology_description.server_descriptions()
        server = servers.get(connection.address)
        if (
            server is None
            or not server.is_server_type_known
            or server.logical_session_timeout_minutes is not None
        ):
            connection.supports_sessions = True
        super().__call__(command, is_retryable, read_preference, connection)
        session._air.add(connection)


def _keep_apart(session: Any, runs: Runs) -> None:
    # The places that everything passes: where it is forgotten how the last transaction has ended,
    # where a number is taken, and where a command gets its session. Threads decide long before
    # whether they are in a transaction.
    kind, transaction = type(session), session._transaction
    session._air = _Air()
    session._process_response = _Hearing(session)
    session._apply_to = _Stamp(session, kind._apply_to, runs)
    session._start_retryable_write = _Guarded(session, kind._start_retryable_write, runs)
    transaction.reset = _Guarded(transaction, type(transaction).reset, runs)
    finishing = _Finishing(session)
    session._finish_transaction_with_retry = finishing.with_retry
    session._finish_transaction = finishing.once


class _Hearing:
    """What a session learns from a reply."""

    def __init__(self, session: Any) -> None:
        self._session = weakref.ref(session)  # which has this one

    def __call__(self, reply: Mapping[str, Any]) -> None:
        session: Any = self._session()
        session._air.remove()
        type(session)._process_response(session, reply)


class _Finishing:
    """How a session commits or aborts: with one retry, under a deadline too.

    There PyMongo would go on without a pause until time is over.
    """

    def __init__(self, session: Any) -> None:
        self._session = weakref.ref(session)  # which has this one
        self._kind = type(session)

    def with_retry(self, command: str) -> Any:
        """Commit or abort, in a context of its own."""
        finish = self._kind._finish_transaction_with_retry
        return contextvars.copy_context().run(finish, self._session(), command)

    def once(self, connection: Any, command: str) -> Any:
        """Send the command."""
        is_retry = _is_retry.get()
        _is_retry.set(True)
        try:
            return self._kind._finish_transaction(self._session(), connection, command)
        except PyMongoError:
            if is_retry:
                deadlines.end_timeout()
            raise


def _like(session: Any) -> Any:
    options = session.options
    new = session.client.start_session(
        causal_consistency=options.causal_consistency,
        default_transaction_options=options.default_transaction_options,
    )
    if session.cluster_time is not None:
        new.advance_cluster_time(session.cluster_time)
    if session.operation_time is not None:
        new.advance_operation_time(session.operation_time)
    return new


def has_pending(session: AsyncIOMotorClientSession) -> bool:
    """Tell whether a command of it is under way."""
    delegate: Any = session.delegate
    return bool(delegate._air.is_pending)


def has_begun_transaction(session: AsyncIOMotorClientSession) -> bool:
    """Tell whether a transaction is in progress of which the server may know."""
    delegate: Any = session.delegate
    return delegate.in_transaction and not delegate._starting_transaction


class LoopSession(Protocol):
    """What an attempt on the event loop needs of a session."""

    def stamp(self, body: dict[str, Any], connection: Any, *, has_sessions: bool) -> None:
        """Add to a command what a session adds to it.

        Args:
            body: The command.
            connection: PyMongo's connection that it is sent over.
            has_sessions: Whether the server has sessions.

        Raises:
            InvalidOperation: The session was ended, or is in a transaction.
        """
        ...

    def hear(self, reply: Mapping[str, Any]) -> None:
        """Learn from a reply."""
        ...

    def mark_dirty(self) -> None:
        """Have PyMongo not pool it."""
        ...


class _UserSession:
    """A session that the user started: its ``lsid`` and its counter, and nothing is given back."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def next_number(self) -> int:
        """Take the next transaction number of the user's session."""
        with _numbers:  # a user may share a session between tasks
            server_session = _server_session(self._session)
            session: Any = self._session
            session._start_retryable_write()
            return int(server_session.transaction_id)

    def latest_number(self) -> int:
        """Return the one that was taken last."""
        return int(_server_session(self._session).transaction_id)

    def open(self, *, has_sessions: bool) -> ClientSession:
        """Return the user's session, so that its times advance."""
        del has_sessions  # PyMongo says what is wrong
        if self._session.in_transaction:
            # PyMongo would make the write a part of it, where a retry is executed twice.
            raise InvalidOperation(
                "a transaction was started on the session before this write over it was sent"
            )
        # Nothing more can be done about one that has ended (transactions, "ClientSession changes").
        session: Any = self._session
        session._transaction.reset()
        return self._session

    def stamp(self, body: dict[str, Any], connection: Any, *, has_sessions: bool) -> None:
        """Add to a command what a session adds to it."""
        session: Any = self.open(has_sessions=has_sessions)
        session._apply_to(body, False, ReadPreference.PRIMARY, connection)
        connection.send_cluster_time(body, session, session.client)

    def hear(self, reply: Mapping[str, Any]) -> None:
        """Advance the session's times."""
        session: Any = self._session
        session._process_response(reply)

    def mark_dirty(self) -> None:
        """Have it not pooled."""
        with contextlib.suppress(InvalidOperation):  # the user has ended it
            _server_session(self._session).mark_dirty()

    def close(self, *, discard: bool) -> None:
        """Leave it to the user; when it is ended later, it is pooled only if it is not in doubt."""
        if discard:
            self.mark_dirty()


class ImplicitSession:
    """A session from PyMongo's pool.

    Args:
        delegate: The client.
        ending: Ends it if it does not go back there; None if its end is somebody else's.
    """

    __slots__ = ("__weakref__", "_delegate", "_ending", "_is_kept", "_server_session")

    def __init__(
        self, delegate: pymongo.MongoClient[Any], ending: SessionEnding | None = None
    ) -> None:
        self._delegate: Any = delegate
        self._ending = ending
        self._is_kept = False
        self._server_session: Any = None

    def next_number(self) -> int:
        server_session = self._server_session or self._leased()
        server_session.inc_transaction_id()
        return int(server_session.transaction_id)

    def latest_number(self) -> int:
        return int(self._server_session.transaction_id)

    def open(self, *, has_sessions: bool) -> ClientSession | None:
        if not has_sessions:
            return None
        # ClientSession objects are not thread-safe, and an attempt that was left behind still has
        # its own: every one gets another object over the same server session.
        session = self._delegate.start_session(causal_consistency=False)
        session._server_session = self._leased()
        return session  # type: ignore[no-any-return]

    def stamp(self, body: dict[str, Any], connection: Any, *, has_sessions: bool) -> None:
        if has_sessions:
            server_session = self._server_session or self._leased()
            server_session.last_use = time.monotonic()
            body["lsid"] = server_session.session_id
        connection.send_cluster_time(body, None, self._delegate)

    def hear(self, reply: Mapping[str, Any]) -> None:
        pass  # nobody reads over it

    def mark_dirty(self) -> None:
        if self._server_session is not None:
            self._server_session.mark_dirty()

    def close(self, *, discard: bool) -> None:
        server_session = self._server_session
        if server_session is None or self._ending is None:
            return
        if self._is_kept:
            self._ending.let_go(server_session)
        self._is_kept = discard or server_session.dirty
        if self._is_kept:
            # Not pooled, but kept: the command may be sent once more.
            self._ending.keep(self, server_session)
        else:
            self._delegate._return_server_session(server_session)

    def _leased(self) -> Any:
        if self._server_session is None:
            topology = self._delegate._get_topology()
            minutes = topology.description.logical_session_timeout_minutes
            self._server_session = topology.get_server_session(minutes)
        return self._server_session


class _ChosenServerSession:
    """What PyMongo's session objects need of a server session, with an id that was chosen."""

    def __init__(self, session_id: Binary) -> None:
        self.session_id = {"id": session_id}
        self.last_use = time.monotonic()
        self.transaction_id = Int64(0)
        self.dirty = False
        self.generation = 0

    def inc_transaction_id(self) -> None:
        """Take the next number."""
        self.transaction_id = Int64(self.transaction_id + 1)

    def mark_dirty(self) -> None:
        """Note that a command over it may still run."""
        self.dirty = True

    def timed_out(self, session_timeout_minutes: int | None) -> bool:
        """Return that it can be used: it is not kept for long."""
        del session_timeout_minutes
        return False


class ChosenSession(ImplicitSession):
    """A session of a chosen id, by which a server recognises what another process has sent.

    It is never pooled: a later write over it would be taken for a repetition, or make the server
    forget what is to be recognised.
    """

    def __init__(self, delegate: pymongo.MongoClient[Any], session_id: Binary) -> None:
        super().__init__(delegate)
        self._session_id = session_id

    def _leased(self) -> Any:
        if self._server_session is None:
            self._server_session = _ChosenServerSession(self._session_id)
        return self._server_session


def _server_session(session: ClientSession) -> Any:
    session.session_id  # noqa: B018 - takes one from the pool if there is none yet
    server_session: Any = session
    return server_session._server_session


_numbers = _create_lock()  # whole again in a forked child
