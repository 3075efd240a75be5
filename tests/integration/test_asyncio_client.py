"""PyMongo's own asynchronous client with writes that are retried: what is its own."""

import asyncio
import functools
import inspect
import logging
from collections import Counter

import anyio
import pytest
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, InsertOne, ReadPreference, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import AutoReconnect, ConfigurationError, InvalidOperation, OperationFailure
from pymongo.monitoring import CommandListener

from aioretry import (
    Outcome,
    RetryClient,
    attempts_of,
    connection_counts,
    deadline,
    outcome_of,
    run_transaction,
    thread_counts,
)
from aioretry._drivers.pymongo_async import jobs
from aioretry.pymongo import (
    AsyncRetryClient,
    AsyncRetryClientSession,
    AsyncRetryCollection,
    AsyncRetryDatabase,
)
from tests.integration.looping import Silent

WRITES = {
    "insert_one": ({"x": 1},),
    "insert_many": ([{"x": 1}],),
    "bulk_write": ([InsertOne({"x": 1})],),
    "update_one": ({"_id": 1}, {"$inc": {"n": 1}}),
    "update_many": ({"_id": 1}, {"$inc": {"n": 1}}),
    "replace_one": ({"_id": 1}, {"n": 1}),
    "delete_one": ({"_id": 9},),
    "delete_many": ({"_id": 9},),
    "find_one_and_delete": ({"_id": 9},),
    "find_one_and_replace": ({"_id": 1}, {"n": 1}),
    "find_one_and_update": ({"_id": 1}, {"$inc": {"n": 1}}),
}
INCREMENT = {"$inc": {"n": 1}}


@pytest.fixture
async def client(replica_set):
    """A client of the test's set, as its users make it."""
    async with AsyncRetryClient(replica_set.uri) as client:
        yield client


class TestFace:
    async def test_is_pymongos(self, client):
        """Client, database, collection and session are PyMongo's, with ours in them."""
        session = client.start_session()
        assert isinstance(client, AsyncMongoClient)
        assert isinstance(session, AsyncRetryClientSession)
        assert session.client is client
        await session.end_session()

    async def test_databases_are_ours(self, client, collection):
        """No way to a database leads to a plain one."""
        databases = [
            client.db,
            client["db"],
            client.get_database("db"),
            client.get_database("db", read_preference=ReadPreference.SECONDARY),
            client.get_default_database("db"),
            client.db.with_options(read_preference=ReadPreference.SECONDARY),
            client.db.client.db,
            client.db.things.database,
            client.start_session().client.db,
        ]
        assert {AsyncRetryDatabase} == {type(database) for database in databases}
        assert all(isinstance(database, AsyncDatabase) for database in databases)
        assert databases[3].read_preference == ReadPreference.SECONDARY

    async def test_collections_are_ours(self, client):
        """No way to a collection leads to a plain one."""
        db, options = client.aioretry_tests, CodecOptions(tz_aware=True)
        await db.drop_collection("created_by_asyncio")
        collections = [
            db.things,
            db["things"],
            db.get_collection("things"),
            db.get_collection("things", codec_options=options),
            db.things.with_options(codec_options=options),
            db.things.sub,
            db.things["sub"],
            db.things.coalesced(),
            db.things.coalesced().with_options(codec_options=options),
            db.things.find().collection,
            await db.create_collection("created_by_asyncio", codec_options=options),
        ]
        assert {AsyncRetryCollection} == {type(collection) for collection in collections}
        assert all(isinstance(collection, AsyncCollection) for collection in collections)
        assert "aioretry_tests.things.sub" == db.things.sub.full_name
        assert all(collections[index].codec_options == options for index in (3, 4, 8, 10))
        await db.drop_collection("created_by_asyncio")

    def test_private_names(self):
        """They are no databases and no collections."""
        client = AsyncRetryClient("mongodb://localhost")
        for owner in (client, client.db, client.db.things):
            with pytest.raises(AttributeError, match="_private"):
                owner._private  # noqa: B018 - it raises

    @pytest.mark.parametrize("name", WRITES)
    async def test_coroutine_functions(self, name, client):
        """Each write is one, with PyMongo's signature, and can be a task."""
        ours, own = getattr(AsyncRetryCollection, name), getattr(AsyncCollection, name)
        assert inspect.iscoroutinefunction(ours)
        named = [
            {each.name: each.default for each in inspect.signature(method).parameters.values()}
            for method in (ours, own)
        ]
        assert named[0] == named[1]
        things = client.aioretry_tests.asyncio_face
        task = asyncio.create_task(getattr(things, name)(*WRITES[name]))
        result = await task
        assert result is None or isinstance(result, dict) or result.acknowledged

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"max_waiting_writes": 0}, ValueError),
            ({"max_concurrent_attempts": "2"}, TypeError),
            ({"hooks": [1]}, TypeError),
        ],
    )
    def test_bad_options(self, options, error):
        """Each is named at once."""
        with pytest.raises(error, match=next(iter(options))):
            AsyncRetryClient("mongodb://localhost", **options)

    async def test_figures(self, client):
        """There are connections, and no threads."""
        await client.aioretry_tests.asyncio_face.update_one({"_id": 1}, INCREMENT, upsert=True)
        assert 0 == thread_counts(client).threads
        assert sum(each.used + each.idle for each in connection_counts(client).values())


