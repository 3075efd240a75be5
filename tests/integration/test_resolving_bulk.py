"""Bulk operations with a command whose outcome is unknown, resolved on a real set."""

import asyncio

import pytest
from doubting import INCREMENT, doubt
from pymongo import DeleteOne, InsertOne, UpdateMany, UpdateOne
from pymongo.errors import AutoReconnect, BulkWriteError

from aioretry import (
    DeadlineExceeded,
    Outcome,
    ResolveError,
    deadline,
    outcome_of,
    partial_result_of,
    resolve,
)

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN

# Three commands, as they are ordered.
REQUESTS = [
    InsertOne({"_id": 2, "n": 0}),
    InsertOne({"_id": 3, "n": 0}),
    UpdateOne({"_id": 2}, INCREMENT),
    UpdateOne({"_id": 4}, INCREMENT, upsert=True),
    DeleteOne({"_id": 3}),
    DeleteOne({"_id": 1}),
]


@pytest.fixture
async def client(watched_client):
    """The client of these tests tells what it sends."""
    return watched_client


@pytest.fixture(params=["drop_reply", "drop_request"])
def lose(request, replica_set, seeded):
    """A fault by which a command is applied, and one by which it is not; nobody is told either."""
    arm = getattr(replica_set.faults, request.param)
    return lambda name, times=2: arm(name, times=times, namespace=seeded.full_name)


async def expected_of(collection, call):
    """What an operation gives, and makes of a twin of the collection, if nothing goes wrong."""
    twin = collection.database[f"{collection.name}_twin"]
    await twin.insert_one({"_id": 1, "n": 0})
    result = await call(twin)
    return result, await twin.find().sort("_id").to_list(None)


async def refused(exc, commands, match):
    """Check that nothing is sent to resolve an exception, and that the text says why."""
    before = len(commands.sent)
    with pytest.raises(ResolveError, match=match) as caught:
        await resolve(exc)
    assert exc is caught.value.__cause__
    assert before == len(commands.sent)


class TestWhole:
    async def test_the_only_command(self, lose, seeded, stored, commands):
        """An insert_many of one command has its result after all."""
        documents = [{"_id": n} for n in range(2, 6)]
        exc = await doubt(lose("insert"), lambda: seeded.insert_many(documents))
        assert (UNKNOWN,) * 4 == partial_result_of(exc).outcomes
        result = await resolve(exc)
        assert ([2, 3, 4, 5], True) == (result.inserted_ids, result.acknowledged)
        assert (["insert"] * 3, 1) == (commands.names, len(commands.sessions))
        assert 1 == len(set(commands.numbers))
        assert [1, 2, 3, 4, 5] == sorted(document["_id"] for document in stored.find())

    async def test_the_last_command(self, lose, seeded, stored, commands):
        """A bulk_write whose last command is resolved has the result of all."""
        result, documents = await expected_of(seeded, lambda c: c.bulk_write(REQUESTS))
        commands.sent.clear()
        exc = await doubt(lose("delete"), lambda: seeded.bulk_write(REQUESTS))
        assert (APPLIED,) * 4 + (UNKNOWN,) * 2 == partial_result_of(exc).outcomes
        assert result.bulk_api_result == (await resolve(exc)).bulk_api_result
        assert ["insert", "update", "delete", "delete", "delete"] == commands.names
        assert [1, 2, 3, 3, 3] == [n - commands.numbers[0] + 1 for n in commands.numbers]
        assert documents == list(stored.find().sort("_id"))

    async def test_after_a_command_without_number(self, lose, seeded, stored):
        """Commands before it that can't be sent again don't matter."""
        requests = [UpdateMany({}, INCREMENT), InsertOne({"_id": 2, "n": 0})]
        exc = await doubt(lose("insert"), lambda: seeded.bulk_write(requests))
        result = await resolve(exc)
        assert (1, 1) == (result.modified_count, result.inserted_count)
        assert [{"_id": 1, "n": 1}, {"_id": 2, "n": 0}] == list(stored.find().sort("_id"))

    async def test_more_than_once(self, lose, seeded, stored):
        """However often it is resolved, and by how many, nothing counts twice."""
        exc = await doubt(lose("update"), lambda: seeded.bulk_write(REQUESTS[2:4]))
        results = await asyncio.gather(resolve(exc, 30), resolve(exc, 30))
        results.append(await resolve(exc))
        for result in results:
            assert (0, 0, 1) == (
                result.matched_count,
                result.modified_count,
                result.upserted_count,
            )
        assert 1 == stored.find_one({"_id": 4})["n"]
        assert (UNKNOWN, UNKNOWN) == partial_result_of(exc).outcomes

    async def test_in_doubt_again(self, lose, seeded, stored):
        """An attempt to resolve that is lost as well can be resolved by its own exception."""
        first = await doubt(lose("insert"), lambda: seeded.insert_many([{"_id": 2}, {"_id": 3}]))
        second = await doubt(lose("insert"), lambda: resolve(first))
        assert (UNKNOWN, UNKNOWN) == partial_result_of(second).outcomes
        assert [2, 3] == (await resolve(second)).inserted_ids
        assert 3 == stored.count_documents({})

    @pytest.mark.usefixtures("three_members")
    async def test_by_another_primary(self, lose, replica_set, seeded, stored):
        """What one primary was asked is resolved by the next."""
        exc = await doubt(lose("update"), lambda: seeded.bulk_write(REQUESTS[:4]))
        await replica_set.step_down()
        result = await resolve(exc, 30)
        assert (2, 1, 1) == (result.inserted_count, result.modified_count, result.upserted_count)
        assert 1 == stored.find_one({"_id": 2})["n"]

    @pytest.mark.parametrize("applied", [True, False])
    async def test_cancelled(self, applied, replica_set, seeded, stored):
        """So is one that was cancelled while its last command was under way."""
        hang = replica_set.faults.hang("delete", applied=applied, namespace=seeded.full_name)
        async with hang:
            write = seeded.bulk_write(REQUESTS)
            await hang.wait_until_fired()
            write.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
            assert 2 == (await resolve(caught.value, 30)).deleted_count
        assert [2, 4] == sorted(document["_id"] for document in stored.find())

    async def test_after_the_deadline(self, replica_set, seeded, stored):
        """So is one whose deadline was over."""
        hang = replica_set.faults.hang("insert", namespace=seeded.full_name)
        async with hang:
            async with deadline(2):
                with pytest.raises(DeadlineExceeded) as caught:
                    await seeded.insert_many([{"_id": 2}, {"_id": 3}])
            assert [2, 3] == (await resolve(caught.value, 30)).inserted_ids
        assert 3 == stored.count_documents({})

    async def test_of_an_operation(self, lose, seeded, stored):
        """So is one of an operation, which goes on meanwhile."""
        async with seeded.operation() as op:
            exc = await doubt(lose("insert"), lambda: op.insert_many([{"_id": 2}, {"_id": 3}]))
            await op.insert_one({"_id": 4})
            assert [2, 3] == (await resolve(exc)).inserted_ids
        assert 4 == stored.count_documents({})


