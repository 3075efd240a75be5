"""The rules of a retry, at scripted servers: cases that no real server shows."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import bson
import pytest
from pymongo import DeleteMany, InsertOne, UpdateMany, UpdateOne, common
from pymongo.errors import (
    AutoReconnect,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    attempts_of,
    deadline,
    outcome_of,
)
from aioretry.testing import ScriptedRequest, ScriptedServer

RETRYABLE_WRITE = "RetryableWriteError"
OVERLOADED = ("RetryableError", "SystemOverloadedError")
NO_WRITES = "NoWritesPerformed"
OLD = {"maxWireVersion": 8}  # MongoDB 4.2, the last one whose errors have no labels
NO_SESSIONS = {"logicalSessionTimeoutMinutes": None}
CODES = [6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436]

Step = Callable[[ScriptedRequest], None]

WRITES = {
    "insert_one": lambda c: c.insert_one({"_id": 1}),
    "update_one": lambda c: c.update_one({"_id": 1}, {"$set": {"n": 1}}),
    "replace_one": lambda c: c.replace_one({"_id": 1}, {"n": 1}),
    "delete_one": lambda c: c.delete_one({"_id": 1}),
    "find_one_and_delete": lambda c: c.find_one_and_delete({"_id": 1}),
    "find_one_and_replace": lambda c: c.find_one_and_replace({"_id": 1}, {"n": 1}),
    "find_one_and_update": lambda c: c.find_one_and_update({"_id": 1}, {"$set": {"n": 1}}),
}
UNSUPPORTED = {
    "update_many": lambda c: c.update_many({}, {"$set": {"n": 1}}),
    "delete_many": lambda c: c.delete_many({}),
    "bulk_write, an update of many": lambda c: c.bulk_write([UpdateMany({}, {"$set": {"n": 1}})]),
    "bulk_write, a deletion of many": lambda c: c.bulk_write([DeleteMany({})]),
    "aggregate": lambda c: c.aggregate([{"$out": "other"}]).to_list(None),
    "command": lambda c: c.database.command({"insert": c.name, "documents": [{"_id": 1}]}),
}


def success(request: ScriptedRequest) -> None:
    """The write is done."""
    request.reply({"n": 1, "nModified": 1})


def hang_up(request: ScriptedRequest) -> None:
    """The connection is lost."""
    request.hang_up()


def failing(code: int, *labels: str, message: str = "scripted", **extra: object) -> Step:
    """A top-level error."""
    return lambda request: request.fail(code, message, labels=labels, **extra)


def concern(code: int, *labels: str) -> Step:
    """A reply with a writeConcernError."""
    labelled = {"errorLabels": list(labels)} if labels else {}
    error = {"code": code, "errmsg": "scripted"}
    return lambda request: request.reply({"n": 1, "writeConcernError": error, **labelled})


def write_error(code: int) -> Step:
    """A reply with an entry in writeErrors."""
    error = {"index": 0, "code": code, "errmsg": "scripted"}
    return lambda request: request.reply({"n": 0, "writeErrors": [error]})


async def play(server: ScriptedServer, write: asyncio.Future, *steps: Step) -> object:
    """Answer the commands of a write, one step each; return what it ends with, errors too."""
    async with asyncio.timeout(20):
        for step in steps:
            step(await server.expect())
        try:
            return await write
        except PyMongoError as exc:
            return exc


def insert(client: RetryClient) -> asyncio.Future:
    """A write that is under way."""
    return client.db.c.insert_one({"_id": 1})


def transaction_ids(server: ScriptedServer) -> list[tuple]:
    """Session and number of each command so far; None where there is none."""
    commands = [request.command for request in server.requests]
    return [(command.get("lsid", {}).get("id"), command.get("txnNumber")) for command in commands]


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
    known = min(8, common.MIN_SUPPORTED_WIRE_VERSION)
    monkeypatch.setattr(common, "MIN_SUPPORTED_WIRE_VERSION", known)


@pytest.fixture
async def mongoses():
    """Three mongoses."""
    async with (
        ScriptedServer(kind="mongos") as one,
        ScriptedServer(kind="mongos") as two,
        ScriptedServer(kind="mongos") as three,
    ):
        yield [one, two, three]


@asynccontextmanager
async def client_of(mongoses: list[ScriptedServer]) -> AsyncIterator[RetryClient]:
    """A client that knows all of several mongoses."""
    hosts = ",".join(mongos.address for mongos in mongoses)
    async with RetryClient(f"mongodb://{hosts}/?localThresholdMS=60000") as client:
        await client.admin.command("ping")
        while len(client.nodes) < len(mongoses):
            await asyncio.sleep(0.001)
        yield client


async def first_to_get(servers: list[ScriptedServer]) -> tuple[ScriptedServer, ScriptedRequest]:
    """Wait until one of several servers gets a command."""
    expecting = {asyncio.create_task(server.expect()): server for server in servers}
    done, pending = await asyncio.wait(expecting, return_when="FIRST_COMPLETED")
    for task in pending:
        task.cancel()
    (task,) = done
    return expecting[task], task.result()


class TestEligibility:
    """retryable-writes, "Supported Server Versions"."""

    @pytest.mark.parametrize("limit", [None, 10])
    @pytest.mark.parametrize("step", [hang_up, failing(11600, RETRYABLE_WRITE)])
    @pytest.mark.parametrize(
        ("kind", "hello"),
        [("primary", NO_SESSIONS), ("standalone", {}), ("mongos", NO_SESSIONS)],
    )
    async def test_an_ineligible_server_gets_the_command_once(self, kind, hello, step, limit):
        """A server without logicalSessionTimeoutMinutes, or a standalone one: "MUST NOT include a
        transaction ID in the write command and MUST not retry the command under any
        circumstances"; the error propagates."""
        async with (
            ScriptedServer(kind=kind, hello=hello) as server,
            RetryClient(server.uri) as client,
            deadline(limit),
        ):
            error = await play(server, insert(client), step)
        assert isinstance(error, AutoReconnect)
        (request,) = server.requests
        assert "txnNumber" not in request.command
        assert [True] == [attempt.sent for attempt in attempts_of(error)]

    @pytest.mark.parametrize("limit", [None, 10])
    @pytest.mark.parametrize("step", [hang_up, failing(11600, RETRYABLE_WRITE, message="first")])
    async def test_a_retry_that_selects_an_ineligible_server(self, server, client, step, limit):
        """After a downgrade between the attempts the previous error is raised ("Executing
        Retryable Write Commands": "If the server selected for a retry attempt does not support
        retryable writes")."""

        def downgrade(request):
            server.hello = NO_SESSIONS
            step(request)

        async with deadline(limit):
            error = await play(server, insert(client), downgrade)
        assert isinstance(error, AutoReconnect)
        assert not isinstance(error, DeadlineExceeded)
        (request,) = server.requests
        assert "txnNumber" in request.command
        assert (1, Outcome.UNKNOWN) == (len(attempts_of(error)), outcome_of(error))


