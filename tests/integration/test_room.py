"""Where writes wait for a connection or a thread, and who is held up thereby: nobody else."""

import asyncio
import contextlib
import threading

import anyio
import pytest

from aioretry import Outcome, RetryClient, deadline, outcome_of, thread_counts
from aioretry.testing import FakeMongoses, ReplicaSet, ScriptedServer
from tests.integration.looping import Silent

INCREMENT = {"$inc": {"n": 1}}
THREADS = 32


@pytest.mark.parametrize("threads", [False, True], ids=["loop", "threads"])
async def test_a_router_that_hangs_stalls_nobody(replica_set, threads):
    """Those that it does not answer wait for it; whoever comes after them is served at once."""
    listeners = [Silent()] if threads else []
    async with (
        FakeMongoses(replica_set) as cluster,
        RetryClient(cluster.uri, w=1, event_listeners=listeners) as client,
    ):
        collection = client.aioretry_tests.room
        bad, _ = cluster.mongoses

        def write(number):
            return collection.update_one({"_id": number}, INCREMENT, upsert=True)

        burst = []
        try:
            with anyio.fail_after(20):
                await client.admin.command("ping")  # the driver begins to look
                while len(client._driver.view().writable) < 2:
                    await asyncio.sleep(0.01)
                await asyncio.gather(*map(write, range(6)))
                cluster.faults.partition(bad, must_fire=False)
                burst += map(write, range(100))
                for number in range(50):
                    await write(100 + number)
            ended = sum(one.done() for one in burst)
        finally:
            for under_way in burst:
                under_way.cancel()
            cluster.faults.clear()
            await asyncio.gather(*burst, return_exceptions=True)
    # The others are those that found a connection to it, or began to open one, or have a thread.
    assert ended >= len(burst) - THREADS


@pytest.fixture
async def gate(collection):
    """Keeps inserts from iterators waiting, on all threads there are, until it is opened."""
    opened = threading.Event()

    def slowly(number):
        opened.wait(60)
        yield {"_id": f"slow {number}"}

    writes = [collection.insert_many(slowly(number)) for number in range(THREADS)]
    try:
        yield opened
    finally:
        opened.set()
        with contextlib.suppress(Exception):
            await asyncio.gather(*writes)


@pytest.mark.motor
async def test_iterators_hold_up_no_opening(client, collection, gate):
    """All threads read from users' iterators; a connection is opened for an insert all the same."""
    with anyio.fail_after(10):
        while thread_counts(client).threads < THREADS:
            await asyncio.sleep(0.01)
        await collection.insert_one({"_id": 1})
    assert not gate.is_set()


@pytest.mark.motor
async def test_iterators_past_their_deadlines_hold_up_nobody(client, collection):
    """Those that still read, though nobody waits for them, leave their places to others."""
    opened = threading.Event()

    def slowly():
        opened.wait(60)
        yield {}

    try:
        async with deadline(0.5):
            ends = await asyncio.gather(
                *(collection.insert_many(slowly()) for _ in range(THREADS)),
                return_exceptions=True,
            )
        assert {Outcome.NOT_APPLIED} == set(map(outcome_of, ends))
        with anyio.fail_after(10):
            await collection.insert_many({"_id": number} for number in range(3))
        assert not opened.is_set()
    finally:
        opened.set()


async def test_connections_that_are_dead_without_a_word():
    """When one breaks and the next does not answer, the others are not asked one by one."""
    held, broken, asked = [], [], []
    with ScriptedServer(kind="mongos") as server:

        def insert(request):
            if request.command["documents"][0]["_id"] == "break" and not broken:
                broken.append(request)
                request.hang_up()
                return None
            if len(held) < 20:
                held.append(request)
                return None
            return {"n": 1}

        server.answer("insert", insert)
        server.answer("ping", asked.append)
        async with RetryClient(server.uri, maxConnecting=10) as client:
            first = [client.t.c.insert_one({"_id": number}) for number in range(20)]
            while len(held) < 20:
                await asyncio.sleep(0.01)
            for request in held:
                request.reply({"n": 1})
            await asyncio.gather(*first)
            await client.t.c.insert_one({"_id": "break"})
    assert len(asked) <= 3


