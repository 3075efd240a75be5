"""Pending updates: what they do, what they refuse, and what becomes of those that are left."""

import asyncio
import pickle
import uuid
import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from bson import ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, monitoring
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WriteError,
)
from pymongo.results import UpdateResult
from pymongo.write_concern import WriteConcern

from aioretry import Outcome, ResolveError, RetryClient, deadline, outcome_of, resolve
from aioretry.errors import attach
from aioretry.idempotent import (
    CleanUpReport,
    PendingStatus,
    PendingUpdates,
    TokenConflictError,
    TokenExpiredError,
    TooManyPendingError,
    UpdateInterruptedError,
    UpdateRefusedError,
)
from aioretry.idempotent._pending_cleanup import CleanUp
from aioretry.testing import FakeMongoses
from tests.idempotent.pending_recipe import tokens_in

ADD_ONE = {"$inc": {"n": 1}}


@pytest.fixture
def updates(collection) -> PendingUpdates:
    """Updates of the test's own collection."""
    return PendingUpdates(collection)


@pytest.fixture
def seeded(stored):
    """The collection with one document, as PyMongo sees it."""
    stored.insert_one({"_id": 1, "n": 0, "tags": [{"k": "a", "n": 1}, {"k": "b", "n": 1}]})
    return stored


class Commands(monitoring.CommandListener):
    """Remembers the commands that a client sent."""

    def __init__(self):
        self.sent = []

    def started(self, event):
        if event.command_name not in {"endSessions", "ping"}:
            self.sent.append(event.command)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


def made_before(seconds: float) -> ObjectId:
    """A token that is so old; in the future if negative."""
    time = datetime.now(UTC) - timedelta(seconds=seconds)
    return ObjectId(ObjectId.from_datetime(time).binary[:4] + ObjectId().binary[4:])


async def leave_token(replica_set, updates, key=1, update=ADD_ONE, **options):
    """Leave the token of an update that was cut off between its two writes."""
    async with replica_set.faults.drop_request(
        "update", where=lambda command: "$push" not in command["updates"][0]["u"], times=None
    ):
        with pytest.raises(UpdateInterruptedError) as caught:
            await updates.apply(key, update, **options)
    assert caught.value.will_be_applied
    return caught.value


@pytest.fixture
async def watched(replica_set, client_class):
    """A client, and the commands that it sends."""
    commands = Commands()
    async with client_class(replica_set.uri, event_listeners=[commands]) as client:
        yield client, commands


