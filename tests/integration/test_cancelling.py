"""Writes that are cancelled, on real servers: what is sent, what comes back, what is said."""

import asyncio

import anyio
import pytest
from pymongo import InsertOne, ReadPreference, UpdateOne

from aioretry import Outcome, RetryClient, attempts_of, deadline, outcome_of, thread_counts

WRITES = ("insert", "update", "findAndModify")


@pytest.fixture
async def narrow(replica_set, commands, collection):
    """The collection, of a client that has one thread and whose commands are remembered."""
    await collection.insert_one({"_id": 1, "n": 0})
    async with RetryClient(
        replica_set.uri, event_listeners=[commands], max_concurrent_attempts=1, w="majority"
    ) as client:
        yield client[collection.database.name][collection.name]


def increment(collection):
    return collection.update_one({"_id": 1}, {"$inc": {"n": 1}})


async def all_idle(collection):
    """Wait until no thread of the client carries anything."""
    async with asyncio.timeout(60):
        while True:
            counts = thread_counts(collection.database.client)
            if counts.queued == 0 and counts.idle == counts.threads:
                return
            await asyncio.sleep(0.005)


async def cancelled(write):
    """Cancel a write, and give what it ends with; it needs no time to do so."""
    write.cancel()
    for _ in range(6):
        await asyncio.sleep(0)
    assert write.done()
    with pytest.raises(asyncio.CancelledError) as caught:
        await write
    return caught.value


class TestNothingMoreIsSent:
    @pytest.mark.parametrize("seconds", [None, 60])
    async def test_after_its_attempt_has_failed(self, replica_set, narrow, commands, seconds):
        """The attempt that was in the air fails so that it would be retried; it is not."""
        hang = replica_set.faults.hang("update")
        lost = replica_set.faults.drop_reply("update")
        async with deadline(seconds):
            write = increment(narrow)
        await hang.wait_until_fired(timeout=60)
        error = await cancelled(write)
        assert Outcome.UNKNOWN is outcome_of(error)
        hang.disarm()
        await lost.wait_until_fired(timeout=60)
        await all_idle(narrow)
        assert ["update"] == commands.names
        await narrow.find_one_and_update({"_id": 1}, {"$set": {"x": 1}})
        assert ["update", "findAndModify"] == commands.names
        assert 2 == len(commands.sessions)  # what is in doubt is never leased again
        assert 1 == (await narrow.find_one())["n"]
        replica_set.faults.verify()

    async def test_slot_and_session_come_back_when_the_attempt_is_done(
        self, replica_set, narrow, commands
    ):
        """The next write waits for the only thread, not a moment longer."""
        async with replica_set.faults.hang("update", applied=True) as hang:
            first = increment(narrow)
            await hang.wait_until_fired(timeout=60)
            error = await cancelled(first)
            second = narrow.insert_one({"_id": 2})
            assert 1 == thread_counts(narrow.database.client).queued
            (attempt,) = attempts_of(error)
            assert (True, error) == (attempt.sent, attempt.error)
            assert ["update"] == commands.names
            hang.disarm()
            async with asyncio.timeout(60):
                await second
        assert ["update", "insert"] == commands.names
        assert 1 == len(commands.sessions)  # the late answer has ended the doubt

    async def test_an_abandoned_bulk_goes_no_further(self, replica_set, narrow, commands):
        """Of a bulk operation of several commands the one in the air is the last."""
        requests = [InsertOne({"_id": 2}), UpdateOne({"_id": 1}, {"$inc": {"n": 1}})]
        async with replica_set.faults.hang("insert", applied=True) as hang:
            write = asyncio.ensure_future(narrow.bulk_write(requests))
            await hang.wait_until_fired(timeout=60)
            await cancelled(write)
        await all_idle(narrow)
        assert ["insert"] == commands.names
        assert {"_id": 1, "n": 0} == await narrow.find_one({"_id": 1})


