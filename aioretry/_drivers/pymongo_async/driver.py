"""The driver's port over PyMongo's asynchronous client."""

import asyncio
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import InvalidOperation

from aioretry._drivers.engine.driver import EngineDriver
from aioretry._drivers.engine.silence import Uses
from aioretry._drivers.pymongo_async.calls import AsyncioCalls
from aioretry._drivers.pymongo_async.ending import TaskSessionEnding
from aioretry._drivers.pymongo_async.prober import TaskProber
from aioretry._drivers.pymongo_async.room import AsyncioRoom
from aioretry._drivers.pymongo_async.watching import TaskWatch

_PATIENCE = 2.5  # more than what was sent has for its answer


class AsyncioDriver(EngineDriver):
    """The driver's port over PyMongo's asynchronous client.

    Args:
        client: The client.
        size: How many attempts are under way at once at most.
        uses: Tells of the use of connections.
        doubt_after: How long a server may be silent, in seconds.
    """

    _calls: AsyncioCalls

    def __init__(
        self, client: AsyncMongoClient[Any], size: int, uses: Uses, doubt_after: float
    ) -> None:
        calls = AsyncioCalls(client)
        name = type(client).__name__
        ending = TaskSessionEnding(calls)
        session = AsyncMongoClient.start_session(client)
        super().__init__(calls, name, size, TaskProber(calls), ending, session)
        self._watch = TaskWatch(calls, doubt_after)
        uses.be_told_to(self._watch)

    def _own(self, session: object) -> Any:
        """Return PyMongo's session that a session object of the user's is about.

        Raises:
            TypeError: It is not a session.
            InvalidOperation: It is another client's session.
        """
        if not isinstance(session, AsyncClientSession):
            raise TypeError(
                "session must be what `client.start_session()` returned, "
                f"not {type(session).__name__}"
            )
        if session.client is not self._calls.delegate:
            raise InvalidOperation("Can only use session with the AsyncMongoClient that started it")
        return session

    async def wait_closed(self) -> None:
        """Wait for what is under way to end; it does not take long after the client is closed."""
        current = asyncio.current_task()
        while tasks := [task for task in self._calls.tasks if task is not current]:
            _, late = await asyncio.wait(tasks, timeout=_PATIENCE)
            for task in late:  # PyMongo limits no handshake that a server does not answer
                task.cancel()

    def _room(self, loop: asyncio.AbstractEventLoop) -> AsyncioRoom:
        return AsyncioRoom(self._calls, self._steps, loop)

    def _can_use(self, loop: asyncio.AbstractEventLoop) -> bool:  # noqa: ARG002
        return True

    def _close_own(self) -> None:
        self._watch.close()
