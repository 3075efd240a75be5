"""Work that is done once: whom it keeps waiting, and what it makes of work that is wrong."""

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import anyio
import pytest
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidBSON
from pymongo import MongoClient
from pymongo.errors import (
    ConfigurationError,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteConcernError,
)

from aioretry import DeadlineExceeded, Outcome, deadline, outcome_of
from aioretry._writes import transactions
from aioretry.idempotent import IdempotencyConflict, KeyInUseError, Keys, _once
from aioretry.testing import FakeMongoses, Standalone
from tests.idempotent.keyed import NAMESPACE, SECRET, keyed_collection

DUPLICATE_KEY = 11001  # an old code of it, which needs no details
WRITE_CONFLICT = 112
TRANSIENT = "TransientTransactionError"
OTHER_INDEX = 85
DEAD = "dead"


class Hanging:
    """Work that writes and does not end by itself."""

    def __init__(self, collection):
        self.collection = collection
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.was_cancelled = False

    async def __call__(self, session):
        await self.collection.insert_one({"by": "hanging"}, session=session)
        self.entered.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return {}


class Scene:
    """One process's keys, for a collection."""

    def __init__(self, collection, **options):
        self.collection = collection
        self.keys = Keys(SECRET, NAMESPACE, **options)

    async def insert(self, session):
        """Good work."""
        await self.collection.insert_one({"by": "good"}, session=session)
        return {"n": 1}

    async def once(self, key, work=None, timeout=60):
        """Do it for a key of the collection's own."""
        async with deadline(timeout):
            return await self.keys.once(
                f"{self.collection.name}-{key}",
                work or self.insert,
                database=self.collection.database,
            )


class OldClock(datetime):
    """A clock that is wrong."""

    @classmethod
    def now(cls, tz=None):
        return datetime(2000, 1, 1, tzinfo=tz)


def refused_record(scene, replica_set, code, **options):
    """A fault: the record of an answer is refused."""
    namespace = f"{scene.collection.database.name}.aioretry.answers"
    return replica_set.faults.error(code, "insert", namespace=namespace, **options)


@pytest.fixture
async def scene(collection):
    """Room for one call at a time; the collections are there."""
    await collection.database.create_collection(collection.name)
    scene = Scene(collection, at_once=1)
    await scene.once("warm")
    await collection.delete_many({})
    return scene


@pytest.fixture
async def other(scene, replica_set, client_class):
    """Another process's, as it were: they share nothing but the servers and the secret."""
    async with client_class(replica_set.uri) as client:
        other = Scene(keyed_collection(client, scene.collection.name))
        assert (await other.once("warm")).replayed
        yield other


@asynccontextmanager
async def process_in_work(uri, name, keys):
    """A process whose transactions for some keys are open; the block may kill it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.idempotent.child"),
        "tests.idempotent.once_waiting:wait_in_work",
        f"{uri}{'&' if '?' in uri else '/?'}appName={DEAD}",
        json.dumps({"name": name, "keys": keys}),
        stdout=PIPE,
    )
    try:
        assert await process.stdout.readline() == b"written\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def kill_sessions(uri):
    """End the dead process's transactions now, as the server does after a minute."""
    with MongoClient(uri) as plain:
        found = plain.admin.aggregate(
            [
                {"$currentOp": {"idleSessions": True, "allUsers": True}},
                {"$match": {"appName": DEAD, "transaction": {"$exists": True}}},
            ]
        )
        sessions = [{"id": each["lsid"]["id"]} for each in found]
        plain.admin.command("killSessions", sessions)
    return len(sessions)


@contextlib.contextmanager
def no_replication(replica_set):
    """Secondaries that are well, and copy nothing."""

    def set_all(mode):
        for member in replica_set.members:
            with MongoClient(member.address, directConnection=True) as client:
                if not client.is_primary:
                    client.admin.command("configureFailPoint", "stopReplProducer", mode=mode)

    set_all("alwaysOn")
    try:
        yield
    finally:
        set_all("off")