class TestWrites:
    async def test_a_lost_reply(self, replica_set, client, stored, collection):
        """The write is sent again and done once; one attempt more is on record."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({"_id": 1, "n": 0})
        async with replica_set.faults.drop_reply("update"), things.operation(20.0) as operation:
            await operation.update_one({"_id": 1}, INCREMENT)
        assert (2, 1) == (len(operation.attempts), stored.find_one()["n"])

    async def test_outcomes(self, replica_set, client, collection):
        """An exception says what came of the write."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({"_id": 1, "n": 0})
        async with replica_set.faults.drop_reply("update", times=2):
            with pytest.raises(AutoReconnect) as caught:
                await things.update_one({"_id": 1}, INCREMENT)
        assert (Outcome.UNKNOWN, 2) == (outcome_of(caught.value), len(attempts_of(caught.value)))

    async def test_inserts_that_travel_together(self, client, collection, stored):
        """Group commit is the same."""
        things = client[collection.database.name][collection.name].coalesced()
        await asyncio.gather(*(things.insert_one({"_id": n}) for n in range(500)))
        assert 500 == stored.count_documents({})

    async def test_unacknowledged(self, client, collection, stored):
        """With w: 0 the driver's own method is used, and operations are refused."""
        database = client[collection.database.name]
        things = database.get_collection(collection.name, write_concern=WriteConcern(w=0))
        assert not (await things.insert_one({"_id": 1})).acknowledged
        with pytest.raises(ConfigurationError, match="w: 0"):
            things.operation()
        async with asyncio.timeout(20):
            while not stored.count_documents({}):
                await asyncio.sleep(0.01)

    async def test_who_waits_for_a_connection_has_no_session(
        self, replica_set, collection, commands
    ):
        """Who listens sees fewer sessions than writes (Driver Sessions, prose test 14)."""
        options = {"maxPoolSize": 1, "event_listeners": [commands]}
        async with AsyncRetryClient(replica_set.uri, **options) as client:
            things = client[collection.database.name][collection.name]
            await asyncio.gather(*(things.update_one({"_id": 1}, INCREMENT) for _ in range(10)))
        assert (10, True) == (len(commands.sent), len(commands.sessions) <= 2)

    async def test_old_connections(self, replica_set, collection, stored):
        """What has been idle for too long is replaced."""
        async with AsyncRetryClient(replica_set.uri, maxIdleTimeMS=1) as client:
            things = client[collection.database.name][collection.name]
            async with replica_set.faults.drop_reply("update"):
                await things.update_one({"_id": 1}, INCREMENT, upsert=True)
            await asyncio.gather(*(things.update_one({"_id": 1}, INCREMENT) for _ in range(30)))
        assert 31 == stored.find_one()["n"]

    async def test_while_commands_are_logged(self, replica_set, client, collection, stored, caplog):
        """PyMongo's log sees each of them."""
        things = client[collection.database.name][collection.name]
        with caplog.at_level(logging.DEBUG, "pymongo.command"):
            async with replica_set.faults.drop_reply("update"):
                await things.update_one({"_id": 1}, INCREMENT, upsert=True)
        started = [r for r in caplog.messages if '"Command started"' in r and '"update"' in r]
        assert (2, 1) == (len(started), stored.find_one()["n"])