class TestApply:
    async def test_applies_once(self, updates, seeded):
        """An update that is not idempotent is applied, and nothing is left in the document."""
        result = await updates.apply(1, {"$inc": {"n": 2}, "$push": {"log": "x"}})
        assert (True, False) == (result.matched, result.already)
        document = seeded.find_one()
        assert (2, ["x"], []) == (document["n"], document["log"], document["pending"])

    async def test_no_document(self, updates, stored):
        """Without a document nothing happens, and the result says so."""
        result = await updates.apply(1, ADD_ONE)
        assert not result.matched
        assert 0 == stored.count_documents({})

    @pytest.mark.parametrize("key", [None, 7, "a", {"$gt": 0}, uuid.UUID(int=1)], ids=repr)
    async def test_upsert(self, collection, key):
        """With upsert the document is created, whatever its _id is."""
        options = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
        collection = collection.with_options(codec_options=options)
        updates = PendingUpdates(collection)
        if isinstance(key, dict):
            with pytest.raises(OperationFailure):  # and not taken for a condition
                await updates.apply(key, ADD_ONE, upsert=True)
            return
        await updates.apply(key, ADD_ONE, upsert=True)
        await updates.apply(key, ADD_ONE, upsert=True)
        [document] = await collection.find().to_list(9)
        assert (key, 2, []) == (document["_id"], document["n"], tokens_in(document))

    async def test_array_filters(self, updates, seeded):
        """Array filters say which elements the update is for."""
        filters = [{"each.k": "b"}]
        await updates.apply(1, {"$mul": {"tags.$[each].n": 5}}, array_filters=filters)
        assert [1, 5] == [tag["n"] for tag in seeded.find_one()["tags"]]

    async def test_operators_that_it_uses_itself(self, updates, seeded):
        """$set, $unset, $pull and $push of the caller's go along with those of the recipe."""
        update = {"$set": {"a": 1}, "$unset": {"n": ""}, "$pull": {"tags": {"k": "a"}}}
        await updates.apply(1, update)
        await updates.apply(1, update | {"$set": {"b": 2}}, token=ObjectId())
        document = seeded.find_one()
        assert (1, 2, ["b"]) == (document["a"], document["b"], [t["k"] for t in document["tags"]])
        assert "n" not in document

    async def test_concurrent(self, updates, stored):
        """Many updates of a few new documents at once are each applied once."""
        await asyncio.gather(*(updates.apply(n % 3, ADD_ONE, upsert=True) for n in range(90)))
        assert [(n, 30, []) for n in range(3)] == [
            (document["_id"], document["n"], tokens_in(document))
            for document in stored.find().sort("_id")
        ]

    @pytest.mark.parametrize("make", [RetryClient, AsyncIOMotorClient, AsyncMongoClient])
    async def test_drivers(self, replica_set, collection, seeded, make):
        """It works through each driver, under a deadline and without one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            client = make(replica_set.uri)
        updates = PendingUpdates(client[collection.database.name][collection.name])
        await updates.create_index()
        await updates.apply(1, ADD_ONE)
        async with deadline(30):
            await updates.apply(1, ADD_ONE, token=ObjectId())
        assert 2 == seeded.find_one()["n"]
        assert PendingStatus(tokens=0, oldest=None, marks=1) == await updates.status()
        assert CleanUpReport() == await updates.clean_up()
        closing = client.close()
        if closing is not None:
            await closing

    async def test_sharded(self, replica_set, collection, stored, client_class):
        """It works through routers, lost replies included."""
        async with FakeMongoses(replica_set) as cluster, client_class(cluster.uri) as client:
            updates = PendingUpdates(client[collection.database.name][collection.name])
            async with cluster.faults.drop_reply(times=3):
                for _ in range(5):
                    await updates.apply(1, ADD_ONE, upsert=True, timeout=30)
            await updates.clean_up(older_than=0, timeout=30)
            assert 0 == (await updates.status()).tokens
        assert 5 == stored.find_one()["n"]

    async def test_write_concern(self, watched, collection, seeded):
        """Its writes have w: majority and j: true, whatever the collection has."""
        client, sent = watched
        weak = client[collection.database.name].get_collection(
            collection.name, write_concern=WriteConcern(w=1)
        )
        await PendingUpdates(weak).apply(1, ADD_ONE)
        assert [{"w": "majority", "j": True}] * 2 == [c["writeConcern"] for c in sent.sent]

    async def test_two_writes(self, watched, collection, seeded):
        """An update that nothing happens to costs two commands."""
        client, sent = watched
        updates = PendingUpdates(client[collection.database.name][collection.name])
        await updates.apply(1, ADD_ONE)
        assert ["update", "update"] == [next(iter(command)) for command in sent.sent]


class TestTokens:
    async def test_repeated(self, updates, seeded):
        """However often an update is called with one token, and at once, it is applied once."""
        token = ObjectId()
        results = await asyncio.gather(*(updates.apply(1, ADD_ONE, token=token) for _ in range(20)))
        results.append(await updates.apply(1, ADD_ONE, token=token))
        assert all(result.matched for result in results)
        assert 1 == [result.already for result in results].count(False)
        assert 1 == seeded.find_one()["n"]

    async def test_repeated_after_a_clean_up(self, replica_set, updates, seeded):
        """What a clean-up has finished is known to whoever repeats the token."""
        token = ObjectId()
        await leave_token(replica_set, updates, token=token)
        await updates.clean_up(older_than=0)
        assert (await updates.apply(1, ADD_ONE, token=token)).already
        assert 1 == seeded.find_one()["n"]

    async def test_other_update(self, updates, seeded):
        """A token that means another update is refused, whether that is applied or not."""
        token = ObjectId()
        await updates.apply(1, ADD_ONE, token=token)
        with pytest.raises(TokenConflictError) as caught:
            await updates.apply(1, {"$inc": {"n": 2}}, token=token)
        assert token == caught.value.token
        assert 1 == seeded.find_one()["n"]

    async def test_other_update_creates_the_document(self, replica_set, updates, collection):
        """So is one that finds the other's token in a document that was just created."""
        token, name = ObjectId(), collection.name
        async with AsyncMongoClient(replica_set.uri, appName="late") as client:
            late = PendingUpdates(client[collection.database.name][name])
            async with replica_set.faults.hang("findAndModify", app_name="late") as held:
                other = {"$inc": {"n": 100}}
                conflicting = asyncio.create_task(late.apply(1, other, token=token, upsert=True))
                await held.wait_until_fired()
                await leave_token(replica_set, updates, token=token, upsert=True)
            with pytest.raises(TokenConflictError):
                await conflicting
        await updates.clean_up(older_than=0)
        assert 1 == (await collection.find_one())["n"]

    async def test_late_command(self, replica_set, updates, seeded):
        """A first write that arrives after the update was applied does not apply it again."""
        held = replica_set.faults.hang("update", must_fire=True)
        async with held:
            token = ObjectId()
            with pytest.raises(UpdateInterruptedError) as caught:
                await updates.apply(1, ADD_ONE, token=token, timeout=1.0)
            assert not caught.value.will_be_applied
            result = await updates.resolve(caught.value)
            assert not result.already
        for _ in range(20):
            await updates.clean_up(older_than=0)
        assert 1 == seeded.find_one()["n"]

    async def test_late_command_of_the_same_call(self, replica_set, collection, seeded):
        """Nor does one that the call itself has given up and repeated."""
        options = {"retryWrites": False, "socketTimeoutMS": 500}
        async with AsyncMongoClient(replica_set.uri, **options) as client:
            updates = PendingUpdates(client[collection.database.name][collection.name])
            async with replica_set.faults.hang("update"):
                assert (await updates.apply(1, ADD_ONE)).matched
            for _ in range(20):
                await updates.clean_up(older_than=0)
        assert 1 == seeded.find_one()["n"]

    @pytest.mark.parametrize("make", [RetryClient, AsyncMongoClient])
    async def test_late_command_that_the_driver_repeated(
        self, replica_set, collection, stored, make
    ):
        """Nor does one that the driver has repeated, unseen, before there was a document."""
        async with make(replica_set.uri, socketTimeoutMS=500) as client:
            updates = PendingUpdates(client[collection.database.name][collection.name])
            async with replica_set.faults.hang("update"):
                assert (await updates.apply(1, ADD_ONE, upsert=True)).matched
            for _ in range(20):
                await updates.clean_up(older_than=0)
        assert 1 == stored.find_one()["n"]

    async def test_expired(self, updates, seeded):
        """A token is too old after its lifetime, and the server itself says so."""
        with pytest.raises(TokenExpiredError) as caught:
            await updates.apply(1, ADD_ONE, token=made_before(70))
        assert caught.value.outcome is Outcome.NOT_APPLIED
        with pytest.raises(TokenExpiredError) as caught:
            await updates.apply(1, ADD_ONE, token=made_before(130))
        assert caught.value.outcome is Outcome.UNKNOWN
        assert 0 == seeded.find_one()["n"]

    async def test_expired_without_a_document(self, updates, stored):
        """A token that is too old creates nothing that counts."""
        with pytest.raises(TokenExpiredError):
            await updates.apply(1, ADD_ONE, token=made_before(70), upsert=True)
        with pytest.raises(TokenExpiredError):
            await updates.apply(1, ADD_ONE, token=made_before(70), upsert=True)
        assert [{"_id": 1, "pending": []}] == list(stored.find())

    async def test_clocks_that_differ(self, updates, seeded):
        """A token from the future is refused."""
        with pytest.raises(InvalidOperation, match="the clocks differ"):
            await updates.apply(1, ADD_ONE, token=made_before(-90))
        await updates.apply(1, ADD_ONE, token=made_before(-30))
        assert 1 == seeded.find_one()["n"]

    async def test_marks_are_removed(self, collection, seeded):
        """A mark stays for two lifetimes, and is then removed by the clean-up."""
        updates = PendingUpdates(collection, lifetime=2.0)
        token = ObjectId()
        await updates.apply(1, ADD_ONE, token=token)
        assert 1 == (await updates.status()).marks
        async with asyncio.timeout(60):
            while (await updates.status()).marks:
                assert (await updates.clean_up()).found == 0
                await asyncio.sleep(0.1)
        with pytest.raises(TokenExpiredError) as caught:
            await updates.apply(1, ADD_ONE, token=token)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert (1, []) == (seeded.find_one()["n"], seeded.find_one()["pending"])


