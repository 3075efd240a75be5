"""Thousands of writers wait through an outage without a primary, and all write when it ends."""

import argparse
import asyncio
import contextlib
import gc
import itertools
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from typing import Any

from pymongo.errors import PyMongoError

from aioretry.testing import Member, ReplicaSet
from tests.benchmarks.failovers.clients import DATABASE, Kind
from tests.benchmarks.failovers.judging import Told, judge
from tests.benchmarks.failovers.measuring import (
    Figures,
    Watch,
    watched,
)
from tests.benchmarks.failovers.servers import elections
from tests.benchmarks.process import resident_kib, thread_count
from tests.clients import close

COLLECTION = "outage"
_BEGIN_AT_ONCE = 50  # so that beginning them is no stall of the event loop by itself
_END_WITHIN = 30.0
_ASK_EVERY = 0.1


class Waiting:
    """Writers that write one document each."""

    def __init__(self, kind: Kind, collections: Sequence[Any], timeout: float) -> None:
        self.told = Told(kind)
        self.last_acknowledged = 0.0
        """In seconds since the epoch."""
        self._collections = collections
        self._timeout = timeout
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, writers: int) -> None:
        """Begin all of them."""
        for number in range(writers):
            self.told.begun = number + 1
            self._tasks.append(asyncio.create_task(self._write(number)))
            if number % _BEGIN_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Wait until all have ended."""
        _, hung = await asyncio.wait(self._tasks, timeout=self._timeout + _END_WITHIN)
        for task in hung:
            task.cancel()

    async def _write(self, number: int) -> None:
        told = self.told
        try:
            with told.kind.limit(self._timeout):
                collection = self._collections[number % len(self._collections)]
                await collection.insert_one({"_id": number, "w": {str(number): 1}})
        except PyMongoError as exc:
            told.fail(number, exc)
        else:
            told.acknowledged.add(number)
            self.last_acknowledged = time.time()


async def run(kind: Kind, servers: ReplicaSet, options: argparse.Namespace) -> Figures:
    """Measure one client."""
    # By their specification, deadlines don't lengthen it.
    patience = int(options.timeout * 1000)
    clients = [
        kind.open(servers.uri, serverSelectionTimeoutMS=patience) for _ in range(options.clients)
    ]
    collections = [client[DATABASE][COLLECTION] for client in clients]
    for collection in collections:
        await asyncio.gather(*(_warm_up(collection) for _ in range(max(1, 50 // len(clients)))))
    waiting = Waiting(kind, collections, options.timeout)
    async with watched() as watch:
        lost = await _begin_outage(servers, options)
        begun, begun_at = time.monotonic(), time.time()
        memory = Memory(traced=options.tracemalloc)
        await waiting.begin(options.writers)
        creating = time.monotonic() - begun
        await asyncio.sleep(max(0.0, begun + options.seconds - time.monotonic()))
        figures = memory.figures(options.writers)
        figures["threads"] = thread_count()
        back, back_at = time.monotonic(), time.time()
        async with _asked(servers) as rush:
            await _end_outage(servers, lost)
            await waiting.end()
        done = time.monotonic()
    # A primary that was only frozen may go on as such without an election.
    elected = next((one.writable for one in elections(servers, begun_at)), back_at)
    figures |= {
        "beginning_all_took_s": creating,
        "from_primary_elected_to_all_done_s": waiting.last_acknowledged - elected,
        **rush.figures(),
        **_stalls(watch, begun, back, done),
        "most_threads": watch.most_threads,
    }
    await servers.heal()
    figures |= await judge(waiting.told, servers, COLLECTION)
    for client in clients:
        await close(client)
    return figures


async def run_alone(options: argparse.Namespace) -> Figures:
    """Measure what the callers' own tasks take, without any client."""
    released = asyncio.Event()

    async def wait() -> None:
        document = {"_id": len(tasks), "w": {str(len(tasks)): 1}}
        await released.wait()
        del document

    memory = Memory(traced=options.tracemalloc)
    tasks: list[asyncio.Task[None]] = []
    tasks += [asyncio.create_task(wait()) for _ in range(options.writers)]
    await asyncio.sleep(1.0)
    figures = memory.figures(options.writers)
    figures["threads"] = thread_count()
    released.set()
    await asyncio.gather(*tasks)
    return figures


async def _warm_up(collection: Any) -> None:
    """Open connections and import what is imported late."""
    await collection.update_one({"_id": -1}, {"$inc": {"x": 1}}, upsert=True)


async def _begin_outage(servers: ReplicaSet, options: argparse.Namespace) -> list[Member]:
    """Take the primary and all secondaries but one away."""
    primary = await servers.primary()
    others = [member for member in servers.members if member is not primary]
    lost = [primary, *others[1:]]
    for member in lost:
        await (servers.kill(member) if options.how == "kill" else servers.freeze(member))
    return lost


async def _end_outage(servers: ReplicaSet, lost: list[Member]) -> None:
    if lost:
        await servers.heal()


class Rush:
    """What the servers are asked for after an outage, each by its own counters."""

    def __init__(self) -> None:
        self._counts: dict[Member, list[tuple[float, int, int]]] = {}

    async def ask(self, member: Member) -> None:
        """Take note of what a member has counted so far."""
        status = await member.command({"serverStatus": 1})
        created, inserted = status["connections"]["totalCreated"], status["opcounters"]["insert"]
        counts = self._counts.setdefault(member, [])
        counts.append((time.monotonic(), int(created), int(inserted)))

    def figures(self) -> Figures:
        """The most that one of them was asked for within a tenth of a second, by the second."""
        opened, inserts = [0.0], [0.0]
        for counts in self._counts.values():
            for (earlier, *before), (later, *after) in itertools.pairwise(counts):
                seconds = max(later - earlier, _ASK_EVERY)
                opened.append((after[0] - before[0]) / seconds)
                inserts.append((after[1] - before[1]) / seconds)
        created = [counts[-1][1] - counts[0][1] for counts in self._counts.values()]
        return {
            "connections_opened": max(created, default=0),
            "most_connections_opened_a_second": max(opened),
            "most_inserts_a_second": max(inserts),
        }


@contextlib.asynccontextmanager
async def _asked(servers: ReplicaSet) -> AsyncIterator[Rush]:
    rush = Rush()

    async def ask(member: Member) -> None:
        while True:
            with contextlib.suppress(OSError, PyMongoError):
                await rush.ask(member)
            await asyncio.sleep(_ASK_EVERY)

    tasks = [asyncio.create_task(ask(member)) for member in servers.members]
    try:
        yield rush
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class Memory:
    """How much memory is taken from now on.

    Args:
        traced: Whether to ask tracemalloc too, which makes everything slower.
    """

    def __init__(self, *, traced: bool) -> None:
        self._traced = traced
        gc.collect()
        if traced:
            tracemalloc.start()
            self._blocks = tracemalloc.get_traced_memory()[0]
        self._resident = resident_kib()

    def figures(self, writers: int) -> Figures:
        """The memory for each of so many writers."""
        figures: Figures = {"rss_a_writer_kib": (resident_kib() - self._resident) / writers}
        if self._traced:
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0] - self._blocks
            tracemalloc.stop()
            figures["python_objects_a_writer_kib"] = taken / 1024 / writers
        return figures


def _stalls(watch: Watch, begun: float, back: float, done: float) -> Figures:
    return {
        "longest_stall_while_waiting_ms": watch.longest_stall_in(begun, back) * 1000,
        "longest_stall_afterwards_ms": watch.longest_stall_in(back, done) * 1000,
    }
