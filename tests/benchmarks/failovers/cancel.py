"""Writes are cancelled at random moments, while primaries come and go."""

import argparse
import asyncio
import gc
import inspect
import random
import threading
import time
from collections import defaultdict
from typing import Any

from pymongo import monitoring
from pymongo.errors import PyMongoError

from aioretry import attempts_of
from aioretry.testing import ReplicaSet
from tests.benchmarks.failovers.clients import DATABASE, Kind
from tests.benchmarks.failovers.judging import Told, judge
from tests.benchmarks.failovers.measuring import Figures
from tests.benchmarks.failovers.servers import sessions
from tests.clients import close

COLLECTION = "cancel"
_OUR_THREADS = "aioretry-"
_BEGIN_EVERY = 0.01
_SETTLE = 5.0  # seconds in which what was cancelled may still do something
_END_WITHIN = 15.0


class Sent(monitoring.CommandListener):
    """Notes when each write's commands were sent; called from many threads."""

    def __init__(self) -> None:
        self.times: dict[int, list[float]] = defaultdict(list)
        """In monotonic seconds, by the write's number."""
        self._lock = threading.Lock()  # guards the above

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Called by the driver: a command is about to be sent."""
        if event.command_name == "update":
            now = time.monotonic()
            with self._lock:
                for statement in event.command["updates"]:
                    self.times[statement["q"]["_id"]].append(now)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Called by the driver: a command was answered."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Called by the driver: a command failed."""


class Cancelled:
    """Writes that are cancelled, and what became of each."""

    def __init__(self, kind: Kind, collection: Any, timeout: float) -> None:
        self.told = Told(kind)
        self.ended: dict[int, float] = {}
        """When the caller had its CancelledError, in monotonic seconds."""
        self._collection = collection
        self._timeout = timeout

    async def write(self, number: int, delay: float, *, by_caller: bool) -> None:
        """Begin a write, cancel it after a while, and note how it ended.

        Args:
            number: Of the write.
            delay: When to cancel, in seconds; at 0, before its first step.
            by_caller: Whether the task that awaits it is cancelled, or the write itself.
        """
        if by_caller:
            write: asyncio.Future[object] = asyncio.create_task(self._await(number))
        else:
            write = self._begin(number)
        if delay > 0:
            await asyncio.wait([write], timeout=delay)
        elif inspect.iscoroutinefunction(self._collection.update_one):
            await asyncio.sleep(0)  # a coroutine of which nothing ran can tell nothing
        write.cancel()
        try:
            await write
        except (asyncio.CancelledError, PyMongoError) as exc:
            if isinstance(exc, asyncio.CancelledError):
                self.ended[number] = time.monotonic()
            self.told.fail(number, exc)
        else:
            self.told.acknowledged.add(number)

    def _send(self, number: int) -> Any:
        update = {"$inc": {"n": 1, f"w.{number}": 1}}
        return self._collection.update_one({"_id": number}, update, upsert=True)

    def _begin(self, number: int) -> asyncio.Future[object]:
        with self.told.kind.limit(self._timeout):
            return asyncio.ensure_future(self._send(number))

    async def _await(self, number: int) -> object:
        with self.told.kind.limit(self._timeout):
            return await self._send(number)


async def run(kind: Kind, servers: ReplicaSet, options: argparse.Namespace) -> Figures:
    """Measure one client."""
    chance = random.Random(options.seed)
    sent = Sent()
    client = kind.open(servers.uri, event_listeners=[sent])
    collection = client[DATABASE][COLLECTION]
    await collection.update_one({"_id": -1}, {"$set": {"x": 1}}, upsert=True)  # it is connected
    cancelled = Cancelled(kind, collection, options.timeout)
    await _write_all(cancelled, servers, chance, options)
    await servers.heal()
    await asyncio.sleep(_SETTLE)
    late = _late(cancelled, sent)  # before anything is resolved: that sends again, on purpose
    figures = await judge(cancelled.told, servers, COLLECTION)
    wrong: list[str] = figures.pop("wrong")  # type: ignore[assignment]
    if late["commands_of_new_attempts_after_it"]:
        wrong.append("commands were sent after the cancellation, by attempts that began after it")
    cancelled.told.errors.clear()
    leaks = await _leaks(kind, client, servers)
    wrong += [f"leaked: {name}" for name in _LEAKS if leaks[name]] if kind.is_ours else []
    return {
        "cancelled": len(cancelled.ended),
        **late,
        **figures,
        **leaks,
        "wrong": wrong,
    }


