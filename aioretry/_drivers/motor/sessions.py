"""The user's sessions of a blocking client, and the transactions in them."""

import asyncio
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClientSession
from pymongo.synchronous import client_session

from aioretry._drivers.engine.transactions import EngineSessionCalls, keep_apart, like


class MotorSessionCalls(EngineSessionCalls):
    """What is asked of Motor's sessions, or of PyMongo's behind them."""

    states: Any = client_session._TxnState  # type: ignore[attr-defined]

    def own(self, session: Any) -> Any:
        """Return PyMongo's session that one of Motor's is about; or that itself."""
        return session.delegate if isinstance(session, AsyncIOMotorClientSession) else session

    def renewed(self, session: Any) -> Any:
        """Return another session of the same options and times, in which nothing is in progress."""
        return type(session)(like(session.delegate), session.client)

    def take_transaction(self, session: Any) -> Any:
        """Take a session's transaction away from it, and from whoever still writes in it.

        A cancelled operation goes on in its thread. Once PyMongo's session says that the
        transaction is aborted, such an operation is sent *outside* of it, and applied. So this one
        never says so: the user's session goes on with another one.

        Args:
            session: The user's session, with a transaction in progress.

        Returns:
            PyMongo's session that has the transaction, to be aborted.
        """
        old = session.delegate
        new = like(old)
        keep_apart(new, self.runs_of(session))
        session.delegate = new
        return old

    def drivers_commit(self, session: Any) -> asyncio.Future[None]:
        """Commit as Motor does, on a thread that goes on whoever waits for that."""
        committed: Any = AsyncIOMotorClientSession.commit_transaction(session)
        return committed  # type: ignore[no-any-return]

    def drivers_abort(self, session: Any) -> asyncio.Future[None]:
        """Abort as Motor does, on a thread that goes on whoever waits for that."""
        aborted: Any = AsyncIOMotorClientSession.abort_transaction(session)
        return aborted  # type: ignore[no-any-return]

    def end(self, session: Any) -> None:
        """End a session in which nothing is in progress; nothing is sent."""
        self.own(session).end_session()
