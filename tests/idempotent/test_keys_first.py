"""The first writes with keys of a process, which make the index of the records, once."""

import asyncio

import pytest
from pymongo.errors import OperationFailure

from aioretry import DeadlineExceeded, Outcome, outcome_of
from aioretry.errors import attach
from aioretry.idempotent import Keys
from tests.idempotent.keyed import NAMESPACE, SECRET

_MANY = 30
UNAUTHORIZED = 13


@pytest.fixture
async def keys(collection):
    """Those of a process that has written nothing yet, with records of their own."""
    async with Keys(SECRET, NAMESPACE, records=f"{collection.name}.keys") as keys:
        yield keys


@pytest.fixture
def making(replica_set):
    """Counts the commands that make the index."""
    with replica_set.faults.watch("createIndexes", times=None) as making:
        yield making


async def insert(collection, keys, number, timeout=None):
    """Insert a document under a key."""
    async with collection.operation(key=keys(f"{number}"), timeout=timeout) as op:
        await op.insert_one({"_id": number})


async def test_many_at_once(collection, keys, making, stored):
    """One of them makes the index, and the others wait for it."""
    await asyncio.gather(*(insert(collection, keys, number) for number in range(_MANY)))
    assert _MANY == stored.count_documents({})
    assert 1 == making.fired


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_the_first_gives_up(replica_set, collection, keys, making, stored, is_cancelled):
    """Whoever began it has no more time, and the others get their index all the same."""
    async with replica_set.faults.hang("createIndexes") as held:
        timeout = None if is_cancelled else 0.5
        first = asyncio.create_task(insert(collection, keys, 1, timeout))
        await held.wait_until_fired()
        second = asyncio.create_task(insert(collection, keys, 2))
        if is_cancelled:
            first.cancel()
        expected = asyncio.CancelledError if is_cancelled else DeadlineExceeded
        with pytest.raises(expected) as caught:
            await first
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED
    await second
    assert [{"_id": 2}] == list(stored.find())
    assert 1 == making.fired


async def test_an_error(replica_set, collection, keys, making, stored):
    """It reaches all that wait, and the next one tries again."""
    async with replica_set.faults.error(UNAUTHORIZED, "createIndexes"):
        ended = await asyncio.gather(
            *(insert(collection, keys, number) for number in range(_MANY)), return_exceptions=True
        )
    assert all(isinstance(error, OperationFailure) for error in ended)
    assert {Outcome.NOT_APPLIED} == {outcome_of(error) for error in ended}
    await insert(collection, keys, 1)
    assert [{"_id": 1}] == list(stored.find())
    assert 2 == making.fired


async def test_an_error_is_each_ones_own(replica_set, collection, keys, making):
    """What one of them handles just then is nothing of another one's."""
    earlier = RuntimeError("an earlier write of the second one")
    attach(earlier, Outcome.UNKNOWN, [])

    async def once(key):
        async def work(_session):
            return {}

        await keys.once(key, work, database=collection.database)

    async def second():
        try:
            raise earlier
        except RuntimeError:
            await once("second")

    async with replica_set.faults.error(UNAUTHORIZED, "createIndexes"):
        ended = await asyncio.gather(once("first"), second(), return_exceptions=True)
    assert [OperationFailure] * 2 == [type(error) for error in ended]
    assert [None, earlier] == [error.__context__ for error in ended]
    assert [None, Outcome.UNKNOWN] == [outcome_of(error) for error in ended]
    assert 1 == making.fired
