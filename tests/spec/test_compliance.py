"""Requirements of the retryable-writes specification that no other test holds.

docs/compliance.md has the whole list.
"""

import asyncio
import inspect
import logging
from collections import Counter

import bson
import bson.json_util
import pymongo
import pytest
from pymongo import common, monitoring
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
    WriteError,
)
from pymongo.write_concern import WriteConcern

from aioretry import (
    Outcome,
    RetryClient,
    RetryMotorCollection,
    RetryMotorDatabase,
    attempts_of,
    deadline,
    outcome_of,
)
from aioretry.operation import Operation
from aioretry.testing import ScriptedServer

RETRYABLE_WRITE = "RetryableWriteError"
NO_WRITES = "NoWritesPerformed"
CODES = [6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436]
OLD = {"maxWireVersion": 8}  # MongoDB 4.2, the last one whose errors have no labels
SECONDARY = {"isWritablePrimary": False, "ismaster": False, "secondary": True}
GHOST = {"isWritablePrimary": False, "ismaster": False, "setName": None, "isreplicaset": True}
NOT_SHARDED = {"index": 1, "code": 72, "errmsg": "a shard takes no transaction ids"}


def success(request):
    """The write is done."""
    request.reply({"n": 1, "nModified": 1})


def hang_up(request):
    """The connection is lost."""
    request.hang_up()


def failing(code, *labels, **extra):
    """A top-level error."""
    return lambda request: request.fail(code, "scripted", labels=labels, **extra)


def concern(code, *labels):
    """A reply with a writeConcernError."""
    labelled = {"errorLabels": list(labels)} if labels else {}
    error = {"code": code, "errmsg": "scripted"}
    return lambda request: request.reply({"n": 1, "writeConcernError": error, **labelled})


def deposing(server, step):
    """A step after which the server says that it is no primary any more."""

    def turn(request):
        server.hello = SECONDARY
        step(request)

    return turn


async def play(server, write, *steps):
    """Answer the commands of a write, one step each; return what it ends with, errors too."""
    async with asyncio.timeout(20):
        for step in steps:
            step(await server.expect())
        try:
            return await write
        except PyMongoError as exc:
            return exc


def insert(client):
    """A write that is under way."""
    return client.db.c.insert_one({"_id": 1})


def numbers(server):
    """The transaction number of each command so far; None where there is none."""
    return [request.command.get("txnNumber") for request in server.requests]


@pytest.fixture
async def server():
    """A primary of a current version; at the end, everything it got must have been expected."""
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def client(server):
    """A client of that primary."""
    async with RetryClient(server.uri) as client:
        yield client


@pytest.fixture
def talks_to_old_servers(monkeypatch):
    """PyMongo talks to servers before 4.4, as its versions before 4.18 do."""
    known = min(5, common.MIN_SUPPORTED_WIRE_VERSION)
    monkeypatch.setattr(common, "MIN_SUPPORTED_WIRE_VERSION", known)


@pytest.fixture
async def mongoses():
    """Two mongoses, and a client that knows both."""
    async with ScriptedServer(kind="mongos") as one, ScriptedServer(kind="mongos") as two:
        uri = f"mongodb://{one.address},{two.address}/?localThresholdMS=60000"
        async with RetryClient(uri) as client:
            await client.admin.command("ping")
            while len(client.nodes) < 2:
                await asyncio.sleep(0.001)
            yield one, two, client


class TestConfiguration:
    """ "Naming Deviations" and "MongoClient Configuration"."""

    async def test_the_name_in_a_connection_string(self, server):
        """It is `retryWrites`, of which false means neither transaction id nor retry."""
        async with RetryClient(f"{server.uri}&retryWrites=true") as client:
            await play(server, insert(client), hang_up, success)
        assert [1, 1] == numbers(server)
        async with RetryClient(f"{server.uri}&retryWrites=false") as client:
            error = await play(server, insert(client), hang_up)
        assert isinstance(error, AutoReconnect)
        assert [1, 1, None] == numbers(server)

    @pytest.mark.parametrize("level", [RetryMotorDatabase, RetryMotorCollection, Operation])
    def test_at_no_other_level(self, level):
        """No database, collection or write has an argument for it."""
        for name, member in inspect.getmembers(level, inspect.isfunction):
            arguments = inspect.signature(member).parameters
            assert [] == [one for one in arguments if "retry" in one.lower()], name

    async def test_not_among_further_options(self, server, client):
        """Where a write takes the command's own options, such a one is the server's to refuse."""
        write = client.db.c.find_one_and_delete({"_id": 1}, retryWrites=False)
        await play(server, write, hang_up, lambda request: request.reply({"value": None}))
        assert [False, False] == [request.command["retryWrites"] for request in server.requests]
        assert [1, 1] == numbers(server)