async def test_a_server_that_came_back_meanwhile_is_not_taken_for_lost(server_version):
    """What has waited for a thread, or on one, goes to the process of now, and is waited for."""
    async with (
        ReplicaSet(members=1, version=server_version) as servers,
        RetryClient(servers.uri, w=1, heartbeatFrequencyMS=500) as client,
    ):
        collection = client.aioretry_tests.room
        await collection.insert_one({})
        opened = threading.Event()

        async def insert(number):
            def slowly():
                opened.wait(60)
                yield {"_id": number}

            async with collection.operation() as operation:
                await operation.insert_many(slowly())
            return len(operation.attempts)

        inserts = [asyncio.create_task(insert(number)) for number in range(THREADS + 1)]
        while thread_counts(client).threads < THREADS:
            await asyncio.sleep(0.01)
        await servers.kill(await servers.primary())
        await servers.heal()
        await servers.wait_for_primary()
        await client.admin.command(
            "configureFailPoint",
            "failCommand",
            mode="alwaysOn",
            data={"failCommands": ["insert"], "blockConnection": True, "blockTimeMS": 1500},
        )
        opened.set()
        assert [1] * len(inserts) == await asyncio.gather(*inserts)


@pytest.mark.parametrize("pool_size", [1, 2, 3])
async def test_a_small_pool_is_shared(replica_set, pool_size):
    """Who waits for a connection gets one, though others go on writing over those there are."""
    async with RetryClient(replica_set.uri, w=1, maxPoolSize=pool_size) as client:
        collection = client.aioretry_tests.room
        await collection.insert_one({})
        done = [0] * 12

        async def write_on(number):
            while min(done) < 3:
                await collection.update_one({"_id": number}, INCREMENT, upsert=True)
                done[number] += 1

        with anyio.fail_after(30):
            await asyncio.gather(*map(write_on, range(len(done))))


async def test_reads_over_the_same_pool_have_their_turns(replica_set):
    """Writes that never pause, and may use each connection, leave one to a read that waits."""
    async with RetryClient(
        replica_set.uri, w=1, maxPoolSize=2, max_concurrent_attempts=2
    ) as client:
        collection = client.aioretry_tests.room
        await collection.insert_one({"_id": "read"})
        reads = writes = 0

        async def write_on(number):
            nonlocal writes
            while reads < 5:
                await collection.update_one({"_id": number}, INCREMENT, upsert=True)
                writes += 1

        async def read_on():
            nonlocal reads
            while reads < 5:
                await collection.find_one({"_id": "read"})
                reads += 1

        with anyio.fail_after(30):
            await asyncio.gather(read_on(), *map(write_on, range(20)))
    assert writes < 1000


async def test_connections_that_the_loop_cannot_use(server_version, monkeypatch):
    """More writes than threads hang over compressed ones; the others wait, and open nothing."""
    async with (
        ReplicaSet(members=1, version=server_version) as servers,
        RetryClient(servers.uri, w=1, compressors="zlib") as client,
    ):
        collection = client.aioretry_tests.room
        await collection.update_one({"_id": 1}, INCREMENT, upsert=True)
        dispatch, opened = client._driver._dispatch, []
        assert dispatch._connections.are_unusable
        submit = dispatch._room._openers.submit
        monkeypatch.setattr(
            dispatch._room._openers, "submit", lambda job: (opened.append(job), submit(job))
        )
        await client.admin.command(
            "configureFailPoint",
            "failCommand",
            mode={"times": THREADS},
            data={"failCommands": ["update"], "blockConnection": True, "blockTimeMS": 1500},
        )
        writes = [collection.update_one({"_id": 1}, INCREMENT) for _ in range(THREADS + 8)]
        pending = client._write_path.coordinator().pending
        assert (THREADS, 8) == (len(pending._under_way), pending.waiting)
        with anyio.fail_after(30):
            await asyncio.gather(*writes)
        assert [] == opened
