"""The prose tests of the retryable-writes specification, in the README's order and numbers.

Those of a sharded cluster run on fake mongoses before a real replica set, whose faults stand for
the fail points of a mongos.
"""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from pymongo import monitoring
from pymongo.errors import NotPrimaryError, OperationFailure, WriteConcernError
from pymongo.monitoring import ConnectionCheckOutFailedReason

from aioretry import RetryClient, attempts_of
from aioretry.testing import FakeMongoses, ScriptedServer, Standalone
from tests.spec.prose import (
    NO_WRITES,
    OVERLOADED,
    RETRYABLE_WRITE,
    Commands,
    Heartbeats,
    Pools,
    skip_without_labels,
)

REPLACEMENT = (
    "This MongoDB deployment does not support retryable writes. "
    "Please add retryWrites=false to your connection string."
)
MMAPV1 = (
    "Transaction numbers are only allowed on storage engines that support document-level locking"
)

WRITES = {
    "insert": lambda c: c.insert_one({"_id": 1}),
    "update": lambda c: c.update_one({"_id": 1}, {"$inc": {"n": 1}}),
    "delete": lambda c: c.delete_one({"_id": 1}),
    "findAndModify": lambda c: c.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}),
}


@pytest.fixture
def commands():
    """What happens to the inserts of the test's client."""
    return Commands("insert")


@pytest.fixture
async def client(replica_set, commands, then):
    """A client that looks at its servers often, because an injected error tells it nothing new."""
    async with RetryClient(
        replica_set.uri, heartbeatFrequencyMS=500, event_listeners=[commands, then]
    ) as client:
        yield client


@pytest.fixture
def then():
    """What turns a second fail point on."""
    return Then()


@pytest.fixture
async def primary(replica_set):
    """The primary of servers whose fail points know labels."""
    await skip_without_labels(replica_set)
    return await replica_set.primary()


@pytest.fixture
def no_backoff(monkeypatch):
    """Backoff waits for nothing."""
    monkeypatch.setattr("random.random", lambda: 0.0)


def code_of(error):
    """The code of a server's error."""
    return error.details["code"]


class TestMMAPv1:
    """Prose test 1: an exception when using the MMAPv1 storage engine."""

    @pytest.mark.parametrize("kind", ["primary", "mongos"])
    @pytest.mark.parametrize("name", WRITES)
    async def test_1(self, name, kind):
        """Prose test 1: code 20 has the replacement message, and ends the write.

        The last server with MMAPv1 is 4.0, which no driver of today talks to: a scripted server
        gives its answer.
        """
        async with ScriptedServer(kind=kind) as server, RetryClient(server.uri) as client:
            write = WRITES[name](client.db.c)
            (await server.expect(name)).fail(20, MMAPV1)
            with pytest.raises(OperationFailure) as caught:
                await write
        assert 20 == caught.value.code
        assert str(caught.value).startswith(REPLACEMENT)
        assert MMAPV1 in str(caught.value.__cause__)
        assert 1 == len(server.requests)

    async def test_1_at_a_real_server(self):
        """Prose test 1, from a real server: a standalone behind what looks like a mongos."""
        async with (
            Standalone() as server,
            FakeMongoses(server, count=1) as cluster,
            RetryClient(cluster.uri) as client,
        ):
            with pytest.raises(OperationFailure) as caught:
                await client.db.c.insert_one({"_id": 1})
        assert 20 == caught.value.code
        assert str(caught.value).startswith(REPLACEMENT)


