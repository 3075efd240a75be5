"""Workers and rebuilds that are cancelled while they ask for leases: nobody waits for them."""

import asyncio
import datetime as dt

import pytest

from aioretry.streams import LeaseKind, LeaseLostError
from aioretry.streams._leases import LEASES
from tests.streams.tagging import animal, of_change_stream

EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
UNAUTHORIZED = 13


@pytest.fixture
async def aggregator(documents, target):
    """An aggregator of two parts, whose leases last for longer than the tests."""
    aggregator = of_change_stream(documents, target, parts=2, lease_seconds=600.0)
    await aggregator.rebuild()
    return aggregator


@pytest.fixture
def records(plain, target):
    """Read the records of its leases."""

    def read():
        found = plain[target.database.name][LEASES].find({"_id.aggregator": target.name})
        return list(found.sort("_id.part"))

    return read


@pytest.fixture
def hang(replica_set, target):
    """Hold up a command for the leases that says something in particular."""

    def hang(word, *commands, **options):
        return replica_set.faults.hang(
            *commands,
            namespace=f"{target.database.name}.{LEASES}",
            where=lambda command: word in str(command),
            **options,
        )

    return hang


async def cancelled_in(task, fault):
    """Cancel a task as soon as its command is held up, and let the command go on."""
    await fault.wait_until_fired()
    task.cancel()
    fault.disarm()
    with pytest.raises(asyncio.CancelledError):
        await task


def are_free(records):
    """Whether the leases are nobody's, and no rebuild waits for them."""
    return all(each["expires"].timestamp() == 0 and "wanted" not in each for each in records)


@pytest.mark.parametrize("applied", [False, True], ids=["request", "reply"])
@pytest.mark.parametrize(
    ("word", "command"), [("wanted", "update"), ("rebuild", "findAndModify")], ids=["ask", "take"]
)
async def test_a_rebuild(aggregator, documents, hang, records, fresh, tags, word, command, applied):
    """Neither what it asked for nor what it got just then holds the workers up."""
    async with hang(word, command, applied=applied) as fault:
        await cancelled_in(asyncio.create_task(aggregator.rebuild()), fault)
    assert are_free(records())
    await documents.insert_one(animal(1, "x"))
    for part in range(aggregator.parts):
        await aggregator.run(part, until_caught_up=True)
    assert tags() == fresh()


async def test_a_rebuild_that_waits(aggregator, client, records):
    """It asks no more for the lease that a worker has, and takes nothing away from that."""
    leases = aggregator._settings.leases
    async with await client.start_session(causal_consistency=False) as session:
        lease = await leases.take(1, LeaseKind.UPDATE, "me", session)
        task = asyncio.create_task(aggregator.rebuild())
        while not all("wanted" in each or each["kind"] == "rebuild" for each in records()):
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        assert not await leases.renew(lease)
        first, second = records()
        assert are_free([first])
        assert "wanted" not in second
        assert ("me", lease.fence) == (second["owner"], second["fence"])


async def test_a_renewal_that_comes_late(aggregator, client, records):
    """It renews nothing that was given back: a rebuild's lease may be renewed when it is over."""
    leases = aggregator._settings.leases
    async with await client.start_session(causal_consistency=False) as session:
        lease = await leases.take(0, LeaseKind.REBUILD, "me", session)
        await leases.give_up("me", LeaseKind.REBUILD, range(aggregator.parts))
        with pytest.raises(LeaseLostError):
            await leases.renew(lease)
    assert are_free(records())


async def test_another_rebuild_that_waits(aggregator, client, records):
    """It goes before the workers when the first one has ended."""
    leases = aggregator._settings.leases
    async with await client.start_session(causal_consistency=False) as session:
        assert await leases.take(0, LeaseKind.REBUILD, "me", session)
        await leases.ask(0)
        await leases.give_up("me", LeaseKind.REBUILD, range(aggregator.parts))
        assert "wanted" in records()[0]
        assert await leases.take(0, LeaseKind.UPDATE, "you", session) is None


@pytest.mark.parametrize("applied", [False, True], ids=["request", "reply"])
async def test_a_worker(aggregator, hang, records, applied):
    """What it got just then is free for the next one."""
    async with hang("expires", "findAndModify", applied=applied) as fault:
        await cancelled_in(asyncio.create_task(aggregator.run()), fault)
    assert are_free(records())
    await aggregator.run(until_caught_up=True)


async def test_a_lease_that_can_not_be_given_back(replica_set, aggregator, target):
    """Its session is ended all the same."""
    faults, name = replica_set.faults, f"{target.database.name}.{LEASES}"
    async with (
        faults.error(UNAUTHORIZED, "update", namespace=name),
        faults.watch("endSessions") as ending,
    ):
        await aggregator.run(until_caught_up=True)
    assert 1 == ending.fired