def aborted(plain):
    """How many transactions the primary has aborted."""
    return plain.admin.command("serverStatus")["transactions"]["totalAborted"]


@pytest.mark.parametrize("handling", [False, True])
async def test_a_commit_that_was_not_confirmed(scene, replica_set, stored, handling):
    """Its work may be done, whatever the server labels, and whatever else was handled meanwhile."""
    await scene.collection.insert_one({"_id": 7})

    async def call():
        with replica_set.faults.write_concern_error(11601, "commitTransaction", labels=()):
            await scene.once("a")

    async def call_while_handling():
        try:
            await scene.collection.insert_one({"_id": 7})
        except DuplicateKeyError:
            await call()

    with pytest.raises(WriteConcernError) as caught:
        await (call_while_handling() if handling else call())
    assert Outcome.UNKNOWN is outcome_of(caught.value)
    assert (await scene.once("a")).replayed
    assert 1 == stored.count_documents({"by": "good"})


async def test_an_error_of_the_work(scene):
    """Nothing is applied, whatever error was handled meanwhile."""

    async def work(session):
        await scene.insert(session)
        raise OperationFailure("no", 9)

    with pytest.raises(OperationFailure) as caught:
        await scene.once("a", work)
    assert Outcome.NOT_APPLIED is outcome_of(caught.value)


class TestInVain:
    """Work that is run once more, although another process has done it."""

    async def sell(self, scene, runs=None):
        """Sell the only one there is."""

        async def work(session):
            sold = {"_id": "the only one"}
            if runs is not None:
                runs.append(session)
            if await scene.collection.find_one(sold, session=session):
                raise LookupError("it is sold")
            await scene.collection.insert_one(sold, session=session)
            return {"sold": True}

        return await scene.once("a", work)

    async def test_that_fails_because_it_is_done(self, scene, other):
        """The error is the other call's doing, and its answer is the answer."""
        assert not (await self.sell(scene)).replayed
        answer = await self.sell(other)
        assert (answer.value, answer.replayed) == ({"sold": True}, True)

    async def test_that_meets_its_own_duplicate(self, scene, other):
        """So is an error of the database's, whether the work lets it out or not."""

        async def insert(session):
            await scene.collection.insert_one({"_id": "the only one"}, session=session)
            return {"n": 1}

        async def insert_or_not(session):
            with contextlib.suppress(DuplicateKeyError):
                await insert(session)
            return {"n": 2}

        await scene.once("a", insert)
        for work in insert, insert_or_not:
            answer = await other.once("a", work)
            assert (answer.value, answer.replayed) == ({"n": 1}, True)

    async def test_that_fails_by_itself(self, scene):
        """Where no call has done it, the error is the work's."""
        await scene.collection.insert_one({"_id": "the only one"})
        with pytest.raises(LookupError) as caught:
            await self.sell(scene)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)

    async def test_for_another_payload(self, scene, other, stored):
        """What the work raises for it is not told, nor is it told as a success."""
        await scene.once("a")

        async def work(session):
            raise LookupError

        for each in work, other.insert:
            with pytest.raises(IdempotencyConflict) as caught:
                await other.keys.once(
                    f"{scene.collection.name}-a",
                    each,
                    database=other.collection.database,
                    payload=b"other",
                )
            assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert stored.count_documents({}) == 1

    async def test_when_nobody_knows_whether_it_is_done(self, scene, replica_set):
        """Its error is not told while the record can't be looked for."""
        await self.sell(scene)
        async with replica_set.fail_command("find", error_code=9, mode={"skip": 1}):
            with pytest.raises(OperationFailure) as caught:
                await self.sell(scene)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert caught.value.code == 9
        assert (await self.sell(scene)).replayed

    @pytest.mark.usefixtures("three_members")
    async def test_before_a_majority_has_it(self, scene, other, replica_set):
        """What no majority has is seen by the work, so its answer is waited for."""
        runs = []
        with no_replication(replica_set):
            first = asyncio.create_task(self.sell(scene))
            with anyio.fail_after(60):
                while not await other.collection.find_one():
                    await anyio.sleep(0.05)
            second = asyncio.create_task(self.sell(other, runs))
            with anyio.fail_after(60):
                while not runs:
                    await anyio.sleep(0.05)
            done, _ = await asyncio.wait({second}, timeout=0.5)
            assert not done
        assert [False, True] == [(await call).replayed for call in (first, second)]


