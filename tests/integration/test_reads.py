"""find_one, the counts and distinct: what they send, what they give, and how they are retried."""

import asyncio
import re

import pytest
from bson.raw_bson import RawBSONDocument
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.collation import Collation
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    InvalidOperation,
    OperationFailure,
    ServerSelectionTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Secondary
from pymongo.results import UpdateResult
from pymongo.write_concern import WriteConcern

from aioretry import (
    AttemptEnded,
    DeadlineExceeded,
    attempts_of,
    connection_counts,
    deadline,
    every_event,
    outcome_of,
)
from tests.clients import close
from tests.integration.looping import Silent
from tests.versions import since

BOTH = Collation("en", strength=2)
WITH_LET = "find_one of all options"
CALLS = {
    "find_one": lambda c: c.find_one(),
    "find_one by id": lambda c: c.find_one(3),
    "find_one by filter": lambda c: c.find_one({"n": {"$gt": 4}}, {"n": 1, "_id": 0}),
    "find_one of fields": lambda c: c.find_one({"n": 4}, ["n"]),
    WITH_LET: lambda c: c.find_one(
        {"$expr": {"$gte": ["$n", "$$least"]}},
        projection={"n": 1},
        skip=2,
        sort=[("n", -1), "_id"],
        hint="_id_",
        collation=BOTH,
        max_time_ms=5000,
        comment={"why": 1},
        let={"least": 2},
    ),
    "find_one by a hint of keys": lambda c: c.find_one({"n": 1}, hint=[("_id", 1)]),
    "find_one of nothing": lambda c: c.find_one({"n": -1}),
    "find_one with what is PyMongo's": lambda c: c.find_one(
        {"n": 1}, batch_size=3, return_key=True
    ),
    "find_one of an old form": lambda c: c.find_one({"$query": {"n": 1}, "$orderby": {"n": 1}}),
    "find_one of what is called query": lambda c: c.find_one({"query": 1}),
    "find_one of two fields": lambda c: c.find_one({"n": 1}, {"n": 1}, projection={"_id": 1}),
    "find_one of no fields": lambda c: c.find_one({"n": 1}, {}),
    "find_one of what is no number": lambda c: c.find_one({}, skip="1"),
    "find_one of less than nothing": lambda c: c.find_one({}, skip=-1),
    "find_one in no order": lambda c: c.find_one({}, sort=[]),
    "find_one of what is no filter": lambda c: c.find_one({"$n": 1}),
    "find_one of what can't be encoded": lambda c: c.find_one({"n": object()}),
    "find_one of an unknown option": lambda c: c.find_one({}, frobnicate=1),
    "count": lambda c: c.count_documents({"n": {"$lt": 5}}),
    "count of all": lambda c: c.count_documents({}),
    "count of some": lambda c: c.count_documents(
        {}, skip=1, limit=3, hint=[("_id", 1)], collation=BOTH, comment="c", maxTimeMS=5000
    ),
    "count of none": lambda c: c.database.nowhere.count_documents({}),
    "count of what is no filter": lambda c: c.count_documents({"$n": 1}),
    "estimate": lambda c: c.estimated_document_count(),
    "estimate with options": lambda c: c.estimated_document_count(comment="e", maxTimeMS=5000),
    "estimate in a session": lambda c: c.estimated_document_count(session=None),
    "distinct": lambda c: c.distinct("name"),
    "distinct of some": lambda c: c.distinct("n", {"n": {"$gt": 6}}, comment=1, collation=BOTH),
    "distinct of what is no field": lambda c: c.distinct(3),
    "distinct of two filters": lambda c: c.distinct("n", {"n": 1}, query={"n": 2}),
    "raw": lambda c: c.with_options(
        codec_options=c.codec_options.with_options(document_class=RawBSONDocument)
    ).find_one(5),
    "of a majority": lambda c: c.with_options(read_concern=ReadConcern("majority")).find_one(5),
    "of a secondary, perhaps": lambda c: c.with_options(
        read_preference=ReadPreference.NEAREST
    ).count_documents({"n": 1}),
}


def plain(command):
    """What a server gets, less what differs from call to call."""
    left_out = {"lsid", "$clusterTime"}
    return [(name, value) for name, value in command.items() if name not in left_out]


@pytest.fixture
async def documents(collection):
    await collection.insert_many([{"_id": n, "n": n, "name": "ab"[n % 2]} for n in range(10)])
    return collection


