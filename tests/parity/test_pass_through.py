"""What stays Motor's own does what stock Motor does, under the same fault on the same server."""

import asyncio
import contextlib
import copy
import datetime as dt
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from bson import ObjectId
from motor.motor_asyncio import (
    AsyncIOMotorClient,
    AsyncIOMotorDatabase,
    AsyncIOMotorGridFSBucket,
)
from pymongo import (
    DeleteMany,
    DeleteOne,
    IndexModel,
    InsertOne,
    MongoClient,
    ReplaceOne,
    UpdateMany,
    UpdateOne,
    monitoring,
)
from pymongo.errors import ClientBulkWriteException, InvalidOperation, PyMongoError

from aioretry import RetryClient, deadline
from aioretry.testing import Fault, Faults, ReplicaSet, ScriptedRequest, ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOTORS, OURS = "side_a", "side_b"
OVERLOADED = ("SystemOverloadedError", "RetryableError")
FILE = ObjectId("65a000000000000000000001")
# How often these are sent depends on the time, or they are sent at any time.
UNCOUNTED = {"endSessions", "killCursors"}
ABORT = "abortTransaction"

Call = Callable[[AsyncIOMotorDatabase], Awaitable[object]]


# -- the operations --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A call, and the command that the fault is for."""

    command: str
    call: Call
    uncounted: frozenset[str] = frozenset()


async def to_list(cursor):
    """All that a cursor gives."""
    return await cursor.to_list(None)


async def list_collections(db):
    """The collections, which have no order."""
    return sorted(await db.list_collection_names())


async def list_databases(db):
    """Whether the own database is listed."""
    names = [found["name"] async for found in await db.client.list_databases()]
    return db.name in names


async def database_aggregate(db):
    """An aggregation of a database that writes."""
    into = {"$merge": {"into": {"db": db.name, "coll": "o"}}}
    one = [{"$currentOp": {}}, {"$limit": 1}, {"$project": {"_id": "1"}}]
    return await to_list(db.client.admin.aggregate([*one, into]))


async def cursor_command(db):
    """The documents of a command's cursor."""
    return await to_list(await db.cursor_command({"find": "c"}))


async def watch(db):
    """Two changes, with a getMore between them."""
    with MongoClient(*db.client.delegate.address) as plain:
        begin = plain.admin.command("ping")["operationTime"]
        async with db.c.watch(start_at_operation_time=begin, max_await_time_ms=100) as stream:
            seen = []
            for number in (101, 102):
                plain[db.name].c.insert_one({"_id": number})
                seen.append((await stream.next())["documentKey"])
            return seen


async def in_transaction(db, *, commit):
    """An insert in a transaction."""
    async with await db.client.start_session() as session:
        session.start_transaction()
        await db.c.insert_one({"_id": 100}, session=session)
        await (session.commit_transaction() if commit else session.abort_transaction())


async def read_in_transaction(db):
    """A transaction that reads and writes."""
    async with await db.client.start_session() as session, session.start_transaction():
        found = await db.c.find_one({"_id": 1}, session=session)
        await db.c.update_many({}, {"$inc": {"n": 1}}, session=session)
        return found


async def upload(db, bucket_name="fs"):
    """A file of three chunks."""
    bucket = AsyncIOMotorGridFSBucket(db, bucket_name)
    await bucket.upload_from_stream_with_id(
        ObjectId("65a000000000000000000002"), "new", b"0123456789", chunk_size_bytes=4
    )


async def download(db):
    """A file that is there."""
    stream = await AsyncIOMotorGridFSBucket(db).open_download_stream(FILE)
    return await stream.read()


async def find_files(db):
    """The files that are there."""
    files = AsyncIOMotorGridFSBucket(db).find({})
    return [(file._id, file.filename, file.length) async for file in files]


def gridfs_delete(db):
    """The deletion of a file."""
    return AsyncIOMotorGridFSBucket(db).delete(FILE)