async def _write_all(
    cancelled: Cancelled, servers: ReplicaSet, chance: random.Random, options: argparse.Namespace
) -> None:
    """Begin all writes at an even pace, and take the primary away twice meanwhile."""
    told, tasks = cancelled.told, []
    faults: list[asyncio.Task[None]] = []
    for number in range(options.writes):
        told.begun = number + 1
        delay = _delay(chance)
        by_caller = delay > 0 and chance.random() < 0.5
        tasks.append(asyncio.create_task(cancelled.write(number, delay, by_caller=by_caller)))
        if options.elections and number == options.writes // 4:
            faults.append(asyncio.create_task(_step_down(servers)))
        if options.elections and number == options.writes // 2:
            await faults[0]
            faults.append(asyncio.create_task(_freeze(servers)))
        await asyncio.sleep(_BEGIN_EVERY)
    _, hung = await asyncio.wait(tasks, timeout=options.timeout + _END_WITHIN)
    for task in hung:
        task.cancel()
    for fault in faults:
        await fault


def _delay(chance: random.Random) -> float:
    """When to cancel: before it begins, within 10 ms, or later; in seconds."""
    share = chance.random()
    if share < 0.1:
        return 0.0
    if share < 0.65:
        return chance.uniform(0.0, 0.01)
    return chance.uniform(0.01, 0.1) if share < 0.8 else chance.uniform(0.1, 5.0)


async def _step_down(servers: ReplicaSet) -> None:
    old = await servers.step_down(seconds=5)
    await servers.wait_for_primary(60.0, other_than=old)


async def _freeze(servers: ReplicaSet) -> None:
    old = await servers.wait_for_primary(60.0)
    await servers.freeze(old)
    await servers.wait_for_primary(60.0, other_than=old)
    await asyncio.sleep(2.0)
    await servers.thaw(old)


def _late(cancelled: Cancelled, sent: Sent) -> Figures:
    """What was sent after its cancellation, and whether an attempt that ran already did it."""
    delays: list[float] = []
    by_new_attempts = 0
    for number, ended in cancelled.ended.items():
        late = [when - ended for when in sent.times[number] if when > ended]
        delays += late
        attempts = attempts_of(cancelled.told.errors[number])
        known = sum(attempt.sent for attempt in attempts)
        # Of the others' writes it is not known; the first command may have been on its way.
        known = known if cancelled.told.kind.is_ours else 1
        by_new_attempts += min(len(late), max(0, len(sent.times[number]) - known))
    return {
        "commands_after_their_cancellation": len(delays),
        "commands_of_new_attempts_after_it": by_new_attempts,
        "latest_command_after_its_cancellation_ms": max(delays, default=0.0) * 1000,
    }


_LEAKS = ("session_objects_that_are_left", "threads_that_are_left")


async def _leaks(kind: Kind, client: Any, servers: ReplicaSet) -> Figures:
    figures: Figures = {
        "threads_while_open": _threads(),
        "session_objects_that_are_left": await _wait_for_none(lambda: _sessions(kind)),
        "server_sessions_before_close": await sessions(servers),
    }
    await close(client)
    figures["server_sessions_after_close"] = await sessions(servers)
    figures["threads_that_are_left"] = await _wait_for_none(_threads)
    return figures


def _threads() -> int:
    return sum(thread.name.startswith(_OUR_THREADS) for thread in threading.enumerate())


def _sessions(kind: Kind) -> int:
    """How many session objects of the driver are alive."""
    gc.collect()
    return sum(type(one).__name__ == kind.session_class for one in gc.get_objects())


async def _wait_for_none(count: Any) -> int:
    until = time.monotonic() + _END_WITHIN
    while (left := count()) and time.monotonic() < until:
        await asyncio.sleep(0.5)
    return left
