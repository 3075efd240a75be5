"""insert_one calls that travel together end as they would have ended alone."""

import asyncio
import random
import uuid
from collections import UserDict
from decimal import Decimal

import pytest
from bson import SON, Decimal128
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, TypeCodec, TypeRegistry
from bson.raw_bson import RawBSONDocument
from pymongo.errors import DuplicateKeyError, InvalidOperation, PyMongoError, WriteError
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    ResolveError,
    RetryScheduled,
    attempts_of,
    deadline,
    outcome_of,
    resolve,
)

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN

RAW: CodecOptions = CodecOptions(document_class=RawBSONDocument)


class DecimalCodec(TypeCodec):
    """Python's decimals as the server's."""

    python_type = Decimal
    bson_type = Decimal128

    def transform_python(self, value):
        return Decimal128(value)

    def transform_bson(self, value):
        return value.to_decimal()


CODECS: CodecOptions = CodecOptions(
    document_class=SON,
    uuid_representation=UuidRepresentation.STANDARD,
    type_registry=TypeRegistry([DecimalCodec()]),
)


@pytest.fixture
def watched(watched_client, collection):
    """The collection, of a client whose commands are remembered."""
    return watched_client[collection.database.name].get_collection(
        collection.name, write_concern=collection.write_concern
    )


async def ending(write):
    """What a write ends with."""
    try:
        return await write
    except PyMongoError as exc:
        return exc


def look(error):
    """All that a caller sees of an error."""
    return (
        type(error),
        str(error),
        error.code,
        error.details,
        error.timeout,
        error.has_error_label("RetryableWriteError"),
        outcome_of(error),
        len(attempts_of(error)),
        attempts_of(error)[-1].error is error,
        getattr(error, "__notes__", []),
    )


class TestErrors:
    @pytest.mark.parametrize(
        "bad", [{"_id": 1}, {"a": 1, "b": 2}, {"n": "x"}], ids=["id", "index", "validator"]
    )
    async def test_are_the_same(self, bad, client, collection):
        """What a caller sees of an error is what it sees of the same call alone."""
        await client[collection.database.name].create_collection(
            collection.name, validator={"n": {"$not": {"$type": "string"}}}
        )
        await collection.create_index(["a", "b"], unique=True, sparse=True)
        await collection.insert_one({"_id": 1, "a": 1, "b": 2})
        alone = await ending(collection.insert_one({"_id": 5} | bad))
        together = collection.coalesced()
        writes = [together.insert_one({"_id": 2}), together.insert_one({"_id": 5} | bad)]
        good, error = [await ending(write) for write in writes]
        assert isinstance(alone, WriteError)
        assert look(alone) == look(error)
        assert 2 == good.inserted_id

    async def test_of_both_kinds(self, replica_set, collection):
        """A duplicate key counts before a write concern error, as it does alone."""
        await collection.insert_one({"_id": 1})
        together = collection.coalesced()
        with replica_set.faults.write_concern_error(64, "insert", times=2):
            alone = await ending(collection.insert_one({"_id": 1}))
            writes = [together.insert_one({"_id": n}) for n in (2, 1)]
            written, error = [await ending(write) for write in writes]
        assert isinstance(alone, DuplicateKeyError)
        assert look(alone) == look(error)
        assert UNKNOWN is outcome_of(written)


class TestDocuments:
    async def test_are_sent_as_alone(self, collection, stored):
        """With the collection's codecs, and the ``_id`` where it would have been."""
        mapping = UserDict(x=1)
        documents = [
            {"amount": Decimal("1.5"), "key": uuid.uuid4()},
            SON([("z", 1), ("a", SON([("y", 2), ("b", 3)]))]),
            {"x": 1, "_id": 7},
            mapping,
        ]
        plain = collection.with_options(codec_options=CODECS)
        await plain.insert_many([{**document, "alone": True} for document in documents[:2]])
        together = plain.coalesced()
        results = await asyncio.gather(*(together.insert_one(each) for each in documents))
        assert [each["_id"] for each in documents] == [each.inserted_id for each in results]
        assert mapping["_id"] == results[3].inserted_id
        raw = stored.with_options(codec_options=RAW)
        for document in documents:
            found = raw.find_one({"_id": document["_id"]})
            assert list(found) == ["_id", *(name for name in document if name != "_id")]
        first = await plain.find_one({"_id": documents[0]["_id"]})
        assert (documents[0], SON) == (dict(first), type(first))

    async def test_of_other_options_travel_apart(self, watched, commands):
        """A command has one write concern, and one kind of codecs."""
        views = [
            watched.coalesced(),
            watched.coalesced().with_options(write_concern=WriteConcern(w=1)),
            watched.coalesced().with_options(codec_options=CODECS),
        ]
        await asyncio.gather(*(view.insert_one({}) for view in views for _ in range(2)))
        assert [2, 2, 2] == [len(command["documents"]) for command in commands.sent]
        concerns = [command["writeConcern"] for command in commands.sent]
        assert 2 == len([concern for concern in concerns if concern["w"] == "majority"])


