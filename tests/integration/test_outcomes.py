"""Every way a write can end that raises: the table of docs/outcomes.md, one test a row."""

import asyncio
import contextlib
import re
from pathlib import Path

import pytest
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.errors import InvalidBSON, InvalidDocument
from pymongo import ReadPreference
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    TooManyWaiting,
    WritesUnavailableError,
    deadline,
    outcome_of,
)

pytestmark = pytest.mark.usefixtures("three_members")

NOT_APPLIED, UNKNOWN = Outcome.NOT_APPLIED, Outcome.UNKNOWN
PAGE = Path(__file__).parents[2] / "docs" / "outcomes.md"
TABLE = re.compile(r"^\| how the write ends \| outcome \|\n\|.*\n((?:\|.*\n)+)", re.MULTILINE)
ROW = re.compile(r"^\| (.+) \| `(\w+)` \|$", re.MULTILINE)
INCREMENT = {"$inc": {"n": 1}}


class World:
    """What the writes of these tests meet."""

    def __init__(self, replica_set, collection, port):
        self.replica_set = replica_set
        self.faults = replica_set.faults
        self.collection = collection
        self.nowhere = f"mongodb://127.0.0.1:{port}"
        self.only = {"namespace": collection.full_name}
        self.clients = contextlib.AsyncExitStack()

    async def client(self, uri=None, **options):
        """A client of the test's own."""
        client = RetryClient(uri or self.replica_set.uri, **options)
        return await self.clients.enter_async_context(client)

    def seen_by(self, client):
        """The test's collection, as another client sees it."""
        return client[self.collection.database.name][self.collection.name]

    async def increment(self):
        """A write that a test waits for."""
        await self.collection.update_one({"_id": 1}, INCREMENT)


class Unreadable(TypeDecoder):
    """A type decoder that fails."""

    bson_type = int

    def transform_bson(self, value):
        raise ZeroDivisionError


async def no_server(world):
    client = await world.client(world.nowhere, serverSelectionTimeoutMS=150)
    await client.db.c.insert_one({})


async def too_many(world):
    client = await world.client(world.nowhere, max_waiting_writes=1)
    waiting = client.db.c.insert_one({})
    try:
        await asyncio.sleep(0)
        await client.db.c.insert_one({})
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])


async def failing_fast(world):
    client = await world.client(world.nowhere, fail_fast_after=0.01)
    await client.db.c.insert_one({})


async def no_time(world):
    async with deadline(0):
        await world.increment()


async def no_time_left(world):
    async with world.faults.hang("update", **world.only), deadline(2):
        await world.increment()


async def refused(world):
    client = await world.client(serverSelectionTimeoutMS=1000)
    # So the primary is known, and no connection to it is open for writes.
    await client.admin.command("ping", read_preference=ReadPreference.SECONDARY)
    async with asyncio.timeout(20):
        while client.primary is None:
            await asyncio.sleep(0.01)
    async with world.faults.refuse_connections():
        await world.seen_by(client).update_one({"_id": 1}, INCREMENT)


async def answers_lost(world):
    async with world.faults.drop_reply("update", times=2, **world.only):
        await world.increment()


async def answer_lost_and_refused(world):
    refusals = []

    def refuse(event):
        refusals.append(world.faults.refuse_connections())
        # The connection that told that the server is well would do for the second attempt.
        for server in client.delegate._get_topology()._servers.values():
            server.pool.reset_without_pause()

    client = await world.client(serverSelectionTimeoutMS=10_000, hooks=[refuse])
    async with world.faults.drop_reply("update", **world.only):
        try:
            await world.seen_by(client).update_one({"_id": 1}, INCREMENT)
        finally:
            for refusal in refusals:
                refusal.disarm()
                refusal.verify()


async def deposed(world):
    hang = world.faults.hang("update", **world.only)
    async with hang, world.faults.drop_reply("update", nth=2, **world.only):
        write = asyncio.ensure_future(world.increment())
        await hang.wait_until_fired()
        await world.replica_set.step_down()
        await write


async def duplicate(world):
    await world.collection.insert_one({"_id": 1})


async def write_error(world):
    await world.collection.update_one({"_id": 1}, {"$inc": {"text": 1}})


async def write_error_of_many(world):
    await world.collection.update_many({}, INCREMENT)


async def request_lost_and_duplicate(world):
    async with world.faults.drop_request("insert", **world.only):
        await duplicate(world)


async def denied(world):
    async with world.replica_set.fail_command("update", error_code=13):
        await world.increment()


async def request_lost_and_denied(world):
    async with world.faults.drop_request("update", **world.only):
        await denied(world)


async def concern(world):
    async with world.faults.write_concern_error(64, "update", labels=(), **world.only):
        await world.increment()


async def concern_in_time(world):
    wtimeout = {"errInfo": {"wtimeout": True}}
    async with world.faults.write_concern_error(64, "update", extra=wtimeout, **world.only):
        await world.increment()


async def concern_under_a_deadline(world):
    async with world.faults.write_concern_error(50, "update", labels=(), **world.only):
        async with deadline(30):
            await world.increment()


async def cancelled(world):
    client = await world.client(world.nowhere)
    write = client.db.c.insert_one({})
    await asyncio.sleep(0)
    write.cancel()
    await write


async def cancelled_when_sent(world):
    hang = world.faults.hang("update", **world.only)
    async with hang:
        write = asyncio.ensure_future(world.increment())
        await hang.wait_until_fired()
        write.cancel()
        await write


async def closed(world):
    client = await world.client(world.nowhere)
    write = client.db.c.insert_one({})
    await asyncio.sleep(0)
    client.close()
    await write