async def ended(call):
    """What came of a call."""
    try:
        return await call()
    except Exception as exc:  # noqa: BLE001 - it is compared
        text = re.sub(r"Timestamp\(.*?\)|\d{8,}|b'.*?'|0x[0-9a-f]+|full error: .*", "", str(exc))
        return type(exc), text


@pytest.mark.sample(3)
@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=since(5.0)) if name == WITH_LET else name for name in CALLS],
)
async def test_they_give_what_the_driver_gives(
    name, is_watched, replica_set, documents, client_class, commands
):
    motors = AsyncIOMotorClient if client_class.__name__ == "RetryClient" else AsyncMongoClient
    listeners = [commands, Silent()] if is_watched else []
    came, sent = [], []
    for kind in (motors, client_class):
        client = kind(replica_set.uri, event_listeners=listeners)
        commands.sent.clear()
        things = client[documents.database.name][documents.name]
        came.append(await ended(lambda things=things: CALLS[name](things)))
        sent.append([plain(command) for command in commands.sent])
        await close(client)
    assert came[0] == came[1]
    assert sent[0] == sent[1]
    assert bool(sent[0]) is is_watched or isinstance(came[0], tuple)


READS = {
    "find": lambda c: c.find_one({"_id": 1}),
    "aggregate": lambda c: c.count_documents({}),
    "count": lambda c: c.estimated_document_count(),
    "distinct": lambda c: c.distinct("n"),
}


@pytest.mark.parametrize("command", READS)
class TestLostReplies:
    async def test_one(self, replica_set, documents, command):
        async with replica_set.faults.drop_reply(command):
            assert await READS[command](documents)

    async def test_two(self, replica_set, documents, command):
        async with replica_set.faults.drop_reply(command, times=2):
            with pytest.raises(AutoReconnect) as caught:
                await READS[command](documents)
        assert 2 == len(attempts_of(caught.value))
        assert outcome_of(caught.value) is None
        assert "outcome" not in caught.value.__notes__[0]

    async def test_many_in_time(self, replica_set, documents, command):
        async with replica_set.faults.drop_reply(command, times=4), deadline(30):
            assert await READS[command](documents)

    async def test_time_is_over(self, replica_set, documents, command):
        async with replica_set.faults.hang(command, times=9):
            with pytest.raises(DeadlineExceeded):
                async with deadline(0.3):
                    await READS[command](documents)


async def test_what_is_not_to_be_retried(replica_set, documents, client_class):
    async with client_class(replica_set.uri, retryReads=False) as client:
        things = client[documents.database.name][documents.name]
        async with replica_set.faults.drop_reply("find"):
            with pytest.raises(AutoReconnect) as caught:
                await things.find_one()
    assert 1 == len(attempts_of(caught.value))


@pytest.mark.parametrize("code", [91, 134, 189, 262, 10107, 11600, 13436])
async def test_an_error_that_is_retried(replica_set, documents, code):
    async with replica_set.faults.error(code, "find"):
        assert {"_id": 1, "n": 1, "name": "b"} == await documents.find_one(1)


async def test_an_error_that_is_not(replica_set, documents):
    async with replica_set.faults.error(2, "find"):
        with pytest.raises(OperationFailure) as caught:
            await documents.find_one(1)
    assert 1 == len(attempts_of(caught.value))


async def test_one_that_is_cancelled_leaves_its_connection(replica_set, documents, client_class):
    async with client_class(replica_set.uri, maxPoolSize=1) as client:
        things = client[documents.database.name][documents.name]
        await things.find_one()
        slow = asyncio.ensure_future(things.find_one({"$where": "sleep(60000) || true"}))
        (pending,) = client._write_path.coordinator().reading.values()
        async with asyncio.timeout(10):
            while not any(one._call.token.is_sending for one in pending._under_way):
                await asyncio.sleep(0)
            slow.cancel()
            assert 1 == (await things.find_one(1))["_id"]


@pytest.mark.parametrize("is_watched", [False, True])  # then threads make the attempts
async def test_slow_ones_take_no_places_from_writes(
    replica_set, documents, client_class, is_watched
):
    listeners = [Silent()] if is_watched else []
    async with client_class(
        replica_set.uri, max_concurrent_attempts=1, event_listeners=listeners
    ) as client:
        things = client[documents.database.name][documents.name]
        async with replica_set.faults.hang("find") as hang:
            slow = asyncio.ensure_future(things.find_one())
            await hang.wait_until_fired()
            async with asyncio.timeout(20):
                await things.update_one({"_id": 1}, {"$set": {"n": 11}})
        assert 0 == (await slow)["_id"]