class TestNotApplied:
    async def test_while_it_queues_for_a_thread(self, replica_set, narrow, commands):
        """It was not sent and is not sent when the thread is free."""
        async with replica_set.faults.hang("update") as hang:
            first = increment(narrow)
            await hang.wait_until_fired(timeout=60)
            queued = [narrow.insert_one({"_id": n}) for n in range(2, 12)]
            errors = [await cancelled(write) for write in queued]
        await first
        await all_idle(narrow)
        assert {Outcome.NOT_APPLIED} == {outcome_of(error) for error in errors}
        assert ["update"] == commands.names
        assert 1 == await narrow.count_documents({})

    @pytest.mark.usefixtures("three_members")
    async def test_while_it_connects(self, replica_set, collection, commands):
        """The server was chosen and does not even greet: nothing is sent once it does."""
        async with RetryClient(replica_set.uri, event_listeners=[commands]) as client:
            secondary = ReadPreference.SECONDARY
            await client.aioretry_tests.connecting.with_options(
                read_preference=secondary
            ).find_one()
            things = client[collection.database.name][collection.name]
            async with asyncio.timeout(60):
                while not client._driver.view().writable:
                    await asyncio.sleep(0.01)
            commands.sent.clear()
            async with replica_set.faults.partition(await replica_set.primary()):
                write = things.insert_one({"_id": 1})
                while write._pending is None or write._pending.server is None:
                    await asyncio.sleep(0.001)
                error = await cancelled(write)
            await all_idle(things)
            assert Outcome.NOT_APPLIED is outcome_of(error)
            assert [] == commands.names
            assert [] == await things.find().to_list(None)

    async def test_while_it_waits_for_its_turn(self, replica_set, narrow, commands):
        """A second write over a session that the user started waits for the first one."""
        async with await narrow.database.client.start_session() as session:
            async with replica_set.faults.hang("update") as hang:
                first = narrow.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
                await hang.wait_until_fired(timeout=60)
                second = narrow.insert_one({"_id": 2}, session=session)
                await asyncio.sleep(0)
                error = await cancelled(second)
            await first
        await all_idle(narrow)
        assert Outcome.NOT_APPLIED is outcome_of(error)
        assert ["update"] == commands.names


async def by_task_cancel(write, in_the_air):
    task = asyncio.create_task(write())
    await in_the_air()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_asyncio_timeout(write, in_the_air):
    async def end(timeout):
        await in_the_air()
        timeout.reschedule(asyncio.get_running_loop().time())

    async def write_in_time():
        async with asyncio.timeout(None) as timeout:
            ending = asyncio.create_task(end(timeout))
            await write()
        await ending

    with pytest.raises(TimeoutError) as caught:
        await write_in_time()
    assert Outcome.UNKNOWN is outcome_of(caught.value)


async def by_wait_for(write, in_the_air):
    with pytest.raises(TimeoutError) as caught:
        await asyncio.wait_for(write(), 3)
    await in_the_air()
    assert Outcome.UNKNOWN is outcome_of(caught.value)


async def by_a_task_group(write, in_the_air):
    async def fail():
        await in_the_air()
        raise ZeroDivisionError

    async def both():
        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await both()


async def by_move_on_after(write, in_the_air):
    with anyio.move_on_after(3) as scope:
        await write()
    await in_the_air()
    assert scope.cancelled_caught


async def by_fail_after(write, in_the_air):
    with pytest.raises(TimeoutError) as caught:
        with anyio.fail_after(3):
            await write()
    await in_the_air()
    assert Outcome.UNKNOWN is outcome_of(caught.value)


async def by_a_cancel_scope(write, in_the_air):
    async def cancel():
        await in_the_air()
        scope.cancel()

    with anyio.CancelScope() as scope:
        canceller = asyncio.create_task(cancel())
        await write()
    await canceller
    assert scope.cancelled_caught


async def by_an_anyio_task_group(write, in_the_air):
    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await in_the_air()
        group.cancel_scope.cancel()


