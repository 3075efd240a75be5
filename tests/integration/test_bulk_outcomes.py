"""How the statements of a bulk operation end where an answer says less than it seems to."""

import asyncio
import itertools
import threading

import pytest
from pymongo import InsertOne, UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, InvalidOperation, OperationFailure, PyMongoError

from aioretry import Outcome, RetryClient, outcome_of, partial_result_of
from aioretry.testing import ScriptedServer

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
INTERRUPTED, UNAUTHORIZED = 11601, 13
INCREMENT = {"$inc": {"n": 1}}


@pytest.fixture
async def server():
    """A primary that takes three statements in a command."""
    async with ScriptedServer() as server:
        server.hello = {"maxWriteBatchSize": 3}
        yield server


@pytest.fixture
async def scripted(server):
    async with RetryClient(server.uri) as client:
        yield client.db.c


def answer_all(server, answer):
    """Answer every write of a server's in one way."""
    for name in ("insert", "update", "delete"):
        server.answer(name, answer)


WRITES = {
    "update_one": (lambda c: c.update_one({}, INCREMENT), NOT_APPLIED),
    "update_many": (lambda c: c.update_many({}, INCREMENT), UNKNOWN),
    "delete_many": (lambda c: c.delete_many({}), UNKNOWN),
    "one": (lambda c: c.bulk_write([UpdateOne({}, INCREMENT)]), NOT_APPLIED),
    "two": (lambda c: c.bulk_write([UpdateOne({}, INCREMENT)] * 2), UNKNOWN),
    "a multi": (lambda c: c.bulk_write([UpdateMany({}, INCREMENT)]), UNKNOWN),
    "insert_many": (lambda c: c.insert_many([{}, {}]), UNKNOWN),
}


class TestInterrupted:
    """A server ends a whole command with an error, when a part of it may have been executed."""

    @pytest.mark.parametrize("name", WRITES)
    async def test_by_an_operator(self, name, server, scripted):
        """Only what is about one document has changed nothing for sure."""
        write, expected = WRITES[name]
        answer_all(server, lambda request: request.fail(INTERRUPTED, "operation was interrupted"))
        with pytest.raises(OperationFailure) as caught:
            await write(scripted)
        assert expected is outcome_of(caught.value)
        partial = partial_result_of(caught.value)
        assert partial is None or {expected} == set(partial.outcomes)

    @pytest.mark.parametrize("name", WRITES)
    async def test_before_it_began(self, name, server, scripted):
        """What was refused has changed nothing, however large it is."""
        write, _ = WRITES[name]
        answer_all(server, lambda request: request.fail(UNAUTHORIZED, "not authorized"))
        with pytest.raises(OperationFailure) as caught:
            await write(scripted)
        assert NOT_APPLIED is outcome_of(caught.value)

    async def test_for_real(self, replica_set, collection, stored):
        """An update of many documents that is killed halfway is in doubt."""
        await collection.insert_many([{"_id": n, "n": 0} for n in range(20_000)])
        slow = {"$where": "var until = Date.now() + 1; while (Date.now() < until) {} return true"}
        write = collection.update_many(slow, INCREMENT, comment=collection.name)
        admin = collection.database.client.admin
        async with asyncio.timeout(30):
            while not stored.count_documents({"n": 1}):
                await asyncio.sleep(0.01)
            named = {"command.comment": collection.name, "opid": {"$exists": True}}
            running = await admin.command("currentOp", named)
            for operation in running["inprog"]:
                await admin.command("killOp", op=operation["opid"])
        with pytest.raises(OperationFailure) as caught:
            await write
        assert UNKNOWN is outcome_of(caught.value)
        assert 0 < stored.count_documents({"n": 1}) < 20_000


class TestAnswers:
    async def test_that_make_no_sense(self, server, scripted):
        """An answer about a statement that was not sent leaves the command in doubt."""
        error = {"index": 7, "code": 11000, "errmsg": "scripted"}
        answer_all(server, lambda request: request.reply({"n": 1, "writeErrors": [error]}))
        with pytest.raises(IndexError) as caught:
            await scripted.insert_many([{}, {}])
        assert (UNKNOWN, UNKNOWN) == partial_result_of(caught.value).outcomes

    async def test_to_a_null_order(self, collection, stored):
        """A server takes `ordered: null` for true within a command."""
        documents = [{"_id": n} for n in (1, 1, 2, 3)]
        with pytest.raises(BulkWriteError) as caught:
            await collection.insert_many(documents, ordered=None)
        outcomes = partial_result_of(caught.value).outcomes
        assert (APPLIED, NOT_APPLIED, NOT_APPLIED, NOT_APPLIED) == outcomes
        assert [{"_id": 1}] == list(stored.find())


class TestIterators:
    async def test_of_which_a_part_was_sent(self, server, scripted):
        """Documents that nobody knows of are not said to be applied."""

        def documents():
            yield from ({"_id": n} for n in range(4))
            raise ValueError("no more")

        answer_all(server, lambda request: request.reply({"n": 3}))
        with pytest.raises(ValueError, match="no more") as caught:
            await scripted.insert_many(documents())
        assert UNKNOWN is outcome_of(caught.value)
        assert (APPLIED,) * 3 == partial_result_of(caught.value).outcomes[:3]

    @pytest.mark.motor
    async def test_that_are_given_up(self, collection, stored):
        """Of a cancelled write the iterator is read no further than where it waits."""
        waits, goes_on = threading.Event(), threading.Event()
        made = 0

        def documents():
            nonlocal made
            for made in itertools.count(1):
                waits.set()
                assert goes_on.wait(20)
                yield {"_id": made}

        iterator = documents()
        write = collection.insert_many(iterator)
        async with asyncio.timeout(20):
            while not waits.is_set():
                await asyncio.sleep(0.01)
            assert write.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
            goes_on.set()
            while iterator.gi_running:
                await asyncio.sleep(0.01)
        iterator.close()
        assert NOT_APPLIED is outcome_of(caught.value)
        assert made < 3
        assert [] == list(stored.find())


class TestTransactions:
    @pytest.mark.parametrize("bulk", [False, True])
    async def test_that_begin_before_a_write_is_sent(self, bulk, replica_set, collection, stored):
        """A write over a session in which a transaction begins meanwhile is refused: in the
        transaction, a retry would be executed twice."""
        await collection.insert_one({"_id": 1, "n": 0})
        client = collection.database.client
        async with await client.start_session() as session:
            if bulk:
                write = collection.bulk_write([InsertOne({"_id": 2})], session=session)
            else:
                write = collection.update_one({"_id": 1}, INCREMENT, session=session)
            async with session.start_transaction():
                with pytest.raises(InvalidOperation, match="a transaction was started") as caught:
                    await write
                await collection.insert_one({"_id": 3}, session=session)
        assert isinstance(caught.value, PyMongoError)
        assert NOT_APPLIED is outcome_of(caught.value)
        assert [{"_id": 1, "n": 0}, {"_id": 3}] == list(stored.find())