class TestBoundSessions:
    async def test_writes_see_it(self, replica_set, commands, collection):
        """A write in the block goes over the session, and advances its times."""
        async with AsyncRetryClient(replica_set.uri, event_listeners=[commands]) as client:
            things = client[collection.database.name][collection.name]
            async with client.start_session() as session, session.bind(end_session=False):
                await things.insert_one({"_id": 1})
                await things.coalesced().insert_one({"_id": 2})
                assert session.operation_time is not None
                lsid = session.session_id
        assert [lsid] * 2 == [command["lsid"] for command in commands.sent]

    async def test_transactions(self, client, collection, stored):
        """Writes in the block are part of the session's transaction."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({"_id": 1, "n": 0})
        async with client.start_session() as session, session.bind(end_session=False):
            await session.start_transaction()
            await things.update_one({"_id": 1}, INCREMENT)
            await session.abort_transaction()
        assert 0 == stored.find_one()["n"]

    @pytest.mark.parametrize("is_ended", ["commit_transaction", "abort_transaction"])
    async def test_bulk_writes_in_transactions(self, is_ended, replica_set, collection, stored):
        """They are part of it also where the client has a write concern, which is the commit's."""
        async with AsyncRetryClient(replica_set.uri, w="majority") as client:
            things = client[collection.database.name][collection.name]
            async with client.start_session() as session, session.bind(end_session=False):
                await session.start_transaction()
                await things.insert_many([{"_id": 1}, {"_id": 2}])
                await things.bulk_write([InsertOne({"_id": 3})])
                await getattr(session, is_ended)()
        there = [document["_id"] for document in stored.find()]
        assert there == ([1, 2, 3] if is_ended == "commit_transaction" else [])

    async def test_operations(self, client, collection, stored):
        """They have a session of their own, and are no part of a transaction unawares."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({"_id": 1, "n": 0})
        async with client.start_session() as session, session.bind(end_session=False):
            async with things.operation(5.0) as operation:
                await operation.update_one({"_id": 1}, INCREMENT)
            await session.start_transaction()
            with pytest.raises(InvalidOperation, match="would not have its writes"):
                things.operation(5.0)
            await session.abort_transaction()
        assert 1 == stored.find_one()["n"]

    async def test_of_another_client(self, replica_set, client, collection):
        """It is refused as PyMongo refuses it."""
        things = client[collection.database.name][collection.name]
        async with AsyncRetryClient(replica_set.uri) as other:
            async with other.start_session() as session, session.bind(end_session=False):
                with pytest.raises(InvalidOperation, match="bound session"):
                    await things.insert_one({})


async def in_a_block(session, insert):
    """PyMongo's block, which is cancelled inside."""
    async with await session.start_transaction():
        await insert()
        await anyio.sleep_forever()


async def in_a_session(session, insert):
    """The session's own end."""
    await session.start_transaction()
    await insert()
    await anyio.sleep_forever()


async def in_a_call(session, insert, end):
    """A call that is cancelled in its first step."""
    await session.start_transaction()
    await insert()
    asyncio.current_task().cancel()
    await getattr(session, end)()


ENDED = {
    "block": in_a_block,
    "session": in_a_session,
    "abort": functools.partial(in_a_call, end="abort_transaction"),
    "commit": functools.partial(in_a_call, end="commit_transaction"),
}