class TestServers:
    """ "Supported Server Versions"."""

    @pytest.mark.parametrize(("version", "expected"), [(5, [None]), (6, [1, 1])])
    async def test_wire_version(self, version, expected, talks_to_old_servers):
        """A server before wire version 6 gets no transaction id, and nothing twice."""
        hello = {"maxWireVersion": version}
        async with ScriptedServer(hello=hello) as server, RetryClient(server.uri) as client:
            error = await play(server, insert(client), *[hang_up] * len(expected))
        assert isinstance(error, AutoReconnect)
        assert expected == numbers(server)

    @pytest.mark.parametrize("range_", [(0, 1), (100, 101)])
    async def test_one_that_the_driver_does_not_know(self, range_):
        """A server that is too old or too new for PyMongo gets no write."""
        hello = dict(zip(("minWireVersion", "maxWireVersion"), range_, strict=True))
        async with ScriptedServer(hello=hello) as server, RetryClient(server.uri) as client:
            with pytest.raises(ConfigurationError, match="wire version") as caught:
                await insert(client)
        assert (Outcome.NOT_APPLIED, ()) == (outcome_of(caught.value), server.requests)

    @pytest.mark.parametrize("code", [72, 91, 11602])
    async def test_what_a_shard_does_not_support(self, code, mongoses):
        """What a mongos says of a part of a command is the user's to know, and not retried."""
        one, two, client = mongoses
        reply = {"n": 1, "writeErrors": [{**NOT_SHARDED, "code": code}]}
        for server in one, two:
            server.answer("insert", reply)
        with pytest.raises(BulkWriteError) as caught:
            await client.db.c.insert_many([{"_id": 1}, {"_id": 2}], ordered=False)
        (found,) = caught.value.details["writeErrors"]
        assert (1, 1, code) == (caught.value.details["nInserted"], found["index"], found["code"])
        with pytest.raises(WriteError) as single:
            await insert(client)
        assert (code, False) == (single.value.code, single.value.has_error_label(RETRYABLE_WRITE))
        assert 2 == len(one.requests) + len(two.requests)

    async def test_transaction_numbers_in_a_part(self, mongoses):
        """Code 20 of a part has the replacement message, and tells the part that was done."""
        one, two, client = mongoses
        error = {"index": 1, "code": 20, "errmsg": "Transaction numbers are only allowed on a ..."}
        for server in one, two:
            server.answer("insert", {"n": 1, "writeErrors": [error]})
        with pytest.raises(OperationFailure, match="retryWrites=false") as caught:
            await client.db.c.insert_many([{"_id": 1}, {"_id": 2}], ordered=False)
        assert (20, 1) == (caught.value.code, caught.value.details["nInserted"])


class TestUnacknowledged:
    """ "Unsupported Write Operations"."""

    @pytest.mark.parametrize("write", ["insert_one", "insert_many"])
    async def test_a_lost_connection(self, write, server, client):
        """A command with w: 0 that a connection is lost with is not sent again."""
        c = client.db.get_collection("c", write_concern=WriteConcern(w=0))
        given = {"_id": 1} if write == "insert_one" else [{"_id": 1}]
        assert not (await play(server, getattr(c, write)(given), hang_up)).acknowledged
        await play(server, insert(client), success)
        assert [0, None] == [
            request.command.get("writeConcern", {}).get("w") for request in server.requests
        ]