class TestWaiting:
    async def test_hung_work_is_given_up(self, scene, stored):
        """Work that does not obey the deadline is cancelled; its key and its turn are free then."""
        hanging = Hanging(scene.collection)
        with pytest.raises(DeadlineExceeded):
            await scene.once("hung", hanging, timeout=3)
        assert hanging.was_cancelled
        for key in "other", "hung":
            assert not (await scene.once(key)).replayed
        assert [each["by"] for each in stored.find()] == ["good"] * 2

    async def test_cancelled_before_its_commit(self, scene):
        """Work that does not mind may be done yet; what waits for its turn never is."""
        hanging = Hanging(scene.collection)
        at_work = asyncio.create_task(scene.once("a", hanging))
        await hanging.entered.wait()
        waiting = asyncio.create_task(scene.once("b"))
        await asyncio.sleep(0)
        for call, outcome in (waiting, Outcome.NOT_APPLIED), (at_work, Outcome.UNKNOWN):
            call.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await call
            assert outcome is outcome_of(caught.value)

    async def test_cancelled_in_its_commit(self, scene, replica_set, stored):
        """Nobody knows then, and the next call with the key does."""
        async with replica_set.faults.hang("commitTransaction", applied=True) as committing:
            first = asyncio.create_task(scene.once("a"))
            await committing.wait_until_fired()
            first.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await first
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        assert (await scene.once("a")).replayed
        assert 1 == stored.count_documents({})

    async def test_late_in_its_commit(self, scene, replica_set):
        """Nobody knows then either, and what an application raises from the error tells so."""
        async with replica_set.faults.hang("commitTransaction", applied=True):
            with pytest.raises(DeadlineExceeded) as caught:
                await scene.once("a", timeout=3)
        wrapped = RuntimeError("the order may be placed")
        wrapped.__cause__ = caught.value
        assert outcome_of(wrapped) is Outcome.UNKNOWN
        assert (await scene.once("a")).replayed

    async def test_late_after_a_commit_in_doubt(self, scene, replica_set, client_class):
        """A router's word that a commit came to nothing is none, also when time is over later."""
        async with FakeMongoses(replica_set) as cluster, client_class(cluster.uri) as client:
            other, hanging = Scene(keyed_collection(client, scene.collection.name)), []

            async def work(session):
                await other.insert(session)
                if hanging:
                    await asyncio.Event().wait()
                hanging.append(session)
                return {}

            labels = [TRANSIENT]
            async with cluster.faults.error(251, "commitTransaction", labels=labels):
                with pytest.raises(DeadlineExceeded) as caught:
                    await other.once("a", work, timeout=3)
        assert Outcome.UNKNOWN is outcome_of(caught.value)

    async def test_after_a_killed_process(self, scene, replica_set, plain, stored):
        """What a dead process had begun keeps those waiting that want the same, and no others."""
        name = scene.collection.name
        dead = ["a", "b", "c"]
        full = [f"{name}-{key}" for key in dead]

        def take(key):
            async def work(session):
                taken = {"_id": f"{name}-{key}"}
                good = {"$set": {"by": "good"}}
                await scene.collection.update_one(taken, good, upsert=True, session=session)
                return {}

            return scene.once(key, work)

        async with process_in_work(replica_set.uri, name, full) as process:
            try:
                process.kill()
                await process.wait()
                before = aborted(plain)
                repeated = [asyncio.create_task(take(key)) for key in dead]
                with anyio.fail_after(60):
                    while aborted(plain) < before + len(dead):  # they are being refused
                        await anyio.sleep(0.05)
                for n in range(10):
                    assert not (await scene.once(f"fresh-{n}")).replayed
                assert not any(call.done() for call in repeated)
            finally:
                killed = await kill_sessions(replica_set.uri)
        assert killed == len(dead)
        answers = await asyncio.gather(*repeated)
        assert [answer.replayed for answer in answers] == [False] * 3
        assert [each["by"] for each in stored.find()] == ["good"] * 13

    async def test_for_one_document(self, scene, plain, stored):
        """Calls that all want one document get it one after the other, and few begin in vain."""
        calls, counter = 40, {"_id": "counter"}
        scene.keys = Keys(SECRET, NAMESPACE)
        await scene.collection.insert_one({**counter, "n": 0})

        async def count(session):
            await scene.collection.update_one(counter, {"$inc": {"n": 1}}, session=session)
            return {}

        before = aborted(plain)
        await asyncio.gather(*(scene.once(key, count) for key in range(calls)))
        assert {**counter, "n": calls} == stored.find_one(counter)
        assert aborted(plain) - before <= 2 * calls

    async def test_while_another_process_commits(self, scene, replica_set, monkeypatch, other):
        """It is waited for, but not without end; what it has done is the answer then."""
        async with replica_set.faults.hang("commitTransaction") as committing:
            first = asyncio.create_task(scene.once("a"))
            await committing.wait_until_fired()
            with pytest.raises(KeyInUseError) as caught:
                await other.once("a", timeout=1)
            assert Outcome.NOT_APPLIED is outcome_of(caught.value)
            monkeypatch.setattr(transactions, "RETRY_LIMIT", 0.5)
            with pytest.raises(KeyInUseError):
                await other.once("a", timeout=None)
        assert not (await first).replayed
        assert (await other.once("a")).replayed

    async def test_late_in_its_commit_after_it_waited(self, scene, replica_set):
        """It has met another call's record, which is gone; nobody knows of its own commit."""
        conflict = refused_record(scene, replica_set, WRITE_CONFLICT, times=1, labels=[TRANSIENT])
        async with conflict, replica_set.faults.hang("commitTransaction", applied=True):
            with pytest.raises(DeadlineExceeded) as caught:
                await scene.once("a", timeout=2)
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        assert (await scene.once("a")).replayed

    async def test_in_two_processes(self, scene, other, stored):
        """Both do the work, one commits it, and the other gets its answer."""
        hanging = Hanging(scene.collection)
        first = asyncio.create_task(scene.once("a", hanging))
        await hanging.entered.wait()
        assert not (await other.once("a")).replayed
        hanging.opened.set()
        answer = await first
        assert (answer.value, answer.replayed) == ({"n": 1}, True)
        assert [each["by"] for each in stored.find()] == ["good"]

    async def test_in_one_process(self, scene, stored):
        """One does the work, and the others wait for its answer."""
        hanging = Hanging(scene.collection)
        first = asyncio.create_task(scene.once("a", hanging))
        await hanging.entered.wait()
        others = [asyncio.create_task(scene.once("a")) for _ in range(5)]
        with pytest.raises(KeyInUseError):
            await scene.once("a", timeout=0.2)
        hanging.opened.set()
        answers = [await call for call in (first, *others)]
        assert [answer.replayed for answer in answers] == [False] + [True] * 5
        assert [each["by"] for each in stored.find()] == ["hanging"]

    async def test_time_of_a_record(self, scene, plain, monkeypatch):
        """It is the servers', of whatever time the client believes it is."""
        monkeypatch.setattr(_once, "datetime", OldClock)
        await scene.once("a")
        database = plain[scene.collection.database.name]
        (record,) = database["aioretry.answers"].find(sort=[("$natural", -1)], limit=1)
        now = plain.admin.command("hello")["localTime"]
        assert abs(now - record["at"]) < timedelta(minutes=2)

    async def test_record_that_is_not_there(self, scene, replica_set, stored):
        """Where the record that was in the way is gone, the work is done."""
        async with refused_record(scene, replica_set, DUPLICATE_KEY, times=1):
            assert not (await scene.once("a")).replayed
        assert stored.count_documents({}) == 1

    async def test_record_that_is_gone_when_the_work_fails(self, scene, replica_set):
        """What the work raises after a record was in the way is told."""
        runs = []

        async def work(session):
            await scene.insert(session)
            runs.append(session)
            if len(runs) == 2:
                raise LookupError
            return {}

        async with refused_record(scene, replica_set, DUPLICATE_KEY, times=1):
            with anyio.fail_after(20), pytest.raises(LookupError):
                await scene.once("a", work)
        assert len(runs) == 2

    async def test_record_that_is_never_there(self, scene, replica_set, stored):
        """What goes on being in the way, as an index of the user's, is told."""
        async with refused_record(scene, replica_set, DUPLICATE_KEY, times=None):
            with pytest.raises(DuplicateKeyError) as caught:
                await scene.once("a")
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert stored.count_documents({}) == 0

    async def test_clients_of_the_same_servers(self, scene, replica_set, client_class):
        """One client's calls don't take another one's turn, though the two are equal."""
        hanging = Hanging(scene.collection)
        first = asyncio.create_task(scene.once("a", hanging))
        await hanging.entered.wait()
        async with client_class(replica_set.uri) as client:
            assert client == scene.collection.database.client
            other = Scene(keyed_collection(client, scene.collection.name))
            other.keys = scene.keys
            assert not (await other.once("b")).replayed
        hanging.opened.set()
        assert not (await first).replayed