class TestInPart:
    async def test_a_middle_command(self, lose, seeded, stored, commands):
        """What was never sent is not sent now; all else is known."""
        exc = await doubt(lose("update"), lambda: seeded.bulk_write(REQUESTS))
        assert (UNKNOWN,) * 2 == partial_result_of(exc).outcomes[2:4]
        with pytest.raises(ResolveError, match="never sent") as caught:
            await resolve(exc)
        partial = partial_result_of(caught.value)
        assert (APPLIED,) * 4 + (NOT_APPLIED,) * 2 == partial.outcomes
        counts = partial.result.bulk_api_result
        assert (2, 1, 1, 0) == tuple(
            counts[name] for name in ("nInserted", "nModified", "nUpserted", "nRemoved")
        )
        assert [1, 2, 3, 4] == sorted(document["_id"] for document in stored.find())
        await refused(caught.value, commands, "none of its statements is in doubt")

    async def test_write_errors_of_an_ordered_one(self, lose, seeded, stored):
        """A write error that comes out is that of the operation."""
        documents = [{"_id": 2}, {"_id": 1}, {"_id": 3}]
        exc = await doubt(lose("insert"), lambda: seeded.insert_many(documents))
        with pytest.raises(BulkWriteError) as caught:
            await resolve(exc)
        assert [1] == [error["index"] for error in caught.value.details["writeErrors"]]
        partial = partial_result_of(caught.value)
        assert (1, APPLIED) == (partial.result.inserted_count, partial.outcomes[0])
        assert [1, 2] == sorted(document["_id"] for document in stored.find())

    async def test_write_errors_of_an_earlier_command(self, lose, seeded, stored):
        """Errors that were known before are a part of what comes out."""
        requests = [InsertOne({"_id": 1}), InsertOne({"_id": 2}), UpdateOne({"_id": 1}, INCREMENT)]
        exc = await doubt(lose("update"), lambda: seeded.bulk_write(requests, ordered=False))
        with pytest.raises(BulkWriteError) as caught:
            await resolve(exc)
        partial = partial_result_of(caught.value)
        assert (NOT_APPLIED, APPLIED, APPLIED) == partial.outcomes
        assert (1, 1) == (partial.result.inserted_count, partial.result.modified_count)
        assert {"_id": 1, "n": 1} == stored.find_one({"_id": 1})


class TestRefusals:
    async def test_every_command_was_answered(self, seeded, commands):
        """Some were applied and some not, and each is known."""
        with pytest.raises(BulkWriteError) as caught:
            await seeded.insert_many([{"_id": 2}, {"_id": 1}])
        assert UNKNOWN is outcome_of(caught.value)
        await refused(caught.value, commands, "none of its statements is in doubt")

    async def test_a_write_concern_error(self, replica_set, seeded, commands):
        """An answer without the concern asked for."""
        fault = replica_set.faults.write_concern_error(64, "insert", labels=())
        exc = await doubt(fault, lambda: seeded.insert_many([{"_id": 2}]), BulkWriteError)
        await refused(exc, commands, "each of its commands was answered")

    async def test_a_command_about_many(self, replica_set, seeded, commands):
        """A command with an UpdateMany has no transaction id."""
        fault = replica_set.faults.drop_reply("update", namespace=seeded.full_name)
        requests = [UpdateOne({"_id": 1}, INCREMENT), UpdateMany({}, INCREMENT)]
        exc = await doubt(fault, lambda: seeded.bulk_write(requests), AutoReconnect)
        await refused(exc, commands, "without a transaction id")

    async def test_nothing_was_sent(self, seeded, commands):
        """What was not sent is not in doubt."""
        async with deadline(0):
            with pytest.raises(DeadlineExceeded) as caught:
                await seeded.insert_many([{"_id": 2}])
        await refused(caught.value, commands, "the outcome is known")