class TestCancelledTransactions:
    @pytest.mark.parametrize("how", ENDED)
    @pytest.mark.parametrize("kind", ["anyio", "asyncio"])
    async def test_leave_no_lock(self, kind, how, client, collection, open_transactions):
        """Whoever cancels them once more, or again and again, as anyio does."""
        things, inserted = client[collection.database.name][collection.name], asyncio.Event()
        await things.insert_one({})

        async def work():
            async with client.start_session() as session:

                async def insert():
                    await things.insert_one({}, session=session)
                    inserted.set()

                await ENDED[how](session, insert)

        async def scoped():
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                await work()

        scopes = []
        task = asyncio.create_task(scoped() if kind == "anyio" else work())
        await inserted.wait()
        if kind == "anyio":
            scopes[0].cancel()
        else:
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait({task})
        async with asyncio.timeout(10.0):
            while await asyncio.to_thread(open_transactions):
                await asyncio.sleep(0.01)

    async def test_the_abort_has_no_part_in_the_next(self, replica_set, client, collection, stored):
        """It goes on when its call is cancelled, and ends nothing else of the session."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({"_id": 1})

        async def failing(session):
            await things.insert_one({"_id": 2}, session=session)
            raise LookupError

        async def work(session):
            await things.insert_one({"_id": 3}, session=session)
            hang.disarm()
            while aborting in client._write_path.aborting:
                await asyncio.sleep(0.01)
            await things.insert_one({"_id": 4}, session=session)
            assert session.in_transaction

        async with client.start_session() as session:
            async with replica_set.faults.hang("abortTransaction") as hang:
                task = asyncio.create_task(session.with_transaction(failing))
                await hang.wait_until_fired()
                task.cancel()
                await asyncio.wait({task})
                [aborting] = client._write_path.aborting
                await session.with_transaction(work)
        assert [1, 3, 4] == [document["_id"] for document in stored.find().sort("_id")]


class TestTransactions:
    async def test_run_transaction(self, client, collection, stored):
        """Each run has a session of its own."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({"_id": 1, "n": 0})
        seen = []

        async def work(session):
            seen.append(session)
            await things.update_one({"_id": 1}, INCREMENT, session=session)
            if len(seen) == 1:
                error = OperationFailure("again", 251)
                error._add_error_label("TransientTransactionError")
                raise error

        await run_transaction(client, work)
        first, second = seen
        assert first is not second
        assert 1 == stored.find_one()["n"]

    async def test_under_a_deadline(self, replica_set, client, collection, stored):
        """A commit whose reply is lost is repeated."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({"_id": 1, "n": 0})
        async with client.start_session() as session, deadline(20.0):
            async with await session.start_transaction():
                await things.update_one({"_id": 1}, INCREMENT, session=session)
                fault = replica_set.faults.drop_reply("commitTransaction", times=2)
                async with fault:
                    await session.commit_transaction()
        assert 1 == stored.find_one()["n"]


class TestTurns:
    @pytest.mark.parametrize("size", [1, 2])
    async def test_where_pymongos_own_operations_fill_the_pool(self, replica_set, collection, size):
        """Writes have their turns, and so have those of the driver's own that wait for longest."""
        read = Counter()
        async with AsyncRetryClient(f"{replica_set.uri}&maxPoolSize={size}") as client:
            things = client[collection.database.name][collection.name]

            async def go_on_reading(number):
                while True:
                    await things.find({"_id": number}).to_list()
                    read[number] += 1

            readers = [asyncio.create_task(go_on_reading(number)) for number in range(6)]
            try:
                async with asyncio.timeout(60):
                    for _ in range(20):
                        await things.update_one({"_id": 1}, INCREMENT, upsert=True)
                    while len(read) < len(readers):
                        await asyncio.sleep(0.005)
            finally:
                for reader in readers:
                    reader.cancel()
                await asyncio.wait(readers)


