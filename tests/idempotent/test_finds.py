"""Finds inside a deadline: the driver's own read retry, for as long as time allows."""

import asyncio

import pytest
from pymongo.errors import AutoReconnect

from aioretry import deadline
from tests.idempotent.drivers import collection_of
from tests.idempotent.points import APP_NAME, at_each_lost_reply

DOCUMENTS = [{"_id": n} for n in range(200)]


async def read_all(things):
    """What a service reads with, and what each has to find."""
    assert {"_id": 5} == await things.find_one({"_id": 5})
    assert DOCUMENTS == await things.find(batch_size=1000).sort("_id").to_list(None)
    assert 200 == await things.count_documents({})
    assert 200 == len(await things.distinct("_id"))


async def test_each_reply_lost(servers, driver, things, seen):
    """Whichever answer is lost, all is found."""
    seen.insert_many(DOCUMENTS)

    async def run(_):
        async with deadline(30.0):
            await read_all(things)

    assert 4 == await at_each_lost_reply(servers, run)


async def test_many_replies_lost(servers, things, seen):
    """Inside a deadline a find is asked again and again, outside once."""
    seen.insert_one({"_id": 1})
    with servers.faults.drop_reply("find", app_name=APP_NAME, times=4):
        async with deadline(30.0):
            assert {"_id": 1} == await things.find_one({})
    with servers.faults.drop_reply("find", app_name=APP_NAME, times=2):
        with pytest.raises(AutoReconnect):
            await things.find_one({})


async def test_next_batches(servers, things, seen):
    """A cursor's further batches are not asked for again: it is begun anew, in the block."""
    seen.insert_many(DOCUMENTS)
    with servers.faults.drop_reply("getMore", app_name=APP_NAME):
        async with deadline(30.0):
            with pytest.raises(AutoReconnect):
                await things.find(batch_size=100).to_list(None)
            assert 200 == len(await things.find(batch_size=100).to_list(None))


@pytest.mark.sample(3)
@pytest.mark.usefixtures("three_members")
async def test_failover(replica_set, driver, name, plain):
    """Finds outlive a kill of the primary."""
    async with collection_of(driver, replica_set.uri, name) as things:
        await things.insert_many(DOCUMENTS)
        primary = await replica_set.primary()
        async with deadline(60.0):
            with replica_set.faults.hang("find", app_name=APP_NAME) as fault:
                reading = asyncio.create_task(read_all(things))
                await fault.wait_until_fired()
                await replica_set.kill(primary)
            await reading
