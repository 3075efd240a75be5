"""The user's sessions of an asynchronous client, and the transactions in them."""

import asyncio
import weakref
from contextvars import ContextVar
from typing import Any, TypeVar

from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from aioretry import deadlines
from aioretry._drivers.engine import transactions
from aioretry._drivers.engine.transactions import Air, keep_apart, like
from aioretry._drivers.transaction_runs import Runs

_is_retry: ContextVar[bool] = ContextVar("aioretry_is_retry", default=False)
"""Whether a commit or abort was sent already, in its context."""

S = TypeVar("S", bound=AsyncClientSession)


def bound_session(client: AsyncMongoClient[Any]) -> Any:
    """Return the session that ``session.bind()`` has made the one of this context, or None."""
    return client._get_bound_session()


def new_session(kind: type[S], client: AsyncMongoClient[Any], options: dict[str, Any]) -> S:
    """Return a session that a user starts, which has no server session yet.

    Args:
        kind: Its class.
        client: Its client.
        options: The arguments of ``start_session()``.
    """
    plain: Any = AsyncMongoClient.start_session(client, **options)
    return kind(client, plain._server_session, plain.options, False)


def runs_of(session: AsyncClientSession) -> Runs:
    """Return the runs of a session's transactions, which whatever is sent in it belongs to."""
    runs = transactions.runs_of(session)
    if runs is None:
        runs = Runs()
        _keep_apart(session, runs)
    return runs


def renewed(session: S) -> S:
    """Return another session of the same options and times, in which nothing is in progress."""
    return like(session)  # type: ignore[no-any-return]


def take_transaction(session: AsyncClientSession) -> Any:
    """Take a session's transaction away from it, and from whoever still writes in it.

    Once PyMongo's session says that the transaction is aborted, what another task writes in it is
    sent *outside* of it, and applied. So this one never says so: the user's session goes on with
    another one.

    Args:
        session: The user's session, with a transaction in progress.

    Returns:
        Another session of PyMongo's that has the transaction, to be aborted.
    """
    own: Any = session
    runs, air = runs_of(session), own._air
    taken, fresh = like(session), like(session)
    taken._server_session, taken._transaction = own._server_session, own._transaction
    own._server_session, own._transaction = fresh._server_session, fresh._transaction
    _keep_apart(own, runs, Air(air))
    _keep_apart(taken, Runs(), air)
    return taken


def has_pending(session: AsyncClientSession) -> bool:
    """Tell whether a command of it is under way."""
    own: Any = session
    return bool(own._air.is_pending)


def has_begun_transaction(session: AsyncClientSession) -> bool:
    """Tell whether a transaction is in progress of which the server may know."""
    return session.in_transaction and not session._starting_transaction


def commit(session: AsyncClientSession) -> asyncio.Future[None]:
    """Commit, in a task that goes on whoever waits for that."""
    return asyncio.ensure_future(AsyncClientSession.commit_transaction(session))


def abort(session: AsyncClientSession) -> asyncio.Future[None]:
    """Abort, in a task that goes on whoever waits for that."""
    return asyncio.ensure_future(AsyncClientSession.abort_transaction(session))


def end(session: Any) -> None:
    """End a session in which nothing is in progress; nothing is sent."""
    if session._server_session is not None:
        session._client._return_server_session(session._server_session)
        session._server_session = None


def _keep_apart(session: Any, runs: Runs, air: Air | None = None) -> None:
    keep_apart(session, runs, air)
    finishing = _Finishing(session)
    session._finish_transaction_with_retry = finishing.with_retry
    session._finish_transaction = finishing.once


class _Finishing:
    """How a session commits or aborts: with one retry, under a deadline too.

    There PyMongo would go on without a pause until time is over.
    """

    def __init__(self, session: Any) -> None:
        self._session = weakref.ref(session)  # which has this one

    async def with_retry(self, command: str) -> Any:
        """Commit or abort, in a context of its own."""
        finish = AsyncClientSession._finish_transaction_with_retry(self._owner(), command)
        return await asyncio.Task(finish, loop=asyncio.get_running_loop())

    async def once(self, connection: Any, command: str) -> Any:
        """Send the command."""
        is_retry = _is_retry.get()
        _is_retry.set(True)
        try:
            return await AsyncClientSession._finish_transaction(self._owner(), connection, command)
        except PyMongoError:
            if is_retry:
                deadlines.end_timeout()
            raise

    def _owner(self) -> Any:
        return self._session()