class TestOperations:
    """retryable-writes, "Supported Write Operations" and "Unsupported Write Operations"."""

    @pytest.mark.parametrize("name", WRITES)
    async def test_supported(self, name, server, client):
        """The seven single-document writes carry a transaction id, and are sent again."""
        write = WRITES[name](client.db.c)
        await play(server, write, failing(6, RETRYABLE_WRITE), success)
        first, second = transaction_ids(server)
        assert first == second
        assert isinstance(first[1], bson.Int64)
        assert first[1] > 0

    @pytest.mark.parametrize("batch", ["insert_many", "bulk_write"])
    async def test_batches_without_writes_of_many(self, batch, server, client):
        """Batches that hold no multi-document write carry one too."""
        c = client.db.c
        if batch == "insert_many":
            write = c.insert_many([{"_id": 1}, {"_id": 2}])
        else:
            write = c.bulk_write([InsertOne({"_id": 1}), InsertOne({"_id": 2})])
        await play(server, write, failing(6, RETRYABLE_WRITE), success)
        first, second = transaction_ids(server)
        assert first == second
        assert first[1] > 0

    async def test_a_batch_with_writes_of_many(self, server, client):
        """A command that holds one carries none, the others do: "each write command sent as part of
        the bulkWrite()" is looked at on its own."""
        requests = [
            InsertOne({"_id": 1}),
            UpdateOne({"_id": 1}, {"$set": {"n": 1}}),
            UpdateMany({}, {"$set": {"n": 2}}),
            DeleteMany({}),
        ]
        await play(server, client.db.c.bulk_write(requests), success, success, success)
        assert ["insert", "update", "delete"] == [request.name for request in server.requests]
        insert, update, delete = (number for _, number in transaction_ids(server))
        assert insert is not None
        assert (None, None) == (update, delete)

    @pytest.mark.parametrize("step", [hang_up, failing(11600, RETRYABLE_WRITE)])
    @pytest.mark.parametrize("name", UNSUPPORTED)
    async def test_unsupported(self, name, step, server, client):
        """What may write many documents, and the generic command, carry no transaction id and are
        sent once."""
        error = await play(server, UNSUPPORTED[name](client.db.c), step)
        assert isinstance(error, AutoReconnect)
        (request,) = server.requests
        assert "txnNumber" not in request.command

    @pytest.mark.parametrize("name", WRITES)
    async def test_unacknowledged(self, name, server, client):
        """Commands with w: 0 carry no transaction id, expect no reply, and are sent once."""
        c = client.db.get_collection("c", write_concern=WriteConcern(w=0))
        write = WRITES[name](c)
        request = await server.expect()
        assert not request.expects_reply
        await write
        assert {"w": 0} == request.command["writeConcern"]
        assert "txnNumber" not in request.command

    async def test_without_retry_writes(self, server):
        """retryWrites=false: no transaction id, no retry, and no label added to the error."""
        async with RetryClient(server.uri, retryWrites=False) as client:
            error = await play(server, insert(client), hang_up)
        assert isinstance(error, AutoReconnect)
        assert not error.has_error_label(RETRYABLE_WRITE)
        assert "txnNumber" not in server.requests[0].command

    @pytest.mark.parametrize("step", [hang_up, failing(11600, RETRYABLE_WRITE)])
    async def test_in_a_transaction(self, step, server, client):
        """ "Retryable Writes Within Transactions": such a command has the transaction's own number,
        is sent once, and no label is added to its error."""
        server.answer("abortTransaction", {})
        async with await client.start_session() as session:
            session.start_transaction()
            error = await play(server, client.db.c.insert_one({}, session=session), step)
            await session.abort_transaction()
        assert isinstance(error, AutoReconnect)
        assert step is not hang_up or not error.has_error_label(RETRYABLE_WRITE)
        first = server.requests[0].command
        assert (True, False) == (first["startTransaction"], first["autocommit"])
        assert "insert" not in [request.name for request in server.requests[1:]]