class TestStrangers:
    async def test_who_cancel_what_is_not_theirs(self, replica_set, client, collection, stored):
        """Tasks of ours that a sweep over all tasks cancels leave nobody waiting."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({"_id": 1, "n": 0})
        mine = asyncio.current_task()
        async with asyncio.timeout(60), replica_set.faults.drop_reply("update"):
            writes = [
                asyncio.create_task(things.update_one({"_id": 1}, INCREMENT)) for _ in range(8)
            ]
            for _ in range(5):  # connections are opened, servers asked
                for task in client._driver._calls.tasks:
                    task.cancel()
                await asyncio.sleep(0)
            ended = await asyncio.gather(*writes, return_exceptions=True)
            assert mine is asyncio.current_task()
            done = sum(not isinstance(each, BaseException) for each in ended)
            for _ in range(10):
                await things.update_one({"_id": 1}, INCREMENT)
        unclear = sum(
            isinstance(each, BaseException) and outcome_of(each) is not Outcome.NOT_APPLIED
            for each in ended
        )
        assert 0 <= stored.find_one()["n"] - done - 10 <= unclear
        assert not client._driver._dispatch._opening

    async def test_a_check_up_that_is_cancelled(self, replica_set, client, collection, stored):
        """Then PyMongo takes the server for lost, and the write goes on."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({"_id": 1, "n": 0})
        async with asyncio.timeout(60), deadline(60):
            async with replica_set.faults.drop_reply("update"):
                write = asyncio.create_task(things.update_one({"_id": 1}, INCREMENT))
                while not client._driver._dispatch._checkups.cases:
                    await asyncio.sleep(0)
                while client._driver._dispatch._checkups.cases:
                    for task in client._driver._calls.tasks:
                        task.cancel()
                    await asyncio.sleep(0)
                await write
        assert 1 == stored.find_one()["n"]

    async def test_after_the_sending(self, replica_set, collection, stored, monkeypatch):
        """A command that was sent and cannot be repeated is in doubt, and not sent again."""
        asked = asyncio.Event()

        async def ask(*_):
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(jobs, "is_well", ask)
        await collection.insert_one({"_id": 1, "n": 0})
        async with AsyncRetryClient(replica_set.uri, event_listeners=[Silent()]) as client:
            things = client[collection.database.name][collection.name]
            async with asyncio.timeout(60), replica_set.faults.drop_reply("update"):
                write = asyncio.create_task(things.update_many({"_id": 1}, INCREMENT))
                await asked.wait()
                for task in client._driver._calls.tasks:
                    task.cancel()
                (error,) = await asyncio.gather(write, return_exceptions=True)
        assert Outcome.UNKNOWN is outcome_of(error)
        assert 1 == stored.find_one({"_id": 1})["n"]


class Told(CommandListener):
    """Sets an event when a read is sent."""

    def __init__(self):
        self.is_sent = asyncio.Event()

    def started(self, event):
        if event.command_name == "find":
            self.is_sent.set()

    def succeeded(self, event):
        pass

    failed = succeeded


class TestLife:
    def test_a_loop_that_ends_during_a_read(self, servers_of_test):
        """asyncio.run() cancels it while no loop is running: its connection is closed then."""

        async def read(told):
            async with AsyncRetryClient(servers_of_test.uri, event_listeners=[told]) as client:
                things = client.aioretry_tests.loop_that_ends
                await things.insert_one({})
                await things.find_one({"$where": "sleep(2000) || true"})

        async def main():
            told = Told()
            reading = asyncio.create_task(read(told))
            await told.is_sent.wait()
            return reading

        assert asyncio.run(main()).cancelled()

    async def test_a_connection_that_is_being_opened(self, replica_set):
        """Closing does not wait for a server that does not answer."""
        async with asyncio.timeout(25):
            async with AsyncRetryClient(replica_set.uri) as client:
                await client.aioretry_tests.asyncio_face.find_one()
                server = client._topology._servers[next(iter(client.nodes))]
                await server.pool.reset_without_pause()
                fault = replica_set.faults.hang("hello", "isMaster", "ismaster", must_fire=False)
                async with fault:
                    write = asyncio.create_task(
                        client.aioretry_tests.asyncio_face.update_one({"_id": 1}, INCREMENT)
                    )
                    while not client._driver._dispatch:
                        await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    write.cancel()
                    await asyncio.wait([write])
                    await client.close()

    async def test_nothing_is_left(self, replica_set, collection):
        """A client that was closed leaves no task, no connection and no warning."""
        before = asyncio.all_tasks()
        async with AsyncRetryClient(replica_set.uri) as client:
            things = client[collection.database.name][collection.name]
            await asyncio.gather(*(things.insert_one({}) for _ in range(50)))
        assert before == asyncio.all_tasks()
        with pytest.raises(InvalidOperation, match="AsyncRetryClient after close"):
            await things.insert_one({})

    async def test_another_loop(self, client, collection):
        """It is bound to the event loop that it was first used on."""
        things = client[collection.database.name][collection.name]
        await things.insert_one({})

        def elsewhere():
            with pytest.raises(InvalidOperation, match="another event loop"):
                asyncio.run(things.insert_one({}))

        await asyncio.to_thread(elsewhere)

    async def test_beside_motors(self, client, replica_set, collection, stored):
        """Both kinds of client live in one process."""
        await asyncio.gather(
            client[collection.database.name][collection.name].insert_one({"_id": 1}),
            collection.database.client[collection.database.name][collection.name].insert_one(
                {"_id": 2}
            ),
        )
        assert 2 == stored.count_documents({})

    async def test_a_killed_primary(self, three_members, client_of_three):
        """Writes under a deadline go on after an election, without an error."""
        things = client_of_three.aioretry_tests.asyncio_killed
        await things.delete_many({})
        await things.insert_one({"_id": 1, "n": 0})
        is_over, done = False, 0

        async def write_on():
            nonlocal done
            while not is_over:
                async with deadline(60.0):
                    await things.update_one({"_id": 1}, INCREMENT)
                done += 1

        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(write_on())
            old = await three_members.primary()
            await three_members.kill(old)
            await three_members.wait_for_primary(other_than=old)
            goal = done + 20
            while done < goal:
                await asyncio.sleep(0.01)
            is_over = True
        assert done == (await things.find_one())["n"]
        await three_members.heal()


