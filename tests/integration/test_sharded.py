"""Retries in a sharded cluster: two fake mongoses before a real replica set."""

import asyncio
import contextlib
import itertools

import pytest
from pymongo.errors import AutoReconnect, DuplicateKeyError

from aioretry import AttemptEnded, DeadlineExceeded, attempts_of, deadline, every_event
from aioretry._writes.context import settled
from aioretry.testing import FakeMongoses, Ledger

RETRYABLE = ["RetryableWriteError"]


@pytest.fixture
async def cluster(replica_set):
    async with FakeMongoses(replica_set) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster, client_class):
    async with client_class(cluster.uri, w="majority", journal=True) as client:
        await known(client, *cluster.mongoses)
        yield client


async def known(client, *mongoses):
    """Wait until the driver knows that these routers, and no others, can be written to."""
    with contextlib.suppress(AutoReconnect):  # of one that was killed
        await client.admin.command("ping")  # it begins to look
    addresses = set(map(address_of, mongoses))
    async with asyncio.timeout(20):
        while addresses != {
            address
            for address, server in (
                client.delegate.topology_description.server_descriptions().items()
            )
            if server.is_writable
        }:
            await asyncio.sleep(0.01)


async def update(collection, document=1):
    """Count in a document, and tell who was asked."""
    async with collection.operation() as op:
        await op.update_one({"_id": document}, {"$inc": {"n": 1}}, upsert=True)
    return [attempt.address for attempt in op.attempts]


def every_other():
    """A condition that holds for every other command."""
    turns = itertools.cycle([True, False])
    return lambda _command: next(turns)


def address_of(mongos):
    return (mongos.host, mongos.port)


async def test_every_retry_goes_to_the_other(cluster, client, collection, stored):
    """A hundred retries after a hundred errors of one mongos are sent to the other one."""
    bad, good = cluster.mongoses
    histories = []
    async with cluster.faults.error(6, "update", labels=RETRYABLE, member=bad, times=100) as fault:
        while fault.fired < 100:
            histories.append(await update(collection))

    retried = [history for history in histories if len(history) > 1]
    assert [[address_of(bad), address_of(good)]] * 100 == retried
    assert {"_id": 1, "n": len(histories)} == stored.find_one()


@pytest.mark.parametrize("fault", ["drop_reply", "drop_request", "truncate"])
async def test_a_lost_connection(cluster, client, collection, stored, fault):
    """After a lost connection, too, the other one is asked, and the write is made once."""
    faults = cluster.faults
    arm = {
        "drop_reply": faults.drop_reply,
        "drop_request": faults.drop_request,
        "truncate": lambda name: faults.truncate_reply(20, name),
    }[fault]
    for number in range(1, 11):
        await known(client, *cluster.mongoses)
        async with arm("update"):
            first, second = await update(collection)
        assert first != second
        assert {"_id": 1, "n": number} == stored.find_one()


async def test_one_is_left(cluster, client, collection, stored):
    """Where there is nobody else, the retry goes to the one that failed."""
    left, gone = cluster.mongoses
    await cluster.kill(gone)
    await known(client, left)
    await update(collection)
    async with cluster.faults.drop_reply("update", member=left), deadline(30):
        history = await update(collection)
    assert len(history) >= 2
    assert {address_of(left)} == {*history}
    assert {"_id": 1, "n": 2} == stored.find_one()


async def test_the_avoided_one_is_avoided_after_a_wait(
    cluster, collection, replica_set, stored, client_class
):
    """A mongos that failed is still avoided after a wait in which no server could be chosen."""
    bad, good = cluster.mongoses
    is_closed = False
    looked_in_vain = 0

    def selector(servers):
        nonlocal is_closed, looked_in_vain
        if not is_closed:
            return servers
        is_closed = False
        looked_in_vain += 1
        return []

    def close_for_a_look(event):
        nonlocal is_closed
        is_closed = True

    async with client_class(
        cluster.uri, server_selector=selector, hooks=[close_for_a_look]
    ) as client:
        await known(client, *cluster.mongoses)
        writes = client[collection.database.name][collection.name]
        error = cluster.faults.error(6, "update", labels=RETRYABLE, member=bad, times=20)
        async with error:
            while error.fired < 20:
                history = await update(writes)
                assert history in ([address_of(good)], [address_of(bad), address_of(good)])
    assert looked_in_vain >= 20


async def test_both_fail(cluster, client, collection, stored):
    """Under a deadline both are tried again and again, once each in turn at first."""
    async with cluster.faults.error(6, "update", labels=RETRYABLE, times=5) as fault:
        async with deadline(20):
            history = await update(collection)
    assert 5 == fault.fired
    assert 6 == len(history)
    assert history[0] != history[1]
    assert {"_id": 1, "n": 1} == stored.find_one()


