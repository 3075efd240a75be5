"""Inserting once: each answer lost, each process killed, and what duplicates mean."""

import asyncio
import datetime as dt
import uuid

import pytest
from bson import Binary, ObjectId, Timestamp, encode
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
)
from pymongo.write_concern import WriteConcern

from aioretry import DeadlineExceeded, Outcome, deadline, outcome_of
from aioretry.idempotent import InsertConflict, InsertOnceResult, insert_once
from aioretry.idempotent._insert_once import _is_about_id
from aioretry.testing import Standalone
from tests.idempotent.drivers import collection_of
from tests.idempotent.points import APP_NAME, at_each_kill, at_each_lost_reply

TIMEOUT = 30.0
WHEN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
IDS = ["a", {"x": 1}, WHEN, Binary(b"1", 5), 2**40, 1.5, True]


def has_own_retries(driver, servers):
    """Whether the driver's own retry brings an insert to its end."""
    return driver == "aioretry" and not isinstance(servers, Standalone)


class TestCutOff:
    async def test_each_reply_lost(self, servers, driver, things, seen):
        """Whichever answer is lost, the document is there once."""

        async def run(number):
            document = {"_id": number, "x": [1, {"y": None}]}
            result = await insert_once(things, document, timeout=TIMEOUT)
            assert number == result.inserted_id
            assert [document] == list(seen.find({"_id": number}))

        assert 1 == await at_each_lost_reply(servers, run)

    async def test_each_reply_lost_after_that_of_the_insert(self, servers, driver, things, seen):
        """Those of the commands that follow on a lost answer, too."""

        async def run(number):
            document = {"_id": number, "x": 1}
            async with servers.faults.drop_reply("insert", app_name=APP_NAME):
                result = await insert_once(things, document, timeout=TIMEOUT)
            assert result == InsertOnceResult(number, not has_own_retries(driver, servers))
            assert [document] == list(seen.find({"_id": number}))

        lost = await at_each_lost_reply(servers, run)
        assert lost == (2 if has_own_retries(driver, servers) else 3)

    async def test_each_kill(self, servers, driver, name, things, seen):
        """The next process finishes what a killed one has begun."""

        async def recover(number):
            document = {"_id": number, "x": 1}
            await insert_once(things, document, timeout=TIMEOUT)
            assert [document] == list(seen.find({"_id": number}))

        killed = await at_each_kill(
            servers,
            "tests.idempotent.once_children:insert",
            lambda number: {
                "driver": driver,
                "name": name,
                "document": {"_id": number, "x": 1},
            },
            recover,
        )
        assert 2 == killed

    async def test_lost_requests_and_replies(self, servers, driver, things, seen):
        """Under a deadline it goes on for as long as it takes."""
        with servers.faults.drop_request("insert", app_name=APP_NAME, times=2):
            with servers.faults.drop_reply("insert", app_name=APP_NAME, nth=3, times=2):
                await insert_once(things, {"_id": 1}, timeout=TIMEOUT)
        assert [{"_id": 1}] == list(seen.find())


class TestServersGone:
    @pytest.mark.sample(3)
    @pytest.mark.usefixtures("three_members")
    async def test_failover(self, replica_set, driver, name, plain):
        """Inserts outlive a kill of the primary."""
        async with collection_of(driver, replica_set.uri, name) as things:
            primary = await replica_set.primary()
            with replica_set.faults.hang("insert", app_name=APP_NAME, applied=True) as fault:
                inserts = [
                    asyncio.create_task(insert_once(things, {"_id": n}, timeout=60.0))
                    for n in range(20)
                ]
                await fault.wait_until_fired()
                await replica_set.kill(primary)
            results = await asyncio.gather(*inserts)
        stored = plain[things.database.name][name]
        assert [{"_id": n} for n in range(20)] == list(stored.find(sort=[("_id", 1)]))
        assert list(range(20)) == [result.inserted_id for result in results]

    async def test_standalone_is_killed_and_restarted(self, standalone, driver, name):
        """A single server comes back, and the insert with it."""
        async with collection_of(driver, standalone.uri, name) as things:
            standalone.faults.drop_reply("insert", app_name=APP_NAME)
            with standalone.faults.hang("find", app_name=APP_NAME) as fault:
                insert = asyncio.create_task(insert_once(things, {"_id": 1}, timeout=60.0))
                await fault.wait_until_fired()
                await standalone.kill(standalone.member)
            assert not insert.done()
            await standalone.restart(standalone.member)
            assert InsertOnceResult(1, was_there=True) == await insert
            assert 1 == await things.count_documents({})


