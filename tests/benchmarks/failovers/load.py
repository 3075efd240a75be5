"""Writers that count in a loop, and readers beside them."""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymongo.errors import PyMongoError
from pymongo.read_preferences import ReadPreference

from tests.benchmarks.failovers.clients import Kind
from tests.benchmarks.failovers.judging import Told

_MARKS_A_DOCUMENT = 200  # so that documents stay small
_AFTER_AN_ERROR = 0.1
_END_WITHIN = 30.0  # what a write may take beyond its time limit before it counts as hung
_READ_EVERY = 0.01


class Load:
    """Concurrent writers, each with counters of its own.

    Each write adds one to a counter and leaves a mark of its own, so that it is known of each
    whether it was applied, and how often.

    Args:
        kind: Which client it is.
        collection: Where to write.
        writers: How many.
        timeout: The time limit of each write, in seconds.
    """

    def __init__(self, kind: Kind, collection: Any, writers: int, timeout: float) -> None:
        self.told = Told(kind)
        self.acknowledged: list[float] = []
        """When each acknowledged write was, in monotonic seconds."""
        self._collection = collection
        self._timeout = timeout
        self._numbers = itertools.count()
        self._stopped = False
        self._tasks = [asyncio.create_task(self._write(me)) for me in range(writers)]

    async def stop(self) -> None:
        """Begin no further write, and wait for those that run."""
        self._stopped = True
        _, hung = await asyncio.wait(self._tasks, timeout=self._timeout + _END_WITHIN)
        for task in hung:
            task.cancel()
        for task in self._tasks:
            if task.done():
                task.result()

    async def _write(self, me: int) -> None:
        for count in itertools.count():
            if self._stopped:
                return
            await self._count(f"{me}.{count // _MARKS_A_DOCUMENT}")

    async def _count(self, key: str) -> None:
        told, number = self.told, next(self._numbers)
        told.begun = number + 1
        update = {"$inc": {"n": 1, f"w.{number}": 1}}
        try:
            with told.kind.limit(self._timeout):
                await self._collection.update_one({"_id": key}, update, upsert=True)
        except PyMongoError as exc:
            told.fail(number, exc)
            await asyncio.sleep(_AFTER_AN_ERROR)
        else:
            told.acknowledged.add(number)
            self.acknowledged.append(time.monotonic())


@dataclass(frozen=True)
class Read:
    """One read, in monotonic seconds; it took so long from the moment when it was due."""

    due: float
    took: float
    error: Exception | None


class Reads:
    """Secondary reads at a fixed pace, whether or not the earlier ones have ended.

    Args:
        limit: Makes the block that limits the time of one read.
        collection: What to read.
    """

    def __init__(self, limit: Callable[[], Any], collection: Any) -> None:
        self.done: list[Read] = []
        self._limit = limit
        self._collection = collection.with_options(read_preference=ReadPreference.SECONDARY)
        self._running: set[asyncio.Task[None]] = set()
        self._pace = asyncio.create_task(self._begin())

    def between(self, since: float, until: float) -> list[Read]:
        """The reads that were due in a span of monotonic time."""
        return [read for read in self.done if since <= read.due < until]

    async def stop(self) -> None:
        """Begin no further read, and wait for those that run."""
        self._pace.cancel()
        await asyncio.wait([self._pace, *self._running])

    async def _begin(self) -> None:
        for due in itertools.count(time.monotonic(), _READ_EVERY):
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            task = asyncio.create_task(self._read(due))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _read(self, due: float) -> None:
        error: Exception | None = None
        try:
            with self._limit():
                await self._collection.find_one({"_id": "0.0"}, {"_id": 1})
        except PyMongoError as exc:
            error = exc
        self.done.append(Read(due, time.monotonic() - due, error))