def gridfs_rename(db):
    """A file's new name."""
    return AsyncIOMotorGridFSBucket(db).rename(FILE, "other")


INDEXES = [IndexModel("a"), IndexModel([("b", -1)], unique=True)]
MATCH, OUT, MERGE = {"$match": {"n": 1}}, {"$out": "o"}, {"$merge": "o"}
CASES = {
    "find_one": Case("find", lambda db: db.c.find_one({"_id": 1})),
    "find": Case("find", lambda db: to_list(db.c.find({}, batch_size=2))),
    "find, getMore": Case("getMore", lambda db: to_list(db.c.find({}, batch_size=2))),
    "count_documents": Case("aggregate", lambda db: db.c.count_documents({})),
    "estimated_document_count": Case("count", lambda db: db.c.estimated_document_count()),
    "distinct": Case("distinct", lambda db: db.c.distinct("n")),
    "aggregate": Case("aggregate", lambda db: to_list(db.c.aggregate([MATCH]))),
    "aggregate, $out": Case("aggregate", lambda db: to_list(db.c.aggregate([OUT]))),
    "aggregate, $merge": Case("aggregate", lambda db: to_list(db.c.aggregate([MERGE]))),
    "database aggregate, $merge": Case("aggregate", database_aggregate),
    "list_collections": Case("listCollections", list_collections),
    "list_databases": Case("listDatabases", list_databases),
    "list_indexes": Case("listIndexes", lambda db: to_list(db.c.list_indexes())),
    "watch": Case("aggregate", watch, frozenset({"getMore"})),
    "watch, getMore": Case("getMore", watch, frozenset({"getMore"})),
    "create_index": Case("createIndexes", lambda db: db.c.create_index("a")),
    "create_indexes": Case("createIndexes", lambda db: db.c.create_indexes(INDEXES)),
    "drop_index": Case("dropIndexes", lambda db: db.c.drop_index("n_1")),
    "drop_indexes": Case("dropIndexes", lambda db: db.c.drop_indexes()),
    "create_collection": Case("create", lambda db: db.create_collection("new", capped=False)),
    "drop": Case("drop", lambda db: db.c.drop()),
    "drop_collection": Case("drop", lambda db: db.drop_collection(db.c)),
    "rename": Case("renameCollection", lambda db: db.c.rename("renamed")),
    "drop_database": Case("dropDatabase", lambda db: db.client.drop_database(db)),
    "command, a read": Case("count", lambda db: db.command("count", "c", query={"n": 1})),
    "command, a write": Case(
        "insert", lambda db: db.command({"insert": "c", "documents": [{"_id": 100}]})
    ),
    "cursor_command": Case("find", cursor_command),
    "commit_transaction": Case("commitTransaction", lambda db: in_transaction(db, commit=True)),
    "abort_transaction": Case("abortTransaction", lambda db: in_transaction(db, commit=False)),
    "in a transaction, insert": Case("insert", lambda db: in_transaction(db, commit=True)),
    "in a transaction, find": Case("find", read_in_transaction),
    "in a transaction, update_many": Case("update", read_in_transaction),
    "GridFS upload": Case("insert", upload),
    "GridFS upload, its indexes": Case("createIndexes", lambda db: upload(db, "empty")),
    "GridFS download": Case("find", download),
    "GridFS find": Case("find", find_files),
    "GridFS delete": Case("delete", gridfs_delete),
    "GridFS rename": Case("update", gridfs_rename),
}
# Of each kind one; the others take the same ways.
UNDER_DEADLINE = (
    "find_one",
    "find, getMore",
    "aggregate, $out",
    "list_indexes",
    "create_index",
    "create_collection",
    "drop_database",
    "command, a write",
    "commit_transaction",
    "GridFS upload",
    "GridFS download",
)


def overload(faults: Faults, command: str, side: str, times: int | None) -> Fault:
    """A server that refuses a command because it is overloaded."""
    return faults.error(
        462, command, labels=OVERLOADED, extra={"baseBackoffMS": 1}, times=times, app_name=side
    )


