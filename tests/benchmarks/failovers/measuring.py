"""How it is measured: pauses, and a process that watches itself."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.benchmarks import figures
from tests.benchmarks.process import thread_count

Figures = dict[str, object]
"""What a scenario came to, by names that end in their units; `wrong` lists what must not be."""

_UNITS = {"s": "s", "ms": "ms", "kib": "KiB"}
_LOOK_EVERY = 0.01


def longest_pause(times: Iterable[float], since: float, until: float) -> float:
    """The longest time between two of these moments, or between one and an end of the span."""
    inside = [since, *sorted(moment for moment in times if since < moment < until), until]
    return max(later - earlier for earlier, later in pairwise(inside))


def label(name: str) -> str:
    """The name of a figure for people: `longest_pause_s` is `longest pause, s`."""
    *words, last = name.split("_")
    if last in _UNITS:
        return f"{' '.join(words)}, {_UNITS[last]}"
    return " ".join([*words, last])


def shown(value: object) -> str:
    """A figure for people."""
    if isinstance(value, float):
        return figures.shown(value)
    if isinstance(value, dict):
        return ", ".join(f"{number} {name}" for name, number in value.items()) or "0"
    return str(value)


@dataclass
class Watch:
    """What the process itself was seen to do."""

    longest_stall: float = 0.0
    """How much too late the event loop came to a task that had slept, in seconds, at worst."""

    most_threads: int = 0
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """When each look came, in monotonic seconds, and how much too late."""

    def longest_stall_in(self, since: float, until: float) -> float:
        """The longest stall that ended in a span of monotonic time, in seconds."""
        return max((late for when, late in self.stalls if since <= when <= until), default=0.0)


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Watch]:
    """Watch the event loop and the threads while the block runs."""
    watch = Watch()

    async def look() -> None:
        looks = 0
        while True:
            begun = time.monotonic()
            await asyncio.sleep(_LOOK_EVERY)
            now = time.monotonic()
            late = now - begun - _LOOK_EVERY
            watch.stalls.append((now, late))
            watch.longest_stall = max(watch.longest_stall, late)
            if looks % 5 == 0:
                watch.most_threads = max(watch.most_threads, thread_count())
            looks += 1

    task = asyncio.create_task(look())
    try:
        yield watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
