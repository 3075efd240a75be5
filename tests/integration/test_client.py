"""The client is a Motor client: what it is given, what it gives, and which loop it lives on."""

import asyncio
import threading
import warnings

import pytest
from bson.codec_options import CodecOptions
from motor.motor_asyncio import (
    AsyncIOMotorClient,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
    AsyncIOMotorGridFSBucket,
)
from pymongo import ReadPreference, monitoring
from pymongo.errors import ConfigurationError, InvalidOperation

from aioretry import Outcome, RetryClient, RetryMotorCollection, RetryMotorDatabase, outcome_of
from aioretry.idempotent import Keys
from aioretry.pymongo import AsyncRetryClient
from aioretry.testing import ReplicaSet, Standalone

URI = "mongodb://127.0.0.1:1/things?replicaSet=none"


class TestWrapping:
    async def test_databases_are_ours(self):
        """No way to a database leads to a plain Motor one."""
        async with RetryClient(URI) as client:
            databases = [
                client.db,
                client["db"],
                client.get_database("db"),
                client.get_default_database(),
                client.get_database("db", read_preference=ReadPreference.SECONDARY),
                client.db.with_options(read_preference=ReadPreference.SECONDARY),
                client.db.client.db,
                client.db.things.database,
                (await client.start_session()).client.db,
            ]
        assert {RetryMotorDatabase} == {type(database) for database in databases}
        assert all(isinstance(database, AsyncIOMotorDatabase) for database in databases)

    @pytest.mark.motor
    async def test_collections_are_ours(self, client):
        """No way to a collection leads to a plain Motor one."""
        db = client.aioretry_tests
        collections = [
            db.things,
            db["things"],
            db.get_collection("things"),
            db.get_collection("things", codec_options=CodecOptions(tz_aware=True)),
            db.things.with_options(codec_options=CodecOptions(tz_aware=True)),
            db.things.sub,
            db.things["sub"],
            db.things.find().collection,
            db.things.aggregate([]).collection,
            await db.create_collection("created"),
        ]
        assert {RetryMotorCollection} == {type(collection) for collection in collections}
        assert all(isinstance(collection, AsyncIOMotorCollection) for collection in collections)
        assert db.things.sub.full_name == "aioretry_tests.things.sub"
        await db.drop_collection(collections[-1])
        assert "created" not in await db.list_collection_names()

    async def test_private_names_are_no_databases(self):
        """A misspelt private name is an AttributeError, as with Motor."""
        async with RetryClient(URI) as client:
            for thing in (client, client.db, client.db.things):
                with pytest.raises(AttributeError, match="has no attribute '_nothing'"):
                    _ = thing._nothing

    @pytest.mark.motor
    async def test_what_is_not_ours_is_motors(self, client, collection):
        """Reads, cursors, indexes, GridFS and commands go on working."""
        await collection.insert_many([{"_id": n, "n": n % 3} for n in range(10)])
        assert 10 == await collection.count_documents({})
        assert [0, 1, 2] == sorted(await collection.distinct("n"))
        assert 4 == len(await collection.find({"n": 0}).to_list(None))
        assert "n_1" == await collection.create_index("n")
        result = await collection.update_many({"n": 0}, {"$set": {"x": 1}})
        assert 4 == result.modified_count
        assert 1 == (await client.admin.command("ping"))["ok"]
        bucket = AsyncIOMotorGridFSBucket(client.aioretry_tests)
        file_id = await bucket.upload_from_stream("name", b"content")
        assert b"content" == await (await bucket.open_download_stream(file_id)).read()
        await bucket.delete(file_id)

    async def test_equality_and_hash(self, client):
        """Two wrappers of one collection are equal, as with Motor."""
        assert client.db.things == client.db["things"]
        assert hash(client.db.things) == hash(client.db["things"])


async def test_a_load_balancer_has_sessions():
    """Behind a load balancer writes carry session and number, though it is never asked."""
    async with RetryClient("mongodb://127.0.0.1:1/?loadBalanced=true") as client:
        client.delegate._get_topology()
        (server,) = client._driver.view().writable.values()
    assert (True, True) == (server.has_sessions, server.can_retry_writes)


