"""A client's start, what probes are told of it, and how it is drained."""

import asyncio
import logging
import math
from decimal import Decimal

import pytest
from bson.codec_options import CodecOptions, TypeEncoder, TypeRegistry
from pymongo import MongoClient
from pymongo.errors import (
    AutoReconnect,
    ConnectionFailure,
    InvalidOperation,
    OperationFailure,
    ServerSelectionTimeoutError,
)

from aioretry import (
    ClientDraining,
    DeadlineExceeded,
    Outcome,
    attempts_of,
    connection_counts,
    deadline,
    drain,
    liveness,
    outcome_of,
    readiness,
    ready,
    resolve,
    run_transaction,
    transaction,
)
from aioretry._faces import settled
from aioretry.idempotent import Keys, PendingUpdates, VersionedDocuments, insert_once
from aioretry.streams import Aggregator, ChangeStreamSource
from tests.clients import close
from tests.conftest import MAJORITY
from tests.integration.relaying import Relay

NOBODY = "mongodb://127.0.0.1:1/?replicaSet=none&serverSelectionTimeoutMS=200"
GUARD = 30


@pytest.fixture
async def drained(replica_set, client_class):
    """A client for the test to drain, and to close."""
    async with client_class(replica_set.uri) as client:
        yield client


@pytest.fixture
def things(drained, collection):
    """The test's collection, of that client."""
    return drained[collection.database.name].get_collection(collection.name, write_concern=MAJORITY)


async def refused(begin):
    """See that an operation may not begin."""
    with pytest.raises(ClientDraining) as excinfo:
        await begin()
    assert (Outcome.NOT_APPLIED, ()) == (outcome_of(excinfo.value), attempts_of(excinfo.value))


async def began_to_drain(client):
    """Wait until a drain of a client has begun."""
    while not client._write_path.under_way.is_draining:
        await asyncio.sleep(0)


class TestReady:
    async def test_connections(self, replica_set, client_class):
        """As many are made as are to be kept, before the first operation asks for one."""
        async with client_class(replica_set.uri, minPoolSize=7) as client:
            await ready(client, 20)
            primary = await replica_set.primary()
            counts = connection_counts(client)[(primary.host, primary.port)]
            assert counts.used + counts.idle >= 7
            assert readiness(client)

    async def test_connections_that_are_not_made(self, replica_set, client_class):
        """It is an error that tells how many."""
        primary = await replica_set.primary()
        async with Relay(primary.host, primary.port) as relay:
            uri = f"mongodb://{relay.address}/?directConnection=true&minPoolSize=50"
            async with client_class(uri, heartbeatFrequencyMS=500) as client:
                relay.at_most(10)
                with pytest.raises(DeadlineExceeded, match="of the minPoolSize=50 connections"):
                    await ready(client, 2)

    async def test_nobody_is_there(self, client_class):
        """The error is the driver's own, and comes when the time is over, not before."""
        async with client_class(NOBODY) as client:
            began = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionFailure):
                await ready(client, 0.7)
            assert asyncio.get_running_loop().time() - began >= 0.5
            assert not readiness(client)

    async def test_a_server_that_comes_late(self, replica_set, client_class):
        """It is waited for over several selections of a server."""
        primary = await replica_set.primary()
        async with Relay(primary.host, primary.port) as relay:
            relay.stop_listening()
            uri = f"mongodb://{relay.address}/?directConnection=true&serverSelectionTimeoutMS=200"
            async with client_class(uri) as client:
                waiting = asyncio.create_task(ready(client, GUARD))
                await asyncio.wait([waiting], timeout=0.5)
                assert not waiting.done()
                await relay.listen(relay.port)
                await waiting
                assert readiness(client)

    async def test_wrong_credentials(self, replica_set, client_class):
        """No time is lost with what can't become better."""
        async with client_class(replica_set.uri, username="nobody", password="wrong") as client:
            with pytest.raises(OperationFailure, match="Authentication failed"):
                await ready(client, GUARD)

    async def test_a_nearer_deadline(self, client_class):
        """It counts."""
        async with client_class(NOBODY) as client, asyncio.timeout(5):
            with pytest.raises((ConnectionFailure, DeadlineExceeded)):
                async with deadline(0.3):
                    await ready(client, 60)

    async def test_a_client_that_is_drained(self, replica_set, drained):
        """It will never write, also if it is drained while its servers are looked for."""
        primary = await replica_set.primary()
        async with replica_set.faults.delay(0.3, "ping", member=primary) as delay:
            waiting = asyncio.create_task(ready(drained, GUARD))
            await delay.wait_until_fired()
            await drain(drained)
            with pytest.raises(ClientDraining):
                await waiting
        with pytest.raises(ClientDraining):
            await ready(drained, GUARD)


