"""Writes while no server takes any, by a client that has none wait, or whose retries cost."""

import asyncio
import time
import uuid

import anyio
import pytest
from pymongo.errors import AutoReconnect

from aioretry import (
    DeadlineExceeded,
    Outcome,
    WritesUnavailableError,
    attempts_of,
    deadline,
    outcome_of,
    partial_result_of,
    resolve,
    run_transaction,
)
from aioretry._faces import settled
from aioretry.idempotent import Keys

AFTER = 0.5
KEYS = Keys(b"secret" * 8, "failing fast")


@pytest.fixture
async def client(replica_set, client_class):
    """A client whose writes fail fast."""
    async with client_class(replica_set.uri, fail_fast_after=AFTER) as client:
        yield client
        await replica_set.heal()


@pytest.fixture
async def collection(client, collection):
    """The same collection, of that client."""
    return client[collection.database.name][collection.name]


async def lose_all(replica_set, collection):
    """Come back when no server has taken writes for long enough."""
    began = time.monotonic()
    await replica_set.kill(await replica_set.primary())
    with anyio.fail_after(30):
        while True:
            try:
                async with deadline(1.0):
                    await collection.insert_one({})
            except WritesUnavailableError:
                break
            except DeadlineExceeded:
                pass  # it may have been sent
    assert time.monotonic() - began >= AFTER


@pytest.fixture
async def alone(replica_set, collection):
    """The collection, when no server has taken writes for long enough."""
    await once(collection)
    await lose_all(replica_set, collection)
    return collection


async def insert(collection):
    await collection.insert_one({})


async def insert_together(collection):
    await collection.coalesced().insert_one({})


async def insert_two(collection):
    await collection.insert_many([{}, {}])


async def under_a_deadline(collection):
    async with deadline(60):
        await collection.update_one({"_id": 0}, {"$inc": {"n": 1}})


async def in_a_transaction(collection):
    async def insert_in(session):
        await collection.insert_one({}, session=session)

    await run_transaction(collection.database.client, insert_in, timeout=60)


async def with_a_key(collection):
    async with collection.operation(timeout=60, key=KEYS("a")) as op:
        await op.insert_one({})


async def once(collection):
    async def insert_in(session):
        await collection.insert_one({}, session=session)
        return {}

    async with deadline(60):
        await KEYS.once(str(uuid.uuid4()), insert_in, database=collection.database)


WRITES = [
    insert,
    insert_together,
    insert_two,
    under_a_deadline,
    in_a_transaction,
    with_a_key,
    once,
]


async def test_every_write(replica_set, alone):
    """Each fails at once, with nothing sent, and the next server is found all the same."""
    for write in WRITES:
        with anyio.fail_after(5), pytest.raises(WritesUnavailableError) as caught:
            await write(alone)
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED, write
        assert not attempts_of(caught.value)
        if write is insert_two:
            assert partial_result_of(caught.value).result.inserted_count == 0
    await replica_set.heal()
    with anyio.fail_after(30):
        while True:
            try:
                await alone.insert_one({"_id": 1})
            except WritesUnavailableError:
                await asyncio.sleep(0.01)
            else:
                break
    assert await alone.count_documents({}) == 2


async def test_a_transaction_that_has_begun(replica_set, client, collection):
    """Nobody waits for its abort, for which there is no server either."""
    await insert(collection)

    async def work(session):
        await collection.insert_one({"_id": 1}, session=session)
        await lose_all(replica_set, collection)
        limit.deadline = anyio.current_time() + 2
        await collection.insert_one({"_id": 2}, session=session)

    async with await settled(client.start_session()) as session:
        with anyio.fail_after(30) as limit, pytest.raises(WritesUnavailableError) as caught:
            await session.with_transaction(work)
    assert outcome_of(caught.value) is Outcome.NOT_APPLIED


class TestBudget:
    @pytest.fixture
    async def client(self, replica_set, client_class):
        """A client that may retry twice."""
        async with client_class(replica_set.uri, retry_budget=2) as client:
            yield client

    async def test_spent(self, replica_set, collection):
        """A write whose retries are paid for no longer says so, and can be resolved."""
        async with replica_set.fail_command("insert", mode={"times": 3}, close_connection=True):
            async with deadline(60):
                with pytest.raises(AutoReconnect) as caught:
                    await collection.insert_one({"_id": 1})
        assert any("retry budget is spent" in note for note in caught.value.__notes__)
        assert (Outcome.UNKNOWN, 3) == (outcome_of(caught.value), len(attempts_of(caught.value)))
        assert (await resolve(caught.value)).inserted_id == 1