class TestLabels:
    """ "RetryableWriteError Labels"."""

    async def test_of_a_cleared_pool(self, server):
        """A write that waits for a connection whose pool is cleared has the label, has not been
        sent, and is sent then."""
        retries = []
        async with RetryClient(server.uri, maxPoolSize=1, hooks=[retries.append]) as client:
            first = insert(client)
            request = await server.expect("insert")
            pool = client.delegate._get_topology().get_server_by_address(client.address).pool
            async with client.db.c.operation() as op:
                second = asyncio.ensure_future(op.insert_one({"_id": 2}))
                while pool.operation_count < 2:
                    await asyncio.sleep(0.001)
                server.hello = GHOST  # so that its pool stays cleared for a while
                request.fail(91, "scripted", labels=[RETRYABLE_WRITE])
                async with asyncio.timeout(20):
                    while len(retries) < 2:
                        await asyncio.sleep(0.001)
                server.hello = {}
                await play(server, asyncio.gather(first, second), success, success)
        waited, sent = op.attempts
        assert (False, True) == (waited.sent, sent.sent)
        assert "paused" in str(waited.error)
        assert waited.error.has_error_label(RETRYABLE_WRITE)

    @pytest.mark.parametrize("code", CODES)
    async def test_concern_errors_of_older_mongods(self, code, talks_to_old_servers):
        """Before 4.4, each of the codes counts in the writeConcernError of a mongod."""
        async with ScriptedServer(hello=OLD) as server, RetryClient(server.uri) as client:
            error = await play(server, insert(client), concern(code), concern(code))
        assert (code, True) == (error.code, error.has_error_label(RETRYABLE_WRITE))
        assert [1, 1] == numbers(server)

    @pytest.mark.parametrize("kind", ["primary", "standalone"])
    async def test_not_without_transaction_id(self, kind):
        """A network error is labelled only where the command could have been sent again."""
        async with ScriptedServer(kind=kind) as server, RetryClient(server.uri) as client:
            if kind == "primary":
                write = client.db.c.update_many({}, {"$set": {"n": 1}})
            else:
                write = insert(client)
            error = await play(server, write, hang_up)
        assert isinstance(error, AutoReconnect)
        assert not error.has_error_label(RETRYABLE_WRITE)


class TestTopology:
    """ "Executing Retryable Write Commands": what an attempt says of its server."""

    @pytest.mark.parametrize("limit", [None, 20])
    @pytest.mark.parametrize("step", [hang_up, failing(10107, RETRYABLE_WRITE)])
    async def test_after_the_first_attempt(self, step, limit, server):
        """The retry does not go to a server that has just failed and is no primary any more."""
        async with RetryClient(server.uri, serverSelectionTimeoutMS=300) as client:
            await client.admin.command("ping")
            async with deadline(limit):
                error = await play(server, insert(client), deposing(server, step))
            assert not client.topology_description.has_writable_server()
        assert (1, 1) == (len(server.requests), len(attempts_of(error)))

    async def test_after_a_write_concern_error(self, server):
        """A writeConcernError that tells a change of state is as good as an error."""
        step = deposing(server, concern(189, RETRYABLE_WRITE))
        async with RetryClient(server.uri, serverSelectionTimeoutMS=300) as client:
            write = insert(client)
            step(await server.expect())
            server.answer("insert", {"n": 1})
            error = await play(server, write)
        assert isinstance(error, WriteConcernError)
        assert [1] == numbers(server)

    @pytest.mark.parametrize("step", [hang_up, failing(10107, RETRYABLE_WRITE)])
    async def test_after_a_retry(self, step, server, client):
        """When a failed retry raises, the driver knows already what became of the server."""
        steps = failing(6, RETRYABLE_WRITE), deposing(server, step)
        error = await play(server, insert(client), *steps)
        assert isinstance(error, AutoReconnect)
        assert not client.topology_description.has_writable_server()
        assert [1, 1] == numbers(server)


class TestErrors:
    """ "Executing Retryable Write Commands": server information of an error."""

    @pytest.mark.parametrize("surfacing", [0, 1])
    async def test_name_their_server(self, surfacing, mongoses):
        """Of two attempts at two servers, an error tells the one that it came from."""
        one, two, client = mongoses
        steps = [failing(6, RETRYABLE_WRITE, NO_WRITES)] * 2
        steps[surfacing] = hang_up
        asked = []
        write = insert(client)
        expected = [asyncio.create_task(server.expect("insert")) for server in (one, two)]
        for step in steps:
            (ended, *_), _ = await asyncio.wait(expected, return_when="FIRST_COMPLETED")
            asked.append((one, two)[expected.index(ended)])
            step(ended.result())
            expected[expected.index(ended)] = asyncio.get_running_loop().create_future()
        with pytest.raises(AutoReconnect) as caught:
            await write
        assert len({*asked}) == 2
        assert asked[surfacing].address in str(caught.value)
        assert asked[1 - surfacing].address not in str(caught.value)
        attempts = attempts_of(caught.value)
        assert [(mongos.address.split(":")[0], mongos.port) for mongos in asked] == [
            attempt.address for attempt in attempts
        ]
        assert caught.value is attempts[surfacing].error