WAYS = [
    by_task_cancel,
    by_asyncio_timeout,
    by_wait_for,
    by_a_task_group,
    by_move_on_after,
    by_fail_after,
    by_a_cancel_scope,
    by_an_anyio_task_group,
]


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_cancel(replica_set, narrow, commands, way):
    """Whoever cancels, and however: unknown, nothing more is sent, and the client goes on."""
    ended = []

    async def write():
        try:
            await increment(narrow)
        except BaseException as exc:
            ended.append((type(exc), outcome_of(exc)))
            raise

    async with replica_set.faults.hang("update", applied=True) as hang:

        async def in_the_air():
            await hang.wait_until_fired(timeout=60)

        async with asyncio.timeout(90):
            await way(write, in_the_air)
        assert [(asyncio.CancelledError, Outcome.UNKNOWN)] == ended
    await all_idle(narrow)
    assert ["update"] == commands.names
    assert 1 == (await narrow.find_one())["n"]
    await increment(narrow)


async def by_insert_many(collection):
    await collection.insert_many([{"_id": n} for n in range(2, 5)])


async def by_bulk_write(collection):
    await collection.bulk_write([UpdateOne({"_id": 1}, {"$inc": {"n": 1}})])


async def by_find_one_and_update(collection):
    await collection.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}})


async def by_update_many(collection):
    await collection.update_many({}, {"$inc": {"n": 1}})


async def by_operation(collection):
    async with collection.operation() as op:
        await op.update_one({"_id": 1}, {"$inc": {"n": 1}})


async def over_a_session(collection):
    async with await collection.database.client.start_session() as session:
        await collection.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)


KINDS = [
    by_insert_many,
    by_bulk_write,
    by_find_one_and_update,
    by_update_many,
    by_operation,
    over_a_session,
]


@pytest.mark.parametrize("kind", KINDS)
async def test_cleaning_up_awaits_nothing(replica_set, narrow, commands, kind):
    """Whatever is written, a cancelled task ends within a few turns of the event loop."""
    async with replica_set.faults.hang(*WRITES) as hang:
        task = asyncio.create_task(kind(narrow))
        await hang.wait_until_fired(timeout=60)
        error = await cancelled(task)
        assert Outcome.UNKNOWN is outcome_of(error)
    await all_idle(narrow)
    assert 1 == len(commands.names)


SCRIPT = """
import asyncio, contextlib, sys, time
from pymongo.errors import InvalidOperation
from aioretry import RetryClient, deadline

way, what, uri, name = sys.argv[1:]

async def call(things, seconds):
    with contextlib.suppress(InvalidOperation):  # the client was closed
        async with deadline(seconds):
            await (things.insert_one({}) if what == "insert" else things.find_one())

async def main():
    async with RetryClient(uri, max_concurrent_attempts=4) as client:
        things = client.aioretry_tests[name]
        async with asyncio.timeout(60):
            await things.find_one_and_update({}, {"$inc": {"n": 1}}, upsert=True)
            calls = [asyncio.create_task(call(things, n % 2 * 60 or None)) for n in range(20)]
            coordinator, sent = client._write_path.coordinator(), 0
            while sent != 4:
                await asyncio.sleep(0.001)
                places = [coordinator.pending, *coordinator.reading.values()]
                sent = sum(one._call.token.is_sending for all in places for one in all._under_way)
        if way == "cancelled":
            for task in calls:
                task.cancel()
        elif way == "gathered":
            await asyncio.wait_for(asyncio.gather(*calls), 1)

started = time.monotonic()
try:
    asyncio.run(main())
except TimeoutError:
    assert way == "gathered"
assert time.monotonic() - started < 30
"""


@pytest.mark.sample(4)
@pytest.mark.parametrize("what", ["insert", "find"])
@pytest.mark.parametrize("way", ["cancelled", "gathered", "left to asyncio.run"])
async def test_the_loop_ends_at_once(replica_set, collection, run_script, way, what):
    """With calls in the air and in the queue, a program ends at once and without a warning."""
    async with replica_set.faults.hang(
        what, namespace=collection.full_name, times=None, must_fire=False
    ):
        await asyncio.to_thread(run_script, SCRIPT, way, what, replica_set.uri, collection.name)
