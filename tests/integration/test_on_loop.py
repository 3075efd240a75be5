"""Attempts that the event loop makes itself: who makes which, what they send, what they carry."""

import asyncio
import logging
import os
import threading

import pytest
from bson import Timestamp
from bson.binary import Binary
from bson.codec_options import CodecOptions
from motor.motor_asyncio import AsyncIOMotorClientEncryption
from pymongo.encryption import Algorithm
from pymongo.encryption_options import AutoEncryptionOpts
from pymongo.errors import DocumentTooLarge, InvalidOperation
from pymongo.read_preferences import ReadPreference
from pymongo.server_api import ServerApi

from aioretry import Outcome, RetryClient, attempts_of, deadline, outcome_of, thread_counts
from aioretry.testing import ScriptedServer
from tests.integration.looping import (
    TENANT,
    Noting,
    Silent,
    all_given_back,
    held,
    increment,
    is_made_by_the_loop,
    pools,
    seed,
    under_way,
)
from tests.versions import since

DETERMINISTIC = Algorithm.AEAD_AES_256_CBC_HMAC_SHA_512_Deterministic


def all_servers(servers):
    return servers


THREADED = {
    "listener": {"event_listeners": [Silent()]},
    "server_selector": {"server_selector": all_servers},
}


def of(client, collection):
    """The collection, of another client."""
    return client[collection.database.name].get_collection(
        collection.name, write_concern=collection.write_concern
    )


class TestWhoMakesIt:
    async def test_the_loop_over_an_idle_connection(self, client, collection):
        """No thread is woken, and none is started."""
        await seed(collection)
        threads = thread_counts(client).threads
        for _ in range(20):
            assert await is_made_by_the_loop(collection)
        assert threads == thread_counts(client).threads

    @pytest.mark.motor
    async def test_a_thread_opens_the_first_connection(self, client, collection):
        """The loop does not wait for a connection."""
        await seed(collection)
        await all_given_back(client)
        await asyncio.gather(*(increment(collection) for _ in range(8)))
        assert 1 < thread_counts(client).threads

    @pytest.mark.parametrize("options", THREADED.values(), ids=THREADED)
    async def test_a_thread_calls_functions_of_the_users(self, replica_set, collection, options):
        """A client with listeners or a selector makes no attempt on the loop."""
        async with RetryClient(replica_set.uri, **options) as client:
            things = of(client, collection)
            await seed(things)
            assert not await is_made_by_the_loop(things)

    @pytest.mark.motor
    async def test_a_thread_writes_logs(self, client, collection):
        """As long as PyMongo logs commands, threads make all attempts."""
        await seed(collection)
        logger = logging.getLogger("pymongo.command")
        logger.setLevel(logging.DEBUG)
        try:
            assert not await is_made_by_the_loop(collection)
        finally:
            logger.setLevel(logging.NOTSET)
        assert await is_made_by_the_loop(collection)

    @pytest.mark.motor
    async def test_a_thread_reads_iterators(self, client, collection):
        """An iterator of the user's may block."""
        await seed(collection)
        threads = set()

        def documents():
            for _ in range(3):
                threads.add(threading.get_ident())
                yield {}

        assert 3 == len((await collection.insert_many(documents())).inserted_ids)
        assert threading.get_ident() not in threads

    @pytest.mark.motor
    async def test_a_decrypting_client(self, replica_set, client, collection):
        """What a write returns is decrypted, by a client that encrypts nothing, too."""
        providers = {"local": {"key": os.urandom(96)}}
        vault = f"{collection.database.name}.keys"
        options = AutoEncryptionOpts(providers, vault, bypass_auto_encryption=True)
        async with (
            AsyncIOMotorClientEncryption(providers, vault, client, CodecOptions()) as keys,
            RetryClient(replica_set.uri, auto_encryption_opts=options) as decrypting,
        ):
            key = await keys.create_data_key("local")
            secret = await keys.encrypt("secret", DETERMINISTIC, key_id=key)
            await collection.insert_one({"_id": 1, "n": 0, "s": Binary(bytes(secret), 6)})
            for _ in range(2):
                assert "secret" == (await increment(of(decrypting, collection)))["s"]