class TestReadiness:
    async def test_a_client_that_nobody_used(self, client_class, replica_set):
        """To ask makes it look for its servers."""
        async with client_class(replica_set.uri) as client:
            assert not readiness(client)
            async with asyncio.timeout(GUARD):
                while not readiness(client):
                    await asyncio.sleep(0.01)

    async def test_without_a_primary(self, client_class, replica_set):
        """It is ready for as long as the grace lasts, and ready again when a server is there."""
        async with client_class(replica_set.uri, heartbeatFrequencyMS=500) as client:
            await ready(client)
            assert readiness(client, grace=0.001)
            killed = await replica_set.primary()
            await replica_set.kill(killed)
            async with asyncio.timeout(GUARD):
                while readiness(client, grace=0.001):
                    await asyncio.sleep(0.01)
            assert readiness(client)
            assert readiness(client, grace=math.inf)
            assert "no server has taken writes for" in readiness(client).reason
            assert liveness(client)
            await replica_set.restart(killed)
            async with asyncio.timeout(GUARD):
                while not readiness(client, grace=0.001):
                    await asyncio.sleep(0.01)

    async def test_from_the_start(self, client_class, replica_set):
        """A client that was ready is so for the grace, though nobody has asked meanwhile."""
        primary = await replica_set.primary()
        async with Relay(primary.host, primary.port) as relay:
            uri = f"mongodb://{relay.address}/?directConnection=true&heartbeatFrequencyMS=500"
            async with client_class(uri) as client:
                await ready(client)
                relay.stop_listening()
                relay.cut_all()
                async with asyncio.timeout(GUARD):
                    while client._write_path.writable():  # until the driver knows
                        await asyncio.sleep(0.01)
                assert "of grace" in readiness(client).reason
                assert readiness(client)

    async def test_after_the_end(self, drained):
        """One that is drained or closed gets no requests any more; a closed one is of no use."""
        await ready(drained)
        await drain(drained)
        assert not readiness(drained)
        assert liveness(drained)
        await close(drained)
        assert not readiness(drained)
        assert not liveness(drained)
        assert "close" in liveness(drained).reason

    async def test_a_direct_connection_to_a_secondary(self, client_class, three_members):
        """It takes no writes."""
        primary = await three_members.primary()
        other = next(each for each in three_members.members if each is not primary)
        uri = f"mongodb://{other.host}:{other.port}/?directConnection=true"
        async with client_class(uri) as client:
            with pytest.raises(ServerSelectionTimeoutError, match="takes no writes"):
                await ready(client, 1)
            assert not readiness(client, grace=math.inf)

    async def test_on_a_thread(self, client):
        """A thread without the loop can't know of it."""
        await ready(client)
        for ask in readiness, liveness:
            with pytest.raises(RuntimeError):
                await asyncio.to_thread(ask, client)

    async def test_on_another_loop(self, client):
        """A process whose client belongs to a loop that is gone is of no use."""
        await ready(client)

        async def ask():
            return liveness(client), readiness(client)

        found = await asyncio.to_thread(asyncio.run, ask())
        assert not any(found)
        assert all("loop" in each.reason for each in found)


