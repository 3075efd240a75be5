"""A transaction that is cancelled leaves no lock and no session at the servers."""

import asyncio
import contextlib
import threading

import anyio
import anyio.to_thread
import pymongo
import pytest
from bson.errors import InvalidDocument
from pymongo.errors import InvalidOperation

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    deadline,
    outcome_of,
    run_transaction,
    transaction,
)
from aioretry._writes import aborts
from aioretry.testing import ReplicaSet


async def by_session(client, work):
    """Run a transaction in a session of the caller's."""
    async with await client.start_session() as session:
        return await session.with_transaction(work)


WAYS = {"with_transaction": by_session, "run_transaction": run_transaction}


@pytest.fixture(params=WAYS)
def transact(request):
    """One way to run a transaction."""
    return WAYS[request.param]


@pytest.fixture
def is_over(open_transactions):
    """Wait until the servers have no transaction of the test in progress."""

    async def is_over():
        async with asyncio.timeout(20.0):
            while await asyncio.to_thread(open_transactions):
                await asyncio.sleep(0.01)

    return is_over


def inserting(collection):
    """Work that inserts a document, and then never ends."""

    async def work(session):
        await collection.insert_one({}, session=session)
        await asyncio.Event().wait()

    return work


async def cancelled(task):
    """Cancel a task and wait for its end."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_before_its_first_command_arrives(transact, replica_set, client, collection, is_over):
    """The abort overtakes it, over another connection, and is sent again."""
    await collection.insert_one({})
    async with replica_set.faults.hang("insert", where=lambda c: "startTransaction" in c) as hang:
        task = asyncio.create_task(transact(client, inserting(collection)))
        await hang.wait_until_fired()
        await cancelled(task)
    await is_over()


@pytest.mark.motor
async def test_at_any_moment(transact, client, collection, is_over):
    """However far they have come, none is left."""
    await collection.insert_one({})
    for moment in range(20):
        tasks = [asyncio.create_task(transact(client, inserting(collection))) for _ in range(8)]
        await asyncio.sleep(moment / 1000)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    await is_over()


async def test_while_the_applications_threads_are_busy(
    transact, servers_of_test, client, collection, is_over
):
    """It doesn't wait for threads that the application uses for its own."""
    await collection.insert_one({})
    limiter, end = anyio.to_thread.current_default_thread_limiter(), threading.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(int(limiter.total_tokens)):
            group.create_task(anyio.to_thread.run_sync(end.wait))
        try:
            while limiter.available_tokens:
                await asyncio.sleep(0)
            inserted = asyncio.Event()

            async def work(session):
                await collection.insert_one({}, session=session)
                inserted.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(transact(client, work))
            await inserted.wait()
            await cancelled(task)
            await is_over()
            async with RetryClient(servers_of_test.uri):
                pass  # its end doesn't, either
        finally:
            end.set()


@pytest.fixture(scope="module")
def few_sessions(server_version):
    """A set that has room for few sessions."""
    parameters = {"maxSessions": "60"}
    with ReplicaSet(1, server_version, parameters=parameters) as servers:
        yield servers


@pytest.mark.parametrize("is_group", [False, True], ids=["plain", "group"])
async def test_whose_abort_is_lost_before_another_run(
    is_group, transact, replica_set, client, collection, is_over, stored
):
    """What another run of a lost transaction waits for is aborted, also for a `TaskGroup`."""
    await collection.insert_one({"_id": 1, "n": 0})

    async def work(session):
        async with asyncio.TaskGroup() if is_group else contextlib.nullcontext() as group:
            call = collection.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
            if group is None:
                await call
            else:
                group.create_task(awaited(call))

    async with (
        replica_set.faults.drop_reply("update"),
        replica_set.faults.drop_request("abortTransaction", times=2, must_fire=False),
        deadline(30.0),
    ):
        await transact(client, work)
    await is_over()
    assert 1 == stored.find_one()["n"]


async def awaited(future):
    """Await something that is no coroutine."""
    return await future


async def test_whose_first_command_arrives_after_a_plain_error(
    transact, replica_set, client, collection, is_over
):
    """What the rest of a `gather()` has sent begins no transaction for good."""
    await collection.insert_one({"_id": 1})

    async def work(session):
        async def fail():
            await hang.wait_until_fired()
            raise LookupError

        write = collection.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
        await asyncio.gather(write, fail())

    async with replica_set.faults.hang("update", where=lambda c: "startTransaction" in c) as hang:
        with pytest.raises(LookupError):
            await transact(client, work)
    await is_over()


async def test_that_could_not_be_encoded(transact, client, collection, monkeypatch):
    """What was never sent is not waited for, for long."""
    monkeypatch.setattr(aborts, "_LOST_PATIENCE", 0.2)
    await collection.insert_one({})

    async def work(session):
        await collection.insert_one({"x": object()}, session=session)

    with pytest.raises(InvalidDocument):
        await transact(client, work)
    async with asyncio.timeout(20.0):
        while client._write_path.aborting:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("when", ["in the callback", "in the abort", "in the commit"])