class TestLabels:
    """retryable-writes, "RetryableWriteError Labels"."""

    @pytest.mark.parametrize("code", CODES)
    async def test_answers_of_servers_from_4_4_on(self, code, server, client):
        """ "Drivers MUST NOT add a RetryableWriteError label to any error derived from a 4.4+
        server response"."""
        error = await play(server, insert(client), failing(code))
        assert not error.has_error_label(RETRYABLE_WRITE)
        assert 1 == len(server.requests)

    async def test_a_label_is_enough(self, server, client):
        """ "the driver MUST treat all errors with the RetryableWriteError label as retryable"."""
        result = await play(server, insert(client), failing(8, RETRYABLE_WRITE), success)
        assert 1 == result.inserted_id

    @pytest.mark.parametrize("kind", ["primary", "mongos"])
    @pytest.mark.parametrize("code", CODES)
    async def test_codes_of_older_servers(self, code, kind, talks_to_old_servers):
        """ "errors that meet the following criteria": these codes at the top level."""
        async with (
            ScriptedServer(kind=kind, hello=OLD) as server,
            RetryClient(server.uri) as client,
        ):
            result = await play(server, insert(client), failing(code), success)
        assert 1 == result.inserted_id

    async def test_other_codes_of_older_servers(self, talks_to_old_servers):
        """Another code gets no label."""
        async with ScriptedServer(hello=OLD) as server, RetryClient(server.uri) as client:
            error = await play(server, insert(client), failing(8))
        assert (8, False) == (error.code, error.has_error_label(RETRYABLE_WRITE))

    @pytest.mark.parametrize("hello", [OLD, {}], ids=["old", "new"])
    @pytest.mark.parametrize("code", CODES)
    async def test_write_errors(self, code, hello, talks_to_old_servers):
        """No label because of "any writeErrors[].code fields"."""
        async with ScriptedServer(hello=hello) as server, RetryClient(server.uri) as client:
            error = await play(server, insert(client), write_error(code))
        assert isinstance(error, WriteError)
        assert (code, False) == (error.code, error.has_error_label(RETRYABLE_WRITE))

    @pytest.mark.parametrize(("kind", "hello"), [("mongos", OLD), ("mongos", {}), ("primary", {})])
    @pytest.mark.parametrize("code", [91, 11602])
    async def test_write_concern_errors(self, code, kind, hello, talks_to_old_servers):
        """No label because of "the writeConcernError.code field in a mongos response", nor in that
        of a mongod from 4.4 on."""
        async with (
            ScriptedServer(kind=kind, hello=hello) as server,
            RetryClient(server.uri) as client,
        ):
            error = await play(server, insert(client), concern(code))
        assert isinstance(error, WriteConcernError)
        assert (code, False) == (error.code, error.has_error_label(RETRYABLE_WRITE))

    @pytest.mark.parametrize(
        ("hello", "step"),
        [(OLD, concern(91)), ({}, concern(91, RETRYABLE_WRITE))],
        ids=["old", "labelled"],
    )
    async def test_write_concern_errors_of_a_mongod(self, hello, step, talks_to_old_servers):
        """An older mongod's gets the label; a newer one's has it from the server; both are retried
        with the same transaction id."""
        async with ScriptedServer(hello=hello) as server, RetryClient(server.uri) as client:
            result = await play(server, insert(client), step, success)
        assert 1 == result.inserted_id
        assert 1 == len(set(transaction_ids(server)))

    async def test_network_errors(self, server, client):
        """A network error gets the label, of whatever version the server is."""
        error = await play(server, insert(client), hang_up, hang_up)
        assert error.has_error_label(RETRYABLE_WRITE)

    async def test_errors_in_a_handshake(self, server, client):
        """So does "a network error establishing an initial connection"; nothing was sent, and the
        command is sent after all."""
        client.delegate._get_topology()
        while not client.topology_description.has_writable_server():
            await asyncio.sleep(0.001)
        handshake = asyncio.create_task(server.expect("hello"))
        await asyncio.sleep(0)
        async with client.db.c.operation() as op:
            write = asyncio.ensure_future(op.insert_one({}))
            (await handshake).hang_up()
            await play(server, write, success)
        first, second = op.attempts
        assert (False, True) == (first.sent, second.sent)
        assert first.error.has_error_label(RETRYABLE_WRITE)

    async def test_only_once_for_older_servers(self, talks_to_old_servers):
        """An older server's second error surfaces, with its label."""
        async with ScriptedServer(hello=OLD) as server, RetryClient(server.uri) as client:
            error = await play(server, insert(client), failing(6), failing(7))
        assert (7, True) == (error.code, error.has_error_label(RETRYABLE_WRITE))


