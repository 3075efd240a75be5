"""The user's sessions of an asynchronous client, and the transactions in them."""

import asyncio
from typing import Any, TypeVar

from pymongo import AsyncMongoClient
from pymongo.asynchronous import client_session
from pymongo.asynchronous.client_session import AsyncClientSession

from aioretry._drivers.engine.transactions import Air, EngineSessionCalls, keep_apart, like
from aioretry._drivers.transaction_runs import Runs

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


class AsyncioSessionCalls(EngineSessionCalls):
    """What is asked of the sessions of PyMongo's asynchronous clients."""

    states: Any = client_session._TxnState  # type: ignore[attr-defined]

    def own(self, session: Any) -> Any:
        """Return PyMongo's session that one of the user's is."""
        return session

    def renewed(self, session: Any) -> Any:
        """Return another session of the same options and times, in which nothing is in progress."""
        return like(session)

    def take_transaction(self, session: Any) -> Any:
        """Take a session's transaction away from it, and from whoever still writes in it.

        Once PyMongo's session says that the transaction is aborted, what another task writes in it
        is sent *outside* of it, and applied. So this one never says so: the user's session goes on
        with another server session.

        Args:
            session: The user's session, with a transaction in progress.

        Returns:
            Another session of PyMongo's that has the transaction, to be aborted.
        """
        runs, air = self.runs_of(session), session._air
        taken, fresh = like(session), like(session)
        taken._server_session, taken._transaction = session._server_session, session._transaction
        session._server_session, session._transaction = fresh._server_session, fresh._transaction
        keep_apart(session, runs, Air(air))
        keep_apart(taken, Runs(), air)
        return taken

    def drivers_commit(self, session: Any) -> asyncio.Future[None]:
        """Commit as PyMongo does, in a task that goes on whoever waits for that."""
        return asyncio.ensure_future(AsyncClientSession.commit_transaction(session))

    def drivers_abort(self, session: Any) -> asyncio.Future[None]:
        """Abort as PyMongo does, in a task that goes on whoever waits for that."""
        return asyncio.ensure_future(AsyncClientSession.abort_transaction(session))

    def end(self, session: Any) -> None:
        """End a session in which nothing is in progress; nothing is sent."""
        if session._server_session is not None:
            session._client._return_server_session(session._server_session)
            session._server_session = None