class TestDuplicates:
    async def test_the_same_document(self, things, seen):
        """The same document again is success, and the caller is told."""
        document = {"name": "a", "at": WHEN.replace(tzinfo=None), "n": 1.0}
        first = await insert_once(things, document)
        assert first == InsertOnceResult(document["_id"], was_there=False)
        assert isinstance(document["_id"], ObjectId)
        assert InsertOnceResult(document["_id"], was_there=True) == await insert_once(
            things, document
        )
        assert [document] == list(seen.find())

    @pytest.mark.parametrize(
        "other",
        [
            {"_id": 1, "a": 2, "b": 1},
            {"_id": 1, "a": 1},
            {"_id": 1, "a": 1.0, "b": 1},
            {"_id": 1, "b": 1, "a": 1},
            {"_id": 1.0, "a": 1, "b": 1},
        ],
        ids=str,
    )
    async def test_another_document(self, things, seen, other):
        """A document that differs in a byte, by type or order of its fields, is a conflict."""
        seen.insert_one({"_id": 1, "a": 1, "b": 1})
        with pytest.raises(InsertConflict) as caught:
            await insert_once(things, other, timeout=TIMEOUT)
        assert isinstance(caught.value, DuplicateKeyError)
        assert {"_id": 1, "a": 1, "b": 1} == caught.value.existing
        assert {"_id": 1} == caught.value.details["keyPattern"]
        assert isinstance(caught.value.__cause__, DuplicateKeyError)
        assert [{"_id": 1, "a": 1, "b": 1}] == list(seen.find())

    async def test_conflict_tells_no_values(self, things, seen):
        """Neither document is in the text."""
        seen.insert_one({"_id": "key4711", "a": "secret"})
        with pytest.raises(InsertConflict) as caught:
            await insert_once(things, {"_id": "key4711", "a": "other"})
        assert not {"secret", "other", "4711"} & set(str(caught.value).split())
        assert "4711" not in repr(caught.value)

    async def test_another_unique_index(self, things, seen):
        """That is the caller's error, as the driver raises it, also after a lost answer."""
        seen.create_index("email", unique=True)
        seen.insert_one({"_id": 1, "email": "a"})
        with pytest.raises(DuplicateKeyError) as caught:
            await insert_once(things, {"_id": 2, "email": "a"}, timeout=TIMEOUT)
        assert not isinstance(caught.value, InsertConflict)
        assert {"email": 1} == caught.value.details["keyPattern"]
        assert 1 == seen.count_documents({})

    async def test_another_unique_index_after_a_lost_request(self, servers, things, seen):
        """Nothing was applied by the first run, and the second one says what stands against it."""
        seen.create_index("email", unique=True)
        seen.insert_one({"_id": 1, "email": "a"})
        with servers.faults.drop_request("insert", app_name=APP_NAME):
            with pytest.raises(DuplicateKeyError) as caught:
                await insert_once(things, {"_id": 2, "email": "a"}, timeout=TIMEOUT)
        assert {"email": 1} == caught.value.details["keyPattern"]

    async def test_another_unique_index_of_the_own_document(self, servers, things, seen):
        """A server may name the other index although the own document is what is in the way."""
        fault = servers.faults.error(
            11000,
            "insert",
            applied=True,
            message="E11000 duplicate key error collection: a.b index: email_1 dup key: {}",
            extra={"keyPattern": {"email": 1}},
            app_name=APP_NAME,
        )
        async with fault:
            result = await insert_once(things, {"_id": 1, "email": "a"}, timeout=TIMEOUT)
        assert InsertOnceResult(1, was_there=True) == result
        assert [{"_id": 1, "email": "a"}] == list(seen.find())

    async def test_gone_meanwhile(self, servers, things, seen):
        """A duplicate that nobody finds any more is no obstacle; it is inserted."""
        fault = servers.faults.error(
            11000, "insert", extra={"keyPattern": {"_id": 1}}, app_name=APP_NAME
        )
        async with fault:
            assert InsertOnceResult(1, was_there=False) == await insert_once(things, {"_id": 1})
        assert [{"_id": 1}] == list(seen.find())

    async def test_conflict_after_doubt(self, servers, driver, name, seen):
        """If an earlier run may have written, the conflict does not say that nothing was."""
        seen.insert_one({"_id": 1, "a": 1})
        async with collection_of("aioretry", servers.uri, name, retryWrites=False) as things:
            with servers.faults.drop_request("insert", app_name=APP_NAME):
                with pytest.raises(InsertConflict) as caught:
                    await insert_once(things, {"_id": 1, "a": 2})
        assert isinstance(caught.value.__cause__, AutoReconnect)
        assert outcome_of(caught.value) is Outcome.UNKNOWN

    async def test_doubt_before_a_look_that_failed(self, servers, name, seen):
        """A duplicate that can't be looked at says nothing of the run before it."""
        faults = servers.faults
        async with collection_of("aioretry", servers.uri, name, retryWrites=False) as things:
            with (
                faults.drop_reply("insert", app_name=APP_NAME),
                faults.drop_reply("find", app_name=APP_NAME, times=None),
                pytest.raises(AutoReconnect) as caught,
            ):
                await insert_once(things, {"_id": 1})
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        assert [{"_id": 1}] == list(seen.find())

    async def test_look_that_failed(self, servers, name, seen):
        """Where there was no other run, nothing was written."""
        seen.insert_one({"_id": 1})
        async with collection_of("aioretry", servers.uri, name) as things:
            with servers.faults.error(13, "find", app_name=APP_NAME):
                with pytest.raises(OperationFailure) as caught:
                    await insert_once(things, {"_id": 1})
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED

    async def test_doubt_within_the_run_of_a_look_that_failed(self, servers, name, seen):
        """An attempt that was lost before the duplicate was met may still be executed."""
        seen.insert_one({"_id": 1})
        faults = servers.faults
        async with collection_of("aioretry", servers.uri, name) as things:
            with (
                faults.drop_request("insert", app_name=APP_NAME),
                faults.error(13, "find", app_name=APP_NAME),
                pytest.raises(PyMongoError) as caught,
            ):
                await insert_once(things, {"_id": 1})
        assert outcome_of(caught.value) is Outcome.UNKNOWN