class TestRetrying:
    """retryable-writes, "Executing Retryable Write Commands"."""

    @pytest.mark.parametrize("step", [hang_up, failing(6, RETRYABLE_WRITE)])
    async def test_once_without_a_deadline(self, step, server, client):
        """There is one retry, with the same transaction id, in a newly built message."""
        error = await play(server, insert(client), step, step)
        assert isinstance(error, AutoReconnect | OperationFailure)
        first, second = server.requests
        assert first.command == second.command
        assert first.request_id != second.request_id
        assert 2 == len(attempts_of(error))

    async def test_as_often_as_time_allows(self, server, client):
        """Client-Side Operations Timeout, "Retryability": "drivers MUST retry operations as many
        times as possible before the timeout expires"."""
        async with deadline(20):
            steps = [failing(6, RETRYABLE_WRITE)] * 6
            result = await play(server, insert(client), *steps, hang_up, success)
        assert 1 == result.inserted_id
        assert 1 == len(set(transaction_ids(server)))
        assert 8 == len({request.request_id for request in server.requests})

    async def test_until_another_error_comes(self, server, client):
        """... "or a retry attempt returns a non-retryable error"."""
        async with deadline(20):
            steps = [failing(6, RETRYABLE_WRITE)] * 3
            error = await play(server, insert(client), *steps, failing(13))
        assert (13, 4) == (error.code, len(attempts_of(error)))

    async def test_another_write_has_another_number(self, server, client):
        """retryable-writes, "Generating Transaction IDs": a number larger than any before."""
        await play(server, insert(client), failing(6, RETRYABLE_WRITE), success)
        await play(server, insert(client), success)
        (lsid, one), again, (same, two) = transaction_ids(server)
        assert (lsid, one) == again
        assert (lsid, True) == (same, two > one)

    async def test_after_a_write_concern_error(self, monkeypatch):
        """A retryable writeConcernError updates the topology as an error does: the retry waits
        until the server's next hello is known, and for another primary if it is none any more."""
        monkeypatch.setattr("aioretry._retry.server_selection._NEWS_WITHIN", 10.0)
        secondary = {"isWritablePrimary": False, "ismaster": False, "secondary": True}
        one, two, three = (
            {"topologyVersion": {"processId": bson.ObjectId(b"p" * 12), "counter": bson.Int64(n)}}
            for n in (1, 2, 3)
        )
        async with ScriptedServer(hello=one) as server, RetryClient(server.uri) as client:
            write = insert(client)
            request = await server.expect("insert")
            error = {"code": 189, "errmsg": "stepped down"}
            request.reply(
                {"n": 1, "writeConcernError": error, "errorLabels": [RETRYABLE_WRITE], **two}
            )
            with pytest.raises(TimeoutError):
                await server.expect("insert", timeout=0.2)
            server.hello = {**secondary, **two}
            while client.topology_description.has_writable_server():
                await asyncio.sleep(0.001)
            with pytest.raises(TimeoutError):
                await server.expect("insert", timeout=0.2)
            server.hello = three
            result = await play(server, write, success)
        assert 1 == result.inserted_id
        assert 1 == len(set(transaction_ids(server)))

    async def test_failed_reselection(self, server):
        """A selection for a retry that fails surfaces the previous error."""

        def step_down(request):
            server.hello = {"isWritablePrimary": False, "ismaster": False, "secondary": True}
            request.fail(10107, "previous", labels=[RETRYABLE_WRITE])

        async with RetryClient(server.uri, serverSelectionTimeoutMS=300) as client:
            error = await play(server, insert(client), step_down)
        assert not isinstance(error, ServerSelectionTimeoutError)
        assert "previous" in str(error)

    async def test_failed_first_selection(self):
        """An error of the first selection propagates: nothing was attempted."""
        hello = {"isWritablePrimary": False, "ismaster": False, "secondary": True}
        async with (
            ScriptedServer(hello=hello) as server,
            RetryClient(server.uri, serverSelectionTimeoutMS=300) as client,
        ):
            error = await play(server, insert(client))
        assert isinstance(error, ServerSelectionTimeoutError)
        assert Outcome.NOT_APPLIED is outcome_of(error)


