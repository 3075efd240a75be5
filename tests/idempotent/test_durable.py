"""Durable keys on real servers: what they give, and what they refuse."""

import asyncio

import pytest
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument
from pymongo.errors import DocumentTooLarge, DuplicateKeyError, InvalidOperation, PyMongoError

from aioretry import DeadlineExceeded, Outcome, deadline, outcome_of
from aioretry.idempotent import IdempotencyConflict, Keys
from aioretry.testing import FakeMongoses
from tests.idempotent.keyed import (
    NAMESPACE,
    SECRET,
    keyed_collection,
    order,
    require_one_order,
)
from tests.idempotent.test_keys import OTHER_ARGUMENTS, WRITES, telling, write

TRANSIENT = ["TransientTransactionError"]


@pytest.fixture
async def keys():
    async with Keys(SECRET, NAMESPACE) as keys:
        yield keys


@pytest.fixture
async def key(keys, collection):
    """A durable key of the test's own, and a collection that exists."""
    await collection.database.create_collection(collection.name)
    return keys(f"{collection.name}-1", durable=True)


@pytest.fixture
async def other(replica_set, collection, client_class):
    """The same collection, of another client."""
    async with client_class(replica_set.uri) as client:
        yield keyed_collection(client, collection.name)


@pytest.fixture
async def seeded(key, collection):
    await collection.insert_many([{"_id": 0, "n": 0}, {"_id": 2, "n": 0}])
    return collection


class TestReplays:
    async def test_the_same_key_applies_once(self, collection, other, key, stored):
        """Another client gets the answers of the first, without anything being applied again."""
        first = await order(collection, key)
        assert [first, first] == [await order(other, key), await order(collection, key)]
        require_one_order(stored)

    @pytest.mark.parametrize(
        "options",
        [{"readPreference": "secondaryPreferred"}, {"readConcernLevel": "linearizable"}],
        ids=["read preference", "read concern"],
    )
    async def test_other_defaults(
        self, replica_set, collection, key, stored, options, client_class
    ):
        """The client's defaults, which a transaction can't have, are not the transaction's."""
        async with client_class(replica_set.uri, **options) as client:
            await order(keyed_collection(client, collection.name), key)
        require_one_order(stored)

    @pytest.mark.parametrize("name", WRITES)
    async def test_every_kind(self, seeded, other, key, name, stored):
        """Each kind of write is answered with the first reply."""
        first, was_replayed = await write(seeded, key, WRITES[name])
        documents = list(stored.find())
        again, is_replayed = await write(other, key, WRITES[name])
        assert telling(first) == telling(again)
        assert (False, True) == (was_replayed, is_replayed)
        assert documents == list(stored.find())

    async def test_at_once(self, collection, other, key, stored):
        """Of many calls at the same moment one applies, and all get its answers."""
        answers = await asyncio.gather(*(order(each, key) for each in [collection, other] * 5))
        assert answers == [answers[0]] * 10
        require_one_order(stored)

    async def test_what_changed_nothing_is_remembered(self, collection, other, key):
        """A write that matched nothing stays one that matched nothing."""
        change = {"$inc": {"n": 1}}
        first, _ = await write(collection, key, lambda op: op.update_one({"_id": 1}, change))
        await collection.insert_one({"_id": 1, "n": 0})
        again, was_replayed = await write(other, key, lambda op: op.update_one({"_id": 1}, change))
        assert (0, 0, True) == (first["n"], again["n"], was_replayed)

    async def test_through_routers(self, replica_set, collection, key, stored, client_class):
        """Durable keys work in a sharded cluster."""
        async with FakeMongoses(replica_set) as cluster, client_class(cluster.uri) as client:
            mine = keyed_collection(client, collection.name)
            first = await order(mine, key)
            assert first == await order(mine, key)
        require_one_order(stored)

    async def test_late_after_a_commit_in_doubt(self, replica_set, seeded, key, client_class):
        """A router's word that a commit came to nothing is none, also if the next run ends late."""
        async with FakeMongoses(replica_set) as cluster, client_class(cluster.uri) as client:
            mine = keyed_collection(client, seeded.name)
            denial = cluster.faults.error(251, "commitTransaction", labels=TRANSIENT)
            again = cluster.faults.hang("insert", times=None, where=lambda _: denial.fired)
            async with denial, again:
                with pytest.raises(PyMongoError) as caught:
                    async with mine.operation(timeout=3, key=key) as op:
                        await op.update_one({"_id": 0}, {"$inc": {"n": 1}})
        assert Outcome.UNKNOWN is outcome_of(caught.value)

    async def test_the_collections_options(self, collection, key):
        """Documents come back as the collection's codec options say, also from the record."""
        decoders = TypeRegistry([Tens()])
        mine = collection.with_options(codec_options=CodecOptions(type_registry=decoders))
        raw = collection.with_options(codec_options=CodecOptions(document_class=RawBSONDocument))
        await collection.insert_one({"_id": 0, "n": Decimal128("10")})
        first, _ = await write(mine, key, WRITES["find_one_and_delete"])
        again, _ = await write(mine, key, WRITES["find_one_and_delete"])
        plain, _ = await write(raw, key, WRITES["find_one_and_delete"])
        assert {"_id": 0, "n": "ten"} == first == again
        assert isinstance(plain, RawBSONDocument)
        assert Decimal128("10") == plain["n"]

    async def test_records_end_by_themselves(self, collection, key):
        """The records have a TTL index, of 30 days by default."""
        await write(collection, key, WRITES["insert_one"])
        records = collection.database["aioretry.durable_keys"]
        assert 30 * 86_400 == (await records.index_information())["at_1"]["expireAfterSeconds"]
        assert 0 == await records.count_documents({"at": None})