async def closed_when_sent(world):
    client = await world.client()
    hang = world.faults.hang("update", **world.only)
    async with hang:
        write = world.seen_by(client).update_one({"_id": 1}, INCREMENT)
        await hang.wait_until_fired()
        client.close()
        await write


async def bad_argument(world):
    await world.collection.update_one({"_id": 1}, {"$set": {"x": object()}})


async def unreadable(world):
    options = CodecOptions(type_registry=TypeRegistry([Unreadable()]))
    await world.collection.with_options(codec_options=options).find_one_and_update(
        {"_id": 1}, INCREMENT
    )


MANY = "the same of an `update_many` or `delete_many`, which may have changed some documents before"
DEPOSED = (
    "`AutoReconnect`: the primary stopped taking writes while it had the command, "
    "and the retry failed"
)
DUPLICATE_LATER = "connection lost after sending, then `DuplicateKeyError` of the same server"
MAJORITY = "applied on the primary, not yet by a majority"

CASES = {
    "`ServerSelectionTimeoutError`, nothing sent": (
        no_server,
        ServerSelectionTimeoutError,
        NOT_APPLIED,
    ),
    "`TooManyWaiting`: as many writes as may wait for a server did so already": (
        too_many,
        TooManyWaiting,
        NOT_APPLIED,
    ),
    "`WritesUnavailableError`: no server has taken writes for `fail_fast_after`": (
        failing_fast,
        WritesUnavailableError,
        NOT_APPLIED,
    ),
    "`DeadlineExceeded`, nothing sent": (no_time, DeadlineExceeded, NOT_APPLIED),
    "`DeadlineExceeded`, while the server had the command": (
        no_time_left,
        DeadlineExceeded,
        UNKNOWN,
    ),
    "`AutoReconnect`: refused": (refused, AutoReconnect, NOT_APPLIED),
    "`AutoReconnect`: connection lost after sending": (answers_lost, AutoReconnect, UNKNOWN),
    "`AutoReconnect`: connection lost after sending, then refused": (
        answer_lost_and_refused,
        AutoReconnect,
        UNKNOWN,
    ),
    DEPOSED: (deposed, AutoReconnect, UNKNOWN),
    "`DuplicateKeyError`": (duplicate, DuplicateKeyError, NOT_APPLIED),
    "`WriteError`": (write_error, WriteError, NOT_APPLIED),
    MANY: (write_error_of_many, WriteError, UNKNOWN),
    DUPLICATE_LATER: (request_lost_and_duplicate, DuplicateKeyError, UNKNOWN),
    '`OperationFailure`, such as "not authorized"': (denied, OperationFailure, NOT_APPLIED),
    'connection lost after sending, then "not authorized"': (
        request_lost_and_denied,
        PyMongoError,
        UNKNOWN,
    ),
    f"`WriteConcernError`: {MAJORITY}": (concern, WriteConcernError, UNKNOWN),
    f"`WTimeoutError`: {MAJORITY} in time": (concern_in_time, WTimeoutError, UNKNOWN),
    f"`DeadlineExceeded` with a `WTimeoutError` as its cause: {MAJORITY} in time": (
        concern_under_a_deadline,
        DeadlineExceeded,
        UNKNOWN,
    ),
    "`CancelledError`, nothing sent": (cancelled, asyncio.CancelledError, NOT_APPLIED),
    "`CancelledError`, after sending": (cancelled_when_sent, asyncio.CancelledError, UNKNOWN),
    "`InvalidOperation`: the client was closed, nothing sent": (
        closed,
        InvalidOperation,
        NOT_APPLIED,
    ),
    "`InvalidOperation`: the client was closed while the server had the command": (
        closed_when_sent,
        InvalidOperation,
        UNKNOWN,
    ),
    "`TypeError`, `InvalidDocument` and other errors of the arguments": (
        bad_argument,
        InvalidDocument,
        NOT_APPLIED,
    ),
    "an error of your own type decoder, reading the reply": (
        unreadable,
        (ZeroDivisionError, InvalidBSON),  # bson's C code wraps it
        UNKNOWN,
    ),
}


@pytest.fixture
async def world(replica_set, collection, free_port):
    """A collection of two documents, and clients that are closed after the test."""
    await collection.insert_many([{"_id": 1, "n": 0, "text": ""}, {"_id": 2, "n": ""}])
    world = World(replica_set, collection, free_port)
    async with world.clients:
        yield world


@pytest.mark.parametrize("row", CASES)
async def test_row(row, world, stored):
    """The exception is of that kind, knows the outcome, and if nothing was written that is so."""
    case, error, outcome = CASES[row]
    before = list(stored.find().sort("_id"))
    with pytest.raises(error) as caught:
        await case(world)
    assert outcome is outcome_of(caught.value)
    if outcome is NOT_APPLIED:
        assert before == list(stored.find().sort("_id"))


async def test_applied_but_not_by_a_majority_is_told_apart(world, stored):
    """The exception or its cause is a WriteConcernError, and the write is there."""
    for number, case in enumerate((concern, concern_in_time, concern_under_a_deadline), start=1):
        with pytest.raises(PyMongoError) as caught:
            await case(world)
        exc = caught.value
        assert isinstance(exc.__cause__ or exc, WriteConcernError)
        assert number == stored.find_one({"_id": 1})["n"]


def test_the_page_has_these_rows():
    """The table on the page and the tests are about the same ways to end."""
    ((table),) = TABLE.findall(PAGE.read_text())
    expected = [(row, outcome.name) for row, (_, _, outcome) in CASES.items()]
    assert expected == ROW.findall(table)