class TestContext:
    async def test_a_decoder_sees_its_own_callers(self, collection):
        """Connections are shared, what a request has set is not."""
        await seed(collection)
        noting = Noting()

        async def write(tenant):
            TENANT.set(tenant)
            await increment(noting.decode(collection))

        for tenant in range(5):
            noting.tenants.clear()
            await asyncio.create_task(write(tenant))
            assert {tenant} == set(noting.tenants)
        assert {threading.get_ident()} == noting.threads

    async def test_a_decoder_that_raises(self, client, collection):
        """The write may be applied, and the next one is made."""
        await seed(collection)
        noting = Noting()
        noting.error = LookupError("no such thing")
        with pytest.raises(Exception, match="no such thing") as caught:
            await increment(noting.decode(collection))
        (attempt,) = attempts_of(caught.value)
        assert (True, Outcome.UNKNOWN) == (attempt.sent, outcome_of(caught.value))
        assert 2 == (await increment(collection))["n"]
        await all_given_back(client)


@pytest.fixture
def recorded(replica_set, collection):
    """The commands on the test's collection as they arrive."""
    commands = []

    def note(command):
        commands.append(command)
        return True

    replica_set.faults.watch(namespace=collection.full_name, where=note)
    return commands


SENT = {
    "insert_one": lambda c: c.insert_one({"_id": 2}, comment="here"),
    "update_one": lambda c: c.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True),
    "replace_one": lambda c: c.replace_one({"_id": 1}, {"n": 1}),
    "delete_one": lambda c: c.delete_one({"_id": 2}),
    "find_one_and_update": lambda c: c.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}),
    "update_many": lambda c: c.update_many({}, {"$inc": {"n": 1}}),
    "insert_many": lambda c: c.insert_many([{"_id": 3}, {"_id": 4}]),
}
VARYING = {"lsid", "txnNumber", "$clusterTime", "maxTimeMS"}


class TestTheWire:
    @pytest.mark.parametrize("seconds", [None, 60])
    @pytest.mark.parametrize(
        "api",
        [
            pytest.param(None, id=""),
            pytest.param(ServerApi("1", strict=True), id="api", marks=since(5.0)),
        ],
    )
    @pytest.mark.parametrize("name", SENT)
    async def test_both_ways_send_the_same(
        self, replica_set, collection, recorded, name, api, seconds
    ):
        """The same fields in the same order, whoever sends them."""
        commands = []
        for listeners in ([], [Silent()]):
            async with RetryClient(
                replica_set.uri, server_api=api, event_listeners=listeners
            ) as client:
                things = of(client, collection)
                await seed(things)
                assert bool(listeners) is not await is_made_by_the_loop(things)
                recorded.clear()
                async with deadline(seconds):
                    await SENT[name](things)
                (command,) = recorded
                commands.append(command)
                await things.delete_many({"_id": {"$gt": 1}})
        on_loop, on_thread = commands
        assert list(on_thread) == list(on_loop)
        assert {"lsid", "$clusterTime"} <= on_loop.keys()
        assert (seconds is not None) is ("maxTimeMS" in on_loop)
        assert (api is not None) is ("apiVersion" in on_loop)
        assert [
            {key: value for key, value in command.items() if key not in VARYING}
            for command in commands[:1]
        ] == [
            {key: value for key, value in command.items() if key not in VARYING}
            for command in commands[1:]
        ]
        for field in VARYING & on_loop.keys():
            assert type(on_thread[field]) is type(on_loop[field])

    async def test_it_gossips_the_cluster_time(self):
        """What one reply says, the next command says."""
        times = iter({"clusterTime": Timestamp(n, 1), "signature": {}} for n in range(1, 9))
        async with ScriptedServer() as server, RetryClient(server.uri) as client:
            server.answer("update", lambda _: {"n": 1, "$clusterTime": next(times)})
            for _ in range(4):
                await client.db.things.update_one({}, {"$set": {"n": 1}})
        sent = [request.command.get("$clusterTime") for request in server.requests]
        assert [None, 1, 2, 3] == [time and time["clusterTime"].time for time in sent]

    async def test_a_users_session_advances(self, client, collection, session):
        """Its reads see what it has written."""
        await seed(collection)
        times = []
        for _ in range(3):
            await increment(collection, session=session)
            times.append(session.operation_time)
            found = await collection.find_one({"_id": 1}, session=session)
            assert len(times) == found["n"]
        assert None not in times
        assert sorted(set(times)) == times

    async def test_a_session_that_has_ended(self, client, collection):
        """The same error as PyMongo's, and nothing is sent."""
        await seed(collection)
        async with await client.start_session() as session:
            pass
        with pytest.raises(InvalidOperation, match="Cannot use ended session") as caught:
            await increment(collection, session=session)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        await all_given_back(client)

    @pytest.mark.parametrize("listeners", [[], [Silent()]], ids=["loop", "thread"])
    async def test_too_large(self, replica_set, collection, listeners):
        """What the server would refuse is not sent."""
        async with RetryClient(replica_set.uri, event_listeners=listeners) as client:
            things = of(client, collection)
            await seed(things)
            with pytest.raises(DocumentTooLarge, match="command document too large"):
                await things.update_one({"_id": 1}, {"$set": {"x": "x" * 17 * 2**20}})
            assert 1 == (await increment(things))["n"]
            await all_given_back(client)


