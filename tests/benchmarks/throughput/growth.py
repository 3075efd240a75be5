"""Whether something grows: what a process is seen to hold, and the judgement of it."""

import asyncio
import gc
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymongo import AsyncMongoClient

from tests.benchmarks.process import open_files, resident_kib, thread_count

WARM_UP = 0.2
"""The share of the samples that is left out at the beginning."""

SLACK = 0.05
"""What a figure may grow by, as a share of it; what changes all the time is never quite equal."""

RSS, THREADS, TASKS, FILES, SESSIONS = "RSS, MiB", "threads", "tasks", "open files", "sessions"
_LEAST = {RSS: 4.0, THREADS: 2.0, TASKS: 5.0, FILES: 5.0, SESSIONS: 10.0}
"""What each may grow by at least, whatever its share is."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds at one moment."""

    at: float
    """Seconds since the beginning."""

    figures: Mapping[str, float]
    objects: Counter[str] = field(default_factory=Counter)
    """Python's objects that the garbage collector knows, by their types."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How a figure of the second half compares with that of the first."""

    name: str
    first: float
    second: float
    allowed: float
    """What the second may be at most."""

    @property
    def is_growth(self) -> bool:
        """Whether it is more than allowed; a figure that nobody tells is not."""
        return self.second > self.allowed


def look(at: float, client: Any) -> Held:
    """See what this process holds.

    Args:
        at: Seconds since the beginning.
        client: Whose driver's pool of server sessions is looked at.
    """
    gc.collect()
    plain = client if isinstance(client, AsyncMongoClient) else client.delegate
    figures = {
        RSS: resident_kib() / 1024,
        THREADS: float(thread_count()),
        TASKS: float(len(asyncio.all_tasks())),
        FILES: open_files(),
        SESSIONS: float(len(plain._topology._session_pool)),
    }
    return Held(at, figures, Counter(_name(type(each)) for each in gc.get_objects()))


def judge(samples: Sequence[Held], callers: int) -> list[Growth]:
    """Compare the medians of the two halves of a run, without what warmed it up.

    Args:
        samples: What was seen, in order.
        callers: How many call at once: what each of them has under way comes and goes.

    Returns:
        All figures, and those types of objects that grew.

    Raises:
        ValueError: There are too few samples.
    """
    kept = samples[math.ceil(len(samples) * WARM_UP) :]
    first, second = kept[: len(kept) // 2], kept[len(kept) // 2 :]
    if not first:
        raise ValueError(f"{len(samples)} samples are too few to compare two halves")
    found = [
        _growth(name, [each.figures[name] for each in first], [e.figures[name] for e in second])
        for name in samples[0].figures
    ]
    types = {name for each in kept for name in each.objects}
    objects = (
        _growth(
            f"objects: {name}",
            [float(each.objects[name]) for each in first],
            [float(each.objects[name]) for each in second],
            least=5.0 * callers,
        )
        for name in sorted(types)
    )
    return [*found, *(growth for growth in objects if growth.is_growth)]


def _growth(
    name: str, first: Sequence[float], second: Sequence[float], least: float | None = None
) -> Growth:
    before, after = statistics.median(first), statistics.median(second)
    slack = _LEAST[name] if least is None else least
    return Growth(name, before, after, before + max(slack, SLACK * before))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
