"""The user's sessions of a blocking client, and the transactions in them."""

import contextvars
import threading
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from motor.motor_asyncio import AsyncIOMotorClientSession
from pymongo.errors import PyMongoError

from aioretry import deadlines
from aioretry._drivers.transaction_runs import Runs

_is_retry: ContextVar[bool] = ContextVar("aioretry_is_retry", default=False)
"""Whether a commit or abort was sent already, in its context."""

S = TypeVar("S", bound=AsyncIOMotorClientSession)


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