class TestPoolCleared:
    """Prose test 2: drivers properly retry after encountering PoolClearedErrors.

    The first insert is held until the second one waits for the only connection, where the README
    blocks it for a second.
    """

    async def test_2(self, replica_set, primary, collection, commands, stored):
        """Prose test 2, on a replica set, with the fail point."""
        error = replica_set.fail_command(
            "insert", error_code=91, error_labels=[RETRYABLE_WRITE], member=primary
        )
        await self.check(replica_set, error, collection, commands)
        assert [1, 2] == sorted(stored.distinct("_id"))

    async def test_2_sharded(self, replica_set, collection, commands, stored):
        """Prose test 2, on a single mongos, whose fault gives the error."""
        async with FakeMongoses(replica_set, count=1) as cluster:
            error = Later(cluster.faults, 91, "insert", labels=[RETRYABLE_WRITE])
            await self.check(cluster, error, collection, commands)
        assert [1, 2] == sorted(stored.distinct("_id"))

    async def check(self, servers, error, collection, commands):
        """Steps 1 to 9."""
        pools = Pools()
        listeners = [commands, pools, Heartbeats(pools)]
        async with RetryClient(
            servers.uri, maxPoolSize=1, heartbeatFrequencyMS=500, event_listeners=listeners
        ) as client:
            await client.admin.command("ping")
            pools.reset()
            inserts = same(collection, client)
            async with (
                servers.faults.hang("insert") as held,
                error,
                inserts.operation() as op,
            ):
                first = inserts.insert_one({"_id": 1})
                await held.wait_until_fired()
                second = asyncio.create_task(op.insert_one({"_id": 2}))
                assert await asyncio.to_thread(pools.waiting.wait, 10)
                held.disarm()
                await asyncio.gather(first, second)
        before, *after = pools.events[:3]
        assert "checked out" == before
        # An older PyMongo may tell of these two in either order.
        assert {"cleared", ConnectionCheckOutFailedReason.CONN_ERROR} == {*after}
        assert 3 == len(commands.of("started"))
        lost = op.attempts[0]
        assert (False, True) == (lost.sent, lost.error.has_error_label(RETRYABLE_WRITE))


class Later:
    """A fault that is armed when the block begins, and so acts after those before it."""

    def __init__(self, faults, code, *names, **only):
        self._arm = lambda: faults.error(code, *names, **only)

    async def __aenter__(self):
        self._fault = self._arm()

    async def __aexit__(self, *exc):
        assert 1 == self._fault.fired
        self._fault.disarm()


class Then(monitoring.CommandListener):
    """Turns a fail point on when an insert has ended with error 91, before it is sent again."""

    def __init__(self):
        self.fail_point = None

    def started(self, event):
        pass

    def succeeded(self, event):
        self._after(event, event.reply.get("writeConcernError", {}))

    def failed(self, event):
        self._after(event, event.failure)

    def _after(self, event, error):
        if self.fail_point is None or event.command_name != "insert" or error.get("code") != 91:
            return
        fail_point, self.fail_point = self.fail_point, None
        # The listener keeps the client's loop, so that one of its own has to run this.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, fail_point.on()).result(20)