@pytest.fixture
async def client_of_three(three_members):
    """A client of three members."""
    options = {"w": "majority", "readConcernLevel": "majority"}
    async with AsyncRetryClient(three_members.uri, **options) as client:
        yield client


HIDDEN = """
import importlib.abc, importlib.util, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "motor":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
WITHOUT_MOTOR = f"""{HIDDEN}
import aioretry, aioretry.pymongo
from aioretry.pymongo import AsyncRetryClient
assert not [name for name in sys.modules if name.partition(".")[0] == "motor"]
assert "RetryClient" in dir(aioretry) and "RetryClient" not in vars(aioretry)
for name in ("RetryClient", "RetryMotorCollection", "RetryMotorDatabase"):
    try:
        getattr(aioretry, name)
    except ImportError as exc:
        assert "pip install motor" in str(exc), exc
    else:
        raise AssertionError(name)
try:
    aioretry.nothing
except AttributeError as exc:
    print(exc)
"""


def test_without_motor(run_script):
    """It is imported where Motor is not installed; what needs Motor says how to get it."""
    assert "module 'aioretry' has no attribute 'nothing'\n" == run_script(WITHOUT_MOTOR)


ABOVE = f"""{HIDDEN}
import importlib
import aioretry.__main__, aioretry.idempotent, aioretry.streams, aioretry.testing
for needed, name in {{
    "aiohttp": "aiohttp",
    "fastapi": "fastapi",
    "opentelemetry": "telemetry.opentelemetry",
    "prometheus_client": "telemetry.prometheus",
}}.items():
    if importlib.util.find_spec(needed):
        importlib.import_module("aioretry." + name)
if importlib.util.find_spec("fastapi"):
    from aioretry.fastapi import mongodb_lifespan
    from aioretry.pymongo import AsyncRetryClient
    mongodb_lifespan(sys.argv[1], client=AsyncRetryClient)
    try:
        mongodb_lifespan(sys.argv[1])
    except ImportError as exc:
        assert "pip install motor" in str(exc), exc
    else:
        raise AssertionError
sys.exit(aioretry.__main__.main(["doctor", sys.argv[1]]) > 1)
"""


async def test_what_stands_above_without_motor(run_script, replica_set):
    """So is all that stands above the client; the doctor examines what there is."""
    told = await asyncio.to_thread(run_script, ABOVE, replica_set.uri)
    assert "replica set" in told


def test_motors_names_are_the_public_ones():
    """They are imported with the first use, and stay."""
    import aioretry

    assert aioretry.RetryClient is RetryClient
    assert "RetryClient" in vars(aioretry)