class TestDeadline:
    async def test_is_over_at_once(self, things, seen):
        """Nothing is sent."""
        with pytest.raises(DeadlineExceeded):
            await insert_once(things, {"_id": 1}, timeout=0.0)
        assert 0 == seen.count_documents({})

    async def test_is_over(self, servers, things, seen):
        """The error says that time is over, and the document is there once."""
        with servers.faults.drop_reply("insert", "find", app_name=APP_NAME, times=None):
            with pytest.raises(DeadlineExceeded) as caught:
                async with deadline(2.0):
                    await insert_once(things, {"_id": 1})
        assert outcome_of(caught.value) in {Outcome.UNKNOWN, None}
        assert [{"_id": 1}] == list(seen.find())

    async def test_without_one(self, standalone, driver, name):
        """It is repeated once, and then the error is raised."""
        async with collection_of(driver, standalone.uri, name) as things:
            with standalone.faults.drop_request("insert", app_name=APP_NAME, times=2):
                with pytest.raises(AutoReconnect) as caught:
                    await insert_once(things, {"_id": 1})
            assert "aioretry: insert_once was run 2 times" in caught.value.__notes__
            assert outcome_of(caught.value) in {Outcome.UNKNOWN, None}
            with standalone.faults.drop_request("insert", app_name=APP_NAME):
                await insert_once(things, {"_id": 2})
            assert [{"_id": 2}] == await things.find().to_list(None)