class TestArguments:
    async def test_users_listeners_and_selector_are_kept(self, replica_set, collection):
        """The user's own event listener and server selector are still asked."""
        seen = []

        class Listener(monitoring.CommandListener):
            def started(self, event):
                seen.append(event.command_name)

            def succeeded(self, event):
                pass

            def failed(self, event):
                pass

        def selector(servers):
            seen.append("selector")
            return servers

        async with RetryClient(
            replica_set.uri, event_listeners=[Listener()], server_selector=selector
        ) as client:
            await client[collection.database.name][collection.name].insert_one({})
        assert {"selector", "insert"} <= set(seen)

    async def test_a_selector_that_selects_nothing_is_obeyed(self, replica_set):
        """If the user's selector excludes every server, nothing is sent."""
        async with RetryClient(
            replica_set.uri, server_selector=lambda servers: [], serverSelectionTimeoutMS=200
        ) as client:
            with pytest.raises(Exception, match="no server that takes writes") as caught:
                await client.db.things.insert_one({})
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED

    async def test_a_selector_that_fails_is_heard_of(self, replica_set):
        """What the user's selector raises is raised by the write, and hangs nothing."""
        broken = False

        def selector(servers):
            if broken:
                raise ZeroDivisionError
            return servers

        async with RetryClient(replica_set.uri, server_selector=selector) as client:
            await client.aioretry_tests.selecting.insert_one({})
            broken = True
            with pytest.raises(ZeroDivisionError) as caught:
                await client.aioretry_tests.selecting.insert_one({})
            broken = False
            assert outcome_of(caught.value) is Outcome.NOT_APPLIED
            await client.aioretry_tests.selecting.insert_one({})

    async def test_a_listener_that_exits_is_heard_of(self, replica_set):
        """A BaseException of a user's listener ends the write, not the thread."""

        class Listener(monitoring.CommandListener):
            def started(self, event):
                if event.command_name == "insert":
                    raise SystemExit

            def succeeded(self, event):
                pass

            def failed(self, event):
                pass

        async with RetryClient(
            replica_set.uri,
            event_listeners=[Listener()],
            listeners_may_block=True,
            max_concurrent_attempts=1,
        ) as client:
            for _ in range(3):
                with pytest.raises(RuntimeError, match="SystemExit"):
                    await client.aioretry_tests.listening.insert_one({})

    def test_no_warning_of_motors_deprecation(self):
        """A client warns of nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            RetryClient(URI).close()

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"max_concurrent_attempts": 0}, ValueError, "must be at least 1, not 0"),
            ({"max_concurrent_attempts": "4"}, TypeError, "must be a whole number, not '4'"),
            ({"max_concurrent_attempts": True}, TypeError, "must be a whole number, not True"),
            ({"hooks": [1]}, TypeError, "hooks must be callables, not 1"),
            ({"hooks": print}, TypeError, r"hooks must be a list of .* \[print\], not <built-in"),
            ({"hooks": None}, TypeError, r"hooks must be a list of callables, .* not None"),
            ({"replicaset": 5}, TypeError, "replicaset"),
        ],
    )
    @pytest.mark.parametrize("made", [RetryClient, AsyncRetryClient])
    def test_bad_arguments_are_refused(self, made, options, error, text):
        """A bad argument is named, with what was given."""
        with pytest.raises(error, match=text):
            made("mongodb://127.0.0.1:1", **options)

    async def test_bad_timeouts_of_an_operation(self):
        """operation(timeout=) is checked like deadline()."""
        async with RetryClient(URI) as client:
            with pytest.raises(ValueError, match="timeout must be a number of seconds from 0 on"):
                client.db.things.operation(timeout=-1)
            with pytest.raises(TypeError, match="timeout must be a number"):
                client.db.things.operation(timeout="1")

    @pytest.mark.parametrize("made", [RetryClient, AsyncRetryClient])
    @pytest.mark.parametrize("key", ["order-42", b"order-42", Keys(bytes(16), "orders"), 5, ""])
    async def test_bad_keys_of_an_operation(self, made, key):
        """operation(key=) takes what Keys makes; of anything else it names the type alone."""
        async with made(URI) as client:
            with pytest.raises(TypeError, match="key must be what") as refused:
                client.db.things.operation(key=key)
        told = str(refused.value)
        assert 'keys("order-42")' in told
        assert told.endswith(f"not {type(key).__name__}")

    async def test_operation_needs_an_acknowledged_write_concern(self):
        """operation() on a w: 0 collection is refused."""
        async with RetryClient(URI, w=0) as client:
            with pytest.raises(ConfigurationError, match="w: 0"):
                client.db.things.operation()


class TestLoops:
    def test_without_context_manager(self, shared_set: ReplicaSet):
        """A client is used like Motor's: made outside, used on one loop, closed by close()."""
        client = RetryClient(shared_set.uri)

        async def main():
            await client.aioretry_tests.loops.insert_one({})

        with asyncio.Runner() as runner:
            client._io_loop = runner.get_loop()
            runner.run(main())
        client.close()

    def test_another_loop_is_refused(self, shared_set: ReplicaSet):
        """A client that was used on one loop says so on another."""

        async def use():
            await client.aioretry_tests.loops.insert_one({})

        client = RetryClient(shared_set.uri)
        with asyncio.Runner() as first:
            first.run(use())
            with asyncio.Runner() as second, pytest.raises(InvalidOperation, match="another event"):
                second.run(use())
        client.close()

    async def test_a_write_before_the_loop_runs(self, client, collection, stored):
        """A call returns a running future: a write that nobody awaits still happens."""
        task = collection.insert_one({"_id": 1})
        assert asyncio.isfuture(task)
        done, _ = await asyncio.wait([task])
        assert 1 == done.pop().result().inserted_id
        collection.insert_one({"_id": 2})
        while stored.count_documents({}) < 2:
            await asyncio.sleep(0.01)

    async def test_get_io_loop_is_asked(self, client, collection):
        """ODMs replace get_io_loop on the client: it is called, not remembered."""
        client.get_io_loop = asyncio.get_running_loop
        await collection.insert_one({})