class TestPrecedence:
    """retryable-writes, "Executing Retryable Write Commands": which error is raised."""

    async def test_the_one_that_may_have_written(self, server, client):
        """An error with the label NoWritesPerformed gives way to the one before."""
        steps = failing(11600, RETRYABLE_WRITE), failing(6, RETRYABLE_WRITE, NO_WRITES)
        error = await play(server, insert(client), *steps)
        assert 11600 == error.details["code"]
        assert Outcome.UNKNOWN is outcome_of(error)

    async def test_the_latest_that_may_have_written(self, server, client):
        """Of two such errors, it is the latest."""
        steps = failing(11600, RETRYABLE_WRITE), failing(6, RETRYABLE_WRITE)
        error = await play(server, insert(client), *steps)
        assert 6 == error.code

    async def test_the_latest_under_a_deadline(self, server, client):
        """So it is among many."""
        codes = [(6, ()), (7, ()), (89, (NO_WRITES,)), (262, (NO_WRITES,))]
        steps = [failing(code, RETRYABLE_WRITE, *labels) for code, labels in codes]
        async with deadline(20):
            error = await play(server, insert(client), *steps, failing(13, NO_WRITES))
        assert 7 == error.code

    async def test_the_first_if_none_has_written(self, server, client):
        """If all say NoWritesPerformed, the first surfaces."""
        labels = RETRYABLE_WRITE, NO_WRITES
        error = await play(server, insert(client), failing(6, *labels), failing(7, *labels))
        assert (6, Outcome.NOT_APPLIED) == (error.code, outcome_of(error))

    async def test_the_second_if_the_first_has_not_written(self, server, client):
        """An error that may have written comes before one that says NoWritesPerformed."""
        steps = failing(6, RETRYABLE_WRITE, NO_WRITES), hang_up
        error = await play(server, insert(client), *steps)
        assert not isinstance(error, OperationFailure)
        assert Outcome.UNKNOWN is outcome_of(error)


