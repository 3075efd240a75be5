"""How many statements with a key a process may send a second."""

import math
import time
from collections.abc import Awaitable, Callable

import anyio

from aioretry import Deadline, DeadlineExceeded


class Rate:
    """Lets so many through a second, in the order in which they come.

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
        self._interval = 1.0 / per_second
        self._burst = max(1.0, per_second) * self._interval
        self._clock = clock
        self._sleep = sleep
        self._next = -math.inf

    async def turn(self, deadline: Deadline | None) -> None:
        """Wait for one's turn.

        Args:
            deadline: When it has to come, or None.

        Raises:
            DeadlineExceeded: It would come later; nobody waits.
        """
        now = self._clock()
        # The time of the turn, a burst after which it has to be waited for.
        turn = max(self._next, now - self._burst) + self._interval
        wait = turn - now
        if deadline is not None and wait > 0 and wait >= deadline.remaining():
            raise DeadlineExceeded(
                f"the deadline is over before it is this write's turn: keys may begin "
                f"{1 / self._interval:.3g} writes a second; nothing was sent"
            )
        self._next = turn
        if wait > 0:
            await self._sleep(wait)


def rate_of(value: object) -> float:
    """Return a rate."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"per_second must be a number, not {type(value).__name__}")
    if not value > 0 or math.isinf(value):
        raise ValueError(f"per_second must be a number above 0, not {value!r}")
    return float(value)