class TestRefusals:
    async def test_by_the_server(self, updates, seeded):
        """An update that the server refuses leaves nothing."""
        with pytest.raises(WriteError) as caught:
            await updates.apply(1, {"$inc": {"tags": 1}})
        assert 14 == caught.value.code
        assert [] == seeded.find_one()["pending"]

    async def test_duplicate_key(self, updates, seeded):
        """So does one that a unique index forbids."""
        seeded.create_index("u", unique=True, sparse=True)
        seeded.insert_one({"_id": 2, "u": 1})
        with pytest.raises(DuplicateKeyError):
            await updates.apply(1, {"$inc": {"u": 1}})
        assert [] == seeded.find_one()["pending"]

    async def test_with_a_token(self, updates, seeded):
        """Whoever repeats a token whose update was refused is told."""
        token = ObjectId()
        with pytest.raises(WriteError):
            await updates.apply(1, {"$inc": {"tags": 1}}, token=token)
        with pytest.raises(UpdateRefusedError):
            await updates.apply(1, {"$inc": {"tags": 1}}, token=token)
        assert 0 == (await updates.status()).tokens

    async def test_nested_too_deeply(self, updates, seeded):
        """So does one that no server can read, and the clean-up goes on to others."""
        deep: dict[str, object] = {}
        for _ in range(205):
            deep = {"a": deep}
        with pytest.raises(OperationFailure) as caught:
            await updates.apply(1, {"$set": {"x": deep}})
        assert 15 == caught.value.code
        assert [] == seeded.find_one()["pending"]

    async def test_applied_before_it_is_withdrawn(self, replica_set, collection, seeded):
        """An update that a clean-up has applied after all, long after, is not called refused."""
        updates = PendingUpdates(collection, lifetime=2.0)
        async with replica_set.faults.hang("update", nth=3) as held:
            applying = asyncio.create_task(updates.apply(1, {"$inc": {"tags": 1}}))
            await held.wait_until_fired()
            async with asyncio.timeout(60):
                while ((await updates.status()).oldest or 0) <= 4.0:
                    await asyncio.sleep(0.1)
            seeded.update_one({}, {"$set": {"tags": 0}})
            assert 1 == (await updates.clean_up()).finished
        assert (await applying).already
        assert 1 == seeded.find_one()["tags"]

    async def test_withdrawal_cut_off(self, replica_set, updates, seeded):
        """Where the token of a refused update can't be taken away, the error says so."""
        async with replica_set.faults.drop_request("update", nth=3, times=None):
            with pytest.raises(UpdateRefusedError, match="its token may be left"):
                await updates.apply(1, {"$inc": {"tags": 1}})
        assert 1 == (await updates.status()).tokens

    async def test_too_many(self, replica_set, collection, seeded):
        """A document has room for so many tokens; the clean-up makes room."""
        updates = PendingUpdates(collection, max_pending=2)
        await leave_token(replica_set, updates)
        await leave_token(replica_set, updates)
        with pytest.raises(TooManyPendingError):
            await updates.apply(1, ADD_ONE)
        assert 2 == len(seeded.find_one()["pending"])
        report = await updates.clean_up(older_than=0)
        assert (2, 2) == (report.found, report.finished)
        assert 2 == seeded.find_one()["n"]

    async def test_nothing_sent(self, free_port, client_class):
        """Where no server is, the driver's own error says that nothing was sent."""
        async with client_class(f"mongodb://127.0.0.1:{free_port}") as client:
            updates = PendingUpdates(client.db.c)
            with pytest.raises(PyMongoError) as caught:
                await updates.apply(1, ADD_ONE, timeout=0.3)
        assert not isinstance(caught.value, UpdateInterruptedError)
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED

    @pytest.mark.parametrize(
        ("update", "message"),
        [
            ({}, "empty"),
            ({"n": 1}, "operators only"),
            ({"$inc": {}}, "must be given a field"),
            ({"$setOnInsert": {"n": 1}}, "setOnInsert"),
            ({"$inc": {"tags.$.n": 1}}, r"positional"),
            ({"$set": {"pending": []}}, "must not touch"),
            ({"$inc": {"n": 1}, "$push": {"pending.0.x": 1}}, "must not touch"),
            ({"$rename": {"n": "pending"}}, "must not touch"),
        ],
        ids=str,
    )
    async def test_bad_values(self, watched, update, message):
        """An update that can't be applied so is refused before anything is sent."""
        client, sent = watched
        with pytest.raises(ValueError, match=message):
            await PendingUpdates(client.db.c).apply(1, update)
        assert [] == sent.sent

    @pytest.mark.parametrize("update", [None, 1, "$inc", [{"$set": {"a": 1}}], {"$inc": 1}])
    async def test_bad_types(self, updates, update):
        """So is what is no mapping of operators, a pipeline too."""
        with pytest.raises(TypeError, match="mapping"):
            await updates.apply(1, update)

    @pytest.mark.parametrize("filters", [{"e.k": "b"}, ["e"], "e", [None]], ids=str)
    async def test_bad_array_filters(self, watched, filters):
        """Array filters that are no list of mappings are refused before anything is sent."""
        client, sent = watched
        with pytest.raises(TypeError, match="array_filters"):
            await PendingUpdates(client.db.c).apply(1, ADD_ONE, array_filters=filters)
        assert [] == sent.sent

    @pytest.mark.parametrize("token", ["a", 1, uuid.UUID(int=1), b"0" * 12])
    async def test_bad_tokens(self, updates, token):
        """A token is an ObjectId."""
        with pytest.raises(TypeError, match="ObjectId"):
            await updates.apply(1, ADD_ONE, token=token)

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"field": 1}, TypeError),
            ({"max_pending": True}, TypeError),
            ({"max_pending": 2.0}, TypeError),
            ({"lifetime": "60"}, TypeError),
            ({"field": ""}, ValueError),
            ({"field": "_id"}, ValueError),
            ({"field": "a.b"}, ValueError),
            ({"field": "$a"}, ValueError),
            ({"max_pending": 0}, ValueError),
            ({"lifetime": 1}, ValueError),
            ({"lifetime": float("nan")}, ValueError),
            ({"lifetime": float("inf")}, ValueError),
        ],
        ids=str,
    )
    def test_bad_options(self, collection, options, error):
        """Options out of their range are named."""
        with pytest.raises(error, match=next(iter(options))):
            PendingUpdates(collection, **options)