async def test_sessions(when, transact, few_sessions):
    """They are used again, or ended: there is room for others."""
    async with RetryClient(few_sessions.uri) as client:
        collection = client.test.get_collection("c")
        await collection.insert_one({})

        async def committed(session):
            await collection.insert_one({}, session=session)
            reached.set()

        async def waiting(session):
            await committed(session)
            await asyncio.Event().wait()

        async def failing(session):
            await committed(session)
            raise ValueError

        works = {"in the callback": waiting, "in the abort": failing, "in the commit": committed}
        for _ in range(100):
            reached = asyncio.Event()
            work = works[when]
            task = asyncio.create_task(transact(client, work))
            await reached.wait()
            task.cancel()
            await asyncio.wait([task])
        with pymongo.MongoClient(few_sessions.uri) as other:
            other.test.c.insert_one({})


async def by_block(client, work):
    """Run a transaction as a block."""
    async with transaction(client) as session:
        return await work(session)


EVERY_WAY = pytest.mark.parametrize(
    "transact_somehow", [*WAYS.values(), by_block], ids=[*WAYS, "transaction"]
)


def beside(command):
    """Tell whether a command belongs to no transaction."""
    return "autocommit" not in command


@EVERY_WAY
async def test_a_write_beside_that_a_time_limit_has_ended_stays_in_doubt(
    transact_somehow, replica_set, client, collection
):
    """The transaction is not done; of the other write nobody may say so."""

    async def work(session):
        await collection.insert_one({}, session=session)
        async with asyncio.timeout(0.1):
            await collection.update_one({"_id": 1}, {"$set": {"done": True}}, upsert=True)

    async with replica_set.faults.hang("update", where=beside):
        with pytest.raises(TimeoutError) as caught:
            await transact_somehow(client, work)
    assert outcome_of(caught.value) is Outcome.UNKNOWN


@EVERY_WAY
async def test_a_cancelled_abort_leaves_the_write_beside_in_doubt(
    transact_somehow, replica_set, client, collection
):
    """What the transaction is aborted for is more than that the abort was not awaited."""

    async def work(session):
        await collection.insert_one({}, session=session)
        async with deadline(0.1):
            await collection.update_one({"_id": 1}, {"$set": {"done": True}}, upsert=True)

    faults = replica_set.faults
    async with faults.hang("update", where=beside), faults.hang("abortTransaction") as abort:
        task = asyncio.create_task(transact_somehow(client, work))
        await abort.wait_until_fired()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
    assert outcome_of(caught.value) is Outcome.UNKNOWN


async def test_a_cancelled_abort_of_the_users_own_leaves_it_in_doubt(
    replica_set, client, collection
):
    """The same where the session's own block aborts."""

    async def work():
        async with await client.start_session() as session, session.start_transaction():
            await collection.insert_one({}, session=session)
            async with deadline(0.1):
                await collection.update_one({"_id": 1}, {"$set": {"done": True}}, upsert=True)

    faults = replica_set.faults
    async with faults.hang("update", where=beside), faults.hang("abortTransaction") as abort:
        task = asyncio.create_task(work())
        await abort.wait_until_fired()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
    assert outcome_of(caught.value) is Outcome.UNKNOWN


async def by_own_block(client, work):
    """Run a transaction as the session's own block."""
    async with await client.start_session() as session, session.start_transaction():
        return await work(session)


async def by_hand(client, work):
    """Abort what failed."""
    async with await client.start_session() as session:
        session.start_transaction()
        try:
            await work(session)
        except InvalidOperation:
            await session.abort_transaction()
            raise


@pytest.mark.parametrize("transact", [*WAYS.values(), by_block, by_own_block, by_hand])
async def test_an_abort_after_close_leaves_the_write_beside_in_doubt(
    transact, replica_set, collection
):
    """That the client is closed, which the abort says, is less than what became of that."""

    async def work(session):
        things = client[collection.database.name][collection.name]
        await things.insert_one({}, session=session)
        await things.update_one({"_id": 1}, {"$set": {"done": True}}, upsert=True)

    async with replica_set.faults.hang("update", where=beside) as hang:
        async with RetryClient(replica_set.uri) as client:
            task = asyncio.create_task(transact(client, work))
            await hang.wait_until_fired()
        with pytest.raises(InvalidOperation) as caught:
            await task
    assert outcome_of(caught.value) is Outcome.UNKNOWN


@EVERY_WAY
async def test_what_was_in_doubt_before_the_transaction_is_none_of_its_errors(
    transact_somehow, replica_set, client, collection
):
    """An error that is handled by a transaction says nothing of that."""

    async def work(session):
        await collection.insert_one({}, session=session)
        raise KeyError

    async with replica_set.faults.hang("update"):
        try:
            async with deadline(1.0):
                await collection.update_one({}, {"$set": {"done": True}})
        except DeadlineExceeded:
            with pytest.raises(KeyError) as caught:
                await transact_somehow(client, work)
    assert outcome_of(caught.value) is Outcome.NOT_APPLIED
