"""Bulk operations with refused documents, whose replies are lost, on a server before 5.0.

Asked a second time, it gives the errors of an unordered insert wrong indexes, or none at all.
"""

import asyncio
from datetime import UTC, datetime

import bson
import pytest
from bson import Int64, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    DuplicateKeyError,
    WriteError,
)
from pymongo.results import InsertOneResult

from aioretry import (
    DeadlineExceeded,
    Outcome,
    ResolveError,
    RetryClient,
    attempts_of,
    deadline,
    outcome_of,
    partial_result_of,
    resolve,
)
from aioretry.testing import ReplicaSet

NOT_APPLIED, UNKNOWN = Outcome.NOT_APPLIED, Outcome.UNKNOWN
SEED = [{"_id": number, "u": number} for number in range(1, 5)] + [{"_id": 5, "text": "x"}]


def nested(levels):
    """A document in a document, and so on."""
    return {"x": nested(levels - 1)} if levels else 1


# What no server reads, and by what error.
UNREAD = {
    "too deep": ({"_id": 50, "x": nested(300)}, 15),
    "damaged": (RawBSONDocument(bson.encode({"x": "text"}).replace(b"text\0", b"text!")), 22),
}


# What is inserted: from 10 on it is new, below that it is there already.
LISTS = {
    "first": [1, 10, 11],
    "middle": [10, 1, 11],
    "last": [10, 11, 1],
    "first and last": [1, 10, 11, 2],
    "in turn": [1, 10, 2, 11, 3],
    "two and two": [10, 1, 2, 11, 3, 4],
    "all": [1, 2, 3],
    "none": [10, 11, 12],
    "alone": [1],
    "invalid before": [10, "$", 11, 1, 12],
    "invalid after": [1, 10, 2, 11, "$", 12],
    "invalid last": [1, 10, 11, "$"],
    "many": [*range(20, 90), 1, *range(90, 160), 2, 3, *range(160, 170)],
}


# Documents, and whether servers before 5.0 refuse them without giving them a number.
ODD = {
    "a dollar": ({"_id": 50, "$x": 1}, True),
    "a dollar below": ({"_id": 50, "x": {"$x": 1}}, False),
    "a dollar in a value": ({"_id": 50, "x": "$1"}, False),
    "a compound id": ({"_id": {"x": 1}}, False),
    "a dollar in the id": ({"_id": {"x": {"$x": 1}}}, True),
    "an array for id": ({"_id": [1]}, True),
    "a regex for id": ({"_id": Regex("x")}, True),
    "null for id": ({"_id": None}, False),
    "the id twice": (
        RawBSONDocument(bson.encode({"_id": 50, "_ix": 51}).replace(b"x", b"d")),
        True,
    ),
    "undefined for id": (RawBSONDocument(b"\x0a\0\0\0\x06_id\0\0"), True),
    "many types": (
        {"_id": 50, "x": [Regex("x"), Timestamp(0, 0), 1.5, Int64(1), datetime.now(UTC)]},
        False,
    ),
    "a hundred levels": ({"_id": 50, "x": nested(99)}, False),
    "too many levels": ({"_id": 50, "x": nested(190)}, True),
}


@pytest.fixture(scope="module", params=["4.4", "4.2"])
def old_set(request):
    """One member of an old version."""
    with ReplicaSet(version=request.param, members=1, faults=True) as replica_set:
        try:
            with MongoClient(replica_set.uri) as client:
                client.admin.command("ping")
        except ConfigurationError:
            pytest.skip("this PyMongo does not talk to it")
        yield replica_set


@pytest.fixture
async def old(old_set):
    """A collection on it, with some documents."""
    async with RetryClient(old_set.uri, w="majority", journal=True) as client:
        collection = client.aioretry_tests.refused
        await fill(collection)
        yield collection


async def fill(collection):
    """Begin anew."""
    await collection.drop()
    await collection.create_index("u", unique=True, sparse=True)
    await collection.insert_many([dict(document) for document in SEED])


def documents(ids):
    """Documents with these ids, or with a name that servers before 5.0 refuse."""
    return [{"_id": 50, "$x": 1} if one == "$" else {"_id": one, "new": 1} for one in ids]


async def ending(write):
    """All that a caller is told of an end."""
    try:
        result = await write
    except BulkWriteError as exc:
        return exc.details
    return getattr(result, "bulk_api_result", None) or result.inserted_ids


async def left(collection):
    """What is stored."""
    return await collection.find().sort("_id").to_list(None)


async def resolved_together(collection, servers, given):
    """What inserts end with that travel together and are resolved one by one, after all is lost."""
    view = collection.coalesced()
    async with servers.faults.drop_reply("insert", times=2) as lost:
        writes = [view.insert_one(document) for document in given]
        ends = await asyncio.gather(*writes, return_exceptions=True)
    assert 2 == lost.fired
    assert {UNKNOWN} == set(map(outcome_of, ends))
    # The last first: what is sent for one must not help the others.
    told = [(await asyncio.gather(resolve(end), return_exceptions=True))[0] for end in ends[::-1]]
    return told[::-1]


