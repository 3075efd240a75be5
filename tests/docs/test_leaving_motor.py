"""The page about leaving Motor: each line of its table is run on both clients."""

import ast
import asyncio
import builtins
import inspect
import io
import re
import warnings

import pymongo
import pytest
from gridfs import AsyncGridFSBucket
from motor.motor_asyncio import AsyncIOMotorGridFSBucket
from pymongo import errors

from aioretry import RetryClient
from aioretry.idempotent import Keys
from aioretry.pymongo import AsyncRetryClient
from tests.docs.snippets import ROOT, rows

TABLE = rows(ROOT / "docs" / "leaving-motor.md", "what")
EACH_LINE = pytest.mark.parametrize(
    ("old", "new", "there"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
BUCKETS = {RetryClient: AsyncIOMotorGridFSBucket, AsyncRetryClient: AsyncGridFSBucket}


@pytest.fixture
async def motors(replica_set):
    """Motor's client, with our writes."""
    async with RetryClient(replica_set.uri) as client:
        yield client


@pytest.fixture
async def pymongos(replica_set):
    """PyMongo's client, with our writes."""
    async with AsyncRetryClient(replica_set.uri) as client:
        yield client


async def run(cell, client_class, uri):
    """Run the code of a cell on a client, with what the page says that it has."""
    async with client_class(uri) as client:
        called = asyncio.Event()
        names = await names_for(client, uri) | {"done": lambda *_: called.set()}
        code = cell.strip("`")
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        ended = eval(compile(code, "<table>", "exec", flags, dont_inherit=True), names)
        if inspect.iscoroutine(ended):
            await ended
        if "task" in names:
            await names["task"]
        if "done" in code:
            await called.wait()


async def names_for(client, uri):
    """What the code of a cell finds."""
    db = client.aioretry_tests
    await db.leaving.insert_one({})
    bucket = BUCKETS[type(client)](db)
    number = await bucket.upload_from_stream("name", b"content")
    session = client.start_session()
    return {
        "asyncio": asyncio,
        "pymongo": pymongo,
        "AsyncIOMotorGridFSBucket": AsyncIOMotorGridFSBucket,
        "AsyncGridFSBucket": AsyncGridFSBucket,
        "AsyncRetryClient": AsyncRetryClient,
        "RetryClient": type(client),
        "uri": uri,
        "loop": asyncio.get_running_loop(),
        "client": client,
        "db": db,
        "events": db.leaving,
        "stages": [],
        "session": await session if inspect.isawaitable(session) else session,
        "cursor": db.leaving.find(),
        "bucket": bucket,
        "file": await bucket.open_download_stream(number),
        "handler": io.BytesIO(),
    }


@pytest.mark.filterwarnings(r"ignore:The \w+ (property|method) is deprecated:DeprecationWarning")
@EACH_LINE
async def test_the_table(old, new, there, replica_set):
    """The old line runs on the old client, the new one on the new; the old one there ends so."""
    uri = replica_set.uri
    await run(old, RetryClient, uri)
    await run(new, AsyncRetryClient, uri)
    name = re.match(r"`(\w+)`|", there)[1]
    if name == "RuntimeWarning":
        with pytest.warns(RuntimeWarning, match="was never awaited"):
            await run(old, AsyncRetryClient, uri)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a coroutine that it made before
        if name is None:
            await run(old, AsyncRetryClient, uri)
        else:
            with pytest.raises(getattr(builtins, name, None) or getattr(errors, name)):
                await run(old, AsyncRetryClient, uri)


async def test_sessions_of_the_other_client(motors, pymongos):
    """They are refused, and nothing is written."""
    old, new = motors.aioretry_tests.leaving_sessions, pymongos.aioretry_tests.leaving_sessions
    async with await motors.start_session() as theirs, pymongos.start_session() as ours:
        for collection, session in ((old, ours), (new, theirs)):
            with pytest.raises(TypeError, match="session must be what"):
                await collection.insert_one({}, session=session)
    assert 0 == await old.count_documents({})


async def test_keys_of_the_other_client(motors, pymongos):
    """What one client has written under a key, the other one finds."""
    answers = []
    async with Keys(b"sixteen bytes at least", "aioretry_tests") as keys:
        key = f"leaving {id(keys)} {asyncio.get_running_loop().time()}"
        for client in (motors, pymongos, motors):
            async with client.aioretry_tests.leaving_keys.operation(key=keys(key)) as op:
                answers.append((await op.insert_one({"n": 1})).inserted_id)
    assert 1 == len(set(answers))