FAULTS: dict[str, Callable[[Faults, str, str], Fault]] = {
    "request lost": lambda faults, command, side: faults.drop_request(command, app_name=side),
    "reply lost": lambda faults, command, side: faults.drop_reply(command, app_name=side),
    "overloaded once": lambda faults, command, side: overload(faults, command, side, 1),
    "overloaded for long": lambda faults, command, side: overload(faults, command, side, None),
}


# -- the two sides ---------------------------------------------------------------------------------


class Sent(monitoring.CommandListener):
    """Remembers what a client sent: the commands' names, and which had a transaction id."""

    def __init__(self):
        self.commands = []

    def started(self, event):
        if event.command_name not in UNCOUNTED:
            self.commands.append((event.command_name, "txnNumber" in event.command))

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


@dataclass
class Side:
    """A client, its own database, and what it sent."""

    client: AsyncIOMotorClient
    name: str
    sent: Sent
    plain: MongoClient

    def prepare(self) -> None:
        """Make the database what it is before each call."""
        self.plain.admin.command("killAllSessions", [])  # a transaction may have been left open
        self.plain.drop_database(self.name)
        db = self.plain[self.name]
        db.c.create_index("n")
        db.c.insert_many([{"_id": i, "n": i % 3} for i in range(1, 6)])
        db["fs.files"].insert_one(
            {"_id": FILE, "length": 6, "chunkSize": 4, "filename": "old", "uploadDate": WHEN}
        )
        chunks = [b"abcd", b"ef"]
        db["fs.chunks"].insert_many(
            [{"files_id": FILE, "n": n, "data": data} for n, data in enumerate(chunks)]
        )

    async def outcome(self, case: Case, fault: Fault) -> dict[str, Any]:
        """Make a call under a fault; return all that can be seen of it."""
        for aborting in [*self.client._write_path.aborting] if self.name == OURS else ():
            aborting.leave()  # of the case before
        await self.client.admin.command("ping")
        self.sent.commands.clear()
        seen: dict[str, Any] = {}
        async with fault:
            try:
                seen["result"] = plain(await case.call(self.client[self.name]))
            except PyMongoError as exc:
                seen["error"] = error_of(exc)
            seen["fired"] = fault.fired
        sent = [sent for sent in self.sent.commands if sent[0] not in case.uncounted]
        # Where a statement was lost, which may begin the transaction still, ours is repeated.
        pairs = zip([None, *sent], sent, strict=False)
        seen["sent"] = [one for before, one in pairs if one != before or one[0] != ABORT]
        seen["stored"] = self.stored()
        return seen

    def stored(self) -> dict[str, Any]:
        """All that is in the database."""
        db = self.plain[self.name]
        return {
            name: (
                [plain(document) for document in db[name].find().sort("_id", 1)],
                sorted(db[name].index_information()),
            )
            for name in sorted(db.list_collection_names())
        }


WHEN = dt.datetime(2024, 2, 29, tzinfo=dt.UTC)
VOLATILE = {"$clusterTime", "operationTime", "opTime", "uploadDate"}


def plain(value: Any) -> Any:
    """A value without what differs from side to side."""
    if isinstance(value, Mapping):
        return {
            key: plain(item)
            for key, item in value.items()
            if key not in VOLATILE and not (key == "_id" and item != FILE and is_new(item))
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str | int | float | bytes | ObjectId | None):
        return value.replace(OURS, MOTORS) if isinstance(value, str) else value
    return value.name if hasattr(value, "name") else repr(value)


def is_new(value: object) -> bool:
    """Whether it is an id that was made up in the call."""
    return isinstance(value, ObjectId)


def error_of(exc: PyMongoError) -> dict[str, Any]:
    """What a caller can tell of an exception."""
    return {
        "type": type(exc),
        "code": getattr(exc, "code", None),
        "labels": sorted(exc._error_labels),
        "timeout": exc.timeout,
    }


