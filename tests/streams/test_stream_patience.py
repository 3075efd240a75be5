"""What takes long is waited for: slow servers and increments, and the rebuilds of others."""

import asyncio
import time

import pytest
from anyio.to_thread import current_default_thread_limiter

from aioretry.streams import NotBuiltError, PositionLostError, _following, _holding, _pace
from tests.streams.tagging import animal, by_tag, of_change_stream

SLOW = "slow"


@pytest.fixture
async def slow(replica_set, documents, target, client_class):
    """An aggregator with a short lease, over a client whose commands can be held up."""
    async with client_class(replica_set.uri, appName=SLOW) as client:
        yield of_change_stream(
            client.aioretry_tests[documents.name],
            client.aioretry_tests[target.name],
            lease_seconds=0.6,
        )


async def test_a_change_stream_that_opens_slowly(
    monkeypatch, replica_set, aggregator, slow, documents, fresh, tags
):
    """A server that has to look through a long oplog is given more time after each attempt."""
    await aggregator.rebuild()
    await documents.insert_one(animal(1, "x"))
    pace = _pace.Pace(10)
    pace.patience = 0.1
    monkeypatch.setattr(_following, "Pace", lambda _: pace)
    held_up = replica_set.faults.delay(
        2.0,
        "aggregate",
        app_name=SLOW,
        times=None,
        where=lambda command: "$changeStream" in str(command),
    )
    async with held_up as fault:
        await slow.run(until_caught_up=True)
        assert fault.fired >= 2
    assert tags() == fresh() == {"x": {"count": 1, "weight": 1}}


async def test_a_rebuild_whose_reading_is_slow(replica_set, slow, documents, fresh, tags):
    """A rebuild keeps its lease while it waits for the server, for however long."""
    await documents.insert_many([animal(n, f"t{n % 7}") for n in range(30)])
    async with replica_set.faults.delay(2.0, "find", app_name=SLOW, namespace=documents.full_name):
        await slow.rebuild()
    assert tags() == fresh()


async def test_a_rebuild_whose_increments_are_slow(documents, target, fresh, tags):
    """Increments that hold the event loop up make no rebuild fail, if nobody wants its lease."""

    def slowly(change):
        time.sleep(0.02)
        yield from by_tag(change)

    aggregator = of_change_stream(documents, target, increments=slowly, lease_seconds=0.2)
    await documents.insert_many([animal(n, f"t{n % 7}") for n in range(40)])
    await aggregator.rebuild()
    assert tags() == fresh()
    await documents.update_many({}, {"$push": {"tags": "all"}})
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()


async def test_long_batches(documents, target, fresh, tags, following):
    """A batch may be collected for longer than the lease lasts."""
    aggregator = of_change_stream(documents, target, lease_seconds=0.3, max_seconds=2.0)
    await aggregator.rebuild()
    fence = (await aggregator.status()).parts[0].fence
    worker = following(aggregator)
    writing = asyncio.create_task(write_for_two_leases(documents, aggregator))
    await writing
    while tags() != fresh():
        await asyncio.sleep(0.05)
    assert not worker.done()
    assert fence + 1 == (await aggregator.status()).parts[0].fence


async def write_for_two_leases(documents, aggregator) -> None:
    """Write until the lease was renewed twice, so that a batch never ends for want of changes."""
    records = documents.database["aioretry.leases"]
    query, seen, number = {"_id.aggregator": aggregator.name}, set(), 0
    while len(seen) < 4:
        number += 1
        await documents.insert_one(animal(f"n{number}", "all"))
        seen |= {record.get("expires") for record in await records.find(query).to_list(None)}


@pytest.mark.parametrize("seconds", [0.0, 0.01])  # with none, giving back never begins
async def test_a_session_that_was_not_given_back(
    monkeypatch, replica_set, slow, aggregator, documents, following, seconds
):
    """A session that the record names is nobody else's: a takeover would end what is done in it."""
    monkeypatch.setattr(_holding, "_RELEASE_SECONDS", seconds)
    await aggregator.rebuild()
    worker = following(slow)
    records = documents.database["aioretry.leases"]
    query = {"_id.aggregator": aggregator.name, "session": {"$exists": True}}
    while (record := await records.find_one(query)) is None:
        await asyncio.sleep(0.02)
    async with replica_set.faults.hang(
        app_name=SLOW, namespace=records.full_name, times=None, must_fire=False
    ):
        worker.cancel()
        await asyncio.wait([worker])
        assert await records.find_one({"_id": record["_id"], "session": record["session"]})
        for _ in range(5):
            async with await slow.client.start_session() as session:
                assert session.session_id != record["session"]


async def test_one_rebuild_for_many(documents, target, fresh, tags):
    """Workers that meet the same error rebuild once, and all of them go on."""
    aggregator = of_change_stream(documents, target, parts=3)
    await documents.insert_many([animal(n, f"t{n % 7}") for n in range(20)])

    errors = []
    for part in range(3):
        with pytest.raises(NotBuiltError) as caught:
            await aggregator.run(part)
        errors.append(caught.value)
    done = await asyncio.gather(*map(aggregator.rebuild_after, errors))
    assert 1 == sum(progress is not None for progress in done)
    assert tags() == fresh()
    late = PositionLostError("the one before")
    assert await aggregator.rebuild_after(late) is None
    late.build = (await target.find_one({"_id.part": 0}))["watermark"]["build"]
    assert await aggregator.rebuild_after(late) is not None


async def test_threads_of_others(replica_set, aggregator, slow, following):
    """A worker that reads holds none of the threads that the event loop has for everybody."""
    await aggregator.rebuild()
    async with replica_set.faults.hang(
        "aggregate", app_name=SLOW, where=lambda command: "$changeStream" in str(command)
    ) as opening:
        following(slow)
        await opening.wait_until_fired()
        assert 0 == current_default_thread_limiter().borrowed_tokens


async def test_cancelled_while_it_reads(replica_set, aggregator, slow, documents, following):
    """A worker that is cancelled has the server end what it waits for."""
    await aggregator.rebuild()
    faults = replica_set.faults
    async with (
        faults.hang(
            "aggregate", app_name=SLOW, where=lambda command: "$changeStream" in str(command)
        ) as opening,
        faults.watch("killSessions", app_name=SLOW) as killing,
    ):
        worker = following(slow)
        await opening.wait_until_fired()
        worker.cancel()
        await asyncio.wait([worker])
        assert killing.fired
