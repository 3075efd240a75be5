"""What happened when, in seconds since the start of the load."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.schedule import Kind


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault as it was."""

    kind: Kind
    text: str
    """What exactly was done, and to whom."""

    began: float
    ended: float
    """When it was healed: of a killed server, when it was ready again."""

    fired: int = 0
    """How many commands it struck."""

    strokes: tuple[float, ...] = ()
    """When it struck, of one that strikes by the clock."""


class Timeline:
    """Counts what was acknowledged in each second, and notes the faults.

    Args:
        clock: A monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._last = 0.0
        self.acknowledged: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.longest_pause = 0.0
        self.seconds = 0.0
        self.faults: list[Happened] = []

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def start(self) -> None:
        """Begin to count."""
        self._started = self._clock()

    def acknowledge(self) -> None:
        """Note an acknowledged call."""
        self.acknowledged[int(self.now)] += 1
        self._end_pause()

    def fail(self) -> None:
        """Note a call that failed."""
        self.failed[int(self.now)] += 1

    def stop(self) -> None:
        """Note that no further call begins: pauses are measured up to here."""
        self._end_pause()
        self.seconds = self.now

    def _end_pause(self) -> None:
        if not self.seconds:
            self.longest_pause = max(self.longest_pause, self.now - self._last)
            self._last = self.now
