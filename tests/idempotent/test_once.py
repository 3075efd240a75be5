"""Work that is done once: whom it keeps waiting, and what it makes of work that is wrong."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager

import anyio
import pytest
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidBSON
from pymongo import MongoClient
from pymongo.errors import (
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    WriteConcernError,
)

from aioretry import DeadlineExceeded, Outcome, deadline, outcome_of
from aioretry.idempotent import KeyInUseError, Keys, _once
from tests.idempotent.keyed import NAMESPACE, SECRET, keyed_collection

DUPLICATE_KEY = 11001  # an old code of it, for which fail points need no details
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


@pytest.fixture
async def scene(collection):
    """Room for one call at a time; the collections are there."""
    await collection.database.create_collection(collection.name)
    scene = Scene(collection, at_once=1)
    await scene.once("warm")
    await collection.delete_many({})
    return scene


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

    async def test_after_a_killed_process(self, scene, replica_set, plain, stored):
        """What a dead process had begun keeps its own keys waiting, and no others."""
        name = scene.collection.name
        dead = ["a", "b", "c"]
        full = [f"{name}-{key}" for key in dead]
        async with process_in_work(replica_set.uri, name, full) as process:
            try:
                process.kill()
                await process.wait()
                before = aborted(plain)
                repeated = [asyncio.create_task(scene.once(key)) for key in dead]
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

    async def test_without_a_deadline(self, scene, replica_set, monkeypatch, client_class):
        """A key that another process has is not waited for without end."""
        hanging = Hanging(scene.collection)
        first = asyncio.create_task(scene.once("a", hanging))
        await hanging.entered.wait()
        monkeypatch.setattr(_once, "_PATIENCE", 0.5)
        async with client_class(replica_set.uri) as client:
            other = Scene(keyed_collection(client, scene.collection.name))
            with pytest.raises(KeyInUseError):
                await other.once("a", timeout=None)
            hanging.opened.set()
            await first
            assert (await other.once("a")).replayed

    async def test_record_that_is_not_there(self, scene, replica_set, stored):
        """Where the record that was in the way is gone, the work is done."""
        async with replica_set.fail_command("insert", error_code=DUPLICATE_KEY):
            assert not (await scene.once("a")).replayed
        assert stored.count_documents({}) == 1

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

    async def test_that_commits_by_itself(self, scene, stored):
        """It is refused; its key, of which no answer was stored, says so, and goes in the end."""

        async def work(session):
            await scene.insert(session)
            await session.commit_transaction()
            return {}

        with pytest.raises(InvalidOperation, match="committed or aborted its transaction") as done:
            await scene.once("a", work)
        assert Outcome.UNKNOWN is outcome_of(done.value)
        assert stored.count_documents({}) == 1
        with pytest.raises(InvalidOperation, match="stored no answer") as caught:
            await scene.once("a")
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        answers = scene.collection.database["aioretry.answers"]
        assert not [one async for one in answers.find({"at": {"$exists": False}})]

    async def test_that_aborts_by_itself(self, scene, stored):
        """It has no answer that could be given again."""

        async def work(session):
            await scene.insert(session)
            await session.abort_transaction()
            return {"done": True}

        with pytest.raises(InvalidOperation, match="committed or aborted its transaction"):
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

        with pytest.raises(DeadlineExceeded) as caught:
            await scene.once("a", work, timeout=0.5)
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
