"""Workers, primaries and rebuilds are killed and frozen at random; the numbers stay right.

``AIORETRY_STREAM_SECONDS`` is how long a seed takes (20 by default), and ``AIORETRY_STREAM_SEEDS``
which seeds there are, as ``1,2,3``.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections import Counter
from random import Random

import pytest
from pymongo.errors import PyMongoError

from aioretry import RetryClient, deadline
from tests.streams.service import LEASE_SECONDS
from tests.streams.tagging import aggregated, animal, counted
from tests.streams.workers import start

SECONDS = float(os.environ.get("AIORETRY_STREAM_SECONDS", "20"))
SEEDS = [int(seed) for seed in os.environ.get("AIORETRY_STREAM_SEEDS", "1").split(",")]
KEYS, TAGS, WRITERS, WORKERS = 300, 60, 4, 2


class Chaos:
    """One run: its writers, its workers, and what happens to them."""

    def __init__(self, replica_set, documents, aggregator, seed):
        self.set = replica_set
        self.documents = documents
        self.aggregator = aggregator
        self.rng = Random(seed)
        self.workers: list[Process] = []
        self.happened = Counter()
        self.writing = True

    async def run(self) -> None:
        """Write, break things until time is over, and clear up."""
        writers = [asyncio.create_task(self.write(self.rng.random())) for _ in range(WRITERS)]
        self.workers = [await self.start("run", "--rebuild") for _ in range(WORKERS)]
        try:
            end = asyncio.get_running_loop().time() + SECONDS
            actions = []
            while asyncio.get_running_loop().time() < end:
                if not actions:
                    actions = [self.kill, self.freeze, self.primary, self.rebuild, self.cut_rebuild]
                    self.rng.shuffle(actions)
                action = actions.pop()
                self.happened[action.__name__] += 1
                await action()
                await asyncio.sleep(self.rng.uniform(0.1, 1.0))
            await self.set.heal()
        finally:
            self.writing = False
            await asyncio.gather(*writers)
            for worker in self.workers:
                await end_process(worker)

    async def write(self, seed: float) -> None:
        """Change documents at random; what was applied is what is stored."""
        rng = Random(seed)
        while self.writing:
            key, tags = rng.randrange(KEYS), [f"t{rng.randrange(TAGS)}" for _ in range(5)]
            new = animal(key, *tags, weight=rng.randrange(9))
            with contextlib.suppress(PyMongoError):
                async with deadline(30.0):
                    match rng.randrange(4):
                        case 0 | 1:
                            await self.documents.replace_one({"_id": key}, new, upsert=True)
                        case 2:
                            change = {"$set": {"tags": tags}}
                            await self.documents.update_one({"_id": key}, change)
                        case 3:
                            await self.documents.delete_one({"_id": key})
            self.happened["write"] += 1
            await asyncio.sleep(0.002)

    async def start(self, *arguments: str) -> Process:
        """Start a worker."""
        process = await start(self.set.uri, self.documents.name, *arguments)
        for stream in (process.stdout, process.stderr):
            self.drain(stream)
        return process

    def drain(self, stream) -> None:
        """Read what nobody wants to, so that it does not wait."""
        self.draining = getattr(self, "draining", [])
        self.draining.append(asyncio.create_task(stream.read()))

    async def kill(self) -> None:
        """Kill a worker, and start another one."""
        number = self.rng.randrange(WORKERS)
        await end_process(self.workers[number])
        self.workers[number] = await self.start("run", "--rebuild")

    async def freeze(self) -> None:
        """Freeze a worker until its lease is over, and thaw it."""
        worker = self.workers[self.rng.randrange(WORKERS)]
        if worker.returncode is None:
            worker.send_signal(signal.SIGSTOP)
            await asyncio.sleep(LEASE_SECONDS * self.rng.uniform(0.5, 2.0))
            worker.send_signal(signal.SIGCONT)

    async def primary(self) -> None:
        """Kill, freeze or depose the primary."""
        primary = await self.set.wait_for_primary()
        match self.rng.randrange(3):
            case 0:
                await self.set.kill(primary)
                await self.set.wait_for_primary(other_than=primary)
                await self.set.restart(primary)
            case 1:
                await self.set.freeze(primary)
                await self.set.wait_for_primary(other_than=primary)
                await self.set.thaw(primary)
            case 2:
                await self.set.step_down(seconds=2.0)
                await self.set.wait_for_primary()

    async def rebuild(self) -> None:
        """Rebuild, and wait for it."""
        await self.aggregator.rebuild()

    async def cut_rebuild(self) -> None:
        """Begin a rebuild in a process, and kill it on the way."""
        process = await self.start("rebuild")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.rng.uniform(0.8, 3.0)):
                await process.wait()
        await end_process(process)


async def end_process(process: Process) -> None:
    """Kill a process of ours."""
    if process.returncode is None:
        process.kill()
    await process.wait()


@pytest.mark.parametrize("seed", SEEDS)
async def test_chaos(seed, replica_set, documents, aggregator, target, stored, tags, fresh):
    """At the end the aggregates equal a full count, document by document."""
    await aggregator.rebuild()
    chaos = Chaos(replica_set, documents, aggregator, seed)
    await chaos.run()
    await asyncio.gather(*chaos.draining)
    async with RetryClient(replica_set.uri):
        await aggregator.run(until_caught_up=True)
    assert aggregated(stored.database[target.name]) == counted(stored)
    assert chaos.happened["write"] > 0
    await aggregator.rebuild()
    assert tags() == fresh()
