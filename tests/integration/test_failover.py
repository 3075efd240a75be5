"""Two hundred writers through kills, step-downs and isolation, exactly once, on every version."""

import asyncio

import pymongo
import pytest
from pymongo.write_concern import WriteConcern

from aioretry import Outcome, RetryClient, deadline
from aioretry.testing import Ledger, ReplicaSet
from tests.lengths import in_full

WRITERS = 200
TIMES = in_full(3, otherwise=1)  # a kill and a step-down each
PYMONGO = tuple(int(part) for part in pymongo.version.split(".")[:2])

VERSIONS = [
    pytest.param(
        "4.2",
        marks=[
            pytest.mark.matrix,
            pytest.mark.skipif(PYMONGO >= (4, 18), reason="PyMongo 4.18 needs MongoDB 4.4"),
        ],
    ),
    pytest.param("4.4", marks=pytest.mark.matrix),
    pytest.param("5.0", marks=pytest.mark.matrix),
    "6.0",
]


class Load:
    """Writers that count, until they are told to stop."""

    def __init__(self, collection):
        self.collection = collection
        self.ledger = Ledger()
        self.acknowledged = 0
        self.stopped = False
        self.progress = asyncio.Event()

    async def write(self, me):
        """Increment one's own counter, over and over."""
        while not self.stopped:
            async with deadline(30):
                write = self.collection.update_one(
                    {"_id": me % 20}, {"$inc": {"counter": 1}}, upsert=True
                )
                await self.ledger.write(me % 20, write)
            self.acknowledged += 1
            self.progress.set()

    async def gets_on(self):
        """Wait until every writer can have had a turn since now."""
        target = self.acknowledged + WRITERS
        while self.acknowledged < target:
            self.progress.clear()
            await self.progress.wait()

    async def check(self):
        """No error, and every write is there exactly once."""
        await self.ledger.check_counters(self.collection, "counter")
        assert {Outcome.APPLIED} == {entry.outcome for entry in self.ledger.entries}


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
async def test_kills_and_step_downs(version):
    """No error, and every write is there exactly once."""
    async with (
        ReplicaSet(version=version, faults=True) as replica_set,
        RetryClient(replica_set.uri) as client,
    ):
        collection = client.metrics.get_collection(
            "events", write_concern=WriteConcern(w="majority", j=True)
        )
        load = Load(collection)
        async with asyncio.TaskGroup() as group:
            for me in range(WRITERS):
                group.create_task(load.write(me))
            for _ in range(TIMES):
                await load.gets_on()
                primary = await replica_set.wait_for_primary()
                await replica_set.kill(primary)
                await load.gets_on()
                await replica_set.restart(primary)
                await load.gets_on()
                await replica_set.wait_for_primary()
                await replica_set.step_down()
            await load.gets_on()
            load.stopped = True
        await load.check()
    assert len(load.ledger.entries) > (2 * TIMES + 1) * WRITERS


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
async def test_isolated_primaries(version):
    """What a primary has taken that no majority has is written again at the next one."""
    async with (
        ReplicaSet(version=version, member_proxies=True) as replica_set,
        RetryClient(replica_set.uri) as client,
    ):
        collection = client.metrics.get_collection(
            "events", write_concern=WriteConcern(w="majority", j=True)
        )
        load = Load(collection)
        async with asyncio.TaskGroup() as group:
            for me in range(WRITERS):
                group.create_task(load.write(me))
            for _ in range(TIMES):
                await load.gets_on()
                primary = await replica_set.wait_for_primary()
                async with replica_set.faults.isolate(primary):
                    await load.gets_on()
                await replica_set.heal()
            await load.gets_on()
            load.stopped = True
        await load.check()
    assert len(load.ledger.entries) > (2 * TIMES + 1) * WRITERS