@pytest.fixture(scope="module")
def server() -> Iterator[ReplicaSet]:
    """One member behind a proxy, for the whole module."""
    with ReplicaSet(members=1, faults=True) as replica_set:
        yield replica_set


@pytest.fixture(scope="module")
def stored(server: ReplicaSet) -> Iterator[MongoClient]:
    """PyMongo's client, to prepare the databases and to look at them."""
    with MongoClient(server.uri, w=1, journal=False) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def motors(server: ReplicaSet, stored: MongoClient):
    """Stock Motor."""
    sent, uri = Sent(), f"{server.uri}&appName={MOTORS}"
    with contextlib.closing(AsyncIOMotorClient(uri, event_listeners=[sent])) as client:
        yield Side(client, MOTORS, sent, stored)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(server: ReplicaSet, stored: MongoClient):
    """The client under test."""
    sent, uri = Sent(), f"{server.uri}&appName={OURS}"
    async with RetryClient(uri, event_listeners=[sent]) as client:
        yield Side(client, OURS, sent, stored)


# -- the tests -------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", CASES)
async def test_as_motor(name, fault, motors, ours, server):
    """Same result or error, the same commands sent, and the same stored."""
    case = CASES[name]
    sides = (motors, ours)
    for side in sides:
        side.prepare()
    faults = [FAULTS[fault](server.faults, case.command, side.name) for side in sides]
    expected, actual = await asyncio.gather(
        *(side.outcome(case, fault) for side, fault in zip(sides, faults, strict=True))
    )
    assert expected == actual


@pytest.mark.parametrize("name", UNDER_DEADLINE)
async def test_under_a_deadline(name, ours, server):
    """A deadline() block is PyMongo's timeout for what is Motor's own."""
    case = CASES[name]
    ours.prepare()
    await ours.client.admin.command("ping")
    async with server.faults.hang(case.command, applied=True, must_fire=False), deadline(0.5):
        with pytest.raises(PyMongoError) as caught:
            await case.call(ours.client[OURS])
    assert caught.value.timeout


# -- client.bulk_write: for want of a server 8.0, at a scripted one --------------------------------

MODELS = [
    InsertOne({"_id": 1}, namespace="db.c"),
    UpdateOne({"_id": 1}, {"$set": {"n": 1}}, upsert=True, namespace="db.other"),
    ReplaceOne({"_id": 2}, {"n": 2}, namespace="db.c"),
    DeleteOne({"_id": 3}, namespace="db.other"),
]
MANY = [
    UpdateMany({}, {"$set": {"n": 1}}, namespace="db.c"),
    DeleteMany({"n": 1}, namespace="db.c"),
]
Answer = Callable[[ScriptedRequest], None]


