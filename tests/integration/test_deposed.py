"""Writers at a server that is deposed while it hangs: a frozen primary, a mongos that is lost."""

import asyncio
import threading

import anyio
import pytest
from pymongo import ReadPreference
from pymongo.errors import AutoReconnect
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    attempts_of,
    deadline,
    outcome_of,
    thread_counts,
)
from aioretry.testing import FakeMongoses

pytestmark = pytest.mark.usefixtures("three_members")

GUARD = 90
THREADS = 4
CONNECTING = 2  # at a time, by default
WRITERS = 12


@pytest.fixture
async def client(replica_set):
    """A client of few threads, whose writes need no second server's acknowledgement.

    The driver by itself ends what hangs after its connect timeout: far too late for any test here.
    """
    async with RetryClient(
        replica_set.uri,
        max_concurrent_attempts=THREADS,
        w=1,
        connectTimeoutMS=600_000,
    ) as client:
        yield client


@pytest.fixture
async def counters(replica_set, client, collection):
    """A collection with a counter for each writer, which every member has.

    The client has a connection for each thread, so that whatever has a thread is sent at once.
    """
    await collection.insert_many([{"_id": n, "n": 0} for n in range(WRITERS)])
    counters = collection.with_options(write_concern=WriteConcern(w=1))
    async with replica_set.faults.hang("update", times=THREADS) as hang:
        warming = [increment(counters, n, by=0) for n in range(THREADS)]
        async with asyncio.TaskGroup() as group:
            for write in warming:
                group.create_task(write)
            await hang.wait_until_fired(THREADS, timeout=30)
            hang.disarm()
    return counters


async def increment(counters, writer, by=1):
    """Count once, and tell who was asked."""
    async with counters.operation() as op:
        await op.update_one({"_id": writer}, {"$inc": {"n": by}})
    return [attempt.address for attempt in op.attempts]


async def all_begun(client, count):
    """Wait until as many attempts are sent as there are threads, and the others queue."""
    pending = client._write_path.coordinator().pending
    async with asyncio.timeout(30):
        while THREADS != sum(one._call.token.is_sending for one in pending._under_way):
            await asyncio.sleep(0.005)
    assert count - THREADS == thread_counts(client).queued


async def none_abandoned(client):
    """Wait until no thread is held up any more."""
    async with asyncio.timeout(GUARD):
        while thread_counts(client).abandoned:
            await asyncio.sleep(0.01)


def address_of(member):
    host, _, port = member.address.rpartition(":")
    return (host, int(port))


async def counts_of(counters):
    """What each counter says."""
    return {document["_id"]: document["n"] async for document in counters.find()}


