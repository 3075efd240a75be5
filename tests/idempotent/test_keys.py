"""Idempotency keys on real servers: what they give, and what they refuse."""

import asyncio
from datetime import timedelta

import pytest
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    DuplicateKeyError,
    InvalidOperation,
    PyMongoError,
)

from aioretry import DeadlineExceeded, Outcome, deadline, outcome_of, resolve
from aioretry.errors import attach
from aioretry.idempotent import IdempotencyConflict, KeyExpiredError, Keys
from aioretry.testing import FakeMongoses, Standalone
from tests.idempotent.keyed import (
    NAMESPACE,
    SECRET,
    keyed_collection,
    order,
    require_one_order,
)

WRITES = {
    "insert_one": lambda op: op.insert_one({"_id": 1, "n": 0}),
    "update_one": lambda op: op.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True),
    "replace_one": lambda op: op.replace_one({"_id": 1}, {"n": 5}, upsert=True),
    "delete_one": lambda op: op.delete_one({"_id": 0}),
    "find_one_and_update": lambda op: op.find_one_and_update({"_id": 0}, {"$inc": {"n": 1}}),
    "find_one_and_replace": lambda op: op.find_one_and_replace({"_id": 0}, {"n": 7}),
    "find_one_and_delete": lambda op: op.find_one_and_delete({"_id": 0}),
}
OTHER_ARGUMENTS = {
    "insert_one": lambda op: op.insert_one({"_id": 1, "n": 1}),
    "update_one": lambda op: op.update_one({"_id": 1}, {"$inc": {"n": 2}}, upsert=True),
    "replace_one": lambda op: op.replace_one({"_id": 1}, {"n": 6}, upsert=True),
    "delete_one": lambda op: op.delete_one({"_id": 2}),
    "find_one_and_update": lambda op: op.find_one_and_update({"_id": 2}, {"$inc": {"n": 1}}),
    "find_one_and_replace": lambda op: op.find_one_and_replace({"_id": 2}, {"n": 7}),
    "find_one_and_delete": lambda op: op.find_one_and_delete({"_id": 2}),
}


@pytest.fixture
async def keys(client):
    async with Keys(SECRET, NAMESPACE) as keys:
        yield keys


@pytest.fixture
async def key(keys, collection):
    """A key of the test's own."""
    return keys(f"{collection.name}-1")


@pytest.fixture
async def other(replica_set, collection, client_class):
    """The same collection, of another client."""
    async with client_class(replica_set.uri) as client:
        yield keyed_collection(client, collection.name)


@pytest.fixture
async def seeded(collection):
    await collection.insert_many([{"_id": 0, "n": 0}, {"_id": 2, "n": 0}])
    return collection


async def write(collection, key, write, timeout=60):
    """Make one write under a key; give what it gave, and whether it was replayed."""
    async with collection.operation(timeout=timeout, key=key) as op:
        result = await write(op)
    return getattr(result, "raw_result", result), op.replayed


def telling(result):
    """A result without what differs between replies."""
    if not isinstance(result, dict) or "ok" not in result:
        return getattr(result, "inserted_id", result)
    return {name: result.get(name) for name in ("n", "nModified", "upserted")}