async def calm(collection, write):
    """What it ends with, and leaves, where nothing goes wrong."""
    await fill(collection)
    expected = await ending(write()), await left(collection)
    await fill(collection)
    return expected


class TestInserts:
    @pytest.mark.parametrize("ordered", [False, True])
    @pytest.mark.parametrize("name", LISTS)
    async def test_insert_many(self, name, ordered, old, old_set):
        """Whichever documents are refused, a lost reply changes nothing of what is told."""

        def write():
            return old.insert_many(documents(LISTS[name]), ordered=ordered)

        expected = await calm(old, write)
        async with old_set.faults.drop_reply("insert") as lost:
            assert expected[0] == await ending(write())
        assert 1 == lost.fired
        assert expected[1] == await left(old)

    @pytest.mark.parametrize("name", ["middle", "in turn", "two and two", "invalid before"])
    async def test_every_reply_lost_once(self, name, old, old_set):
        """So it is if any of the replies by which it is found out is lost as well."""

        def write():
            return old.insert_many(documents(LISTS[name]), ordered=False)

        expected = await calm(old, write)
        nth, fired = 3, 1
        while fired:
            await fill(old)
            faults = old_set.faults
            again = faults.drop_reply("insert", nth=nth, must_fire=False)
            async with faults.drop_reply("insert"), again as lost:
                assert expected[0] == await ending(write())
            assert expected[1] == await left(old)
            nth, fired = nth + 1, lost.fired
        assert nth > 4

    async def test_a_part_of_many_requests(self, old, old_set):
        """The inserts of a bulk_write keep the indexes of the call."""
        requests = [
            InsertOne({"_id": 10}),
            UpdateOne({"_id": 1}, {"$inc": {"n": 1}}),
            InsertOne({"_id": 1}),
            DeleteOne({"_id": 3}),
            InsertOne({"_id": 2}),
            InsertOne({"_id": 11}),
        ]
        expected = await calm(old, lambda: old.bulk_write(requests, ordered=False))
        async with old_set.faults.drop_reply("insert"):
            assert expected[0] == await ending(old.bulk_write(requests, ordered=False))
        assert expected[1] == await left(old)

    async def test_outcomes(self, old, old_set):
        """Each outcome is right, and the attempts that found it out are in the history."""
        async with old_set.faults.drop_reply("insert"):
            with pytest.raises(BulkWriteError) as caught:
                await old.insert_many(documents(LISTS["two and two"]), ordered=False)
        outcomes = partial_result_of(caught.value).outcomes
        assert [0, 3] == [n for n, one in enumerate(outcomes) if one is Outcome.APPLIED]
        assert len(attempts_of(caught.value)) > 2

    async def test_group_commit(self, old, old_set):
        """Inserts that travel together are each told their own end."""
        view = old.coalesced()
        for name in ("first", "two and two", "in turn", "invalid before"):
            await fill(old)
            given = documents(LISTS[name])
            with old_set.faults.drop_reply("insert"):
                writes = [view.insert_one(document) for document in given]
                ends = await asyncio.gather(*writes, return_exceptions=True)
            there = {document["_id"] for document in await left(old) if "new" in document}
            told = {end.inserted_id for end in ends if hasattr(end, "inserted_id")}
            assert there == told == {one for one in LISTS[name] if one != "$" and one >= 10}

    @pytest.mark.parametrize("name", UNREAD)
    async def test_group_commit_with_one_that_is_not_read(self, name, old):
        """It is the only one that fails, wherever it stands."""
        bad, code = UNREAD[name]
        view = old.coalesced()
        for place in range(3):
            await fill(old)
            given = documents(["$", 10, 1, 11])
            given.insert(place, bad)
            writes = [view.insert_one(document) for document in given]
            ends = await asyncio.gather(*writes, return_exceptions=True)
            error = ends.pop(place)
            assert (code, NOT_APPLIED) == (error.code, outcome_of(error))
            kinds = [WriteError, InsertOneResult, DuplicateKeyError, InsertOneResult]
            assert kinds == list(map(type, ends))
            assert [*SEED, *documents([10, 11])] == await left(old)