class TestMessages:
    """ "Executing Retryable Write Commands": the message of a retry."""

    async def test_gossips_the_cluster_time(self, server, client):
        """A retry has the cluster time that the answer before it told."""
        signature = {"hash": bytes(20), "keyId": bson.Int64(0)}
        time = {"clusterTime": bson.Timestamp(100, 1), "signature": signature}
        step = failing(6, RETRYABLE_WRITE, **{"$clusterTime": time})
        await play(server, insert(client), step, success)
        first, second = (request.command for request in server.requests)
        assert "$clusterTime" not in first
        assert time == second["$clusterTime"]
        assert first["lsid"] == second["lsid"]
        assert first["txnNumber"] == second["txnNumber"]


class Events(monitoring.CommandListener):
    """Remembers the events of the insert commands."""

    def __init__(self):
        self.all = []
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _note(self, event):
        if event.command_name == "insert":
            self.all.append(event)

    def _note_end(self, event):
        self._note(event)
        self._loop.call_soon_threadsafe(self.ended.set)

    started, succeeded, failed = _note, _note_end, _note_end

    def kinds(self):
        """What has happened, in its order."""
        return [type(event).__name__.removeprefix("Command") for event in self.all]


@pytest.fixture
async def events(server):
    """The events of a client, which is there too."""
    return Events()


class TestMonitoring:
    """ "Command Monitoring"."""

    @pytest.mark.parametrize("step", [hang_up, failing(6, RETRYABLE_WRITE)])
    async def test_events(self, step, server, events):
        """Each attempt has its own event of its beginning, and one of its end."""
        async with RetryClient(server.uri, event_listeners=[events]) as client:
            await play(server, insert(client), step, success)
        assert ["StartedEvent", "FailedEvent", "StartedEvent", "SucceededEvent"] == events.kinds()
        assert [2, 2] == list(Counter(event.request_id for event in events.all).values())
        one, _, two, _ = events.all
        assert one.command["txnNumber"] == two.command["txnNumber"]
        assert one.command["txnNumber"] not in {event.operation_id for event in events.all}

    @pytest.mark.xfail(pymongo.version_tuple < (4, 18), reason="PyMongo shows the request's id")
    @pytest.mark.parametrize("client_class", ["motor", "asyncio"], indirect=True)
    async def test_operation_id(self, server, events, client_class):
        """The attempts of a write have the same operationId, and another write has another."""
        async with client_class(server.uri, event_listeners=[events]) as client:
            await play(server, insert(client), hang_up, success)
            assert 4 == len(events.all)
            assert 1 == len({event.operation_id for event in events.all})
            await play(server, insert(client), success)
        assert 2 == len({event.operation_id for event in events.all})

    @pytest.mark.xfail(pymongo.version_tuple < (4, 18), reason="PyMongo shows the request's id")
    async def test_operation_id_of_a_bulk_operation(self, server, events):
        """All its commands have the same operationId."""
        inserts = [pymongo.InsertOne({"x": n}) for n in range(2)]
        statements = [inserts[0], pymongo.UpdateOne({}, {"$set": {"x": 1}}), inserts[1]]
        async with RetryClient(server.uri, event_listeners=[events]) as client:
            await play(server, client.db.c.bulk_write(statements), success, success, success)
        assert 4 == len(events.all)
        assert 1 == len({event.operation_id for event in events.all})

    @pytest.mark.parametrize("step", [hang_up, success])
    async def test_of_a_cancelled_write(self, step, server, events):
        """An attempt that nobody waits for any more has an event of its end all the same."""
        async with RetryClient(server.uri, event_listeners=[events]) as client:
            write = insert(client)
            request = await server.expect("insert")
            write.cancel()
            step(request)
            async with asyncio.timeout(20):
                await events.ended.wait()
        end = "SucceededEvent" if step is success else "FailedEvent"
        assert ["StartedEvent", end] == events.kinds()

    async def test_log(self, server, client, caplog):
        """So it is in PyMongo's log of commands."""
        caplog.set_level(logging.DEBUG, logger="pymongo.command")
        await play(server, insert(client), hang_up, success)
        texts = [
            bson.json_util.loads(record.getMessage())
            for record in caplog.records
            if record.name == "pymongo.command"
        ]
        assert ["Command started", "Command failed", "Command started", "Command succeeded"] == [
            text["message"] for text in texts if text.get("commandName") == "insert"
        ]