class TestResolve:
    async def test_token_left(self, replica_set, updates, seeded):
        """What was cut off between the writes is applied, once, whoever comes first."""
        first = await leave_token(replica_set, updates)
        second = await leave_token(replica_set, updates)
        assert not (await updates.resolve(first)).already
        assert (await updates.resolve(first)).already
        await updates.clean_up(older_than=0)
        assert (await updates.resolve(second)).already
        assert 2 == seeded.find_one()["n"]

    async def test_outcome(self, replica_set, updates, seeded):
        """An update that will be applied is not said to be NOT_APPLIED."""
        exc = await leave_token(replica_set, updates, timeout=2.0)
        assert outcome_of(exc) is not Outcome.NOT_APPLIED
        assert isinstance(exc.error, PyMongoError)
        assert exc.timeout == exc.error.timeout

    async def test_other_exceptions(self, updates):
        """Only an update that was interrupted can be gone on with."""
        with pytest.raises(InvalidOperation, match="UpdateInterruptedError"):
            await updates.resolve(ValueError())

    async def test_pickled(self, replica_set, updates, seeded):
        """The exception may go to another process, which goes on with the update."""
        left = await leave_token(replica_set, updates)
        copy = pickle.loads(pickle.dumps(left))
        assert (type(left), str(left), left.token) == (type(copy), str(copy), copy.token)
        assert (True, type(left.error)) == (copy.will_be_applied, type(copy.error))
        assert not (await updates.resolve(copy)).already
        assert 1 == seeded.find_one()["n"]