class Tens(TypeDecoder):
    """A user's decoder."""

    bson_type = Decimal128

    def transform_bson(self, value):
        return {"10": "ten"}.get(str(value), value)


class TestAllOrNothing:
    async def test_nothing_before_the_end(self, collection, key, stored):
        """Nobody sees the writes before the block has ended."""
        async with collection.operation(key=key) as op:
            await op.insert_one({"_id": 1})
            await op.update_one({"_id": 1}, {"$set": {"n": 1}})
            assert [] == list(stored.find())
        assert [{"_id": 1, "n": 1}] == list(stored.find())

    async def test_an_error_of_the_block(self, collection, key, stored):
        """It aborts everything, and the key is as good as new."""
        with pytest.raises(ZeroDivisionError):
            await self.insert(collection, key, 1, error=ZeroDivisionError)
        assert [] == list(stored.find())
        await order(collection, key)
        require_one_order(stored)

    async def test_an_error_of_a_write(self, seeded, key, stored):
        """It aborts everything as well."""
        with pytest.raises(DuplicateKeyError) as caught:
            await self.insert(seeded, key, 1, 0)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert 2 == stored.count_documents({})
        await self.insert(seeded, key, 1)
        assert 3 == stored.count_documents({})

    async def test_an_error_that_is_swallowed(self, seeded, key, stored):
        """Whoever swallows the error of a write is told that nothing was applied."""
        with pytest.raises(InvalidOperation, match="none of it is applied") as caught:
            await self.insert_and_swallow(seeded, key)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert 2 == stored.count_documents({})

    async def test_cancelled(self, replica_set, seeded, key, stored):
        """A block that is cancelled applies nothing."""
        async with replica_set.faults.hang("insert", namespace=seeded.full_name) as hang:
            task = asyncio.ensure_future(self.insert(seeded, key, 1))
            await hang.wait_until_fired(timeout=60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert 2 == stored.count_documents({})
        await self.insert(seeded, key, 1)
        assert 3 == stored.count_documents({})

    async def insert(self, collection, key, *ids, error=None):
        async with collection.operation(timeout=60, key=key) as op:
            for each in ids:
                await op.insert_one({"_id": each})
            if error is not None:
                raise error

    async def insert_and_swallow(self, collection, key):
        async with collection.operation(key=key) as op:
            await op.insert_one({"_id": 1})
            with pytest.raises(DuplicateKeyError):
                await op.insert_one({"_id": 0})

    async def test_an_empty_block(self, collection, key):
        """A block without writes sends nothing."""
        async with collection.operation(key=key) as op:
            pass
        assert (None, ()) == (op.replayed, op.attempts)


class TestRetries:
    @pytest.mark.parametrize("command", ["update", "findAndModify", "commitTransaction"])
    async def test_a_transient_error(self, replica_set, collection, key, command, stored):
        """What was executed is executed again, with the answers that were given."""
        async with replica_set.faults.error(251, command, labels=TRANSIENT):
            first = await order(collection, key)
        assert first == await order(collection, key)
        require_one_order(stored)

    async def test_other_answers_the_second_time(self, replica_set, seeded, key, stored):
        """Where they would be others than were given, nothing is applied."""
        with pytest.raises(InvalidOperation, match="not what it had found") as caught:
            await self.meet_another(replica_set, seeded, key)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert [{"_id": 0, "n": 100}, {"_id": 2, "n": 0}] == list(stored.find().sort("_id"))

    async def meet_another(self, replica_set, collection, key):
        """Have somebody else write between a transaction and its repetition."""
        faults = replica_set.faults
        error = faults.error(251, "update", labels=TRANSIENT, namespace=collection.full_name)
        async with collection.operation(timeout=60, key=key) as op:
            await op.find_one_and_update({"_id": 0}, {"$inc": {"n": 1}})
            async with error, faults.hang("insert") as begun_anew:
                change = op.update_one({"_id": 2}, {"$set": {"n": 7}})
                second = asyncio.ensure_future(change)
                await begun_anew.wait_until_fired(timeout=60)
                async with deadline(60):
                    await collection.update_one({"_id": 0}, {"$set": {"n": 100}})
            await second

    async def test_an_unknown_commit(self, replica_set, collection, key, stored):
        """A commit whose answer never comes is unknown, and repeating the call resolves it."""
        async with replica_set.faults.drop_reply("commitTransaction", times=None):
            with pytest.raises(PyMongoError) as caught:
                await self.insert(collection, key, timeout=6)
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        _, was_replayed = await write(collection, key, lambda op: op.insert_one({"order": 1}))
        assert was_replayed
        assert 1 == stored.count_documents({})

    async def test_cancelled_when_it_is_committed(self, collection, key, stored):
        """Who is cancelled at the moment of the answer is not told that nothing is applied."""

        async def call():
            own = asyncio.current_task()
            async with collection.operation(key=key) as op:
                await op.insert_one({"order": 1})
                [transaction] = [
                    task
                    for task in asyncio.all_tasks()
                    if task.get_coro().__qualname__ == "transact"
                ]
                transaction.add_done_callback(lambda _: own.cancel())

        with pytest.raises(asyncio.CancelledError) as caught:
            await asyncio.create_task(call())
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        assert 1 == stored.count_documents({})

    async def insert(self, collection, key, timeout):
        async with collection.operation(timeout=timeout, key=key) as op:
            await op.insert_one({"order": 1})

    async def test_a_deadline(self, replica_set, collection, key, stored):
        """It counts for all of the block."""
        async with replica_set.faults.hang(
            "insert",
            namespace=collection.full_name,
            must_fire=False,  # time may be over before
        ):
            with pytest.raises(DeadlineExceeded) as caught:
                await self.insert(collection, key, timeout=0.5)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert 0 == stored.count_documents({})


class TestConflicts:
    @pytest.mark.parametrize("name", WRITES)
    async def test_of_payloads(self, seeded, other, key, name, stored):
        """Other arguments under the same key are refused, and nothing is applied."""
        await write(seeded, key, WRITES[name])
        documents = list(stored.find())
        with pytest.raises(IdempotencyConflict, match="its arguments are others") as caught:
            await write(other, key, OTHER_ARGUMENTS[name])
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert documents == list(stored.find())

    async def test_of_kinds(self, seeded, other, key):
        """So is another kind of write."""
        await write(seeded, key, WRITES["insert_one"])
        with pytest.raises(IdempotencyConflict, match=r"was insert_one .* is update_one now"):
            await write(other, key, WRITES["update_one"])

    async def test_of_length(self, collection, other, key):
        """So is a write more than the first call made."""
        await write(collection, key, WRITES["insert_one"])
        async with other.operation(key=key) as op:
            await op.insert_one({"_id": 1, "n": 0})
            with pytest.raises(IdempotencyConflict, match="used for 1 writes, and this is write 2"):
                await op.insert_one({"_id": 2})
        assert 1 == await collection.count_documents({})

    async def test_of_calls_at_once(self, seeded, other, key, stored):
        """Of two different calls at once, one is applied and the other is refused."""
        ended = await asyncio.gather(
            write(seeded, key, WRITES["insert_one"]),
            write(other, key, OTHER_ARGUMENTS["insert_one"]),
            return_exceptions=True,
        )
        refused = [each for each in ended if isinstance(each, BaseException)]
        assert [IdempotencyConflict] == list(map(type, refused))
        assert 3 == stored.count_documents({})

    async def test_replies_that_are_too_large(self, collection, key, stored):
        """The replies have to fit into one document."""
        large = "x" * (8 * 2**20)
        await collection.insert_many([{"_id": n, "text": large} for n in range(2)])
        with pytest.raises(DocumentTooLarge, match="nothing is applied") as caught:
            await self.update_both(collection, key)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert 0 == stored.count_documents({"n": 1})

    async def update_both(self, collection, key):
        async with collection.operation(timeout=60, key=key) as op:
            for n in range(2):
                await op.find_one_and_update({"_id": n}, {"$set": {"n": 1}})
