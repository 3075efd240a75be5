"""Answers that come after somebody has left, and what becomes of the sessions, on real servers."""

import asyncio
import gc
import random

import pytest
from doubting import lost_increment
from looping import Silent, none_under_way
from pymongo.errors import PyMongoError

from aioretry import Outcome, RetryClient, outcome_of, resolve
from aioretry.testing import ReplicaSet

APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.UNKNOWN
IN_DOUBT = 20


async def ending(awaitable):
    """What an awaitable ends with."""
    try:
        return await awaitable
    except (PyMongoError, asyncio.CancelledError) as exc:
        return exc


@pytest.fixture
async def own_set(server_version):
    """A member that keeps the sessions of nobody else's, and that can be told to count them."""
    parameters = {"enableTestCommands": "1"}
    with ReplicaSet(1, server_version, parameters=parameters, faults=True) as servers:
        yield servers


@pytest.fixture
async def counting(own_set, client_class):
    """A collection there, of a client whose attempts the event loop makes."""
    async with client_class(own_set.uri) as client:
        collection = client.aioretry_tests.counting
        await collection.insert_many([{"_id": n, "n": 0} for n in range(100)])
        yield collection


async def sessions_at(own_set):
    """How many sessions the server keeps now."""
    async with RetryClient(own_set.uri) as client:
        await client.admin.command("refreshLogicalSessionCacheNow")
        return await client.config["system.sessions"].count_documents({})


async def fewer_sessions_at(own_set, most):
    """Wait until the server keeps no more than so many."""
    async with asyncio.timeout(60):
        while await sessions_at(own_set) > most:
            await asyncio.sleep(0.2)


async def doubts(own_set, collection):
    """What increments end with whose answers are lost, each over a session of its own."""
    own_set.faults.drop_reply("update", times=None, namespace=collection.full_name)
    writes = [collection.update_one({"_id": n}, {"$inc": {"n": 1}}) for n in range(IN_DOUBT)]
    errors = [await ending(write) for write in writes]
    own_set.faults.clear()
    return errors


class TestCoalesced:
    async def test_asked_before_the_answer(self, replica_set, collection, stored):
        """The command lands, others write, and then the question arrives: it is answered."""
        view = collection.coalesced()
        held = replica_set.faults.hang("insert", applied=True)
        hasty, patient = (view.insert_one({"_id": n}) for n in range(2))
        await held.wait_until_fired()
        hasty.cancel()
        exc = await ending(hasty)
        assert UNKNOWN is outcome_of(exc)
        asked = replica_set.faults.hang("insert")
        resolving = asyncio.ensure_future(resolve(exc, 60))
        await asked.wait_until_fired()
        held.disarm()
        await patient
        for _ in range(5):
            await asyncio.gather(
                *(collection.update_one({"_id": n}, {"$inc": {"n": 1}}) for n in range(5))
            )
        asked.disarm()
        assert 0 == (await resolving).inserted_id
        assert 2 == stored.count_documents({})

    async def test_left_and_asked_at_once(self, client, collection, stored):
        """However often, beside other writers: nobody is told what is not true."""
        dice, view, told = random.Random(19), collection.coalesced(), {}

        async def insert(number):
            try:
                async with asyncio.timeout(dice.uniform(0.001, 0.03)):
                    await view.insert_one({"_id": number})
                told[number] = APPLIED
            except TimeoutError as exc:
                told[number] = outcome_of(exc)
                if outcome_of(exc) is UNKNOWN:
                    end = await ending(resolve(exc, 60))
                    told[number] = outcome_of(end) if isinstance(end, PyMongoError) else APPLIED

        async def insert_some(first):
            for number in range(first, first + 25):
                await insert(number)

        async def update(number):
            while len(told) < 500:
                await collection.update_one({"_id": -1 - number}, {"$inc": {"n": 1}}, upsert=True)

        await asyncio.gather(*map(insert_some, range(0, 500, 25)), *map(update, range(6)))
        applied = {number for number, outcome in told.items() if outcome is APPLIED}
        assert applied == set(stored.distinct("_id", {"_id": {"$gte": 0}}))
        assert (500, False) == (len(told), UNKNOWN in told.values())


class TestSessions:
    async def test_of_cancelled_writes_come_back(self, own_set, counting):
        """However many are cancelled and answered late, each leaves its session to the next."""
        for number in range(200):
            write = counting.update_one({"_id": number % 100}, {"$inc": {"n": 1}})
            write.cancel()
            assert isinstance(await ending(write), asyncio.CancelledError)
            await none_under_way(counting.database.client)
        assert 200 == sum([each["n"] async for each in counting.find()])
        assert await sessions_at(own_set) < 50

    async def test_in_doubt_are_ended_when_nobody_can_ask(self, own_set, counting):
        """As long as an error is kept its session is; then it is ended, together with others."""
        errors = await doubts(own_set, counting)
        assert {UNKNOWN} == {outcome_of(error) for error in errors}
        kept = await sessions_at(own_set)
        assert kept >= IN_DOUBT
        assert 1 == (await resolve(errors.pop(), 60)).modified_count
        first = errors.pop()
        errors.clear()
        gc.collect()
        await fewer_sessions_at(own_set, kept - IN_DOUBT // 2)
        assert 1 == (await resolve(first, 60)).modified_count

    async def test_of_a_client_that_is_closed(self, own_set, counting, client_class):
        """Nobody can ask any more: they are ended with the others, whoever keeps the errors."""
        async with client_class(own_set.uri) as client:
            errors = await doubts(own_set, client[counting.database.name][counting.name])
            kept = await sessions_at(own_set)
        await fewer_sessions_at(own_set, kept - IN_DOUBT // 2)
        assert IN_DOUBT == len(errors)

    async def test_of_another_write_meanwhile(self, replica_set, client, collection):
        """A session whose question is open stays out of the pool until it is answered."""
        await collection.insert_one({"_id": 1, "n": 0})
        pool = client.delegate._topology._session_pool
        exc = await lost_increment(replica_set, collection)
        session = exc.__dict__["_aioretry_report"].doubt.execution.lease.session._server_session
        assert session not in pool
        async with replica_set.faults.hang("update", applied=True) as held:
            write = collection.update_one({"_id": 1}, {"$inc": {"n": 1}})
            await held.wait_until_fired()
            write.cancel()
            late = await ending(write)
            session = late.__dict__["_aioretry_report"].doubt.execution.lease.session
            assert session._server_session not in pool
            held.disarm()
            async with asyncio.timeout(60):
                while session._server_session not in pool:
                    await asyncio.sleep(0.005)
        await collection.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert 1 == (await resolve(late)).modified_count

    @pytest.mark.parametrize("is_watched", [False, True])
    async def test_of_an_abandoned_attempt_are_dirty(
        self, is_watched, replica_set, collection, commands, client_class
    ):
        """Whoever makes it, its session is not used again for anybody else."""
        listeners = [commands, Silent()] if is_watched else []
        async with client_class(replica_set.uri, event_listeners=listeners) as client:
            things = client[collection.database.name][collection.name]
            await things.insert_one({"_id": 1, "n": 0})
            async with replica_set.faults.hang("update") as held:
                write = things.update_one({"_id": 1}, {"$inc": {"n": 1}})
                await held.wait_until_fired()
                call = write._pending._call
                assert client._driver.abandon(call)
                session = call.lease.session._server_session
                async with asyncio.timeout(60):
                    while not session.dirty:
                        await asyncio.sleep(0.005)
                write.cancel()