class TestSeveralErrors:
    """Prose tests 3 and 6: which error is raised of several.

    They ask for 6.0, whose servers give NoWritesPerformed by themselves; failCommand gives it from
    4.4 on.
    """

    async def test_3(self, replica_set, primary, collection, commands, then, stored):
        """Prose test 3: the write concern error is raised, not the later one that wrote nothing."""
        then.fail_point = replica_set.fail_command(
            "insert",
            error_code=10107,
            error_labels=[RETRYABLE_WRITE, NO_WRITES],
            member=primary,
        )
        async with replica_set.fail_command(
            "insert",
            write_concern_error={"code": 91},
            error_labels=[RETRYABLE_WRITE],
            member=primary,
        ):
            with pytest.raises(WriteConcernError) as caught:
                await collection.insert_one({"_id": 1})
        assert 91 == caught.value.code
        first, second = attempts_of(caught.value)
        assert caught.value is first.error
        assert isinstance(second.error, NotPrimaryError)
        assert 10107 == code_of(second.error)
        assert ["succeeded", "failed"] == outcomes(commands)
        assert 1 == stored.count_documents({})

    async def test_6_case_1(self, errors):
        """Prose test 6, case 1: of errors without NoWritesPerformed the last one is raised."""
        error = await errors(OVERLOADED, OVERLOADED)
        assert 10107 == code_of(error)

    async def test_6_case_2(self, errors):
        """Prose test 6, case 2: of errors with NoWritesPerformed the first one is raised."""
        error = await errors([*OVERLOADED, NO_WRITES], [*OVERLOADED, NO_WRITES])
        assert 91 == code_of(error)

    async def test_6_case_3(self, errors):
        """Prose test 6, case 3: the one without NoWritesPerformed is raised, not the later ones."""
        error = await errors(OVERLOADED, [*OVERLOADED, NO_WRITES], code=91)
        assert 91 == code_of(error)
        assert not error.has_error_label(NO_WRITES)

    @pytest.fixture
    def errors(self, replica_set, primary, collection, commands, then, no_backoff):
        """Let an insert fail with 91 once, and then with another error; give what it raises."""

        async def errors(first, others, code=10107):
            then.fail_point = replica_set.fail_command(
                "insert", mode="alwaysOn", error_code=code, error_labels=others, member=primary
            )
            async with replica_set.fail_command(
                "insert", error_code=91, error_labels=first, member=primary
            ):
                with pytest.raises(NotPrimaryError) as caught:
                    await collection.insert_one({"_id": 1})
            assert then.fail_point is None
            assert ["failed"] * 3 == outcomes(commands)
            codes = [code_of(attempt.error) for attempt in attempts_of(caught.value)]
            assert [91, code, code] == codes
            return caught.value

        return errors


def same(collection, client):
    """The collection, with its write concern, of another client."""
    database = client[collection.database.name]
    return database.get_collection(collection.name, write_concern=collection.write_concern)


def outcomes(commands):
    """How the commands ended."""
    return [event.what for event in commands.events if event.what != "started"]


class TestMongoses:
    """Prose tests 4 and 5: on which mongos a write is retried."""

    async def test_4(self, replica_set, collection, commands):
        """Prose test 4: on another one when there is one.

        Twenty times over, because the README's single time is met by chance every second time.
        """
        async with (
            FakeMongoses(replica_set) as cluster,
            RetryClient(cluster.uri, event_listeners=[commands]) as client,
        ):
            await known(client, cluster)
            inserts = same(collection, client)
            for _ in range(20):
                with contextlib.ExitStack() as faults:
                    for mongos in cluster.mongoses:
                        error = cluster.faults.error(
                            6, "insert", labels=[RETRYABLE_WRITE], member=mongos
                        )
                        faults.enter_context(error)
                    with pytest.raises(OperationFailure) as caught:
                        await inserts.insert_one({})
                assert 6 == code_of(caught.value)
                addresses = {event.address for event in commands.of("failed")}
                assert {(mongos.host, mongos.port) for mongos in cluster.mongoses} == addresses
                assert ["failed", "failed"] == outcomes(commands)
                commands.events.clear()

    async def test_5(self, replica_set, collection, commands, stored):
        """Prose test 5: on the same one when no others are available."""
        async with (
            FakeMongoses(replica_set, count=1) as cluster,
            RetryClient(cluster.uri, directConnection=False, event_listeners=[commands]) as client,
        ):
            await known(client, cluster)
            inserts = same(collection, client)
            async with cluster.faults.drop_request("insert"), asyncio.timeout(30):
                await inserts.insert_one({"_id": 1})
            assert ["failed", "succeeded"] == outcomes(commands)
            (mongos,) = cluster.mongoses
            assert {(mongos.host, mongos.port)} == {event.address for event in commands.events}
        assert 1 == stored.count_documents({})


async def known(client, cluster):
    """Wait until the driver knows all routers."""
    await client.admin.command("ping")
    async with asyncio.timeout(20):
        while len(client.delegate.nodes) < len(cluster.mongoses):
            await asyncio.sleep(0.01)
