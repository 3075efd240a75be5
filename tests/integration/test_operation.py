"""Operations: one session, one deadline, one history."""

import asyncio

import pytest
from pymongo import DeleteOne, UpdateOne
from pymongo.errors import DuplicateKeyError, InvalidOperation, PyMongoError

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    attempts_of,
    deadline,
    outcome_of,
    partial_result_of,
)


async def test_all_seven_writes(collection, stored):
    """An operation has the seven writes, with their results."""
    async with collection.operation(timeout=20) as op:
        assert 1 == (await op.insert_one({"_id": 1, "n": 0})).inserted_id
        assert 1 == (await op.update_one({"_id": 1}, {"$inc": {"n": 1}})).modified_count
        assert 1 == (await op.replace_one({"_id": 1}, {"n": 5})).modified_count
        assert 5 == (await op.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}))["n"]
        assert 6 == (await op.find_one_and_replace({"_id": 1}, {"n": 7}))["n"]
        assert {"_id": 1, "n": 7} == await op.find_one_and_delete({"_id": 1})
        assert 0 == (await op.delete_one({"_id": 1})).deleted_count
    assert 7 == len(op.attempts)
    assert [] == list(stored.find())


async def test_writes_of_many(collection, stored, replica_set):
    """An operation has the bulk writes and the writes of many documents as well."""
    async with collection.operation(timeout=20) as op:
        async with replica_set.faults.drop_reply("insert", namespace=collection.full_name):
            assert [1, 2, 3] == (
                await op.insert_many([{"_id": n, "n": 0} for n in (1, 2, 3)])
            ).inserted_ids
        async with replica_set.faults.drop_reply("update", namespace=collection.full_name):
            result = await op.bulk_write([UpdateOne({"_id": 1}, {"$inc": {"n": 1}}), DeleteOne({})])
        assert (1, 1) == (result.modified_count, result.deleted_count)
        assert 2 == (await op.update_many({}, {"$inc": {"n": 1}})).modified_count
        assert 1 == (await op.delete_many({"_id": 2})).deleted_count
    assert 7 == len(op.attempts)
    assert [{"_id": 3, "n": 1}] == list(stored.find())


async def test_the_session_of_a_bulk_write_in_doubt(collection, replica_set):
    """An operation whose bulk write ended in doubt takes another session, and keeps its history."""
    async with collection.operation() as op:
        async with replica_set.faults.drop_reply("insert", times=2, namespace=collection.full_name):
            with pytest.raises(PyMongoError) as caught:
                await op.insert_many([{"_id": 1}, {"_id": 2}])
        await op.insert_many([{"_id": 3}])
    assert Outcome.UNKNOWN is outcome_of(caught.value)
    assert (Outcome.UNKNOWN, Outcome.UNKNOWN) == partial_result_of(caught.value).outcomes
    assert 3 == len(op.attempts)
    assert 3 == await collection.count_documents({})


async def test_one_session(collection, client):
    """The writes of an operation share one session, with rising numbers; it is pooled after."""
    pool = client.delegate._topology._session_pool
    async with collection.operation() as op:
        await op.insert_one({"_id": 1})
        await op.insert_one({"_id": 2})
        while pool:
            pool.pop()
    assert 1 == len(pool)
    assert 2 <= pool[0].transaction_id


async def test_a_session_in_doubt_is_not_leased_again(replica_set, collection, client):
    """After an unknown outcome the session is discarded, and the operation takes another."""
    await collection.insert_one({"_id": 1})
    async with collection.operation() as op:
        async with replica_set.faults.drop_reply("update", times=2, namespace=collection.full_name):
            with pytest.raises(Exception, match="connection closed"):
                await op.update_one({"_id": 1}, {"$inc": {"n": 1}})
        await op.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert [True, True, True] == [attempt.sent for attempt in op.attempts]
    assert 2 == (await collection.find_one())["n"]


async def test_errors_leave_the_operation_usable(collection):
    """An error of one write leaves the next one alone."""
    async with collection.operation() as op:
        await op.insert_one({"_id": 1})
        with pytest.raises(DuplicateKeyError) as caught:
            await op.insert_one({"_id": 1})
        await op.insert_one({"_id": 2})
    assert 3 == len(op.attempts)
    assert 1 == len(attempts_of(caught.value))


async def test_the_nearer_deadline_counts(collection):
    """The operation's timeout and a surrounding deadline: whichever comes first."""
    async with deadline(0), collection.operation(timeout=5) as op:
        with pytest.raises(DeadlineExceeded) as caught:
            await op.insert_one({})
    assert (Outcome.NOT_APPLIED, ()) == (outcome_of(caught.value), op.attempts)
    async with deadline(5), collection.operation(timeout=0) as op:
        with pytest.raises(DeadlineExceeded):
            await op.insert_one({})


async def test_a_deadline_inside_counts(collection):
    """A deadline() block inside the operation's block counts for the writes in it."""
    async with collection.operation() as op:
        async with deadline(0):
            with pytest.raises(DeadlineExceeded):
                await op.insert_one({})
        await op.insert_one({})


async def test_its_timeout_replaces_the_clients(replica_set, collection):
    """timeoutMS of the client is its default; an operation's timeout takes its place."""
    async with RetryClient(replica_set.uri, timeoutMS=1) as client:
        mine = client[collection.database.name][collection.name]
        with pytest.raises(PyMongoError) as caught:
            await mine.insert_one({})
        assert caught.value.timeout
        async with mine.operation(timeout=20) as op:
            await op.insert_one({})


async def test_one_write_at_a_time(collection):
    """Two writes at once over one session are refused."""
    async with collection.operation() as op:
        first = asyncio.ensure_future(op.insert_one({"_id": 1}))
        await asyncio.sleep(0)
        for write, what in ((op.insert_one, {"_id": 2}), (op.insert_many, [{"_id": 2}])):
            with pytest.raises(InvalidOperation, match="one at a time") as caught:
                await write(what)
            assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        await first


async def test_on_another_loop(collection):
    """A client belongs to one event loop; what is refused elsewhere is not applied."""

    async def refusals():
        writes = (collection.insert_one, collection.coalesced().insert_one)
        for write in writes:
            with pytest.raises(InvalidOperation, match="another event loop") as caught:
                await write({})
            yield outcome_of(caught.value)

    async def collect():
        return [outcome async for outcome in refusals()]

    assert [Outcome.NOT_APPLIED] * 2 == await asyncio.to_thread(asyncio.run, collect())


async def test_only_inside_its_block(collection):
    """An operation is of no use before and after its block."""
    op = collection.operation()
    with pytest.raises(InvalidOperation, match="inside its `async with` block"):
        await op.insert_one({})
    async with op:
        await op.insert_one({})
        with pytest.raises(InvalidOperation, match="entered already"):
            await op.__aenter__()
    with pytest.raises(InvalidOperation, match="inside its `async with` block") as caught:
        await op.insert_one({})
    assert Outcome.NOT_APPLIED is outcome_of(caught.value)
    assert "closed attempts=1" in repr(op)
