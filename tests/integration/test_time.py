"""Deadlines, cancellation and outages, on a set that has a primary or none."""

import asyncio
import threading
import time

import anyio
import pymongo
import pytest
from pymongo import ReadPreference, monitoring
from pymongo.errors import AutoReconnect, ExecutionTimeout, PyMongoError
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    attempts_of,
    deadline,
    outcome_of,
)

pytestmark = pytest.mark.usefixtures("three_members")


class Commands(monitoring.CommandListener):
    """Remembers the commands that a client sent."""

    def __init__(self):
        self.sent = []

    def started(self, event):
        self.sent.append(event.command)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


@pytest.fixture
async def client(replica_set, client_class):
    """A client that tells what it sends."""
    listener = Commands()
    async with client_class(replica_set.uri, event_listeners=[listener]) as client:
        client._sent = listener.sent
        yield client


@pytest.fixture
def commands(client):
    """What the client sent."""
    return client._sent


@pytest.fixture
async def headless(replica_set):
    """The set without a primary: two of three members are frozen."""
    for member in (await replica_set.primary(), (await replica_set.secondaries())[0]):
        await replica_set.freeze(member)
    return replica_set


class TestDeadlines:
    async def test_zero_sends_nothing(self, collection, stored):
        """Under a deadline that has passed nothing is sent."""
        async with deadline(0):
            with pytest.raises(DeadlineExceeded, match="nothing was sent") as caught:
                await collection.insert_one({"_id": 1})
        assert (True, Outcome.NOT_APPLIED) == (caught.value.timeout, outcome_of(caught.value))
        assert [] == list(stored.find())

    async def test_ends_in_time_with_the_last_error(self, replica_set, collection):
        """When time is over, the error is a timeout that tells the last error."""
        await collection.insert_one({"_id": 1})
        started = time.monotonic()
        async with replica_set.faults.drop_reply(
            "update", times=None, namespace=collection.full_name
        ):
            async with deadline(1.2):
                with pytest.raises(DeadlineExceeded) as caught:
                    await collection.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert 1.0 < time.monotonic() - started < 6
        assert caught.value.timeout
        assert isinstance(caught.value.__cause__, AutoReconnect)
        assert str(caught.value.__cause__) in str(caught.value)
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        assert 2 <= len(attempts_of(caught.value))
        assert 1 == (await collection.find_one())["n"]

    async def test_a_hanging_server_ends_it(self, replica_set, collection):
        """A server that does not answer in time: a timeout whose outcome is unknown."""
        await collection.insert_one({"_id": 1})
        async with replica_set.fail_command("update", mode="alwaysOn", block_ms=3000):
            async with deadline(0.3):
                with pytest.raises(DeadlineExceeded) as caught:
                    await collection.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert outcome_of(caught.value) is Outcome.UNKNOWN

    async def test_max_time_expired_becomes_a_timeout(self, replica_set, collection):
        """Code 50 of the server means that the deadline is over."""
        async with replica_set.fail_command("insert", error_code=50), deadline(20):
            with pytest.raises(DeadlineExceeded) as caught:
                await collection.insert_one({})
        assert 50 == caught.value.__cause__.code
        async with replica_set.fail_command("insert", error_code=50):
            with pytest.raises(ExecutionTimeout):
                await collection.insert_one({})

    async def test_a_surrounding_pymongo_timeout_is_respected(self, headless, client_class):
        """pymongo.timeout() around a write is a deadline like ours."""
        async with client_class(headless.uri) as client:
            started = time.monotonic()
            with pymongo.timeout(0.4), pytest.raises(PyMongoError) as caught:
                await client.db.things.insert_one({})
        assert caught.value.timeout
        assert 0.3 < time.monotonic() - started < 10

    async def test_the_nearer_of_ours_and_pymongos_counts(self, headless, client_class):
        """Nested with pymongo.timeout(), in either order, the nearer one ends the write."""
        async with client_class(headless.uri) as client:
            for outer, inner in ((0.2, 60), (60, 0.2)):
                with anyio.fail_after(30):
                    with pymongo.timeout(outer), deadline(inner):
                        with pytest.raises(PyMongoError) as caught:
                            await client.db.things.insert_one({})
                    assert caught.value.timeout
                    with deadline(outer), pymongo.timeout(inner):
                        with pytest.raises(PyMongoError):
                            await client.db.things.insert_one({})
                    with pymongo.timeout(outer):
                        async with client.db.things.operation(timeout=inner) as op:
                            with pytest.raises(PyMongoError):
                                await op.insert_one({})

    async def test_reads_obey_it(self, collection):
        """Reads and cursors inside the block end with it."""
        async with deadline(0):
            with pytest.raises(PyMongoError) as caught:
                await collection.find_one()
            assert caught.value.timeout
            with pytest.raises(PyMongoError):
                await collection.find().to_list(None)

    async def test_infinity_retries_reads_without_end(self, replica_set, collection, commands):
        """A read inside the block is retried as often as it takes."""
        lose = replica_set.faults.drop_reply("find", times=4)
        with lose:
            with pytest.raises(AutoReconnect):
                await collection.find_one()
            async with deadline(float("inf")):
                assert await collection.find_one() is None
        assert 5 == len([command for command in commands if "find" in command])

    async def test_an_outage_within_the_deadline_is_survived(
        self, headless, stored, collection, commands
    ):
        """A write waits for a primary as long as its deadline allows, and sends nothing else."""
        async with deadline(60):
            task = collection.insert_one({"_id": 1})
            await asyncio.sleep(0.1)
            assert not task.done()
            await headless.heal()
            await task
        assert [{"_id": 1}] == list(stored.find())
        assert {"insert"} == {next(iter(command)) for command in commands}

    async def test_wtimeout_is_left_out(self, collection, commands):
        """Under a deadline the command has no wtimeout: the deadline takes its place."""
        slow = collection.with_options(write_concern=WriteConcern(w="majority", wtimeout=10_000))
        async with deadline(20):
            await slow.insert_one({"_id": 1})
        (sent,) = commands
        assert {"w": "majority"} == sent["writeConcern"]
        await slow.insert_one({"_id": 2})
        assert {"w": "majority", "wtimeout": 10_000} == commands[-1]["writeConcern"]