class TestDraining:
    async def test_what_travels_together_is_sent(self, drained, things, stored):
        """However many wait; nothing is refused that had begun."""
        together = things.coalesced()
        writes = [together.insert_one({"_id": n}) for n in range(5000)]
        done = await drain(drained, GUARD)
        assert done.is_complete
        assert all(write.done() and write.exception() is None for write in writes)
        assert stored.count_documents({}) == 5000

    async def test_nothing_new(self, drained, things, stored):
        """Each kind of operation is refused; nothing of it was sent."""
        await things.insert_one({"_id": 1})
        await drain(drained)
        await refused(lambda: things.insert_one({"_id": 2}))
        await refused(lambda: things.insert_many([{"_id": 3}]))
        await refused(lambda: things.find_one({}))
        await refused(lambda: things.coalesced().insert_one({"_id": 4}))
        await refused(lambda: things.update_one({"_id": 1}, {"$set": {"n": 1}}))
        await refused(lambda: insert_once(things, {"_id": 5}))
        with pytest.raises(ClientDraining):
            async with things.operation():
                raise AssertionError
        async with await drained.start_session() as session:
            with pytest.raises(ClientDraining):
                session.start_transaction()
            with pytest.raises(ClientDraining):
                await session.with_transaction(lambda _session: things.find_one({}))
        assert [{"_id": 1}] == list(stored.find())

    async def test_a_transaction_ends(self, drained, things, stored):
        """Its next statements and its commit are part of it."""
        async with await drained.start_session() as session:
            started = session.start_transaction()
            await things.insert_one({"_id": 1}, session=session)
            draining = asyncio.create_task(drain(drained, GUARD))
            await began_to_drain(drained)
            await refused(lambda: things.insert_one({"_id": 9}))
            await things.insert_one({"_id": 2}, session=session)
            assert not draining.done()
            del started
            await session.commit_transaction()
            assert (await draining).is_complete
        assert stored.count_documents({}) == 2

    async def test_blocks_end(self, drained, things, stored):
        """So do the runs of a callback, an operation, and a recipe of several writes."""
        inside, go_on = asyncio.Semaphore(0), asyncio.Event()

        async def run(session):
            await things.insert_one({"_id": "callback"}, session=session)
            inside.release()
            await go_on.wait()
            await things.insert_one({"_id": "callback again"}, session=session)

        async def transact():
            async with await drained.start_session() as session:
                await session.with_transaction(run)

        async def operate():
            async with things.operation() as operation:
                await operation.insert_one({"_id": "operation"})
                inside.release()
                await go_on.wait()
                await operation.insert_one({"_id": "operation again"})
                await things.insert_one({"_id": "beside it"})

        async with asyncio.timeout(GUARD), asyncio.TaskGroup() as group:
            group.create_task(transact())
            group.create_task(operate())
            for _ in range(2):
                await inside.acquire()
            draining = group.create_task(drain(drained, GUARD))
            await began_to_drain(drained)
            assert not draining.done()
            go_on.set()
        assert draining.result().is_complete
        assert stored.count_documents({}) == 5

    async def test_what_can_not_end(self, replica_set, drained, things, stored, caplog):
        """It is given up when the time is over, and listed with what is known of it."""
        await things.insert_one({"_id": "first"})
        async with replica_set.faults.hang("insert", applied=True, times=1) as hang:
            write = asyncio.ensure_future(things.insert_one({"_id": "content"}))
            await hang.wait_until_fired()
            began = asyncio.get_running_loop().time()
            with caplog.at_level(logging.WARNING, "aioretry"):
                done = await drain(drained, 0.3)
            took = asyncio.get_running_loop().time() - began
        assert 0.3 <= took < 1.5
        assert ([write.exception()], 0, False) == (
            list(done.unknown),
            done.blocks,
            done.is_complete,
        )
        assert done.errors == done.unknown
        with pytest.raises(InvalidOperation) as excinfo:
            await write
        assert [True] == [attempt.sent for attempt in attempts_of(excinfo.value)]
        [told] = [record.getMessage() for record in caplog.records if "drain" in record.msg]
        assert "1 operations were given up (outcomes: unknown: 1)" in told.replace(
            "1 unknown", "unknown: 1"
        )
        assert "content" not in caplog.text
        assert {"first", "content"} == {each["_id"] for each in stored.find()}

    async def test_blocks_that_can_not_end(self, drained, things):
        """They are counted; nothing of them may begin any more once the time is over."""
        session = await drained.start_session()
        session.start_transaction()
        await things.insert_one({"_id": 1}, session=session)
        done = await drain(drained, 0.1)
        assert (done.errors, done.blocks) == ((), 1)
        with pytest.raises(InvalidOperation):
            await things.insert_one({"_id": 2}, session=session)
        with pytest.raises(InvalidOperation):
            await session.commit_transaction()
        await session.end_session()

    async def test_what_waits_for_a_server(self, client_class):
        """It is not applied."""
        async with client_class(NOBODY, serverSelectionTimeoutMS=60_000) as client:
            writes = [client.db.things.insert_one({}) for _ in range(10)]
            done = await drain(client, 0.1)
            assert (len(done.errors), done.unknown) == (10, ())
            assert {Outcome.NOT_APPLIED} == {outcome_of(write.exception()) for write in writes}

    async def test_twice(self, drained, things):
        """The second one waits for the same, and finds the same."""
        write = things.insert_one({"_id": 1})
        assert [True, True] == [
            done.is_complete for done in await asyncio.gather(drain(drained), drain(drained))
        ]
        assert write.done()

    async def test_a_client_that_nobody_used(self, drained, things):
        """There is nothing to end."""
        assert (await drain(drained)).is_complete
        await refused(lambda: things.insert_one({}))

    async def test_resolving(self, replica_set, drained, things, stored):
        """It writes, and so it is refused; another client resolves nothing of this one's."""
        await things.insert_one({"_id": 0})
        async with replica_set.faults.drop_request("insert", times=2):
            with pytest.raises(AutoReconnect) as failed:
                await things.insert_one({"_id": 1})
        assert (await drain(drained)).is_complete
        await refused(lambda: resolve(failed.value))
        assert stored.count_documents({}) == 1

    async def test_two_at_once(self, replica_set, drained, things):
        """What one has given up, the other one reports, too; so does a later one."""
        await things.insert_one({"_id": 0})
        async with replica_set.faults.hang("insert", times=1) as hang:
            write = asyncio.ensure_future(things.insert_one({"_id": 1}))
            await hang.wait_until_fired()
            first, second = await asyncio.gather(drain(drained, GUARD), drain(drained, 0.2))
        assert first == second == await drain(drained)
        assert (write.exception(),) == first.unknown == first.errors

    async def test_closed_meanwhile(self, replica_set, drained, things):
        """What close() gives up is reported."""
        await things.insert_one({"_id": 0})
        async with replica_set.faults.hang("insert", times=1) as hang:
            write = asyncio.ensure_future(things.insert_one({"_id": 1}))
            await hang.wait_until_fired()
            draining = asyncio.create_task(drain(drained, GUARD))
            await began_to_drain(drained)
            await close(drained)
            done = await draining
        assert (write.exception(),) == done.unknown == done.errors
        assert not done.unended

    @pytest.mark.parametrize("how", ["cancelled", "two"])
    async def test_while_aborts_hang(self, replica_set, drained, things, how):
        """What is left is given up all the same, and each drain tells of the same."""
        await things.insert_one({"_id": 0})
        session = await drained.start_session()
        session.start_transaction()
        await things.insert_one({"_id": 1}, session=session)
        faults = replica_set.faults
        async with (
            faults.hang("abortTransaction", times=None) as aborting,
            faults.hang("insert") as hang,
            asyncio.timeout(GUARD),
        ):
            write = asyncio.ensure_future(things.insert_one({"_id": 2}))
            await hang.wait_until_fired()
            first = asyncio.create_task(drain(drained, 0.1))
            await aborting.wait_until_fired()
            if how == "cancelled":
                first.cancel()
                await asyncio.wait([first])
            second = await drain(drained, 0.1)
            assert (write.exception(),) == second.errors == second.unknown
            assert (second.blocks, second.unended) == (1, 0)
            if how == "two":
                assert second == await first
        await session.end_session()

    async def test_each_is_counted_once(self, replica_set, drained, things):
        """Of several that travel together, those, and not their command."""
        together = things.coalesced()
        await together.insert_one({"_id": 0})
        async with replica_set.faults.hang("insert", times=1) as hang:
            writes = [together.insert_one({"_id": n}) for n in (1, 2, 3)]
            await hang.wait_until_fired()
            done = await drain(drained, 0.2)
        assert {write.exception() for write in writes} == {*done.errors} == {*done.unknown}
        assert (len(done.errors), done.blocks, done.unended) == (3, 0, 0)

    async def test_a_transaction_is_counted_once(self, drained, things):
        """Its block and its session are one."""
        inside = asyncio.Event()

        async def run(session):
            await things.find_one({}, session=session)
            inside.set()
            await asyncio.get_running_loop().create_future()

        running = asyncio.create_task(run_transaction(drained, run))
        await inside.wait()
        done = await drain(drained, 0.2)
        assert (done.errors, done.blocks, done.unended) == ((), 1, 0)
        running.cancel()
        with pytest.raises((asyncio.CancelledError, InvalidOperation)):
            await running

    async def test_a_transaction_bars_nobody(self, replica_set, drained, things, stored):
        """One that is left is aborted, as far as there is time."""
        await things.insert_one({"_id": 1, "n": 0})
        session = await drained.start_session()
        session.start_transaction()
        await things.update_one({"_id": 1}, {"$inc": {"n": 10}}, session=session)
        assert (await drain(drained, 0.1)).blocks == 1
        await close(drained)
        assert stored.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}, maxTimeMS=10_000)
        assert stored.find_one({"_id": 1})["n"] == 1

    @pytest.mark.parametrize("way", ["block", "run", "with_transaction", "start"])
    async def test_who_is_left_is_told(self, drained, things, stored, way):
        """A block that sends nothing more is not told that its transaction was committed."""
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def work(session):
            await things.insert_one({"_id": 1}, session=session)
            inside.set()
            await go_on.wait()

        async def transact():
            if way == "block":
                async with transaction(drained) as session:
                    await work(session)
            elif way == "run":
                await run_transaction(drained, work)
            else:
                async with await drained.start_session() as session:
                    if way == "with_transaction":
                        await session.with_transaction(work)
                        return
                    async with session.start_transaction():
                        await work(session)

        async with asyncio.timeout(GUARD):
            left = asyncio.create_task(transact())
            await inside.wait()
            assert (await drain(drained, 0.1)).blocks == 1
            go_on.set()
            with pytest.raises(ClientDraining, match="it is aborted") as excinfo:
                await left
        assert outcome_of(excinfo.value) is Outcome.NOT_APPLIED
        assert not stored.count_documents({})

    async def test_nothing_outside_of_a_transaction(self, replica_set, drained, things, stored):
        """The driver's own command is no write of its own while its transaction is aborted."""
        database, name = things.database, things.name

        async def transact():
            async with transaction(drained) as session:
                await things.insert_one({"_id": 1}, session=session)
                inside.set()
                await go_on.wait()
                await database.command("insert", name, documents=[{"_id": 2}], session=session)

        inside, go_on = asyncio.Event(), asyncio.Event()
        left = asyncio.create_task(transact())
        async with replica_set.faults.hang("abortTransaction", times=None) as hang:
            await inside.wait()
            draining = asyncio.create_task(drain(drained, 0.1))
            await hang.wait_until_fired()
            go_on.set()
            with pytest.raises(ClientDraining):
                await left
            assert (await draining).blocks == 1
        assert not stored.count_documents({})

    async def test_an_abort_under_way(self, replica_set, drained, things):
        """It is waited for, and reported where it can't end."""
        session = await drained.start_session()
        session.start_transaction()
        await things.insert_one({"_id": 1}, session=session)
        async with replica_set.faults.hang("abortTransaction", times=None) as hang:
            aborting = asyncio.ensure_future(session.abort_transaction())
            await hang.wait_until_fired()
            aborting.cancel()
            await asyncio.wait([aborting])
            done = await drain(drained, 0.2)
        assert (done.errors, done.blocks) == ((), 1)
        await session.end_session()

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
    async def test_what_was_never_begun(self, replica_set, drained, things, kind):
        """What an encoder raises that is no Exception leaves nothing that would be waited for."""

        class Raising(TypeEncoder):
            python_type = Decimal

            def transform_python(self, value):
                raise kind

        options = CodecOptions(type_registry=TypeRegistry([Raising()]))
        mine = things.with_options(codec_options=options)
        for begin in (mine.insert_one, mine.coalesced().insert_one):
            with pytest.raises(kind):
                await begin({"value": Decimal(1)})
        assert not drained._write_path.under_way.operations
        assert (await drain(drained, GUARD)).is_complete