def test_in_one_loop_after_the_other(shared_set, client_class):
    """Keys may outlive an event loop, as those of a module do in tests."""
    keys = Keys(SECRET, NAMESPACE, at_once=1)

    async def use(run):
        async with client_class(shared_set.uri) as client:

            async def work(session):
                await client.aioretry_tests.once_loops.insert_one({}, session=session)
                return {"run": run}

            async def call(key):
                return await keys.once(f"loop-{key}", work, database=client.aioretry_tests)

            answers = await asyncio.gather(*(call(f"{run}-{n}") for n in range(3)))
        return [answer.value["run"] for answer in answers]

    for run in 1, 2:
        assert asyncio.run(use(run)) == [run] * 3


def insert_into(database):
    """Good work, in a database."""

    async def work(session):
        await database.c.insert_one({}, session=session)
        return {}

    return work


class TestServers:
    @pytest.mark.parametrize("key", ["1", None])
    async def test_a_standalone_server(self, server_version, key, client_class):
        """A standalone server has no transactions; nothing is begun, and nothing is sent to it."""
        with Standalone(server_version) as server:
            async with client_class(server.uri) as client, Keys(SECRET, NAMESPACE) as keys:
                database = client.aioretry_tests
                with pytest.raises(ConfigurationError, match="a replica set or a sharded") as error:
                    await keys.once(key, insert_into(database), database=database)
                assert Outcome.NOT_APPLIED is outcome_of(error.value)
                assert [] == await database.list_collection_names()

    async def test_no_server(self, client_class):
        """Where no server is found, that is what is said; nothing is applied."""
        uri = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=10"
        async with client_class(uri) as client, Keys(SECRET, NAMESPACE) as keys:
            database = client.aioretry_tests
            with pytest.raises(ServerSelectionTimeoutError) as error:
                await keys.once("1", insert_into(database), database=database)
        assert Outcome.NOT_APPLIED is outcome_of(error.value)


