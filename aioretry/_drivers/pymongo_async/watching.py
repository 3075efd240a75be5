"""Servers watched by the client's event loop, and asked in tasks."""

import asyncio
from functools import partial
from typing import Any

from aioretry._drivers.engine.silence import LOOK_EVERY, ServerWatch
from aioretry._drivers.port import Address
from aioretry._drivers.pymongo_async.calls import AsyncioCalls
from aioretry.deadlines import detached

# A question takes some twenty turns of the loop if a connection has to be opened for it.
_TURNS = 30


class TaskWatch(ServerWatch):
    """Watches by the event loop on which everybody waits.

    Args:
        calls: The client.
        limit: How long a server may be silent, in seconds.
    """

    _calls: AsyncioCalls

    def __init__(self, calls: AsyncioCalls, limit: float) -> None:
        super().__init__(calls, limit)
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._end()

    def _is_looking(self) -> bool:
        return self._timer is not None

    def _begin(self) -> None:
        if not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = detached(loop.call_later, LOOK_EVERY, self._look_again, loop)

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        goes_on = True
        try:
            goes_on = self._look()
        finally:
            if goes_on:
                loop.call_soon(self._measure, loop, loop.time())
                self._timer = detached(loop.call_later, LOOK_EVERY, self._look_again, loop)
            else:
                self._end()

    def _measure(self, loop: asyncio.AbstractEventLoop, began: float) -> None:
        self._slack = _TURNS * (loop.time() - began)

    def _ask(self, address: Address, pool: Any) -> None:
        self._calls.start(_ask(pool)).add_done_callback(partial(self._hear, address))

    def _hear(self, address: Address, task: asyncio.Task[None]) -> None:
        self._told(address, asyncio.CancelledError() if task.cancelled() else task.exception())

    def _cut(self, connection: Any) -> None:
        connection.conn.conn[0].abort()

    def _close(self, pool: Any) -> None:
        self._calls.start(_close(pool))


async def _ask(pool: Any) -> None:
    async with pool.checkout() as connection:
        await connection.hello()


async def _close(pool: Any) -> None:
    await pool.reset(interrupt_connections=True)
    await pool.close()  # for who is about to open a connection