class TestAlone:
    async def test_unacknowledged(self, watched, commands, stored):
        """Without acknowledgement each is Motor's own."""
        view = watched.coalesced().with_options(write_concern=WriteConcern(w=0))
        results = await asyncio.gather(*(view.insert_one({"_id": n}) for n in range(3)))
        assert not any(result.acknowledged for result in results)
        assert [1, 1, 1] == [len(command["documents"]) for command in commands.sent]
        assert all("txnNumber" not in command for command in commands.sent)
        async with asyncio.timeout(30):
            while stored.count_documents({}) < 3:
                await asyncio.sleep(0.01)

    async def test_in_a_transaction(self, watched, watched_client, commands, stored):
        """It is a part of the transaction."""
        await watched.insert_one({"_id": 0})
        commands.sent.clear()
        view = watched.coalesced()
        async with await watched_client.start_session() as session:
            session.start_transaction()
            await view.insert_one({"_id": 1}, session=session)
            await view.insert_one({"_id": 2})
            await session.abort_transaction()
        assert [0, 2] == sorted(stored.distinct("_id"))
        assert ["insert", "insert", "abortTransaction"] == commands.names

    async def test_the_rest_of_the_view(self, watched, commands):
        """Everything but insert_one is as in the collection, and so are collections below it."""
        view = watched.coalesced()
        await view.insert_many([{"_id": 1}])
        await view.update_one({"_id": 1}, {"$set": {"x": 1}})
        assert 1 == (await view.find_one({"_id": 1}))["x"]
        await asyncio.gather(*(view.sub.insert_one({}) for _ in range(2)))
        assert ["insert", "update", "find", "insert", "insert"] == commands.names
        async with view.operation() as operation:
            await operation.insert_one({"_id": 2})
        assert view == watched


class TestRetries:
    async def test_hooks_are_told_once(self, replica_set, collection, client_class):
        """A retry of many inserts is one retry."""
        events = []
        async with client_class(replica_set.uri, hooks=[events.append], w="majority") as client:
            view = client[collection.database.name][collection.name].coalesced()
            with replica_set.faults.drop_reply("insert"):
                await asyncio.gather(*(view.insert_one({"_id": n}) for n in range(5)))
        (event,) = events
        assert isinstance(event, RetryScheduled)
        assert ("insert_one", collection.full_name) == (event.operation, event.namespace)

    async def test_all_replies_lost_under_a_deadline(self, replica_set, collection, stored):
        """Each is told that its deadline is over, and can be resolved."""
        view = collection.coalesced()
        with replica_set.faults.drop_reply("insert", times=None):
            async with deadline(1.0):
                errors = [await ending(write) for write in [*map(view.insert_one, [{}, {}])]]
        for error in errors:
            assert (DeadlineExceeded, UNKNOWN) == (type(error), outcome_of(error))
            assert len(attempts_of(error)) > 1
        ids = [(await resolve(error)).inserted_id for error in errors]
        assert sorted(ids) == sorted(stored.distinct("_id"))

    async def test_without_transaction_ids(self, replica_set, collection, stored, client_class):
        """They are sent once, and what is in doubt can't be resolved."""
        async with client_class(replica_set.uri, retryWrites=False, w="majority") as client:
            view = client[collection.database.name][collection.name].coalesced()
            with replica_set.faults.drop_reply("insert"):
                writes = [view.insert_one({"_id": n}) for n in range(2)]
                errors = [await ending(write) for write in writes]
            assert [(UNKNOWN, 1)] * 2 == [(outcome_of(e), len(attempts_of(e))) for e in errors]
            with pytest.raises(ResolveError, match="without a transaction id"):
                await resolve(errors[0])
        assert 2 == stored.count_documents({})

    async def test_unread_without_transaction_ids(self, replica_set, collection, client_class):
        """All get the error of the one that no server reads; nothing of them was executed."""
        deep = {"_id": 0}
        for _ in range(250):
            deep = {"a": deep}
        async with client_class(replica_set.uri, retryWrites=False, w="majority") as client:
            view = client[collection.database.name][collection.name].coalesced()
            writes = [view.insert_one(document) for document in ({"_id": 1}, deep, {"_id": 2})]
            errors = [await ending(write) for write in writes]
        assert [(15, NOT_APPLIED)] * 3 == [(error.code, outcome_of(error)) for error in errors]
        assert 0 == await collection.count_documents({})

    async def test_a_timeout_of_asyncio(self, replica_set, collection, stored):
        """What becomes of a cancelled call tells how it ended, as soon as the others have."""
        view = collection.coalesced()
        async with replica_set.faults.hang("insert", applied=True) as held:
            hasty, patient = (view.insert_one({"_id": n}) for n in range(2))
            await held.wait_until_fired(timeout=60)
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.01):
                    await hasty
            assert UNKNOWN is outcome_of(caught.value)
            held.disarm()
            await patient
        assert APPLIED is outcome_of(caught.value)
        assert 2 == stored.count_documents({})

    async def test_whoever_left_can_ask_at_once(self, replica_set, collection, stored):
        """It need not wait for the others: the same command is sent once more."""
        view = collection.coalesced()
        async with replica_set.faults.hang("insert", applied=True) as held:
            hasty, patient = (view.insert_one({"_id": n}) for n in range(2))
            await held.wait_until_fired(timeout=60)
            hasty.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await hasty
            assert 0 == (await resolve(caught.value)).inserted_id
            held.disarm()
            await patient
        assert 2 == stored.count_documents({})