class TestClosing:
    async def test_a_closed_client_says_so(self, replica_set):
        """After close() a write fails at once."""
        client = RetryClient(replica_set.uri)
        await client.aioretry_tests.closing.insert_one({})
        client.close()
        with pytest.raises(InvalidOperation, match="after close") as caught:
            await client.aioretry_tests.closing.insert_one({})
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED

    async def test_waiting_writes_end(self):
        """close() ends the writes that wait for a server."""
        client = RetryClient(URI)
        task = client.db.things.insert_one({})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.close()
        with pytest.raises(InvalidOperation, match="after close"):
            await asyncio.wait_for(task, 5)

    async def test_threads_end(self, replica_set):
        """close() leaves no thread of ours."""
        async with RetryClient(replica_set.uri) as client:
            await asyncio.gather(*(client.aioretry_tests.closing.insert_one({}) for _ in range(50)))
        for thread in threading.enumerate():
            if thread.name.startswith(("aioretry-attempt", "aioretry-prober")):
                await asyncio.to_thread(thread.join, 5)
                assert not thread.is_alive()

    async def test_is_still_a_motor_client(self):
        """isinstance says what it is."""
        async with RetryClient(URI) as client:
            assert isinstance(client, AsyncIOMotorClient)


class TestStandalone:
    async def test_writes_work_without_transaction_ids(self):
        """On a standalone server writes work, once, and carry no transaction id."""
        sent = []

        class Listener(monitoring.CommandListener):
            def started(self, event):
                sent.append(event.command)

            def succeeded(self, event):
                pass

            def failed(self, event):
                pass

        async with Standalone(faults=True) as server:
            async with RetryClient(server.uri, event_listeners=[Listener()]) as client:
                things = client.db.things
                await things.insert_one({"_id": 1})
                await things.update_one({"_id": 1}, {"$inc": {"n": 1}})
                await things.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}})
                writes = [c for c in sent if next(iter(c)) in {"insert", "update", "findAndModify"}]
                assert 3 == len(writes)
                assert not any("txnNumber" in command for command in writes)
                sent.clear()
                async with server.faults.drop_reply("update") as fault:
                    with pytest.raises(Exception, match="connection closed") as caught:
                        await things.update_one({"_id": 1}, {"$inc": {"n": 1}})
                assert (1, 1) == (fault.fired, len([c for c in sent if "update" in c]))
                assert outcome_of(caught.value) is Outcome.UNKNOWN
                assert {"_id": 1, "n": 3} == await things.find_one()
