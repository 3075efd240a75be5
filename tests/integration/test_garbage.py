"""What is left to the garbage collector, which holds up the event loop: nothing that went well."""

import asyncio
import gc
import uuid

import pytest

from aioretry import deadline, run_transaction, transaction
from aioretry._writes.context import settled
from aioretry.idempotent import Keys

INCREMENT = {"$inc": {"n": 1}}


async def update(client, things):
    await things.update_one({"_id": 1}, INCREMENT)


async def find(client, things):
    await things.find_one({"_id": 1})


async def insert_many(client, things):
    await things.insert_many([{}, {}])


async def in_an_operation(client, things):
    async with deadline(60), things.operation(timeout=60) as operation:
        await operation.update_one({"_id": 1}, INCREMENT)


async def coalesced(client, things):
    await asyncio.gather(*(things.coalesced().insert_one({}) for _ in range(5)))


async def with_transaction(client, things):
    async with await settled(client.start_session()) as session:
        await session.with_transaction(
            lambda given: things.update_one({"_id": 1}, INCREMENT, session=given)
        )


async def in_a_transaction(client, things):
    async with transaction(client, timeout=60) as session:
        await things.update_one({"_id": 1}, INCREMENT, session=session)


async def run_in_a_transaction(client, things):
    await run_transaction(
        client, lambda given: things.update_one({"_id": 1}, INCREMENT, session=given)
    )


async def once(client, things):
    async def work(session):
        await things.update_one({"_id": 1}, INCREMENT, session=session)
        return {}

    async with Keys(b"a secret of 32 bytes for the test", "garbage") as keys:
        await keys.once(uuid.uuid4().hex, work, database=things.database)


@pytest.fixture
def garbage():
    """What nothing but the collector would free."""
    gc.collect()
    gc.disable()
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("client_class", ["motor", "asyncio"], indirect=True)
@pytest.mark.parametrize(
    "call",
    [
        update,
        find,
        insert_many,
        in_an_operation,
        coalesced,
        with_transaction,
        in_a_transaction,
        run_in_a_transaction,
        once,
    ],
)
async def test_nothing(call, client, collection, garbage):
    """Not a cycle of the library's objects."""
    await collection.insert_one({"_id": 1, "n": 0})
    await call(client, collection)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    for _ in range(3):
        await call(client, collection)
    gc.collect()
    assert [] == [each for each in garbage if type(each).__module__.startswith("aioretry")]