class TestReplays:
    async def test_the_same_key_applies_once(self, collection, other, key, stored):
        """Another client gets the answers of the first, without anything being applied again."""
        first = await order(collection, key)
        assert [first, first] == [await order(other, key), await order(collection, key)]
        require_one_order(stored)

    @pytest.mark.parametrize("name", WRITES)
    async def test_every_kind(self, seeded, other, key, name, stored):
        """Each kind of write is answered from memory, and its answer is the first one."""
        first, was_replayed = await write(seeded, key, WRITES[name])
        assert was_replayed in {False, None}  # None: a server before 6.0
        documents = list(stored.find())
        again, is_replayed = await write(other, key, WRITES[name])
        assert telling(first) == telling(again)
        assert is_replayed is (True if was_replayed is False else None)
        assert documents == list(stored.find())

    async def test_another_key_writes_again(self, collection, keys, stored):
        """What has another key, or none, is another write."""
        for key in (keys("a"), keys("b"), None):
            await write(collection, key, lambda op: op.insert_one({"order": 1}))
        assert 3 == stored.count_documents({})

    async def test_at_once(self, collection, other, key, stored):
        """Of many calls at the same moment one applies, and all get its answers."""
        answers = await asyncio.gather(*(order(each, key) for each in [collection, other] * 5))
        assert answers == [answers[0]] * 10
        require_one_order(stored)

    async def test_goes_on_where_another_call_ended(self, collection, other, key, stored):
        """What the first call had not come to is applied by the next one."""
        async with collection.operation(key=key) as op:
            await op.insert_one({"order": 1})
        await order(other, key)
        require_one_order(stored)

    async def test_a_document_without_id(self, collection, other, key):
        """It gets the same `_id` from each caller."""
        first, again = {"order": 1}, {"order": 1}
        await write(collection, key, lambda op: op.insert_one(first))
        await write(other, key, lambda op: op.insert_one(again))
        assert first["_id"] == again["_id"]
        assert 1 == await collection.count_documents({})

    async def test_through_routers(self, replica_set, collection, stored, client_class):
        """Keys work in a sharded cluster, where no router says that it has replayed."""
        async with (
            FakeMongoses(replica_set) as cluster,
            client_class(cluster.uri) as client,
            Keys(SECRET, NAMESPACE) as keys,
        ):
            mine = keyed_collection(client, collection.name)
            first = await order(mine, keys("order"))
            assert first == await order(mine, keys("order"))
        require_one_order(stored)

    async def test_an_own_retry(self, replica_set, collection, key, stored):
        """When an answer was lost nobody can tell which attempt has applied it."""
        async with replica_set.faults.drop_reply("update", namespace=collection.full_name):
            async with collection.operation(key=key) as op:
                await op.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
        assert op.replayed is None
        assert 2 == len(op.attempts)
        assert [{"_id": 1, "n": 1}] == list(stored.find())

    async def test_resolve(self, replica_set, collection, other, key, stored):
        """A write in doubt can be resolved, and repeated under its key."""
        async with replica_set.faults.drop_reply("insert", times=2, namespace=collection.full_name):
            with pytest.raises(PyMongoError) as caught:
                await write(collection, key, WRITES["insert_one"], timeout=None)
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        assert 1 == (await resolve(caught.value, timeout=60)).inserted_id
        await write(other, key, WRITES["insert_one"])
        assert [{"_id": 1, "n": 0}] == list(stored.find())

    async def test_without_records_of_all(self, collection, other, stored):
        """Keys with fewer records replay as well, and write none for other kinds."""
        async with Keys(
            SECRET, NAMESPACE, fingerprints="find_one_and", records=f"{collection.name}.keys"
        ) as keys:
            first = await order(collection, keys("order"))
            assert first == await order(other, keys("order"))
        require_one_order(stored)
        assert 1 == await collection["keys"].count_documents({})

    async def test_what_changed_nothing_is_not_remembered(self, collection, other, key):
        """A write that matched nothing is executed again, as the documents say."""
        change = {"$inc": {"n": 1}}
        first, _ = await write(collection, key, lambda op: op.update_one({"_id": 1}, change))
        await collection.insert_one({"_id": 1, "n": 0})
        again, was_replayed = await write(other, key, lambda op: op.update_one({"_id": 1}, change))
        assert (0, 1) == (first["n"], again["n"])
        assert not was_replayed


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

    @pytest.mark.parametrize("first", WRITES)
    async def test_of_kinds(self, seeded, other, key, first, stored):
        """So is every other kind of write."""
        await write(seeded, key, WRITES[first])
        documents = list(stored.find())
        for second in set(WRITES) - {first}:
            with pytest.raises(IdempotencyConflict, match=f"was {first} .* is {second} now"):
                await write(other, key, WRITES[second])
        assert documents == list(stored.find())

    async def test_of_kinds_by_the_server(self, seeded, other, stored):
        """Where no record tells, the server refuses a find_one_and_* after an update."""
        async with Keys(SECRET, NAMESPACE, fingerprints="find_one_and") as keys:
            key = keys(f"{seeded.name}-1")
            await write(seeded, key, WRITES["update_one"])
            documents = list(stored.find())
            with pytest.raises(IdempotencyConflict, match="says the server") as caught:
                await write(other, key, WRITES["find_one_and_update"])
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert documents == list(stored.find())

    async def test_nothing_is_sent(self, replica_set, collection, other, key):
        """A conflict is found before the write is sent."""
        await write(collection, key, WRITES["insert_one"])
        async with replica_set.faults.watch(
            namespace=collection.full_name, must_fire=False
        ) as sent:
            with pytest.raises(IdempotencyConflict):
                await write(other, key, WRITES["update_one"])
        assert not sent.fired