class TestEnds:
    async def test_of_the_client(self, replica_set, client_class):
        """What is inserted after it was closed fails, and nothing was sent."""
        async with client_class(replica_set.uri) as client:
            view = client.aioretry_tests.things.coalesced()
            await client.admin.command("ping")
        errors = [await ending(write) for write in [view.insert_one({}), view.insert_one({})]]
        assert [InvalidOperation] * 2 == list(map(type, errors))
        assert [NOT_APPLIED] * 2 == list(map(outcome_of, errors))

    def test_of_the_loop(self, replica_set, run_script):
        """Whatever is under way then makes no noise."""
        assert "done\n" == run_script(LEAVING, replica_set.uri)

    async def test_of_many(self, replica_set, client, collection, stored):
        """Of a thousand calls of every kind, under faults, each is told what is true."""
        dice = random.Random(7)
        view = collection.coalesced(max_documents=40, max_bytes=20_000)
        ends: dict[int, object] = {}

        async def one(number):
            seconds = dice.choice([None, None, 0.05, 60])
            document = {"_id": dice.choice([number, number, number // 10]), "by": number}
            if dice.random() < 0.05:
                document["x"] = object()
            async with deadline(seconds):
                write = view.insert_one(document)
            if dice.random() < 0.1:
                asyncio.get_running_loop().call_later(dice.random() / 10, write.cancel)
            try:
                await write
                ends[number] = APPLIED
            except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - whatever it is
                ends[number] = exc

        with replica_set.faults.drop_reply("insert", times=10):
            for first in range(0, 1000, 100):
                await asyncio.gather(*map(one, range(first, first + 100)))
        outcomes = {number: await self.found_out(end) for number, end in ends.items()}
        there = {document["by"] for document in stored.find()}
        assert there == {number for number, outcome in outcomes.items() if outcome is APPLIED}
        assert 1000 == len(outcomes)

    async def found_out(self, end):
        """How a call ended, asking the server if need be."""
        if end is APPLIED or outcome_of(end) is not UNKNOWN:
            return end if end is APPLIED else outcome_of(end)
        try:
            await resolve(end, timeout=60)
        except DuplicateKeyError:  # of a document of another call
            return NOT_APPLIED
        return APPLIED


LEAVING = """
import asyncio, sys
from aioretry import RetryClient, deadline

client = RetryClient(sys.argv[1])

async def main():
    view = client.aioretry_tests.leaving.coalesced(max_documents=10)
    await view.insert_one({})
    for _ in range(100):
        view.insert_one({})
    async with deadline(60):
        view.insert_one({})
    print("done")

asyncio.run(main())
client.close()
"""