class TestSharing:
    @pytest.mark.parametrize("size", [1, 2, 5])
    async def test_a_small_pool(self, replica_set, collection, size):
        """Reads of Motor's and writes share what there is, and none of them starves."""
        async with RetryClient(replica_set.uri, maxPoolSize=size) as client:
            things = of(client, collection)
            await seed(things)

            async def read():
                assert await things.find_one({"_id": 1}) is not None

            async with asyncio.timeout(120):
                calls = [call() for _ in range(250) for call in (read, lambda: increment(things))]
                await asyncio.gather(*calls)
            assert 250 == (await things.find_one({"_id": 1}))["n"]
            assert max(len(pool.conns) for pool in pools(client)) <= size
            await all_given_back(client)

    async def test_a_connection_that_is_kept_is_given_to_a_read(self, replica_set, collection):
        """With one connection, a read that waits for it gets it though writes go on."""
        async with RetryClient(replica_set.uri, maxPoolSize=1) as client:
            things = of(client, collection)
            await seed(things)
            done = asyncio.Event()

            async def write():
                while not done.is_set():
                    await increment(things)

            writing = asyncio.create_task(write())
            async with asyncio.timeout(60):
                for _ in range(20):
                    await things.find_one({"_id": 1})
            done.set()
            await writing

    async def test_its_timeout_is_left_as_it_was(self, replica_set, collection):
        """A thread's deadline is no timeout of the loop's, nor the loop's of the next thread."""
        async with RetryClient(replica_set.uri, socketTimeoutMS=50_000) as client:
            things = of(client, collection)
            async with deadline(60):
                await seed(things)
                await increment(things)
            (kept,) = client._driver._dispatch._connections._kept
            assert kept._socket.gettimeout() is None
            kept_socket = kept._socket
            await all_given_back(client)
            assert 50 == kept_socket.gettimeout()
            assert {(0, 0, 0, 0)} == {held(pool) for pool in pools(client)}

    @pytest.mark.usefixtures("three_members")
    async def test_few_connections_are_opened_at_a_time(self, replica_set, collection):
        """Of many writes of a new client, two open connections, and the others wait for those."""
        async with RetryClient(replica_set.uri) as client:
            # So the primary is known, and no connection to it is open for writes.
            await client.admin.command("ping", read_preference=ReadPreference.SECONDARY)
            async with asyncio.timeout(60):
                while client.primary is None:
                    await asyncio.sleep(0.005)
                async with replica_set.faults.partition():
                    writes = [of(client, collection).insert_one({"_id": n}) for n in range(50)]
                    assert 2 == client._driver._dispatch._opening.total()
                    waiting = client._write_path.coordinator().pending.waiting
                    assert (2, 48) == (under_way(client), waiting)
                await asyncio.gather(*writes)
        assert 50 == await collection.count_documents({})

    async def test_a_thread_is_faster_than_the_loop(self, replica_set, collection, monkeypatch):
        """A thread may end its work while the loop is still in the turn that gave it.

        The first connection is gone at once: another is opened while the loop is in the context.
        """
        async with RetryClient(replica_set.uri) as client:
            things = of(client, collection)
            await things.insert_one({"_id": "first"})
            threads, jobs = client._driver._dispatch._room._openers, []
            submit = threads.submit

            def submit_and_wait(job):
                ended = threading.Event()
                run = job.run
                jobs.append(job)

                def run_and_tell():
                    try:
                        run()
                        for pool in pools(client):
                            while job is jobs[0] and pool.conns:
                                pool.conns.pop().close_conn(None)
                    finally:
                        ended.set()

                job.run = run_and_tell
                submit(job)
                assert ended.wait(60)

            monkeypatch.setattr(threads, "submit", submit_and_wait)
            async with asyncio.timeout(60):
                await asyncio.gather(*(things.insert_one({"_id": n}) for n in range(10)))
        assert 2 <= len(jobs)
        assert 11 == await collection.count_documents({})
