"""How much a worker does at once, and how long it goes on."""

import math
import time
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
from pymongo.errors import PyMongoError

from aioretry import DeadlineExceeded, deadline

_PATIENCE, _MOST_PATIENCE = 10.0, 3600.0
_ATTEMPTS_BEFORE_WARNING = 5
_COMMITS_OF_ONE_CHANGE = 3
_SLICE = 0.01


@dataclass(slots=True)
class Pace:
    """How much is done at once, and how long it may take: both follow from what has failed.

    Args:
        most: How many changes are read at once, at most.
    """

    most: int
    changes: int = field(init=False)
    """How many changes are read at once."""

    patience: float = field(default=_PATIENCE, init=False)
    """How long a server may take for one read, in seconds."""

    failures: int = field(default=0, init=False)
    """How many attempts in a row have made no progress."""

    slow_commits: int = field(default=0, init=False)
    """How many commits of one and the same change have taken too long."""

    _slow_at: object = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.changes = self.most

    @property
    def is_stuck(self) -> bool:
        """Whether somebody should look."""
        return self.failures >= _ATTEMPTS_BEFORE_WARNING

    def is_hopeless(self, where: object) -> bool:
        """Tell whether a change can't be committed: it is no smaller next time.

        Args:
            where: As for :meth:`count_slow`. Elsewhere it is another change, say after a rebuild.
        """
        return where == self._slow_at and self.slow_commits >= _COMMITS_OF_ONE_CHANGE

    def count_slow(self, where: object) -> None:
        """Take note of a commit that took too long, of a change that can't be divided.

        Args:
            where: What tells the change from others.
        """
        if where != self._slow_at:
            self._slow_at, self.slow_commits = where, 0
        self.slow_commits += 1

    def divide(self, changes: int) -> None:
        """Read no more than half as many changes at once as were too many."""
        self.changes = max(1, min(changes, self.changes) // 2)

    def fail(self, exc: PyMongoError) -> None:
        """Take note of an attempt that has come to nothing."""
        self.failures += 1
        if exc.timeout:
            self.divide(self.changes)
            self.patience = min(2 * self.patience, _MOST_PATIENCE)

    def succeed(self) -> None:
        """Take note of progress."""
        self.failures = 0
        self.changes = min(2 * self.changes, self.most)
        self.patience = _PATIENCE


class Courtesy:
    """Lets other tasks of the event loop run now and then, during long work of its own."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def let_run(self) -> None:
        """Let others run, if they have waited for some time."""
        if time.monotonic() - self._since > _SLICE:
            await anyio.lowlevel.checkpoint()
            self._since = time.monotonic()


async def pause(seconds: float, error: PyMongoError | None = None) -> None:
    """Wait before the next attempt.

    Args:
        seconds: How long.
        error: What the last one ended with, if that passes by itself.

    Raises:
        DeadlineExceeded: The surrounding deadline is over by then.
    """
    with deadline(None) as limit:
        left = math.inf if limit is None else limit.remaining()
    await anyio.sleep(min(seconds, left))
    if left <= seconds:
        raise DeadlineExceeded(
            "the deadline around the aggregator is over; what it has committed stays, and it can "
            "be run again (a task that is to last starts without one: aioretry.detached)"
        ) from error