class TestOverload:
    """client-backpressure, "Overload retry policy"."""

    @pytest.fixture
    def events(self):
        """What hooks are told."""
        return []

    @pytest.fixture
    async def client(self, server, events, monkeypatch):
        """A client whose jitter takes the whole backoff, and whose retries are told."""
        async with RetryClient(server.uri, hooks=[events.append]) as client:
            await client.admin.command("ping")
            monkeypatch.setattr(random, "random", lambda: 1.0)
            yield client

    @pytest.mark.parametrize("limit", [None, 20])
    @pytest.mark.parametrize(
        "labels",
        [OVERLOADED, ("SystemOverloadedError", RETRYABLE_WRITE), (*OVERLOADED, RETRYABLE_WRITE)],
    )
    async def test_two_more_attempts(self, labels, limit, server, client, events):
        """At most maxAdaptiveRetries retries, deadline or not, each after
        min(10 s, base * 2**attempt) of the server's base."""
        step = failing(462, *labels, baseBackoffMS=4)
        async with deadline(limit):
            error = await play(server, insert(client), step, step, step)
        assert 462 == error.code
        assert [0.008, 0.016] == [event.wait for event in events]
        assert 1 == len(set(transaction_ids(server)))

    async def test_own_base(self, server, client, events):
        """Without baseBackoffMS the base is 100 ms."""
        await play(server, insert(client), failing(462, *OVERLOADED), success)
        assert [0.2] == [event.wait for event in events]

    async def test_longest_wait(self, server, client, events, monkeypatch):
        """No wait is longer than 10 s, whatever the server says."""
        monkeypatch.setattr(random, "random", lambda: 0.001)
        await play(server, insert(client), failing(462, *OVERLOADED, baseBackoffMS=1e9), success)
        assert [pytest.approx(0.01)] == [event.wait for event in events]

    async def test_other_errors_count(self, server, client, events):
        """ "Interaction with Existing Retry Behavior": retries for other errors count, and wait for
        nothing themselves."""
        overload = failing(462, *OVERLOADED, baseBackoffMS=4)
        async with deadline(20):
            error = await play(
                server, insert(client), failing(6, RETRYABLE_WRITE), overload, overload
            )
        assert 462 == error.code
        assert [0, 0.016] == [event.wait for event in events]

    async def test_other_errors_after_it(self, server, client):
        """Once there was an overload error, the limit holds for other errors too."""
        retryable = failing(6, RETRYABLE_WRITE)
        async with deadline(20):
            overload = failing(462, *OVERLOADED, baseBackoffMS=1)
            error = await play(server, insert(client), overload, retryable, retryable)
        assert 6 == error.code

    async def test_a_wait_that_would_pass_the_deadline(self, server, client):
        """The error is raised at once."""
        async with deadline(5):
            step = failing(462, *OVERLOADED, baseBackoffMS=60_000)
            error = await play(server, insert(client), step)
        assert (462, OperationFailure) == (error.code, type(error))

    @pytest.mark.parametrize("labels", [OVERLOADED[:1], OVERLOADED[1:]])
    async def test_both_labels(self, labels, server, client):
        """One of the two labels alone is not retried."""
        error = await play(server, insert(client), failing(462, *labels))
        assert 462 == error.code

    @pytest.mark.parametrize("kind", ["primary", "standalone"])
    async def test_without_transaction_id(self, kind, monkeypatch):
        """What carries no transaction id is retried as well: it was not executed."""
        monkeypatch.setattr(random, "random", lambda: 0.0)
        hello = NO_SESSIONS if kind == "primary" else {}
        async with (
            ScriptedServer(kind=kind, hello=hello) as server,
            RetryClient(server.uri) as client,
        ):
            step = failing(462, *OVERLOADED, baseBackoffMS=1)
            await play(server, insert(client), step, step, success)
        assert 3 == len(server.requests)
        assert all("txnNumber" not in request.command for request in server.requests)

    @pytest.mark.parametrize("name", UNSUPPORTED)
    async def test_for_what_is_passed_through(self, name, server, monkeypatch):
        """Every command is retried, update_many and the generic one too."""
        step = failing(462, *OVERLOADED, baseBackoffMS=1)
        async with RetryClient(server.uri) as client:
            monkeypatch.setattr(random, "random", lambda: 0.0)
            write = UNSUPPORTED[name](client.db.c)
            error = await play(server, write, step, step, step)
        assert isinstance(error, OperationFailure)
        assert 3 == len(server.requests)
        assert all("txnNumber" not in request.command for request in server.requests)


