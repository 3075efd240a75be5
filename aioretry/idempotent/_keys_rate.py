"""Turns: how many statements with a key a process may send a second.

Each caller has its turn in rotation, so that nobody who asks for much starves the others.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from weakref import WeakKeyDictionary

import anyio

from aioretry import Deadline, detached
from aioretry.errors import refusal
from aioretry.idempotent._errors import NoTurnError

Waiting: TypeAlias = dict[str, deque[asyncio.Future[None]]]


class Queue(ABC):
    """Who waits for a turn on each event loop, a caller's calls in the order in which they come."""

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Waiting] = WeakKeyDictionary()

    @property
    def _waiting(self) -> "Waiting":
        """Who waits on this event loop; the caller whose turn it is next is the first."""
        return self._by_loop.setdefault(asyncio.get_running_loop(), {})

    def _before(self, caller: str) -> int:
        """Return how many are granted a turn before one more of a caller, as far as is known."""
        own = len(self._waiting.get(caller, ()))
        others = (len(turns) for name, turns in self._waiting.items() if name != caller)
        return own + sum(min(number, own + 1) for number in others)

    async def _wait(self, caller: str, limit: Deadline | None) -> bool:
        """Wait for a turn; return False if the deadline is over first."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await asyncio.wait({turn}, timeout=_left(limit))
            return turn.done()
        except asyncio.CancelledError:
            if turn.done():
                self._give_back()
            raise
        finally:
            if not turn.done():
                self._leave(caller, turn)

    def _grant(self) -> None:
        """Let the next one have its turn."""
        caller = next(iter(self._waiting))
        turns = self._waiting.pop(caller)
        turns.popleft().set_result(None)
        if turns:
            self._waiting[caller] = turns

    @abstractmethod
    def _give_back(self) -> None:
        """Take a turn back."""

    def _leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting[caller]
        turns.remove(turn)
        if not turns:
            del self._waiting[caller]


class Rate(Queue):
    """Lets so many through a second.

    Args:
        per_second: How many; as many may come at once after a second without any.
        clock: A monotonic clock, in seconds.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        super().__init__()
        self._interval = 1.0 / per_second
        self._burst = max(1.0, per_second) * self._interval
        self._clock = clock
        self._sleep = sleep
        self._next = -math.inf
        self._servers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = (
            WeakKeyDictionary()
        )

    async def turn(self, limit: Deadline | None, caller: str = "") -> None:
        """Wait for one's turn.

        Raises:
            NoTurnError: It does not come in time; where that is known at once, nobody waits.
        """
        wait = self._wait_of(self._before(caller))
        if wait <= 0 and not self._waiting:
            self._take()
            return
        if limit is None or wait < limit.remaining():
            self._ensure_server()
            if await self._wait(caller, limit):
                return
        raise refusal(
            NoTurnError(
                f"the deadline is over before it is this write's turn: keys may begin "
                f"{1 / self._interval:.3g} writes a second; nothing was sent"
            )
        )

    def _ensure_server(self) -> None:
        loop = asyncio.get_running_loop()
        server = self._servers.get(loop)
        if server is None or server.done():
            self._servers[loop] = detached(loop.create_task, self._serve())

    async def _serve(self) -> None:
        try:
            await asyncio.sleep(0)  # a task that is begun eagerly comes before whoever waits for it
            while self._waiting:
                wait = self._wait_of(0)
                if wait > 0:
                    await self._sleep(wait)
                if self._waiting:  # and has not given up meanwhile
                    self._take()
                    self._grant()
        finally:
            self._servers.pop(asyncio.get_running_loop(), None)  # a task of it would keep it

    def _wait_of(self, before: int) -> float:
        now = self._clock()
        # From the time of the turn on, it may be had; a burst of them comes without waiting.
        return max(self._next, now - self._burst) + (before + 1) * self._interval - now

    def _take(self) -> None:
        self._next = max(self._next, self._clock() - self._burst) + self._interval

    def _give_back(self) -> None:
        self._next -= self._interval


def _left(limit: Deadline | None) -> float | None:
    return limit.remaining() if limit is not None and limit.is_limited else None


def rate_of(value: object) -> float:
    """Return a rate."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"per_second must be a number, not {type(value).__name__}")
    if not value > 0 or math.isinf(value):
        raise ValueError(f"per_second must be a number above 0, not {value!r}")
    return float(value)