class TestInDoubt:
    @pytest.mark.parametrize("name", ["first", "two and two", "in turn", "last", "invalid before"])
    async def test_resolved(self, name, old, old_set):
        """What is resolved ends as a calm one would have."""

        def write():
            return old.insert_many(documents(LISTS[name]), ordered=False)

        expected = await calm(old, write)
        async with old_set.faults.drop_reply("insert", times=2):
            with pytest.raises(AutoReconnect) as caught:
                await write()
        assert UNKNOWN is outcome_of(caught.value)
        assert expected[0] == await ending(resolve(caught.value))
        assert expected[1] == await left(old)

    @pytest.mark.parametrize("name", ["first", "two and two", "last", "invalid before"])
    async def test_group_commit(self, name, old, old_set):
        """Each insert is told the truth, or that nobody knows it, behind one without a number."""
        writes = documents(LISTS[name])
        told = await resolved_together(old, old_set, writes)
        sure = LISTS[name].index("$") + 1 if "$" in LISTS[name] else len(writes)
        stored = await left(old)
        for document, end in zip(writes[:sure], told[:sure], strict=True):
            assert (document in stored) is not isinstance(end, WriteError)
        for end in told[sure:]:
            assert isinstance(end, ResolveError)
            assert UNKNOWN is outcome_of(end)

    @pytest.mark.parametrize("name", ODD)
    async def test_group_commit_behind_odd_documents(self, name, old, old_set):
        """Whatever the server refuses without giving it a number is seen."""
        odd, is_refused = ODD[name]
        writes = [*documents([1]), odd, *documents([2, 10, 3])]
        told = await resolved_together(old, old_set, writes)
        assert isinstance(told[0], DuplicateKeyError)
        assert isinstance(told[1], WriteError) is is_refused
        if is_refused:
            assert {ResolveError} == set(map(type, told[2:]))
        else:
            ends = [DuplicateKeyError, InsertOneResult, DuplicateKeyError]
            assert ends == list(map(type, told[2:]))

    async def test_group_commit_with_one_that_is_not_read(self, old, old_set):
        """Behind it nobody knows the numbers that the sending before may have given."""
        given = documents([10, 11, 12])
        given.insert(1, UNREAD["too deep"][0])
        view = old.coalesced()
        async with old_set.faults.drop_reply("insert"):
            writes = [view.insert_one(document) for document in given]
            ends = await asyncio.gather(*writes, return_exceptions=True)
        assert 10 == ends[0].inserted_id
        for end in ends[2:]:
            assert (15, UNKNOWN) == (end.code, outcome_of(end))
            with pytest.raises(ResolveError, match="refused without a number"):
                await resolve(end)
        assert [*SEED, *documents([10])] == await left(old)

    async def test_when_it_can_not_be_found_out(self, old, old_set):
        """What the server says too little of is in doubt, and can be resolved."""

        def write():
            return old.insert_many(documents(LISTS["two and two"]), ordered=False)

        expected = await calm(old, write)
        faults = old_set.faults
        async with faults.drop_reply("insert"), faults.drop_reply("insert", nth=3, times=2):
            with pytest.raises(AutoReconnect) as caught:
                await write()
        assert (UNKNOWN,) * 6 == partial_result_of(caught.value).outcomes
        assert expected[0] == await ending(resolve(caught.value))
        assert expected[1] == await left(old)

    async def test_under_a_deadline(self, old, old_set):
        """So it is if the deadline ends it."""
        expected = await calm(
            old, lambda: old.insert_many(documents(LISTS["two and two"]), ordered=False)
        )
        faults = old_set.faults
        async with faults.drop_reply("insert"), faults.hang("insert", nth=3) as held:
            async with deadline(2):
                with pytest.raises(DeadlineExceeded) as caught:
                    await old.insert_many(documents(LISTS["two and two"]), ordered=False)
            assert held.fired
            held.disarm()
        assert (UNKNOWN,) * 6 == partial_result_of(caught.value).outcomes
        assert expected[0] == await ending(resolve(caught.value, 30))
        assert expected[1] == await left(old)

    async def test_cancelled_meanwhile(self, old, old_set):
        """So it is if it is cancelled while that is found out."""
        expected = await calm(
            old, lambda: old.insert_many(documents(LISTS["in turn"]), ordered=False)
        )
        faults = old_set.faults
        async with faults.drop_reply("insert"), faults.hang("insert", nth=4, applied=True) as held:
            write = old.insert_many(documents(LISTS["in turn"]), ordered=False)
            await held.wait_until_fired()
            write.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
            held.disarm()
        assert expected[0] == await ending(resolve(caught.value, 30))
        assert expected[1] == await left(old)


class TestOthers:
    @pytest.mark.parametrize("ordered", [False, True])
    async def test_updates_and_deletes(self, ordered, old, old_set):
        """What is refused of these is always told."""
        updates = [
            UpdateOne({"_id": 4}, {"$set": {"u": 1}}),
            UpdateOne({"_id": 1}, {"$inc": {"n": 1}}),
            UpdateOne({"_id": 20}, {"$set": {"u": 1}}, upsert=True),
            UpdateOne({"_id": 21}, {"$set": {"n": 1}}, upsert=True),
            UpdateOne({"_id": 5}, {"$inc": {"text": 1}}),
            UpdateOne({"_id": 99}, {"$inc": {"n": 1}}),
            UpdateOne({"_id": 2}, {"$inc": {"n": 1}}),
        ]
        deletes = [
            DeleteOne({"$bad": 1}),
            DeleteOne({"_id": 1}),
            DeleteOne({"$expr": {"$divide": [1, 0]}}),
            DeleteOne({"_id": 2}),
        ]
        for command, requests in [
            ("update", updates),
            ("update", updates[1:]),
            ("delete", deletes),
            ("delete", deletes[1:]),
        ]:
            expected = await calm(old, lambda r=requests: old.bulk_write(r, ordered=ordered))
            async with old_set.faults.drop_reply(command) as lost:
                told = await ending(old.bulk_write(requests, ordered=ordered))
            assert 1 == lost.fired
            assert expected[0] == told
            assert expected[1] == await left(old)