class TestSharded:
    """retryable-writes, "Executing Retryable Write Commands": deprioritized servers."""

    @pytest.mark.parametrize("limit", [None, 20])
    @pytest.mark.parametrize(
        "labels", [(RETRYABLE_WRITE,), OVERLOADED], ids=["retryable", "overloaded"]
    )
    async def test_the_other_mongos(self, labels, limit, mongoses):
        """A retry goes to a mongos that has not failed, every time."""
        mongoses = mongoses[:2]
        async with client_of(mongoses) as client:
            for _ in range(10):
                async with deadline(limit):
                    write = insert(client)
                    failed, request = await first_to_get(mongoses)
                    request.fail(6, labels=labels, baseBackoffMS=1)
                    (other,) = (mongos for mongos in mongoses if mongos is not failed)
                    (await other.expect()).reply({"n": 1})
                    await write
        first, second = (transaction_ids(mongos) for mongos in mongoses)
        assert set(first) == set(second)
        assert 10 == len(first)

    async def test_all_have_failed(self, mongoses):
        """An address is avoided to the end of the operation; if all are, any will do."""
        async with client_of(mongoses) as client, deadline(20):
            for _ in range(5):
                write = insert(client)
                asked = []
                for _ in range(5):
                    mongos, request = await first_to_get(mongoses)
                    asked.append(mongos)
                    request.fail(6, labels=[RETRYABLE_WRITE])
                _, request = await first_to_get(mongoses)
                request.reply({"n": 1})
                await write
                assert 3 == len(set(asked[:3]))

    async def test_a_mongos_that_hangs_up(self, mongoses):
        """The retry goes to another one without waiting for the first."""
        async with client_of(mongoses) as client:
            write = insert(client)
            failed, request = await first_to_get(mongoses)
            request.hang_up()
            others = [mongos for mongos in mongoses if mongos is not failed]
            _, request = await first_to_get(others)
            request.reply({"n": 1})
            assert 1 == (await write).inserted_id

    async def test_a_server_of_a_replica_set(self, server, client):
        """Elsewhere there is nothing to avoid: the only primary gets the retry."""
        await play(server, insert(client), failing(6, RETRYABLE_WRITE), success)
        assert 2 == len(server.requests)


class TestNoRetryableWrites:
    """retryable-writes, "Supported Server Versions": code 20."""

    MESSAGE = "Transaction numbers are only allowed on a replica set member or mongos"

    @pytest.mark.parametrize("limit", [None, 10])
    async def test_is_replaced(self, limit, server, client):
        """ "Drivers MUST raise an actionable error message"; the server's is the cause."""
        async with deadline(limit):
            error = await play(server, insert(client), failing(20, message=self.MESSAGE))
        assert (
            "This MongoDB deployment does not support retryable writes. "
            "Please add retryWrites=false to your connection string."
        ) in str(error)
        assert 20 == error.code
        assert str(error.__cause__).startswith(self.MESSAGE)

    @pytest.mark.parametrize(
        ("code", "message"), [(20, "other"), (20, f"No. {MESSAGE}"), (21, MESSAGE)]
    )
    async def test_other_errors(self, code, message, server, client):
        """Another code, or another text, is raised as it is."""
        error = await play(server, insert(client), failing(code, message=message))
        assert str(error).startswith(message)
        assert error.__cause__ is None