class TestWork:
    @pytest.mark.parametrize(
        "options",
        [{"readPreference": "secondaryPreferred"}, {"readConcernLevel": "linearizable"}],
        ids=["read preference", "read concern"],
    )
    async def test_reads_by_other_defaults(self, scene, replica_set, options, client_class):
        """The client's defaults, which a transaction can't have, are not the transaction's."""
        async with client_class(replica_set.uri, **options) as client:
            other = Scene(keyed_collection(client, scene.collection.name))

            async def work(session):
                await other.insert(session)
                return {"found": await other.collection.count_documents({}, session=session)}

            assert (await other.once("a", work)).value == {"found": 1}

    async def test_swallowed_error(self, scene, stored):
        """Work that goes on after an error, which has aborted the transaction, is told so."""
        runs = 0

        async def work(session):
            nonlocal runs
            runs += 1
            await scene.collection.insert_one({"_id": 1}, session=session)
            try:
                await scene.collection.insert_one({"_id": 1}, session=session)
            except DuplicateKeyError:
                return {"exists": True}

        with pytest.raises(InvalidOperation, match="let the errors of its commands out"):
            await scene.once("a", work)
        assert runs == 3
        assert stored.count_documents({}) == 0
        assert not (await scene.once("a")).replayed

    @pytest.mark.parametrize("way", ["commit_transaction", "abort_transaction"])
    async def test_that_ends_its_transaction(self, scene, stored, way):
        """It is refused before anything is sent: what is committed has its answer with it."""

        async def work(session):
            await scene.insert(session)
            await getattr(session, way)()
            return {}

        with pytest.raises(InvalidOperation, match="leave its transaction open") as caught:
            await scene.once("a", work)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert stored.count_documents({}) == 0
        assert not (await scene.once("a")).replayed

    async def test_that_ends_its_session(self, scene, stored):
        """It has no answer that could be given again."""

        async def work(session):
            await scene.insert(session)
            await session.end_session()
            return {"done": True}

        with pytest.raises(InvalidOperation, match="leave its transaction open"):
            await scene.once("a", work)
        assert stored.count_documents({}) == 0
        assert not (await scene.once("a")).replayed

    async def test_an_answer_that_can_not_be_read(self, scene, stored):
        """It is found out before anything is committed."""

        async def work(session):
            await scene.insert(session)
            return {"until": DatetimeMS(2**60)}

        with pytest.raises(InvalidBSON):
            await scene.once("a", work)
        assert stored.count_documents({}) == 0
        assert not (await scene.once("a")).replayed

    async def test_that_does_not_mind_the_deadline(self, scene, stored):
        """It may be committed after its caller was told that the time is over."""
        goes_on = asyncio.Event()

        async def work(session):
            while not goes_on.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await goes_on.wait()
            await scene.insert(session)
            return {"n": 1}

        began = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            await scene.once("a", work, timeout=0.5)
        assert time.monotonic() - began < 1.25  # that of its caller, who waits 0.2 s for it
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        goes_on.set()

    async def test_in_other_work(self, scene, stored):
        """It can't be used in the work of another call, for whose turn it would wait."""

        async def work(session):
            await scene.insert(session)
            return (await scene.once("inner")).value

        with pytest.raises(InvalidOperation, match="another once"):
            await scene.once("outer", work)
        assert stored.count_documents({}) == 0
        assert not (await scene.once("inner")).replayed

    async def test_of_a_task_that_it_began(self, scene, stored):
        """A task that work has begun may use it as soon as the work is done, and not before."""
        tasks, tried, done = [], asyncio.Event(), asyncio.Event()

        async def later():
            with pytest.raises(InvalidOperation, match="another once"):
                await scene.once("inner")
            tried.set()
            await done.wait()
            return await scene.once("inner")

        async def work(session):
            await scene.insert(session)
            tasks.append(asyncio.create_task(later()))
            await tried.wait()
            return {}

        await scene.once("outer", work)
        done.set()
        (task,) = tasks
        assert not (await task).replayed
        assert stored.count_documents({}) == 2


async def test_other_seconds(collection):
    """Records can be kept for another time once the index has been changed."""
    database, records = collection.database, f"{collection.name}.answers"
    for seconds in 3600, 7200:
        scene = Scene(collection, answer_records=records, durable_seconds=seconds)
        if seconds == 7200:
            with pytest.raises(OperationFailure) as refused:
                await scene.once("a")
            assert refused.value.code == OTHER_INDEX
            index = {"keyPattern": {"at": 1}, "expireAfterSeconds": seconds}
            await database.command("collMod", records, index=index)
        assert (await scene.once("a")).replayed == (seconds == 7200)
