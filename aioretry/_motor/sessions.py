"""Sessions of PyMongo's, leased and of the user's."""

import contextlib
from collections.abc import Callable
from typing import Any

import pymongo
from motor.motor_asyncio import AsyncIOMotorClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import InvalidOperation, PyMongoError
from pymongo.lock import _create_lock

from aioretry import _pymongo_timeout
from aioretry._driver import ServerSession


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


def abandon_transaction(session: AsyncIOMotorClientSession, timeout: float) -> Callable[[], None]:
    """Take a session's transaction away from it, and from whoever still writes in it.

    A cancelled operation goes on in its thread. Once PyMongo's session says that the transaction is
    aborted, such an operation is sent *outside* of it, and applied. So this one never says so: the
    user's session goes on with another one, and the old one is closed for good.

    Args:
        session: The user's session, with a transaction in progress.
        timeout: How long the abort may take, in seconds.

    Returns:
        What aborts the transaction; it blocks, and raises nothing.
    """
    old: Any = session.delegate
    options = old.options
    new = old.client.start_session(
        causal_consistency=options.causal_consistency,
        default_transaction_options=options.default_transaction_options,
    )
    if old.cluster_time is not None:
        new.advance_cluster_time(old.cluster_time)
    if old.operation_time is not None:
        new.advance_operation_time(old.operation_time)
    session.delegate = new

    def abort() -> None:
        with contextlib.suppress(PyMongoError), _pymongo_timeout.fresh(timeout):
            if not old._starting_transaction:
                old._finish_transaction_with_retry("abortTransaction")
        # Dropped, not pooled: what is on its way may still reach the server under its id.
        old._server_session = None
        old._unpin()

    return abort


class _UserSession:
    """A session that the user started: its ``lsid`` and its counter, and nothing is given back."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def next_number(self) -> int:
        """Take the next transaction number of the user's session."""
        return _next_number(self._session)

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
        return self._session

    def close(self, *, discard: bool) -> None:
        """Leave it to the user; when it is ended later, it is pooled only if it is not in doubt."""
        if discard:
            with contextlib.suppress(InvalidOperation):  # the user has ended it
                _server_session(self._session).mark_dirty()


class ImplicitSession:
    """A session from PyMongo's pool."""

    def __init__(self, delegate: pymongo.MongoClient[Any]) -> None:
        self._delegate = delegate
        self._first = delegate.start_session(causal_consistency=False)
        self._server_session: Any = None

    def next_number(self) -> int:
        return _next_number(self._first)

    def latest_number(self) -> int:
        return int(self._server_session.transaction_id)

    def open(self, *, has_sessions: bool) -> ClientSession | None:
        if not has_sessions:
            return None
        # ClientSession objects are not thread-safe, and an attempt that was left behind still has
        # its own: every further one gets another object over the same server session.
        if self._server_session is None:
            self._server_session = _server_session(self._first)
            return self._first
        sibling: Any = self._delegate.start_session(causal_consistency=False)
        sibling._server_session = self._server_session
        return sibling  # type: ignore[no-any-return]

    def close(self, *, discard: bool) -> None:
        if discard and self._server_session is not None:
            # Not pooled, but kept: the command may be sent once more.
            self._server_session.mark_dirty()
            return
        with contextlib.suppress(InvalidOperation):  # the client was closed
            self._first.end_session()


def _server_session(session: ClientSession) -> Any:
    session.session_id  # noqa: B018 - takes one from the pool if there is none yet
    server_session: Any = session
    return server_session._server_session


def _next_number(session: ClientSession) -> int:
    with _numbers:  # a user may share a session between tasks
        server_session = _server_session(session)
        server_session.inc_transaction_id()
        return int(server_session.transaction_id)


_numbers = _create_lock()  # whole again in a forked child  # whole again in a forked child