class TestTime:
    async def test_a_key_that_is_too_old(self, collection, other, keys, stored):
        """After 25 minutes a key is refused, whether its write was applied or not."""
        key = keys(f"{collection.name}-1")
        await write(collection, key, WRITES["insert_one"])
        (record,) = await self.make_older(collection, minutes=24)
        await write(other, key, WRITES["insert_one"])
        await self.make_older(collection, minutes=1, record=record)
        with pytest.raises(KeyExpiredError, match=r"first used 15.. s ago.* for 1500 s") as caught:
            await write(other, key, WRITES["insert_one"])
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert 1 == stored.count_documents({})

    async def make_older(self, collection, minutes, record=None):
        """Change when the test's key was used first."""
        records = collection.database["aioretry.keys"]
        newest = [record] if record else [d async for d in records.find().sort("seen", -1).limit(1)]
        (found,) = newest
        at = (await records.find_one({"_id": found["_id"]}))["at"] - timedelta(minutes=minutes)
        await records.update_one({"_id": found["_id"]}, {"$set": {"at": at}})
        return newest

    async def test_records_end_by_themselves(self, collection, key):
        """The records have a TTL index, of a day by default."""
        await write(collection, key, WRITES["insert_one"])
        indexes = await collection.database["aioretry.keys"].index_information()
        assert 86_400 == indexes["at_1"]["expireAfterSeconds"]

    async def test_a_deadline_while_the_record_is_written(self, replica_set, collection, key):
        """It counts for all that belongs to a write; nothing of the write was sent then."""
        await write(collection, key, WRITES["insert_one"])
        async with replica_set.faults.hang(
            "findAndModify",
            namespace=f"{collection.database.name}.aioretry.keys",
            must_fire=False,  # time may be over before
        ):
            async with deadline(0.5):
                with pytest.raises(DeadlineExceeded) as caught:
                    await write(collection, key, WRITES["insert_one"])
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)

    async def test_cancelling_while_the_record_is_written(self, replica_set, collection, key):
        """A write that is cancelled before it was sent is not applied."""
        async with replica_set.faults.hang(
            "findAndModify", namespace=f"{collection.database.name}.aioretry.keys"
        ) as hang:
            task = asyncio.ensure_future(write(collection, key, WRITES["insert_one"]))
            await hang.wait_until_fired(timeout=60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert 0 == await collection.count_documents({})

    async def test_too_many_a_second(self, client, collection):
        """A write whose turn comes after its deadline is refused."""
        async with Keys(SECRET, NAMESPACE, per_second=0.01) as keys:
            await write(collection, keys(f"{collection.name}-1"), WRITES["insert_one"])
            with pytest.raises(DeadlineExceeded, match="this write's turn") as caught:
                await write(collection, keys(f"{collection.name}-2"), WRITES["update_one"])
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)


class TestRefused:
    @pytest.mark.parametrize("name", ["update_many", "delete_many", "insert_many", "bulk_write"])
    async def test_writes_of_many(self, collection, key, name):
        """What no server recognises is refused, and nothing is sent."""
        writes = {
            "update_many": lambda op: op.update_many({}, {"$set": {"n": 1}}),
            "delete_many": lambda op: op.delete_many({}),
            "insert_many": lambda op: op.insert_many([{}]),
            "bulk_write": lambda op: op.bulk_write([]),
        }
        async with collection.operation(key=key) as op:
            with pytest.raises(InvalidOperation, match=r"key"):
                await writes[name](op)
        assert () == op.attempts

    @pytest.mark.parametrize("durable", [False, True])
    async def test_a_client_that_does_not_retry(
        self, replica_set, collection, keys, durable, client_class
    ):
        """Keys need transaction ids, and so a client that may send them."""
        async with client_class(replica_set.uri, retryWrites=False) as client:
            mine = keyed_collection(client, collection.name)
            with pytest.raises(ConfigurationError, match="a key needs retryable writes"):
                await write(mine, keys("1", durable=durable), WRITES["insert_one"])
        assert 0 == await collection.count_documents({})

    @pytest.mark.parametrize("durable", [False, True])
    async def test_a_standalone_server(self, server_version, durable, client_class):
        """A standalone server has no transaction ids; nothing is sent to it."""
        with Standalone(server_version) as server:
            async with client_class(server.uri) as client, Keys(SECRET, NAMESPACE) as keys:
                collection = keyed_collection(client, "c")
                with pytest.raises(ConfigurationError, match="a replica set or a sharded") as error:
                    await write(collection, keys("1", durable=durable), WRITES["insert_one"])
                assert Outcome.NOT_APPLIED is outcome_of(error.value)
                assert [] == await client.aioretry_tests.list_collection_names()

    async def test_going_on_after_an_error(self, collection, key):
        """The place of a write says what it is: after an error the whole is to be repeated."""
        earlier = AutoReconnect("of another write")
        attach(earlier, Outcome.UNKNOWN, [])
        await collection.insert_one({"_id": 1})
        async with collection.operation(key=key) as op:
            with pytest.raises(DuplicateKeyError):
                await op.insert_one({"_id": 1})
            with pytest.raises(InvalidOperation, match="repeat the whole operation"):
                await op.insert_one({"_id": 2})
            try:
                raise earlier
            except AutoReconnect:
                with pytest.raises(InvalidOperation) as refused:
                    await op.insert_one({"_id": 3})
        assert Outcome.NOT_APPLIED is outcome_of(refused.value)  # and not the earlier one's
        assert 1 == await collection.count_documents({})

    async def test_outside_its_block(self, collection, key):
        """An operation with a key is of no use outside of its block, as any other."""
        op = collection.operation(key=key)
        with pytest.raises(InvalidOperation, match="inside its `async with` block"):
            await op.insert_one({})
        assert op.replayed is None


async def test_its_block_is_entered_once(collection, keys, stored):
    """Whoever repeats it makes another operation with the key: these would be further writes."""
    op = collection.operation(key=keys(f"{collection.name}-again"))
    async with op:
        await op.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
    with pytest.raises(InvalidOperation, match="can be entered once") as caught:
        await op.__aenter__()
    assert Outcome.NOT_APPLIED is outcome_of(caught.value)
    assert [1] == [document["n"] for document in stored.find()]