class TestTime:
    """Client-Side Operations Timeout."""

    @pytest.mark.parametrize("step", [failing(50), write_error(50), concern(50)])
    async def test_max_time_expired(self, step, server, client):
        """ "Error Transformations": code 50 at the top level, in writeErrors and in
        writeConcernError becomes the timeout error."""
        async with deadline(10):
            error = await play(server, insert(client), step)
        assert isinstance(error, DeadlineExceeded)
        assert error.timeout
        assert 50 == error.__cause__.code
        assert str(error.__cause__) in str(error)

    @pytest.mark.parametrize(
        ("step", "expected"),
        [
            (failing(50), ExecutionTimeout),
            (write_error(50), WriteError),
            (concern(50), WTimeoutError),
        ],
    )
    async def test_max_time_expired_without_a_deadline(self, step, expected, server, client):
        """ "Errors": "If the timeoutMS option is not set" existing errors are returned."""
        error = await play(server, insert(client), step)
        assert expected is type(error)

    async def test_when_it_is_over(self, server, client):
        """ "Once the timeout expires, a timeout error MUST be raised", which includes the
        underlying one."""
        server.answer("insert", failing(6, RETRYABLE_WRITE, message="why"))
        await client.admin.command("ping")  # it is connected before the time runs
        async with deadline(1.0):
            error = await play(server, insert(client))
        assert isinstance(error, DeadlineExceeded)
        assert error.timeout
        assert "why" in str(error)
        assert 6 == error.__cause__.code
        assert Outcome.UNKNOWN is outcome_of(error)
        assert 2 < len(server.requests)

    async def test_no_answer(self, server, client):
        """A server that never answers: the error comes at the deadline, and says what is known."""
        await client.admin.command("ping")  # it is connected before the time runs
        async with deadline(1.0):
            write = insert(client)
            await server.expect("insert")
            with pytest.raises(DeadlineExceeded) as caught:
                await write
        assert Outcome.UNKNOWN is outcome_of(caught.value)

    @pytest.mark.parametrize("how", ["deadline", "operation", "timeoutMS"])
    async def test_w_timeout(self, how, server):
        """ "drivers MUST ignore any deprecated timeout options if timeoutMS is set": wtimeout is
        left out, the rest of the write concern is not, and maxTimeMS is there."""
        concern = WriteConcern(w=3, j=True, wtimeout=5000)
        options = {"timeoutMS": 10_000} if how == "timeoutMS" else {}
        async with (
            RetryClient(server.uri, **options) as client,
            deadline(10 if how == "deadline" else None),
        ):
            c = client.db.get_collection("c", write_concern=concern)
            async with c.operation(10 if how == "operation" else None) as op:
                await play(server, asyncio.ensure_future(op.insert_one({})), success)
        (request,) = server.requests
        assert {"w": 3, "j": True} == request.command["writeConcern"]
        assert 0 < request.command["maxTimeMS"] <= 10_000

    async def test_w_timeout_without_a_deadline(self, server, client):
        """Without one wtimeout is sent, and no maxTimeMS."""
        c = client.db.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=5000))
        await play(server, c.insert_one({}), success)
        (request,) = server.requests
        assert {"w": 3, "wtimeout": 5000} == request.command["writeConcern"]
        assert "maxTimeMS" not in request.command

    async def test_nothing_left(self, server, client):
        """deadline(0) has expired already: nothing is sent."""
        await client.admin.command("ping")
        async with deadline(0):
            error = await play(server, insert(client))
        assert isinstance(error, DeadlineExceeded)
        assert error.timeout
        assert Outcome.NOT_APPLIED is outcome_of(error)
        assert () == server.requests

    @pytest.mark.parametrize("how", ["timeoutMS", "deadline"])
    async def test_no_limit(self, how, server):
        """timeoutMS=0 and deadline(inf): "An explicit value of 0 means infinite"; retries without
        end, and no maxTimeMS."""
        options = {"timeoutMS": 0} if how == "timeoutMS" else {}
        limit = float("inf") if how == "deadline" else None
        async with RetryClient(server.uri, **options) as client, deadline(limit):
            steps = [failing(6, RETRYABLE_WRITE)] * 5
            await play(server, insert(client), *steps, success)
        assert 6 == len(server.requests)
        assert all("maxTimeMS" not in request.command for request in server.requests)