class Cut:
    """A collection whose second write is cut off with what it is told."""

    codec_options = CodecOptions()
    database = SimpleNamespace(client=None)

    def __init__(self, cut: BaseException, *, first: BaseException | None = None):
        self.endings = [first, cut]

    def with_options(self, **_options):
        return self

    async def update_one(self, *_arguments, **_options):
        ending = self.endings.pop(0)
        if ending is not None:
            raise ending
        return UpdateResult({"n": 1}, acknowledged=True)


class TestCancelled:
    @pytest.mark.parametrize("is_timeout", [False, True])
    @pytest.mark.parametrize("nth", [1, 2])
    async def test_goes_on(self, replica_set, updates, seeded, nth, is_timeout):
        """What was cut off is unknown, and goes on, also as the error of a timeout."""
        scope = asyncio.timeout(None)

        async def apply():
            async with scope:
                await updates.apply(1, ADD_ONE)

        async with replica_set.faults.hang("update", nth=nth) as held:
            applying = asyncio.create_task(apply())
            await held.wait_until_fired()
            if is_timeout:
                scope.reschedule(0)
            else:
                applying.cancel()
            with pytest.raises(TimeoutError if is_timeout else asyncio.CancelledError) as caught:
                await applying
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        with pytest.raises(ResolveError, match=r"PendingUpdates.resolve\(\)"):
            await resolve(caught.value)
        assert (await updates.resolve(caught.value)).matched
        await updates.clean_up(older_than=0)
        assert 1 == seeded.find_one()["n"]

    @pytest.mark.parametrize("outcome", [*Outcome, None])
    @pytest.mark.parametrize("make", [asyncio.CancelledError, lambda _: InvalidOperation("no")])
    async def test_a_token_counts(self, outcome, make):
        """Whatever is known of the second write: the token is there, and it will be applied."""
        cut = make("please")
        if outcome is not None:
            attach(cut, outcome, [])
        with pytest.raises((asyncio.CancelledError, UpdateInterruptedError)) as caught:
            await PendingUpdates(Cut(cut)).apply(1, ADD_ONE)
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        if isinstance(cut, asyncio.CancelledError):
            assert ("please",) == caught.value.args
            interrupted = caught.value.__cause__
        else:
            interrupted = caught.value
        assert interrupted.will_be_applied
        assert cut is interrupted.error

    async def test_a_token_that_may_be_there_counts(self):
        """So it is when the repetition of the first write is known to have done nothing."""
        cut = asyncio.CancelledError()
        attach(cut, Outcome.NOT_APPLIED, [])
        with pytest.raises(asyncio.CancelledError) as caught:
            await PendingUpdates(Cut(cut, first=AutoReconnect("lost"))).apply(1, ADD_ONE)
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        assert not caught.value.__cause__.will_be_applied

    async def test_before_anything_was_sent(self):
        """Nothing is in doubt then, and the cancellation is as it was."""
        cut = asyncio.CancelledError()
        attach(cut, Outcome.NOT_APPLIED, [])
        with pytest.raises(asyncio.CancelledError) as caught:
            await PendingUpdates(Cut(cut, first=cut)).apply(1, ADD_ONE)
        assert cut is caught.value
        assert cut.__cause__ is None


