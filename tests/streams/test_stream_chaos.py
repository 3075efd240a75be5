"""Workers, primaries and rebuilds are killed and frozen at random; the numbers stay right.

``AIORETRY_STREAM_SECONDS`` is how long a seed takes (8 by default, in full 20), and
``AIORETRY_STREAM_SEEDS`` which seeds there are, as ``1,2,3``.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from pymongo.errors import PyMongoError

from aioretry import deadline
from aioretry.streams import LeaseKind, LeaseLostError, PartStatus
from tests.lengths import in_full
from tests.streams.service import LEASE_SECONDS
from tests.streams.tagging import animal
from tests.streams.workers import ended, start

SECONDS = float(os.environ.get("AIORETRY_STREAM_SECONDS", in_full(20, otherwise=8)))
SEEDS = [int(seed) for seed in os.environ.get("AIORETRY_STREAM_SEEDS", "1").split(",")]
KEYS, TAGS, WRITERS, WORKERS, AT_ONCE = 300, 60, 4, 2, 3
ELECTION = 120.0  # seconds; servers that have just begun vote late
CALM = 90.0  # seconds in which the workers catch up once nothing is broken any more


class Worker:
    """A process, what it has written, and whether it was us who ended it."""

    def __init__(self, process: Process):
        self.process = process
        self.ending = asyncio.create_task(ended(process))
        self.was_killed = False

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def kill(self) -> None:
        """Kill it."""
        if not self.ending.done():
            self.was_killed = True
            self.signal(signal.SIGKILL)
        await self.check()

    async def check(self, *losing: str) -> None:
        """Wait for its end, which is an error unless it was killed, has done all or has lost."""
        code, _, complaints = await self.ending
        has_lost = any(name in complaints for name in losing)
        if not ((self.was_killed and code == -signal.SIGKILL) or code == 0 or has_lost):
            raise AssertionError(f"a worker ended by itself with {code}: {complaints[-4000:]}")


class Chaos:
    """One run: its writers, its workers, and what happens to them."""

    def __init__(self, replica_set, documents, aggregator, seed):
        self.set = replica_set
        self.documents = documents
        self.aggregator = aggregator
        self.rng = Random(seed)
        self.workers: list[Worker] = []
        self.happened = Counter()
        self.writing = True
        self.one_primary = asyncio.Lock()  # without two members of three there is nothing to see

    async def run(self, then: Callable[[], Awaitable[object]]) -> None:
        """Write, break things until time is over, heal them, see what follows, and clear up."""
        writers = [asyncio.create_task(self.write(self.rng.random())) for _ in range(WRITERS)]
        self.workers = [await self.follow() for _ in range(WORKERS)]
        try:
            end = asyncio.get_running_loop().time() + SECONDS
            actions: list[Callable[[], Awaitable[object]]] = []
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(self.act(actions, end))
            await self.set.heal()
            self.writing = False
            await asyncio.gather(*writers)
            await then()
        finally:
            self.writing = False
            await asyncio.gather(*writers, return_exceptions=True)
            for worker in self.workers:
                worker.was_killed = worker.was_killed or not worker.ending.done()
                worker.signal(signal.SIGKILL)
                await asyncio.wait([worker.ending])

    async def act(self, actions: list[Callable[[], Awaitable[object]]], end: float) -> None:
        """Break one thing after another, while others break other things."""
        while asyncio.get_running_loop().time() < end:
            if not actions:
                actions += [self.kill, self.freeze, self.primary, self.rebuild, self.cut_rebuild]
                actions.append(self.rebuild_without_primary)
                self.rng.shuffle(actions)
            action = actions.pop()
            self.happened[action.__name__] += 1
            await action()
            self.check()
            await asyncio.sleep(self.rng.uniform(0.1, 1.0))

    def check(self) -> None:
        """Nobody ends who was not killed."""
        for worker in self.workers:
            if worker.ending.done() and not worker.was_killed:
                code, _, complaints = worker.ending.result()
                raise AssertionError(f"a worker ended by itself with {code}: {complaints[-4000:]}")

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

    async def start(self, *arguments: str) -> Worker:
        """Start a process."""
        return Worker(await start(self.set.uri, self.documents.name, *arguments))

    async def follow(self) -> Worker:
        """Start one that never ends by itself."""
        return await self.start("run", "--rebuild")

    async def kill(self) -> None:
        """Kill a worker, and start another one."""
        self.check()
        number = self.rng.randrange(WORKERS)
        new = await self.follow()
        killed, self.workers[number] = self.workers[number], new
        await killed.kill()

    async def freeze(self) -> None:
        """Freeze a worker until its lease is over, and thaw it."""
        worker = self.workers[self.rng.randrange(WORKERS)]
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE_SECONDS * self.rng.uniform(0.5, 2.0))
        worker.signal(signal.SIGCONT)

    async def primary(self) -> None:
        """Kill, freeze or depose the primary."""
        async with self.one_primary:
            # Who is frozen while another one rolls back to it keeps that one for minutes, and it
            # votes for nobody who lacks what it is about to take back.
            await self.set.heal()
            primary = await self.set.wait_for_primary(ELECTION)
            match self.rng.randrange(3):
                case 0:
                    await self.set.kill(primary)
                    await self.set.wait_for_primary(ELECTION, other_than=primary)
                    await self.set.restart(primary)
                case 1:
                    await self.set.freeze(primary)
                    await self.set.wait_for_primary(ELECTION, other_than=primary)
                    await self.set.thaw(primary)
                case 2:
                    await self.set.step_down(seconds=2.0)
                    await self.set.wait_for_primary(ELECTION)

    async def rebuild(self) -> None:
        """Rebuild, and wait for it."""
        with contextlib.suppress(LeaseLostError):  # another one has begun meanwhile
            await self.aggregator.rebuild()

    async def rebuild_without_primary(self) -> None:
        """Rebuild while the primary goes."""
        await asyncio.gather(self.rebuild(), self.primary())

    async def cut_rebuild(self) -> None:
        """Begin a rebuild in a process, and kill it on the way."""
        worker = await self.start("rebuild")
        done, _ = await asyncio.wait([worker.ending], timeout=self.rng.uniform(0.8, 3.0))
        if done:
            await worker.check("LeaseLostError")
        else:
            await worker.kill()


async def part_of(aggregator) -> PartStatus:
    """How the only part is."""
    (part,) = (await aggregator.status()).parts
    return part


@pytest.mark.slow
@pytest.mark.usefixtures("three_members")
@pytest.mark.long
@pytest.mark.timeout(SECONDS + ELECTION + CALM + 60)
@pytest.mark.parametrize("seed", SEEDS)
async def test_chaos(seed, replica_set, documents, aggregator, tags, fresh):
    """The workers themselves catch up, and the aggregates equal a full count."""
    await aggregator.rebuild()
    fence = (await part_of(aggregator)).fence
    chaos = Chaos(replica_set, documents, aggregator, seed)

    async def catch_up() -> None:
        await documents.insert_many([animal(KEYS + number, "last") for number in range(10)])
        async with asyncio.timeout(CALM):
            while tags() != fresh() or (await part_of(aggregator)).kind is not LeaseKind.UPDATE:
                chaos.check()
                await asyncio.sleep(0.1)
        part = await part_of(aggregator)
        assert part.changes >= 10
        assert part.fence > fence
        assert any(f":{each.process.pid}:" in part.owner for each in chaos.workers)

    await chaos.run(catch_up)
    assert chaos.happened["write"] > 0
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()
    await aggregator.rebuild()
    assert tags() == fresh()