def cursor_of(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The cursor of a reply, one document for each operation."""
    return {"id": 0, "ns": "admin.$cmd.bulkWrite", "firstBatch": list(results)}


def hang_up(request: ScriptedRequest) -> None:
    """The connection is lost."""
    request.hang_up()


def done(request: ScriptedRequest) -> None:
    """All is written."""
    ops = request.command["ops"]
    inserts, deletes = (sum(name in op for op in ops) for name in ("insert", "delete"))
    changes = len(ops) - inserts - deletes
    request.reply(
        {
            "nErrors": 0,
            "nInserted": inserts,
            "nMatched": changes,
            "nModified": changes,
            "nUpserted": 0,
            "nDeleted": deletes,
            "cursor": cursor_of(
                {"ok": 1.0, "idx": idx, "n": 1, **({"nModified": 1} if "update" in op else {})}
                for idx, op in enumerate(ops)
            ),
        }
    )


def refused(request: ScriptedRequest) -> None:
    """The first operation fails."""
    counts = ("nInserted", "nMatched", "nModified", "nUpserted", "nDeleted")
    error = {"ok": 0.0, "idx": 0, "n": 0, "code": 11000, "errmsg": "duplicate"}
    request.reply({"nErrors": 1, **dict.fromkeys(counts, 0), "cursor": cursor_of([error])})


def overloaded(request: ScriptedRequest) -> None:
    """The server is overloaded."""
    request.fail(462, "busy", labels=OVERLOADED, baseBackoffMS=1)


def shutting_down(request: ScriptedRequest) -> None:
    """The server is shutting down."""
    request.fail(91, "bye", labels=["RetryableWriteError"])


PLAYS: dict[str, tuple[list[Any], tuple[Answer, ...]]] = {
    "done": (MODELS, (done,)),
    "a write error": (MODELS, (refused,)),
    "connection lost": (MODELS, (hang_up, done)),
    "connection lost twice": (MODELS, (hang_up, hang_up)),
    "shutting down": (MODELS, (shutting_down, done)),
    "many, connection lost": (MANY, (hang_up,)),
    "overloaded once": (MODELS, (overloaded, done)),
    "overloaded for long": (MODELS, (overloaded, overloaded, overloaded)),
    "many, overloaded": (MANY, (overloaded, done)),
}


async def play(
    make: type[AsyncIOMotorClient], models: list[Any], answers: tuple[Answer, ...], *, verbose: bool
) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """Answer the commands of a bulk write; return what it ends with, and the commands."""
    with ScriptedServer(hello={"maxWireVersion": 25}) as server:
        server.answer("ping", {})
        client = make(server.uri)
        try:
            write = asyncio.ensure_future(
                client.bulk_write(copy.deepcopy(models), verbose_results=verbose)
            )
            for answer in answers:
                answer(await server.expect("bulkWrite", timeout=30))
            try:
                seen = {"result": vars_of(await write)}
            except PyMongoError as exc:
                seen = {"error": error_of(exc), "details": details_of(exc)}
            return seen, [request.command for request in server.requests]
        finally:
            client.close()


def vars_of(result: Any) -> dict[str, Any]:
    """All that a caller sees of a result of client.bulk_write."""
    names = [
        name
        for name in dir(result)
        if not name.startswith("_") and name.endswith(("_count", "acknowledged"))
    ]
    seen = {name: getattr(result, name) for name in names}
    if result.has_verbose_results:
        seen |= {
            name: {index: repr(value) for index, value in getattr(result, name).items()}
            for name in ("insert_results", "update_results", "delete_results")
        }
    return seen


def details_of(exc: PyMongoError) -> dict[str, Any]:
    """All that a ClientBulkWriteException tells beside its class."""
    seen = {}
    if isinstance(exc, ClientBulkWriteException):
        seen["error"] = type(exc.error)
        seen["write_errors"] = exc.write_errors
        seen["partial"] = None if exc.partial_result is None else vars_of(exc.partial_result)
    return seen


def sent_of(command: Mapping[str, Any]) -> dict[str, Any]:
    """A command, without what differs from client to client."""
    volatile = {"lsid", "$clusterTime"}
    return {key: value for key, value in command.items() if key not in volatile}


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", PLAYS)
async def test_client_bulk_write(name, verbose):
    """The same commands, with one transaction id where there is one, and the same end."""
    models, answers = PLAYS[name]
    (expected, motors_commands), (actual, our_commands) = await asyncio.gather(
        *(
            play(make, models, answers, verbose=verbose)
            for make in (AsyncIOMotorClient, RetryClient)
        )
    )
    assert expected == actual
    assert list(map(sent_of, motors_commands)) == list(map(sent_of, our_commands))
    assert len(answers) == len(our_commands)
    ids = {(command["lsid"]["id"], command.get("txnNumber")) for command in our_commands}
    assert 1 == len({number for _, number in ids})
    assert (models is MANY) == (None in {number for _, number in ids})


async def test_client_bulk_write_at_an_older_server(motors, ours):
    """Motor's own error: it needs MongoDB 8.0."""
    errors = []
    for side in (motors, ours):
        with pytest.raises(InvalidOperation) as caught:
            await side.client.bulk_write(MODELS)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
    assert "8.0" in errors[0][1]