class TestDrainingRecipes:
    """Several writes that are one: it ends whatever the moment in which the client is drained."""

    @pytest.fixture
    async def keys(self):
        async with Keys(b"0123456789abcdef", "tests") as keys:
            yield keys

    async def test_pending_updates(self, replica_set, drained, things, stored):
        """The second command of an update is sent."""
        await things.insert_one({"_id": 1, "n": 0})
        async with replica_set.faults.delay(0.3, "update", times=1) as delay:
            applying = asyncio.create_task(PendingUpdates(things).apply(1, {"$inc": {"n": 1}}))
            await delay.wait_until_fired()
            assert (await drain(drained, GUARD)).is_complete
        assert (await applying).matched
        assert stored.find_one({"_id": 1}) == {"_id": 1, "n": 1, "pending": []}

    @pytest.mark.parametrize("durable", [False, True])
    async def test_a_keyed_operation(self, drained, things, stored, keys, durable):
        """Its first write may come after the drain has begun."""
        async with things.operation(key=keys(things.name, durable=durable)) as operation:
            draining = asyncio.create_task(drain(drained, GUARD))
            await began_to_drain(drained)
            await operation.insert_one({"n": 1})
        assert (await draining).is_complete
        assert stored.count_documents({"n": 1}) == 1

    async def test_versioned_documents(self, drained, things, stored):
        """What was read is changed and saved."""
        documents = VersionedDocuments(things)
        await documents.create({"_id": 1, "n": 0})
        drains = []

        async def change(document):
            drains.append(asyncio.create_task(drain(drained, GUARD)))
            await began_to_drain(drained)
            assert not drains[0].done()
            return {**document, "n": 1}

        assert (await documents.update(1, change)).written
        assert (await drains[0]).is_complete
        assert stored.find_one({"_id": 1})["n"] == 1

    async def test_once(self, drained, things, stored, keys):
        """The work is committed, and who waits for the same gets its answer."""
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def work(session):
            await things.insert_one({"n": 1}, session=session)
            inside.set()
            await go_on.wait()
            return {"n": 1}

        calls = [
            asyncio.create_task(keys.once(things.name, work, database=things.database))
            for _ in range(2)
        ]
        await inside.wait()
        draining = asyncio.create_task(drain(drained, GUARD))
        await began_to_drain(drained)
        go_on.set()
        assert {False, True} == {(await call).replayed for call in calls}
        assert (await draining).is_complete
        assert stored.count_documents({"n": 1}) == 1
        await refused(lambda: keys.once("two", work, database=things.database))

    async def test_streams(self, drained, things, stored, plain):
        """One that follows ends with its next batch, and gives its lease back."""
        await things.insert_one({"_id": 1})
        database = things.database
        target = database.get_collection(f"{things.name}_target", write_concern=MAJORITY)
        await database.command(
            {"collMod": things.name, "changeStreamPreAndPostImages": {"enabled": True}}
        )
        source, name = ChangeStreamSource(things), things.name
        aggregator = Aggregator(name, source, lambda change: [("all", {"n": 1})], target)
        await aggregator.rebuild()
        following = asyncio.create_task(aggregator.run())
        leases = plain[database.name]["aioretry.leases"]
        held = {"_id.aggregator": name, "owner": {"$exists": True}}
        async with asyncio.timeout(GUARD):
            while not leases.find_one(held):
                await asyncio.sleep(0.02)
        assert (await drain(drained, GUARD)).is_complete
        with pytest.raises(ClientDraining):
            await following
        assert not leases.find_one(held)
        with pytest.raises(ClientDraining):
            await aggregator.rebuild()


@pytest.mark.parametrize("function", [ready, readiness, liveness, drain])
async def test_other_clients(function):
    """A client of another class is refused, by a name that helps."""
    with MongoClient(NOBODY) as other, pytest.raises(TypeError, match="not MongoClient"):
        await settled(function(other))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (ready, "timeout"),
        (drain, "timeout"),
        (lambda client, value: readiness(client, grace=value), "grace"),
    ],
)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (math.nan, ValueError),
        ("1", TypeError),
        (True, TypeError),
    ],
)
async def test_bad_times(client, call, name, value, error):
    """The argument is named; nothing is drained by it."""
    with pytest.raises(error, match=name):
        await settled(call(client, value))
    await client.db.things.find_one({})
