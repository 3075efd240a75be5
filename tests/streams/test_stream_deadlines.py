"""An aggregator under its caller's deadline works until that is over, and says so then."""

import asyncio

import pymongo
import pytest

from aioretry import DeadlineExceeded, deadline, detached
from tests.streams.tagging import animal

LIMITS = {"deadline": deadline, "pymongo.timeout": pymongo.timeout}


@pytest.fixture(params=LIMITS.values(), ids=LIMITS)
def limited(request):
    """What sets a time limit."""
    return request.param


async def test_run(limited, documents, aggregator, fresh, tags, until_equal):
    """It raises, and has given its lease back, so that the next one need not wait for its end."""
    await documents.insert_one(animal(1, "x"))
    await aggregator.rebuild()
    async with asyncio.timeout(60.0):
        with limited(2.0):
            task = asyncio.create_task(aggregator.run())
        await documents.insert_one(animal(2, "y"))
        await until_equal()
        with pytest.raises(DeadlineExceeded, match="the deadline around the aggregator is over"):
            await task
    (part,) = (await aggregator.status()).parts
    assert part.owner is None
    await documents.insert_one(animal(3, "z"))
    async with asyncio.timeout(5.0):
        await aggregator.run(until_caught_up=True)
    assert tags() == fresh()


async def test_run_while_another_one_follows(documents, aggregator, following):
    """So does one that waits for the lease all the time."""
    await documents.insert_one(animal(1, "x"))
    await aggregator.rebuild()
    following(aggregator)
    async with asyncio.timeout(60.0):
        while (await aggregator.status()).parts[0].owner is None:
            await asyncio.sleep(0.02)
        with pytest.raises(DeadlineExceeded):
            async with deadline(1.0):
                await aggregator.run()


async def test_rebuild(limited, documents, aggregator):
    """A rebuild raises, too."""
    await documents.insert_one(animal(1, "x"))
    async with asyncio.timeout(60.0):
        with pytest.raises(DeadlineExceeded), limited(1e-6):
            await aggregator.rebuild()


async def test_rebuild_in_the_middle(replica_set, documents, aggregator, fresh, tags):
    """It does so wherever it is, and leaves nothing in the way of the next one."""
    await documents.insert_one(animal(1, "x"))
    find = {"namespace": documents.full_name, "times": None}
    async with asyncio.timeout(60.0), replica_set.faults.delay(6.0, "find", **find):
        with pytest.raises(DeadlineExceeded):
            async with deadline(3.0):
                await aggregator.rebuild()
    async with asyncio.timeout(10.0):
        await aggregator.rebuild()
    assert tags() == fresh()


async def test_detached(documents, aggregator, fresh, tags, until_equal):
    """One that is started without the deadline of its caller outlives it."""
    await documents.insert_one(animal(1, "x"))
    await aggregator.rebuild()
    async with deadline(1.0) as limit:
        task = detached(asyncio.create_task, aggregator.run())
    async with asyncio.timeout(30.0):
        while not limit.is_over:
            await asyncio.sleep(0.02)
    await documents.insert_one(animal(2, "y"))
    await until_equal()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
