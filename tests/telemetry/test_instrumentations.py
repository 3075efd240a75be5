"""Instrumentations that listen to PyMongo's commands see what they see of Motor."""

import asyncio
import copy
import json

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import InsertOne, UpdateOne
from pymongo.monitoring import CommandListener

from aioretry import DeadlineExceeded, deadline
from tests.forks import Fork
from tests.telemetry.instrumented import WRITES


async def told_of(instrumentation, who, uri):
    """The spans that an instrumentation makes of the writes of one client."""
    fork = Fork(f"tests.telemetry.instrumented:{instrumentation}", who, uri)
    try:
        code = await fork.wait()
    finally:
        fork.kill()
        out, err = fork.close()
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("who", ["aioretry", "coalesced"])
@pytest.mark.parametrize("instrumentation", ["opentelemetry", "sentry"])
async def test_spans(instrumentation, who, replica_set, client_class):
    """They are the same, with the same commands and the same parents."""
    expected = await told_of(instrumentation, "Motor", replica_set.uri)
    spans = await told_of(instrumentation, who, replica_set.uri)
    for _, _, command in [*spans, *expected]:
        if who == "coalesced" and isinstance(command, dict):  # such inserts are unordered
            command.pop("ordered", None)
    assert expected == spans
    assert WRITES.keys() <= {parent for parent, _, _ in expected}


GIVEN = {"documents", "updates", "deletes", "query", "update", "fields"}


class Changing(CommandListener):
    """Keeps what it was shown, and changes it as no listener should."""

    def __init__(self):
        self.shown = []

    def started(self, event):
        if event.command_name in {"insert", "update", "findAndModify", "delete"}:
            self.shown.append(copy.deepcopy(event.command))
            for name in GIVEN & event.command.keys():
                scrub(event.command[name])

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


def scrub(value):
    """Overwrite whatever is within."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, dict | list):
            scrub(inner)
        else:
            value[key] = "***"


@pytest.fixture
async def watched(replica_set, collection, client_class):
    """The test's collection, of a client with a listener."""
    listener = Changing()
    async with client_class(replica_set.uri, event_listeners=[listener]) as client:
        mine = client[collection.database.name]
        options = collection.codec_options
        yield mine.get_collection(collection.name, codec_options=options), listener.shown


async def test_what_a_listener_changes(watched, stored):
    """It is its own: what is sent, what is sent again, and the caller's documents stay."""
    collection, _ = watched
    document = {"_id": 1, "tags": [{"x": 1}], "inner": {"name": "ann"}}
    await collection.insert_one(document)
    await collection.insert_many([{"_id": n, "inner": {"name": "bob"}} for n in (2, 3)])
    await collection.bulk_write([InsertOne({"_id": 4}), UpdateOne({"_id": 4}, {"$set": {"n": 4}})])
    await collection.find_one_and_update({"_id": 2}, {"$set": {"inner": {"name": "cid"}}})
    await asyncio.gather(*(collection.coalesced().insert_one({"_id": n}) for n in range(5, 8)))
    assert {"_id": 1, "tags": [{"x": 1}], "inner": {"name": "ann"}} == document
    assert [
        document,
        {"_id": 2, "inner": {"name": "cid"}},
        {"_id": 3, "inner": {"name": "bob"}},
        {"_id": 4, "n": 4},
        *({"_id": n} for n in range(5, 8)),
    ] == list(stored.find(sort=["_id"]))


async def test_what_is_sent_again(watched, replica_set, stored):
    """A retry sends what the caller gave, whatever was made of what was shown."""
    collection, shown = watched
    async with replica_set.faults.drop_request("insert"):
        await collection.insert_one({"_id": 1, "inner": {"name": "ann"}})
    assert [{"_id": 1, "inner": {"name": "ann"}}] == list(stored.find())
    first, second = shown
    assert [{"_id": 1, "inner": {"name": "ann"}}] == first["documents"] == second["documents"]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"$ref": 7, "$id": 1}, id="looks like a reference, and is none"),
        pytest.param(DatetimeMS(2**60), id="no date of Python's"),
        pytest.param(RawBSONDocument(b"\x0f\0\0\0\x06old\0\x06new\0\0"), id="undefined"),
    ],
)
async def test_what_can_hardly_be_shown(value, watched, stored):
    """It is sent all the same, byte for byte."""
    collection, shown = watched
    document = {"_id": 1, "value": value}
    await collection.insert_one(document)
    as_it_is = stored.codec_options.with_options(document_class=RawBSONDocument)
    assert bson.encode(document) == stored.with_options(as_it_is).find_one().raw
    assert [1] == [command["documents"][0]["_id"] for command in shown]


async def test_no_deadline_of_another(watched, replica_set, stored):
    """Inserts travel in the context of the first of them, but without its deadline."""
    collection, shown = watched
    view = collection.coalesced()
    async with replica_set.faults.hang("insert") as hang:
        begun = view.insert_one({"_id": 0})
        await hang.wait_until_fired()
        async with deadline(1.0):
            first = view.insert_one({"_id": 1})
        async with deadline(60.0):
            second = view.insert_one({"_id": 2})
        hang.disarm()
        async with replica_set.faults.hang("insert"):
            with pytest.raises(DeadlineExceeded):
                await first
    await asyncio.gather(begun, second)
    assert [{0}, {1, 2}] == [{each["_id"] for each in sent["documents"]} for sent in shown]
    assert [0, 1, 2] == [found["_id"] for found in stored.find(sort=["_id"])]
