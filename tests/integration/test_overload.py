"""client-backpressure for what stays Motor's own, which PyMongo does; where it differs from the
specification, the tests say so.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pymongo
import pytest
from pymongo import IndexModel, monitoring
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from aioretry import RetryClient, RetryMotorDatabase, deadline
from aioretry.testing import ReplicaSet, ScriptedRequest, ScriptedServer

OVERLOADED = ("SystemOverloadedError", "RetryableError")
INDEXES = [IndexModel("a"), IndexModel("b")]


@dataclass(frozen=True)
class Call:
    """A call, its command, and which options have to be on for a retry."""

    command: str
    make: Callable[[RetryMotorDatabase], Awaitable[object]]
    needs: frozenset[str] = frozenset({"retryWrites"})


BOTH = frozenset({"retryWrites", "retryReads"})
READS = frozenset({"retryReads"})


def merge(db: RetryMotorDatabase) -> Awaitable[object]:
    """An aggregation of a database that writes."""
    into = {"$merge": {"into": {"db": db.name, "coll": "o"}}}
    one = [{"$currentOp": {}}, {"$limit": 1}, {"$project": {"_id": "1"}}]
    return db.client.admin.aggregate([*one, into]).to_list(None)


CALLS = {
    "command, a write": Call(
        "insert", lambda db: db.command({"insert": "c", "documents": [{"_id": 9}]}), BOTH
    ),
    "command, a read": Call("count", lambda db: db.command("count", "c"), BOTH),
    "aggregate, $out": Call(
        "aggregate", lambda db: db.c.aggregate([{"$out": "o"}]).to_list(None), needs=BOTH
    ),
    "aggregate, $merge": Call(
        "aggregate", lambda db: db.c.aggregate([{"$merge": "o"}]).to_list(None), needs=BOTH
    ),
    "database aggregate, $merge": Call("aggregate", merge, needs=READS),
    "create_collection": Call("create", lambda db: db.create_collection("new")),
    "drop": Call("drop", lambda db: db.c.drop()),
    "drop_collection": Call("drop", lambda db: db.drop_collection(db.c)),
    "drop_database": Call("dropDatabase", lambda db: db.client.drop_database(db), needs=BOTH),
    "create_index": Call("createIndexes", lambda db: db.c.create_index("a")),
    "create_indexes": Call("createIndexes", lambda db: db.c.create_indexes(INDEXES)),
    "drop_index": Call("dropIndexes", lambda db: db.c.drop_index("n_1")),
    "drop_indexes": Call("dropIndexes", lambda db: db.c.drop_indexes()),
    "rename": Call("renameCollection", lambda db: db.c.rename("renamed")),
}

everything = pytest.mark.parametrize("name", CALLS)


def overloaded(request: ScriptedRequest) -> None:
    """The server is overloaded."""
    request.fail(462, "busy", labels=OVERLOADED, baseBackoffMS=1)


def done(request: ScriptedRequest) -> None:
    """The command was run."""
    request.reply({"n": 0, "cursor": {"id": 0, "ns": "db.c", "firstBatch": []}})


async def end_of(call: Awaitable[object]) -> object:
    """What a call ends with, errors too."""
    try:
        return await call
    except PyMongoError as exc:
        return exc


async def play(server: ScriptedServer, client: RetryClient, call: Call, *steps) -> object:
    """Answer the commands of a call, one step each; return what it ends with."""
    server.answer("listCollections", {"cursor": {"id": 0, "ns": "db.c", "firstBatch": []}})
    async with asyncio.timeout(20):
        running = asyncio.ensure_future(end_of(call.make(client.db)))
        for step in steps:
            step(await server.expect(call.command))
        return await running


def count(server: ScriptedServer, call: Call) -> int:
    """How often the command came."""
    return sum(request.name == call.command for request in server.requests)


@pytest.fixture
def jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of each backoff is waited for."""
    monkeypatch.setattr(random, "random", lambda: 1.0)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A primary; what nobody expected fails the test."""
    async with ScriptedServer() as server:
        yield server


class TestTheRules:
    """client-backpressure, "Overload retry policy", at a scripted server."""

    @everything
    async def test_two_more_attempts(self, name, server):
        """maxAdaptiveRetries is 2, without a deadline."""
        async with RetryClient(server.uri) as client:
            error = await play(server, client, CALLS[name], *[overloaded] * 3)
        assert isinstance(error, OperationFailure)
        assert (462, 3) == (error.code, count(server, CALLS[name]))

    @everything
    async def test_two_more_attempts_under_a_deadline(self, name, server):
        """And with one: the time is no reason to ask an overloaded server more often."""
        async with RetryClient(server.uri) as client, deadline(20):
            error = await play(server, client, CALLS[name], *[overloaded] * 3)
        assert isinstance(error, OperationFailure)
        assert (462, 3) == (error.code, count(server, CALLS[name]))

    @everything
    async def test_success(self, name, server):
        """The call gives what the last attempt gave, and nothing has a transaction id."""
        async with RetryClient(server.uri) as client:
            end = await play(server, client, CALLS[name], overloaded, overloaded, done)
        assert not isinstance(end, Exception)
        assert not [request for request in server.requests if "txnNumber" in request.command]

    @pytest.mark.skipif(
        pymongo.version_tuple < (4, 18), reason="PyMongo 4.17 does not heed baseBackoffMS"
    )
    @everything
    @pytest.mark.parametrize("limit", ["deadline", "timeoutMS"])
    async def test_a_wait_that_would_pass_the_deadline(self, limit, name, server, jitter):
        """The error is raised at once, under deadline() and under the client's timeoutMS."""

        def busy(request: ScriptedRequest) -> None:
            request.fail(462, "busy", labels=OVERLOADED, baseBackoffMS=60_000)

        option = "&timeoutMS=5000" if limit == "timeoutMS" else ""
        async with (
            RetryClient(server.uri + option) as client,
            deadline(5 if limit == "deadline" else None),
        ):
            error = await play(server, client, CALLS[name], busy)
        assert isinstance(error, OperationFailure)
        assert (462, 1) == (error.code, count(server, CALLS[name]))

    @everything
    @pytest.mark.parametrize("option", sorted(BOTH))
    async def test_options(self, option, name, server):
        """Writes need retryWrites, and the generic command needs retryReads too.

        PyMongo wants retryReads for aggregations that write and for dropDatabase as well, and takes
        an aggregation of a database for a read whatever it does.
        """
        call = CALLS[name]
        steps = [overloaded] * (1 if option in call.needs else 3)
        async with RetryClient(f"{server.uri}&{option}=false") as client:
            error = await play(server, client, call, *steps)
        assert isinstance(error, OperationFailure)
        assert len(steps) == count(server, call)

    @everything
    async def test_a_lost_connection(self, name, server):
        """It may have been run: nothing is sent again."""
        async with RetryClient(server.uri) as client:
            error = await play(server, client, CALLS[name], lambda request: request.hang_up())
        assert isinstance(error, AutoReconnect)
        assert 1 == count(server, CALLS[name])


class Sent(monitoring.CommandListener):
    """Remembers the names of the commands that a client sent."""

    def __init__(self):
        self.names = []

    def started(self, event):
        self.names.append(event.command_name)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


@everything
async def test_at_a_real_server(name, replica_set: ReplicaSet, plain):
    """A server that refuses a call twice runs it once."""
    call, sent = CALLS[name], Sent()
    database = "aioretry_overload"
    plain.drop_database(database)
    plain[database].c.insert_many([{"_id": n, "n": n} for n in range(3)])
    plain[database].c.create_index("n")
    uri = f"{replica_set.uri}&appName=overloaded"
    async with RetryClient(uri, event_listeners=[sent]) as client:
        await client.admin.command("ping")
        async with replica_set.fail_command(
            call.command,
            error_code=462,
            error_labels=OVERLOADED,
            mode={"times": 2},
            app_name="overloaded",
        ):
            await call.make(client[database])
    assert 3 == sent.names.count(call.command)