async def test_at_most_once(cluster, client, collection, stored):
    """Of 200 writes, each with a lost answer, on either mongos, every one is made exactly once."""
    struck = set()

    def first_of_its_kind(command):
        """Whether this statement comes for the first time; a retry has the same id."""
        identity = (bytes(command["lsid"]["id"]), command["txnNumber"])
        return identity not in struck and not struck.add(identity)

    async with cluster.faults.drop_reply("insert", times=None, where=first_of_its_kind) as fault:
        numbers = itertools.count()

        async def write():
            async with deadline(60):
                for _ in range(10):
                    await collection.insert_one({"_id": next(numbers)})

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(write())
    # A connection may have been closed before its answer came, with others of its pool.
    assert 150 < fault.fired <= len(struck) == 200
    assert list(range(200)) == sorted(document["_id"] for document in stored.find())


async def test_outcomes_without_a_deadline(cluster, client, collection):
    """Of increments among 100 lost answers, none is lost, doubled or misreported."""
    ledger = Ledger()
    written = 0

    async def write(writer):
        nonlocal written
        while fault.fired < 100:
            increment = collection.update_one({"_id": writer}, {"$inc": {"n": 1}}, upsert=True)
            written += 1
            with contextlib.suppress(AutoReconnect):
                await ledger.write(writer, increment)

    async with cluster.faults.drop_reply("update", times=None, where=every_other()) as fault:
        async with asyncio.TaskGroup() as group:
            for writer in range(20):
                group.create_task(write(writer))
    assert written == len(ledger.entries)
    await ledger.check_counters(collection, "n")


@pytest.mark.usefixtures("three_members")
async def test_an_election_behind_them(replica_set, cluster, client, collection, stored):
    """An election behind the mongoses is a pause to writes under a deadline; each is made once."""
    stop = asyncio.Event()

    async def write(writer):
        count = 0
        async with deadline(60):
            while not stop.is_set():
                await collection.update_one({"_id": writer}, {"$inc": {"n": 1}}, upsert=True)
                count += 1
        return count

    writers = [asyncio.create_task(write(writer)) for writer in range(10)]
    old = await replica_set.step_down()
    new = await replica_set.wait_for_primary(other_than=old)
    await replica_set.kill(new)
    await replica_set.wait_for_primary(other_than=new)
    await collection.insert_one({"_id": "after"})
    stop.set()
    counts = await asyncio.gather(*writers)
    assert counts == [stored.find_one({"_id": writer})["n"] for writer in range(10)]


async def test_inserts_that_travel_together(cluster, client, collection, stored):
    """They are sent to the other router, and are there once."""
    view = collection.coalesced()
    async with cluster.faults.drop_reply("insert"):
        writes = [view.insert_one({"_id": n}) for n in (*range(10), 9)]
        *results, error = await asyncio.gather(*writes, return_exceptions=True)
    assert list(range(10)) == [result.inserted_id for result in results]
    assert isinstance(error, DuplicateKeyError)
    assert 2 == len({attempt.address for attempt in attempts_of(error)})
    assert 10 == stored.count_documents({})


async def test_an_abort_goes_where_its_transaction_is(cluster, client_class, collection):
    """No other router can abort it, also after a statement that there was no time to send."""
    events = []
    async with client_class(cluster.uri, hooks=[every_event(events.append)]) as client:
        await known(client, *cluster.mongoses)
        things = client[collection.database.name][collection.name]
        for _ in range(20):
            events.clear()
            async with await client.start_session() as session:
                await settled(session.start_transaction())
                await things.insert_one({}, session=session)
                with pytest.raises(DeadlineExceeded):
                    async with deadline(0):
                        await things.insert_one({}, session=session)
                await session.abort_transaction()
            begun, aborted = (event for event in events if isinstance(event, AttemptEnded))
            assert ("abort_transaction", begun.address) == (aborted.operation, aborted.address)


@pytest.mark.parametrize("lost", ["insert", "abortTransaction"])
async def test_an_abort_that_another_router_is_asked_for(cluster, client_class, collection, lost):
    """That one says that there is none; the one that knows the transaction is asked again."""
    events = []
    hooks = [every_event(events.append)]
    async with client_class(cluster.uri, hooks=hooks, w="majority") as client:
        things = client[collection.database.name][collection.name]
        for document in range(5):
            await known(client, *cluster.mongoses)
            events.clear()
            async with await client.start_session() as session:
                await settled(session.start_transaction())
                await things.update_one(
                    {"_id": document}, {"$set": {"n": 1}}, True, session=session
                )
                # The abort before may end only now.
                [begun] = (
                    event
                    for event in events
                    if isinstance(event, AttemptEnded) and event.operation == "update_one"
                )
                [knows] = (each for each in cluster.mongoses if address_of(each) == begun.address)
                [other] = (each for each in cluster.mongoses if each is not knows)
                async with (
                    cluster.faults.drop_request(lost, member=knows),
                    cluster.faults.error(
                        251, "abortTransaction", member=other, times=None, must_fire=False
                    ),
                ):
                    if lost == "insert":
                        with pytest.raises(AutoReconnect):
                            await things.insert_one({}, session=session)
                    await session.abort_transaction()
                    async with deadline(20):  # of the minute in which servers keep it
                        await things.update_one({"_id": document}, {"$set": {"n": 2}}, True)