class TestFrozenPrimary:
    @pytest.mark.parametrize("seconds", [None, GUARD], ids=["one retry", "deadline"])
    async def test_writes_go_on_while_it_is_frozen(self, replica_set, client, counters, seconds):
        """More writers than threads hang at it; each is applied once by the next primary."""
        old = await replica_set.primary()
        await replica_set.freeze(old)
        async with deadline(seconds):
            writes = [asyncio.create_task(increment(counters, n)) for n in range(WRITERS)]
        await all_begun(client, WRITERS)
        async with asyncio.timeout(GUARD):
            histories = await asyncio.gather(*writes)
        assert "frozen" == old.state.value
        hung = [history for history in histories if len(history) > 1]
        assert THREADS <= len(hung)
        for history in hung:
            assert address_of(old) == history[0] != history[-1]
        assert dict.fromkeys(range(WRITERS), 1) == await counts_of(counters)
        # Their threads were ended, not left to the frozen server.
        await none_abandoned(client)
        assert "frozen" == old.state.value
        assert thread_counts(client).threads <= THREADS + CONNECTING
        # What it was sent before it froze is not applied a second time when it comes back.
        await replica_set.heal()
        assert dict.fromkeys(range(WRITERS), 1) == await counts_of(counters)
        await increment(counters, 0)

    async def test_attempts_that_are_connecting(self, replica_set, client, collection):
        """They were not sent and count for nothing; their threads are away until they can end."""
        writes = collection.with_options(write_concern=WriteConcern(w=1))
        await collection.with_options(read_preference=ReadPreference.SECONDARY).find_one()
        await known(client, 1)
        await replica_set.freeze(await replica_set.primary())

        async def upsert(writer):
            async with writes.operation() as op:
                await op.update_one({"_id": writer}, {"$inc": {"n": 1}}, upsert=True)
            return [attempt.sent for attempt in op.attempts]

        async with asyncio.timeout(GUARD):
            histories = await asyncio.gather(*(upsert(n) for n in range(WRITERS)))
        assert [[False, True]] * CONNECTING == [one for one in histories if len(one) > 1]
        # Whoever watches for silent servers frees them a second after the election.
        assert thread_counts(client).abandoned <= CONNECTING
        assert CONNECTING < thread_counts(client).threads
        await replica_set.heal()
        await none_abandoned(client)
        assert thread_counts(client).threads <= THREADS + CONNECTING
        assert dict.fromkeys(range(WRITERS), 1) == await counts_of(writes)

    async def test_what_can_not_be_sent_again(self, replica_set, client, counters):
        """update_many ends with AutoReconnect and UNKNOWN as soon as there is another primary."""
        await replica_set.freeze(await replica_set.primary())
        write = counters.update_many({}, {"$inc": {"n": 1}})
        with anyio.fail_after(GUARD), pytest.raises(AutoReconnect, match="stopped") as caught:
            await write
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        assert 1 == len(attempts_of(caught.value))
        await increment(counters, 1)
        assert {n: int(n == 1) for n in range(WRITERS)} == await counts_of(counters)
        await none_abandoned(client)

    async def test_what_is_still_being_sent(self, replica_set, client, counters):
        """A thread that can't get rid of a large document is ended, too."""
        old = await replica_set.primary()
        await replica_set.freeze(old)
        large = "x" * 12 * 2**20
        async with asyncio.timeout(GUARD):
            results = await asyncio.gather(
                *(counters.insert_one({"_id": f"large {n}", "x": large}) for n in range(THREADS))
            )
            await none_abandoned(client)
        assert THREADS == len(results)
        assert "frozen" == old.state.value

    async def test_cancelled_writers_hold_it_up_no_longer(self, replica_set, client, counters):
        """Threads that carry what was cancelled, or ran out of time, are freed like the others."""
        await replica_set.freeze(await replica_set.primary())
        writes = [asyncio.create_task(increment(counters, n)) for n in range(THREADS)]
        await all_begun(client, THREADS)
        for write in writes:
            write.cancel()
        for write in writes:
            with pytest.raises(asyncio.CancelledError):
                await write
        waiting = [asyncio.create_task(increment(counters, n)) for n in range(THREADS, WRITERS)]
        async with asyncio.timeout(GUARD):
            histories = await asyncio.gather(*waiting)
        # Not one had to meet the frozen server: they got their threads from the new one on.
        assert {1} == {len(history) for history in histories}
        await none_abandoned(client)

    async def test_a_deadline_that_ends_before_the_election(self, replica_set, client, counters):
        """The writes that were sent may be applied, and their threads are freed at once."""
        await replica_set.freeze(await replica_set.primary())
        async with deadline(0.5):
            writes = [counters.update_one({"_id": n}, {"$inc": {"n": 1}}) for n in range(WRITERS)]
        ended = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), GUARD)
        assert {DeadlineExceeded} == {type(error) for error in ended}
        outcomes = [outcome_of(error) for error in ended]
        assert THREADS == outcomes.count(Outcome.UNKNOWN)
        assert WRITERS - THREADS == outcomes.count(Outcome.NOT_APPLIED)
        await none_abandoned(client)
        async with asyncio.timeout(GUARD), deadline(GUARD):
            await increment(counters, 0)


class TestLostMongos:
    async def test_frees_its_writers(self, replica_set, counters):
        """Those at a mongos that nothing passes any more go to the other one, and are made once."""
        async with FakeMongoses(replica_set) as cluster:
            bad, good = cluster.mongoses
            async with RetryClient(
                cluster.uri,
                max_concurrent_attempts=THREADS,
                w=1,
                heartbeatFrequencyMS=500,
                connectTimeoutMS=1000,
            ) as client:
                writes = client[counters.database.name][counters.name]
                await client.admin.command("ping")
                await known(client, 2)
                async with cluster.faults.partition(bad):
                    while True:
                        async with asyncio.timeout(GUARD):
                            histories = await asyncio.gather(
                                *(increment(writes, n) for n in range(WRITERS))
                            )
                        if any(len(history) > 1 for history in histories):
                            break
                    for history in histories:
                        assert address_of(good) == history[-1]
                    await none_abandoned(client)
                counts = set((await counts_of(counters)).values())
                assert 1 == len(counts)


async def known(client, count):
    """Wait until the driver knows so many servers that take writes."""
    async with asyncio.timeout(30):
        while len(client._driver.view().writable) < count:
            await asyncio.sleep(0.01)


async def test_while_a_command_is_prepared(replica_set, client, collection, stored):
    """A bulk operation that still reads its documents is prepared once, and goes to the next."""
    is_read, goes_on = threading.Event(), threading.Event()

    def documents():
        yield {"_id": 0}
        is_read.set()
        goes_on.wait(GUARD)
        yield from ({"_id": number} for number in range(1, 500))

    old = await replica_set.primary()
    write = collection.with_options(write_concern=WriteConcern(w="majority")).insert_many(
        documents()
    )
    await asyncio.to_thread(is_read.wait, GUARD)
    await replica_set.step_down()
    view = client._driver.view
    async with asyncio.timeout(GUARD):
        while view().writable.keys() <= {address_of(old)}:
            await asyncio.sleep(0.01)
    pending = client._write_path.coordinator().pending
    async with asyncio.timeout(GUARD):  # it has looked at what is under way, and left it alone
        while pending._seen is not view().source or pending._was_news or pending._doubted:
            await asyncio.sleep(0.01)
    goes_on.set()
    async with asyncio.timeout(GUARD):
        assert list(range(500)) == (await write).inserted_ids
    assert 500 == stored.count_documents({})
