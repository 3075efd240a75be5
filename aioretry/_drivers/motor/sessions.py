"""The user's sessions of a blocking client, and the transactions in them."""

import asyncio
import contextvars
import weakref
from contextvars import ContextVar
from typing import Any, TypeVar

from motor.motor_asyncio import AsyncIOMotorClientSession
from pymongo.errors import PyMongoError

from aioretry import deadlines
from aioretry._drivers.engine import transactions
from aioretry._drivers.engine.transactions import keep_apart, like
from aioretry._drivers.transaction_runs import Runs

_is_retry: ContextVar[bool] = ContextVar("aioretry_is_retry", default=False)
"""Whether a commit or abort was sent already, in its context."""

S = TypeVar("S", bound=AsyncIOMotorClientSession)


def runs_of(session: AsyncIOMotorClientSession) -> Runs:
    """Return the runs of a session's transactions, which whatever is sent in it belongs to."""
    delegate: Any = session.delegate
    runs = transactions.runs_of(delegate)
    if runs is None:
        runs = Runs()
        _keep_apart(delegate, runs)
    return runs


def renewed(session: S) -> S:
    """Return another session of the same options and times, in which nothing is in progress."""
    return type(session)(like(session.delegate), session.client)


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
    new = like(old)
    _keep_apart(new, runs_of(session))
    session.delegate = new
    return old


def _keep_apart(session: Any, runs: Runs) -> None:
    keep_apart(session, runs)
    finishing = _Finishing(session)
    session._finish_transaction_with_retry = finishing.with_retry
    session._finish_transaction = finishing.once


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


def has_pending(session: AsyncIOMotorClientSession) -> bool:
    """Tell whether a command of it is under way."""
    delegate: Any = session.delegate
    return bool(delegate._air.is_pending)


def has_begun_transaction(session: AsyncIOMotorClientSession) -> bool:
    """Tell whether a transaction is in progress of which the server may know."""
    delegate: Any = session.delegate
    return delegate.in_transaction and not delegate._starting_transaction


def commit(session: AsyncIOMotorClientSession) -> asyncio.Future[None]:
    """Commit, on a thread that goes on whoever waits for that."""
    committed: Any = AsyncIOMotorClientSession.commit_transaction(session)  # typed as a coroutine
    return committed  # type: ignore[no-any-return]


def abort(session: AsyncIOMotorClientSession) -> asyncio.Future[None]:
    """Abort, on a thread that goes on whoever waits for that."""
    aborted: Any = AsyncIOMotorClientSession.abort_transaction(session)
    return aborted  # type: ignore[no-any-return]


def end(session: Any) -> None:
    """End a session in which nothing is in progress; nothing is sent."""
    getattr(session, "delegate", session).end_session()