class TestArguments:
    async def test_unacknowledged(self, servers, driver, name):
        """With w: 0 nobody would know."""
        unacknowledged = WriteConcern(w=0)
        async with collection_of(
            driver, servers.uri, name, write_concern=unacknowledged
        ) as collection:
            with pytest.raises(ConfigurationError, match="w: 0"):
                await insert_once(collection, {"_id": 1})

    async def test_below_a_majority(self, servers, driver, name, seen):
        """With w: 1 what the primary has is enough."""
        async with collection_of(
            driver, servers.uri, name, write_concern=WriteConcern(w=1)
        ) as collection:
            with servers.faults.drop_reply("insert", app_name=APP_NAME):
                await insert_once(collection, {"_id": 1})
        assert [{"_id": 1}] == list(seen.find())

    async def test_raw_document(self, things, seen):
        """A raw document is stored as the server stores it, its _id first."""
        raw = RawBSONDocument(encode({"a": 1}))
        with pytest.raises(ValueError, match="needs an _id"):
            await insert_once(things, raw)
        nested = encode({"x": {"a": 1, "_id": 5}})
        late = RawBSONDocument(nested[4 + 3 : -1])  # the value of x, as it was written
        assert ["a", "_id"] == list(late)
        assert InsertOnceResult(5, was_there=False) == await insert_once(things, late)
        assert InsertOnceResult(5, was_there=True) == await insert_once(things, late)
        assert [{"_id": 5, "a": 1}] == list(seen.find())

    async def test_empty_timestamp(self, things):
        """The server would replace it, so that nobody could tell the document again."""
        with pytest.raises(ValueError, match="empty timestamp"):
            await insert_once(things, {"_id": 1, "at": Timestamp(0, 0)})

    async def test_no_document(self, things):
        """What is no document is refused as by the driver."""
        with pytest.raises(TypeError, match="document"):
            await insert_once(things, [1])

    async def test_codec_options(self, things):
        """What the collection's options encode is found again, also under such an _id."""
        options = CodecOptions(uuid_representation=4, tz_aware=True)
        collection = things.with_options(codec_options=options)
        document = {"_id": uuid.uuid4(), "at": WHEN}
        for was_there in (False, True):
            result = await insert_once(collection, document)
            assert result == InsertOnceResult(document["_id"], was_there)
        with pytest.raises(InsertConflict) as caught:
            await insert_once(collection, {**document, "more": 1})
        assert document == caught.value.existing

    @pytest.mark.parametrize(
        "key",
        ["a", {"x": 1}, dt.datetime(1, 1, 1, tzinfo=dt.UTC), Binary(b"1", 5), 2**40, 1.5, True],
        ids=repr,
    )
    async def test_ids(self, things, key):
        """An _id may be of any type."""
        for _ in range(2):
            await insert_once(things, {"_id": key, "x": 1})
        assert 1 == await things.count_documents({})

    async def test_coalesced(self, replica_set, name, seen):
        """It works on a view whose inserts travel together."""
        async with collection_of("aioretry", replica_set.uri, name) as things:
            view = things.coalesced()
            documents = [{"_id": n % 5} for n in range(20)]
            results = await asyncio.gather(*(insert_once(view, each) for each in documents))
            assert 5 == [result.was_there for result in results].count(False)
            assert 5 == await things.count_documents({})


class TestOldServers:
    """Before 4.4 a duplicate has the name of its index alone, in the text."""

    @pytest.mark.parametrize(
        ("text", "about_id"),
        [
            ("E11000 duplicate key error collection: a.b index: _id_ dup key: { : 1 }", True),
            ("E11000 duplicate key error collection: a.b index: email_1 dup key: { : 1 }", False),
            ("E11000 duplicate key error collection: a.b index: my_id_ dup key: { : 1 }", False),
            ("E11000 duplicate key error index: a.b.$_id_ dup key: { : 1 }", True),
            ("E11000 duplicate key error index: a.b.$email_1 dup key: { : 1 }", False),
            ("another text", True),
        ],
    )
    def test_index(self, text, about_id):
        """What can't be told may be the _id."""
        details = {"index": 0, "code": 11000, "errmsg": text}
        assert about_id is _is_about_id(DuplicateKeyError(text, 11000, details))
        assert about_id is _is_about_id(DuplicateKeyError(text, 11000))