async def test_a_mistake_in_one_hurts_nobody_else(replica_set, documents, client_class):
    hosts = ",".join(member.address for member in replica_set.members)
    async with client_class(f"mongodb://{hosts}") as client:  # it has yet to learn what they are
        things = client[documents.database.name][documents.name]
        wrong = things.with_options(read_preference=Secondary(max_staleness=1))
        async with asyncio.timeout(20):
            came = await asyncio.gather(
                wrong.find_one(),
                things.find_one(1),
                things.update_one({"_id": 1}, {"$set": {"n": 11}}),
                return_exceptions=True,
            )
    assert [ConfigurationError, dict, UpdateResult] == [type(one) for one in came]


async def test_where_there_is_no_server(replica_set, documents, client_class):
    async with client_class(replica_set.uri, serverSelectionTimeoutMS=100) as client:
        things = client[documents.database.name].get_collection(
            documents.name, read_preference=Secondary([{"there": "is none"}])
        )
        with pytest.raises(ServerSelectionTimeoutError, match="no server that may be read from"):
            await things.find_one()


@pytest.mark.usefixtures("three_members")
async def test_slow_ones_of_secondaries_hold_up_nobody_else(replica_set, documents, client_class):
    everywhere = documents.with_options(write_concern=WriteConcern(w=3))
    await everywhere.update_one({"_id": 1}, {"$set": {"is_everywhere": True}})
    # However busy one of the two secondaries is.
    async with client_class(replica_set.uri, maxPoolSize=2, localThresholdMS=60_000) as client:
        things = client[documents.database.name][documents.name]
        there = things.with_options(read_preference=ReadPreference.SECONDARY)
        await things.find_one()
        sleepy = {"$where": "sleep(60000) || true"}
        slow = [asyncio.ensure_future(there.find_one(sleepy)) for _ in range(10)]
        async with asyncio.timeout(20):
            while sum(count.used for count in connection_counts(client).values()) < 4:
                await asyncio.sleep(0)
            assert 1 == (await things.find_one(1))["_id"]
        for one in slow:
            one.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_a_session_reads_what_it_has_written(watched_client, documents, commands):
    things = watched_client[documents.database.name][documents.name]
    session = watched_client.start_session()
    session = await session if asyncio.iscoroutine(session) else session
    async with session:
        await things.insert_one({"_id": "mine"}, session=session)
        assert {"_id": "mine"} == await things.find_one("mine", session=session)
        assert 11 == await things.count_documents({}, session=session)
        times = [command["readConcern"]["afterClusterTime"] for command in commands.sent[1:]]
    assert times == sorted(times)
    assert 1 == len(commands.sessions)


async def test_a_transaction_reads_what_it_has_written(client, documents):
    session = client.start_session()
    session = await session if asyncio.iscoroutine(session) else session

    async def write_and_read(session):
        await documents.insert_one({"_id": "mine"}, session=session)
        assert await documents.find_one("mine") is None
        return await documents.find_one("mine", session=session)

    async with session:
        assert {"_id": "mine"} == await session.with_transaction(write_and_read)


@pytest.mark.usefixtures("three_members")
async def test_of_secondaries(replica_set, documents, client_class):
    asked = set()

    @every_event
    def note(event):
        if isinstance(event, AttemptEnded):
            asked.add(event.address[1])

    secondaries = {member.port for member in await replica_set.secondaries()}
    options = {"hooks": [note], "localThresholdMS": 60_000}
    async with client_class(replica_set.uri, **options) as client:
        things = client[documents.database.name].get_collection(
            documents.name, read_preference=ReadPreference.SECONDARY
        )
        await asyncio.gather(*(things.find_one({"_id": 1}) for _ in range(40)))
    assert secondaries == asked


def test_on_another_loop(replica_set, client_class):
    async def read(client):
        await client.db.c.find_one()

    client = client_class(replica_set.uri)
    with asyncio.Runner() as own, asyncio.Runner() as another:
        own.run(read(client))
        with pytest.raises(InvalidOperation, match="another event loop"):
            another.run(read(client))
        own.run(close(client))


async def test_a_transaction_that_reads_from_secondaries(replica_set, client_class, documents):
    """That is refused, as by the driver, and not read from the primary."""
    async with client_class(replica_set.uri, serverSelectionTimeoutMS=500) as client:
        things = client[documents.database.name][documents.name]
        async with await client.start_session() as session:
            session.start_transaction(read_preference=ReadPreference.SECONDARY)
            with pytest.raises((InvalidOperation, ServerSelectionTimeoutError)):
                await things.find_one(session=session)