class Left:
    """One token, whose first command fails; afterwards it is gone."""

    field = "pending"

    def __init__(self, error):
        self.errors = [error]

    async def open_cursor(self, _pipeline, _batch_size):
        return self

    async def __aiter__(self):
        yield {"_id": 1, "token": ObjectId(), "encoded": b"", "is_forgotten": False}

    async def close(self):
        pass

    async def finish(self, _update, *, mark):
        assert mark
        if self.errors:
            raise self.errors.pop()
        return False

    async def read(self, _pipeline):
        return []


async def clean_up_of(documents):
    """Clean up, in any time."""
    return await CleanUp(
        documents,
        older_than=0,
        drop_refused=False,
        batch_size=1,
        limit=None,
        on_progress=None,
    ).run()


class TestCleanUp:
    async def test_several_at_once(self, replica_set, collection, stored):
        """Several clean-ups at once apply each update once, and count them once."""
        updates = PendingUpdates(collection)
        stored.insert_many([{"_id": key, "n": 0} for key in range(4)])
        for number in range(20):
            await leave_token(replica_set, updates, number % 4)
        reports = await asyncio.gather(
            *(updates.clean_up(older_than=0, batch_size=3) for _ in range(5))
        )
        assert 20 == sum(report.finished for report in reports)
        assert all(r.found == r.finished + r.already_gone and not r.failed for r in reports)
        assert [5] * 4 == [document["n"] for document in stored.find()]
        assert 0 == (await updates.status()).tokens

    async def test_beside_writers(self, updates, stored):
        """Clean-ups that take every token at once disturb no writer."""
        writing = asyncio.gather(
            *(updates.apply(n % 3, ADD_ONE, upsert=True, timeout=60) for n in range(200))
        )
        while not writing.done():
            await updates.clean_up(older_than=0)
        assert all(result.matched for result in await writing)
        assert Counter({0: 67, 1: 67, 2: 66}) == {d["_id"]: d["n"] for d in stored.find()}
        assert not [document for document in stored.find() if tokens_in(document)]

    async def test_age(self, replica_set, updates, seeded):
        """Young tokens are left to their writers."""
        await leave_token(replica_set, updates)
        status = await updates.status()
        assert 1 == status.tokens
        assert status.oldest is not None
        assert 0 <= status.oldest < 50
        assert CleanUpReport() == await updates.clean_up()
        assert 0 == seeded.find_one()["n"]

    async def test_progress(self, replica_set, updates, stored):
        """Progress is told after each batch and at the end."""
        stored.insert_many([{"_id": key, "n": 0} for key in range(5)])
        for key in range(5):
            await leave_token(replica_set, updates, key)
        told: list[CleanUpReport] = []
        report = await updates.clean_up(older_than=0, batch_size=2, on_progress=told.append)
        assert [2, 4, 5] == [each.found for each in told]
        assert told[-1] == report

    async def test_refused(self, replica_set, updates, seeded):
        """A token whose update the server refuses is reported and left, or dropped on request."""
        exc = await leave_token(replica_set, updates, update={"$inc": {"tags": 1}})
        await leave_token(replica_set, updates)
        for drop in False, True:
            report = await updates.clean_up(older_than=0, drop_refused=drop)
            [failed] = report.failed
            assert (1, 14) == (failed.id, failed.error.code)
            assert 1 - drop == (await updates.status()).tokens
        with pytest.raises(UpdateRefusedError):
            await updates.resolve(exc)
        assert 1 == seeded.find_one()["n"]

    @pytest.mark.parametrize("nth", [1, 2])
    async def test_cut_off(self, replica_set, updates, stored, nth):
        """What it has finished is not denied by the command that it ended with."""
        stored.insert_many([{"_id": key, "n": 0} for key in range(2)])
        for key in range(2):
            await leave_token(replica_set, updates, key)
        with replica_set.faults.error(13, "update", nth=nth):
            with pytest.raises(OperationFailure) as caught:
                await updates.clean_up(older_than=0)
        expected = Outcome.NOT_APPLIED if nth == 1 else Outcome.UNKNOWN
        assert outcome_of(caught.value) is expected
        assert nth - 1 == sum(document["n"] for document in stored.find())

    @pytest.mark.parametrize("is_refused", [True, False])
    async def test_lost_replies(self, replica_set, updates, seeded, is_refused):
        """What it has done, or refused, is in its report though nothing tells it."""
        await leave_token(replica_set, updates, update={"$inc": {"tags" if is_refused else "n": 1}})
        mark = "refused" if is_refused else "applied"

        def ends(command):
            return mark in str(command["updates"][0]["u"])

        # Twice what is repeated once, so that it looks for tokens anew, and finds none.
        async with replica_set.faults.drop_reply("update", where=ends, times=4):
            report = await updates.clean_up(older_than=0, drop_refused=True)
        assert (1, 1 - is_refused, 0) == (report.found, report.finished, report.already_gone)
        assert [14] * is_refused == [failed.error.code for failed in report.failed]
        assert 0 == (await updates.status()).tokens
        assert 1 - is_refused == seeded.find_one()["n"]

    async def test_refused_again(self, replica_set, updates, seeded):
        """A refused update that could not be withdrawn is in the report once."""
        await leave_token(replica_set, updates, update={"$inc": {"tags": 1}})

        def withdraws(command):
            return "refused" in str(command["updates"][0]["u"])

        async with replica_set.faults.drop_request("update", where=withdraws, times=4):
            report = await updates.clean_up(older_than=0, drop_refused=True)
        assert (1, 1) == (report.found, len(report.failed))
        assert 0 == (await updates.status()).tokens

    @pytest.mark.parametrize("outcome", [Outcome.NOT_APPLIED, Outcome.UNKNOWN])
    async def test_finished_by_others(self, outcome):
        """Those count for it alone that a command of its own may have finished."""
        error = AutoReconnect("lost")
        attach(error, outcome, [])
        report = await clean_up_of(Left(error))
        assert (1, outcome is Outcome.UNKNOWN) == (report.found, report.finished)
        assert (outcome is Outcome.NOT_APPLIED) == report.already_gone

    async def test_same_token_in_several_documents(self, replica_set, updates, stored):
        """A token that was used for several documents is finished in each."""
        stored.insert_many([{"_id": key, "n": 0} for key in range(3)])
        token = ObjectId()
        for key in range(3):
            await leave_token(replica_set, updates, key, token=token)
        assert 3 == (await updates.clean_up(older_than=0)).finished
        assert [1, 1, 1] == [document["n"] for document in stored.find()]

    async def test_deleted_document(self, replica_set, updates, seeded):
        """The tokens of a document that is deleted are gone with it."""
        exc = await leave_token(replica_set, updates)
        seeded.delete_one({"_id": 1})
        assert CleanUpReport() == await updates.clean_up(older_than=0)
        assert (await updates.resolve(exc)).already
        assert 0 == seeded.count_documents({})

    async def test_array_filters_and_values(self, replica_set, updates, seeded):
        """What is finished later is what was asked for, values of every type included."""
        value = {"d": datetime(9999, 12, 31, tzinfo=UTC), "i": 2**40, "o": ObjectId(), "b": b"x"}
        update = {"$set": {"v": value}, "$inc": {"tags.$[each].n": 1}}
        await leave_token(replica_set, updates, 1, update, array_filters=[{"each.k": "a"}])
        await updates.clean_up(older_than=0)
        document = seeded.find_one()
        assert [2, 1] == [tag["n"] for tag in document["tags"]]
        assert value["i"] == document["v"]["i"]
        assert value["o"] == document["v"]["o"]

    async def test_index(self, replica_set, updates, seeded):
        """The index is used, and holds only documents with something pending."""
        name = await updates.create_index()
        assert name == await updates.create_index()
        await updates.apply(1, ADD_ONE)
        plan = seeded.find({"pending.f": {"$exists": True}}).explain()
        assert name in str(plan["queryPlanner"]["winningPlan"])
        stats = seeded.find({"pending.f": {"$exists": True}}).hint(name).explain()
        assert 0 == stats["executionStats"]["totalKeysExamined"]

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"older_than": -1}, ValueError),
            ({"older_than": float("inf")}, ValueError),
            ({"older_than": "1"}, TypeError),
            ({"batch_size": 0}, ValueError),
            ({"batch_size": 1.5}, TypeError),
        ],
        ids=str,
    )
    async def test_bad_options(self, updates, options, error):
        """Options out of their range are named."""
        with pytest.raises(error, match=next(iter(options))):
            await updates.clean_up(**options)
