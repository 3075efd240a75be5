"""The driver's port over a Motor client's delegate."""

import asyncio
from typing import Any

import pymongo
from motor.motor_asyncio import AsyncIOMotorClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import InvalidOperation

from aioretry._drivers.engine.driver import EngineDriver
from aioretry._drivers.engine.silence import Uses
from aioretry._drivers.motor.calls import BlockingCalls
from aioretry._drivers.motor.ending import ThreadSessionEnding
from aioretry._drivers.motor.prober import ThreadProber
from aioretry._drivers.motor.room import MotorRoom, can_watch_sockets
from aioretry._drivers.motor.watching import ThreadWatch
from aioretry._drivers.port import ThreadCounts
from aioretry._drivers.threads import ThreadPool

# More of them would but wait for the interpreter's lock.
_MOST_THREADS = 32


class MotorDriver(EngineDriver):
    """The driver's port over a Motor client's delegate.

    Args:
        delegate: The client.
        size: How many attempts are under way at once at most.
        uses: Tells of the use of connections.
        doubt_after: How long a server may be silent, in seconds.
        listeners_may_block: Whether command listeners are called on threads.
    """

    def __init__(
        self,
        delegate: pymongo.MongoClient[Any],
        size: int,
        uses: Uses,
        doubt_after: float,
        *,
        listeners_may_block: bool,
    ) -> None:
        calls = BlockingCalls(delegate)
        ending = ThreadSessionEnding(calls)
        most = min(size, _MOST_THREADS)
        self._watch = ThreadWatch(calls, doubt_after)
        uses.be_told_to(self._watch)
        super().__init__(
            calls,
            "RetryClient",
            most,
            ThreadProber(delegate),
            ending,
            delegate.start_session(),
            listeners_may_block=listeners_may_block,
        )
        self._threads = ThreadPool(most, "aioretry-attempt")
        self._reading = ThreadPool(most, "aioretry-reading")

    def counts(self) -> ThreadCounts:
        """Return how the threads are doing."""
        return self._threads.counts() if self._dispatch is None else self._dispatch.counts()

    def _own(self, session: object) -> Any:
        """Return PyMongo's session that a session object of the user's is about.

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
        if own.client is not self._calls.delegate:
            raise InvalidOperation("Can only use session with the MongoClient that started it")
        return own

    def _close_own(self) -> None:
        self._watch.close()
        self._threads.close()
        self._reading.close()

    def _room(self, loop: asyncio.AbstractEventLoop) -> MotorRoom:
        return MotorRoom(self._steps, loop, self._threads, self._reading)

    def _can_use(self, loop: asyncio.AbstractEventLoop) -> bool:
        return can_watch_sockets(loop)