class TestCancellation:
    async def test_before_anything_is_sent(self, headless, collection, stored):
        """Cancelled while it waits for a server: not applied, and nothing is sent later."""
        task = collection.insert_one({"_id": 1})
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert (Outcome.NOT_APPLIED, ()) == (outcome_of(caught.value), attempts_of(caught.value))
        await headless.heal()
        await collection.insert_one({"_id": 2})
        assert [{"_id": 2}] == list(stored.find())

    async def test_while_it_runs(self, replica_set, collection, stored):
        """Cancelled while the server works: unknown, no retry, and the session stays unused."""
        await collection.insert_one({"_id": 1})
        async with replica_set.fail_command("update", block_ms=400) as point:
            del point
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.15):
                    await collection.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        (attempt,) = attempts_of(caught.value)
        assert attempt.sent
        while "n" not in stored.find_one():
            await asyncio.sleep(0.02)
        assert 1 == stored.find_one()["n"]

    async def test_anyio_scopes(self, headless, collection):
        """A cancel scope of anyio ends a waiting write."""
        with anyio.move_on_after(0.1) as scope:
            await collection.insert_one({"_id": 1})
        assert scope.cancelled_caught


class TestOutage:
    async def test_closing_does_not_wait_for_a_server(self, replica_set, client_class):
        """A client closes at once when its servers are gone; PyMongo alone waits 30 seconds."""
        async with client_class(replica_set.uri) as client:
            await client.aioretry_tests.closing.insert_one({})
            for member in replica_set.members:
                await replica_set.kill(member)
            with anyio.fail_after(15):
                await client.__aexit__(None, None, None)

    @pytest.mark.slow
    async def test_waiting_costs_no_thread(self, headless, plain, client_class):
        """10,000 writes wait without threads, then all complete; reads go on meanwhile."""
        async with client_class(headless.uri, max_concurrent_attempts=16) as client:
            database = client.get_database(
                "aioretry_tests", read_preference=ReadPreference.SECONDARY_PREFERRED
            )
            await database.outage.find_one()
            pool = client.delegate._topology._session_pool
            before, sessions = threading.active_count(), len(pool)
            async with deadline(120):
                writes = [database.outage.insert_one({"_id": n}) for n in range(10_000)]
                await asyncio.sleep(0.5)
                # One prober; and the thread that Motor reads with.
                assert threading.active_count() <= before + 2
                assert sessions >= len(pool)
                await database.outage.find_one()
                assert not any(write.done() for write in writes)
                await headless.heal()
                await asyncio.gather(*writes)
                assert threading.active_count() <= before + 16 + 3 * 3 + 2
        assert 10_000 == plain.aioretry_tests.outage.count_documents({})
        plain.aioretry_tests.outage.drop()
