"""The seven writes do what Motor's do: the same calls, side by side, on the same real server."""

import contextlib
import copy
import datetime as dt
import inspect
import uuid
from decimal import Decimal

import pytest
import pytest_asyncio
from bson import DatetimeMS, Decimal128, Int64
from bson.codec_options import TypeRegistry
from bson.raw_bson import RawBSONDocument
from bson.son import SON
from comparing import (
    COMMANDS,
    DATABASE,
    DIFFERS_IN_OLD,
    IS_OLD,
    MOTORS,
    OPTIONS,
    OURS,
    SESSIONS,
    Money,
    Pair,
    parameters,
    prepared,
    required,
)
from given_values import FAULTS, UUID, WHEN, Bag, arguments, broken, raw
from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorCollection
from pymongo import ReturnDocument
from pymongo.collation import Collation
from pymongo.errors import DuplicateKeyError, OperationFailure, WriteConcernError
from pymongo.write_concern import WriteConcern

from aioretry import RetryClient, RetryMotorCollection
from aioretry.testing import ReplicaSet

pytestmark = pytest.mark.asyncio(loop_scope="module")

HAS_SORT = "sort" in inspect.signature(AsyncIOMotorCollection.update_one).parameters


@pytest.fixture(scope="module")
def server():
    """One member, for the whole module."""
    with ReplicaSet(members=1) as replica_set:
        yield replica_set


@pytest.fixture(scope="module")
def stored(server):
    """PyMongo's client, to prepare the collections and to look at them."""
    with prepared(server.uri) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def compare(server, stored):
    """Make the same call on both sides and compare all that can be seen of it."""
    pair = Pair(server.uri, stored)
    yield pair
    pair.close()


@pytest.fixture
async def compare_with(server, stored):
    """Like `compare`, with options for the clients."""
    pairs = []

    async def compare_with(call, **options):
        pairs.append(Pair(server.uri, stored, **options))
        return await pairs[-1](call)

    yield compare_with
    for pair in pairs:
        pair.close()


# -- every argument --------------------------------------------------------------------------------


VALUES = {name: tuple(values) for name, values in arguments().items()}
EACH_VALUE = [
    pytest.param(method, name, value, id=f"{method}-{name}-{value}")
    for method in COMMANDS
    for name in parameters(method)
    for value in VALUES[name]
    if not (IS_OLD and value in DIFFERS_IN_OLD.get(name, ()))
]


@pytest.mark.sample(6)
@pytest.mark.parametrize(("method", "name", "value"), EACH_VALUE)
async def test_each_value_of_each_argument(method, name, value, compare):
    """A good value has Motor's effect and a bad one is refused as Motor refuses it."""

    async def call(side):
        given = {**required(method), name: arguments()[name][value]}
        if name == "array_filters":
            given["update"] = {"$set": {"tags.$[x]": 0}}
        if name == "let":
            given["filter"] = {"$expr": {"$eq": ["$n", "$$v"]}}
        return await getattr(side.collection, method)(**given)

    await compare(call)


@pytest.mark.parametrize("method", COMMANDS)
async def test_every_argument_by_position(method, compare):
    """All arguments of a method are taken by position, in Motor's order."""
    good = {
        "upsert": True,
        "bypass_document_validation": True,
        "collation": {"locale": "en"},
        "hint": "_id_",
        "let": {"v": 1},
        "comment": "why",
        "sort": [("n", -1)],
        "projection": ["n"],
        "return_document": True,
    }
    if method in {"update_one", "replace_one"}:
        good["sort"] = None  # MongoDB 8.0

    async def call(side):
        function = getattr(side.collection, method)
        names = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.name != "self" and p.kind is not p.VAR_KEYWORD
        ]
        values = {**good, **required(method)}
        return await function(*[copy.deepcopy(values.get(name)) for name in names])

    outcome = await compare(call)
    assert "result" in outcome


@pytest.mark.parametrize("method", COMMANDS)
@pytest.mark.parametrize("arguments_", ["none", "unknown", "too many"])
async def test_calls_that_python_refuses(method, arguments_, compare):
    """Missing, unknown and superfluous arguments are refused as Motor refuses them."""

    async def call(side):
        function = getattr(side.collection, method)
        if arguments_ == "none":
            return await function()
        if arguments_ == "unknown":
            return await function(**required(method), nope=1)
        return await function(*[None] * 20)

    outcome = await compare_types(compare, call)
    assert "error" in outcome


async def compare_types(compare, call):
    """Compare, but of Python's own TypeErrors the type alone: their texts name the signature."""

    async def typed(side):
        try:
            return await call(side)
        except TypeError:
            raise TypeError from None

    return await compare(typed)


@pytest.mark.parametrize("method", COMMANDS)
async def test_the_signatures_are_motors(method):
    """Names, order, kinds and defaults of the parameters are Motor's."""
    motors = dict(inspect.signature(getattr(AsyncIOMotorCollection, method)).parameters)
    ours = dict(inspect.signature(getattr(RetryMotorCollection, method)).parameters)
    if not HAS_SORT and method in {"update_one", "replace_one"}:
        del ours["sort"]
    # False before PyMongo 4.12, None since.
    bypass = "bypass_document_validation"
    expected = [(p.name, p.kind, p.default) for p in motors.values() if p.name != bypass]
    actual = [(p.name, p.kind, p.default) for p in ours.values() if p.name != bypass]
    assert expected == actual
    assert (list(motors), bypass in motors) == (list(ours), bypass in ours)


# -- several arguments, options and errors ---------------------------------------------------------

AFTER = ReturnDocument.AFTER
FAR = {"_id": 5}
CALLS = {
    # What differs is refused in Motor's order.
    "two bad: filter, upsert": lambda c: c.update_one(1, {"$set": {"a": 1}}, upsert="x"),
    "two bad: update, filter": lambda c: c.update_one(1, {}),
    "two bad: array_filters, update": lambda c: c.update_one({}, {}, array_filters=1),
    "two bad: upsert, collation": lambda c: c.replace_one({}, {}, upsert=1, collation=1),
    "two bad: collation, hint": lambda c: c.update_one({}, {"$set": {"a": 1}}, collation=1, hint=1),
    "two bad: hint, let": lambda c: c.update_one({}, {"$set": {"a": 1}}, hint=1, let=1),
    "two bad: hint, let in replace": lambda c: c.replace_one({}, {}, hint=[], let=1),
    "two bad: filter, hint in delete": lambda c: c.delete_one(1, hint=1),
    "two bad: collation, hint in delete": lambda c: c.delete_one({}, collation=1, hint=1),
    "two bad: let, hint in delete": lambda c: c.delete_one({}, let=1, hint=1),
    "two bad: unencodable filter, let in delete": lambda c: c.delete_one({"a": object()}, let=1),
    "two bad: unencodable filter, let": lambda c: c.update_one(
        {"a": object()}, {"$set": {"a": 1}}, let=1
    ),
    "two bad: unencodable filter and update": lambda c: c.update_one(
        {"a": object()}, {"$set": {"a": {1}}}
    ),
    "two bad: replacement, filter": lambda c: c.find_one_and_replace(1, {"$a": 1}),
    "two bad: update, filter in find": lambda c: c.find_one_and_update(1, 1),
    "two bad: filter, return_document": lambda c: c.find_one_and_update(
        1, {"$set": {"a": 1}}, return_document=1
    ),
    "two bad: collation, hint in find": lambda c: c.find_one_and_delete({}, hint=1, collation=1),
    "two bad: hint, let in find": lambda c: c.find_one_and_delete({}, hint=1, let=1),
    "two bad: hint, sort in find": lambda c: c.find_one_and_delete({}, hint=1, sort=[]),
    "two bad: hint, upsert in find": lambda c: c.find_one_and_replace({}, {}, hint=1, upsert=1),
    "two bad: sort, projection in find": lambda c: c.find_one_and_delete({}, sort=1, projection=1),
    "two bad: let, projection in find": lambda c: c.find_one_and_delete({}, let=1, projection=1),
    "two bad: sort, upsert in find": lambda c: c.find_one_and_replace({}, {}, sort=1, upsert=1),
    "two bad: writeConcern, hint in find": lambda c: c.find_one_and_delete(
        {}, hint=1, writeConcern={"w": -1}
    ),
    "larger than a message": lambda c: c.insert_one({"_id": 9, "a": b"x" * (49 * 1024 * 1024)}),
    # Duplicate keys.
    "duplicate _id": lambda c: c.insert_one({"_id": 1}),
    "duplicate key": lambda c: c.insert_one({"_id": 9, "key": 1}),
    "duplicate in update": lambda c: c.update_one({"_id": 2}, {"$set": {"key": 1}}),
    "duplicate in upsert": lambda c: c.update_one({"_id": 9}, {"$set": {"key": 1}}, upsert=True),
    "duplicate in replace": lambda c: c.replace_one({"_id": 2}, {"key": 1}),
    "duplicate in find and update": lambda c: c.find_one_and_update(
        {"_id": 2}, {"$set": {"key": 1}}
    ),
    "duplicate in find and replace": lambda c: c.find_one_and_replace(
        {"_id": 9}, {"key": 1}, upsert=True
    ),
    # Upserts.
    "upsert": lambda c: c.update_one({"_id": 9}, {"$set": {"a": 1}}, upsert=True),
    "upsert with generated _id": lambda c: c.update_one({"a": 9}, {"$set": {"b": 1}}, upsert=True),
    "upsert of null _id": lambda c: c.update_one({"_id": None}, {"$set": {"b": 1}}, upsert=True),
    "upsert by replace": lambda c: c.replace_one({"_id": 9}, {"a": 1}, upsert=True),
    "upsert by replace of null _id": lambda c: c.replace_one({"_id": None}, {}, upsert=True),
    "upsert of document _id": lambda c: c.replace_one({"_id": {"a": 1}}, {"b": 1}, upsert=True),
    "upsert by find and update": lambda c: c.find_one_and_update(
        {"_id": 9}, {"$set": {"a": 1}}, upsert=True, return_document=AFTER
    ),
    "upsert by find and update, before": lambda c: c.find_one_and_update(
        {"_id": 9}, {"$set": {"a": 1}}, upsert=True
    ),
    "upsert by find and replace": lambda c: c.find_one_and_replace(
        {"_id": 9}, {"a": 1}, ["a"], None, True, AFTER
    ),
    "$setOnInsert": lambda c: c.update_one({"_id": 9}, {"$setOnInsert": {"a": 1}}, upsert=True),
    # Validation by the server.
    "invalid insert": lambda c: c.insert_one({"n": -1}),
    "invalid insert, bypassed": lambda c: c.insert_one({"n": -1}, True),
    "invalid update": lambda c: c.update_one({}, {"$set": {"n": -1}}),
    "invalid update, bypassed": lambda c: c.update_one(
        {}, {"$set": {"n": -1}}, bypass_document_validation=True
    ),
    "invalid replacement, bypassed": lambda c: c.replace_one(
        {"_id": 1}, {"n": -1}, bypass_document_validation=True
    ),
    "invalid find and update": lambda c: c.find_one_and_update({}, {"$set": {"n": -1}}),
    "invalid find and update, bypassed": lambda c: c.find_one_and_update(
        {}, {"$set": {"n": -1}}, bypassDocumentValidation=True, return_document=AFTER
    ),
    # Arguments together.
    "collation finds": lambda c: c.update_one(
        {"s": "BETA"}, {"$set": {"hit": 1}}, collation=Collation("en", strength=2), hint="by_s"
    ),
    "collation finds in delete": lambda c: c.delete_one(
        {"s": "BETA"}, collation={"locale": "en", "strength": 2}, hint=[("n", 1)]
    ),
    "array filters": lambda c: c.update_one(
        {}, {"$mul": {"tags.$[big]": 2}}, array_filters=[{"big": {"$gte": 5}}]
    ),
    "two array filters": lambda c: c.find_one_and_update(
        {"_id": 5},
        {"$set": {"items.$[a].k": 5, "items.$[b].k": 6}},
        array_filters=[{"a.k": 1}, {"b.k": 2}],
        projection={"items": 1},
        return_document=AFTER,
    ),
    "pipeline with let": lambda c: c.update_one(
        {"_id": 1}, [{"$set": {"n": "$$v"}}], let={"v": {"$literal": "$x"}}
    ),
    "pipeline in find and update": lambda c: c.find_one_and_update(
        {"_id": 1}, [{"$set": {"n": {"$add": ["$n", "$$v"]}}}], let={"v": 4}, return_document=AFTER
    ),
    "let in delete": lambda c: c.delete_one({"$expr": {"$eq": ["$n", "$$v"]}}, let={"v": 2}),
    "let in find and delete": lambda c: c.find_one_and_delete(
        {"$expr": {"$gt": ["$n", "$$v"]}}, let={"v": 2}, sort={"n": -1}, projection={"n": 1}
    ),
    "none found": lambda c: c.find_one_and_delete({"_id": 99}),
    "whole document": lambda c: c.find_one_and_delete({"_id": 1}),
    # Further options of find_one_and_*.
    "maxTimeMS": lambda c: c.find_one_and_update({}, {"$inc": {"n": 1}}, maxTimeMS=5000),
    "maxTimeMS exceeded": lambda c: c.find_one_and_delete(
        {"$where": "sleep(1000) || true"}, maxTimeMS=10
    ),
    "maxTimeMS of wrong type": lambda c: c.find_one_and_delete({}, maxTimeMS="x"),
    "maxTimeMS negative": lambda c: c.find_one_and_delete({}, maxTimeMS=-1),
    "collation option": lambda c: c.find_one_and_delete(
        {"s": "BETA"}, collation=Collation("en", strength=2)
    ),
    "collation option as dict": lambda c: c.find_one_and_replace(
        {"s": "BETA"}, {}, collation={"locale": "en", "strength": 2}
    ),
    "bad collation option": lambda c: c.find_one_and_update({}, {"$set": {"a": 1}}, collation=1),
    "writeConcern option": lambda c: c.find_one_and_delete({}, writeConcern={"w": "majority"}),
    "empty writeConcern option": lambda c: c.find_one_and_delete({}, writeConcern={}),
    "writeConcern option None": lambda c: c.find_one_and_delete({}, writeConcern=None),
    "writeConcern option with wtimeout": lambda c: c.find_one_and_delete(
        {}, writeConcern={"w": 3, "wtimeout": 50}
    ),
    "unacknowledged writeConcern option": lambda c: c.find_one_and_delete(
        {"_id": 1}, writeConcern={"w": 0}
    ),
    "bad writeConcern option": lambda c: c.find_one_and_delete({}, writeConcern={"nope": 0}),
    "writeConcern option of wrong type": lambda c: c.find_one_and_delete({}, writeConcern=1),
    "writeConcern option as string": lambda c: c.find_one_and_delete({}, writeConcern="majority"),
    "writeConcern option as object": lambda c: c.find_one_and_delete(
        {}, writeConcern=WriteConcern(1)
    ),
    "writeConcern option of contradictions": lambda c: c.find_one_and_delete(
        {}, writeConcern={"w": 0, "j": True}
    ),
    "overriding options": lambda c: c.find_one_and_update(
        {"_id": 1}, {"$inc": {"n": 1}}, query={"_id": 2}, fields={"n": 1}, new=True
    ),
    "remove overridden": lambda c: c.find_one_and_delete({"_id": 1}, remove=False),
    "update overridden": lambda c: c.find_one_and_replace({"_id": 1}, {"a": 1}, update={"b": 1}),
    "fields and projection": lambda c: c.find_one_and_delete({"_id": 1}, ["n"], fields={"s": 1}),
    "upsert in find and delete": lambda c: c.find_one_and_delete({"_id": 1}, upsert=True),
    "bad upsert in find and delete": lambda c: c.find_one_and_delete({"_id": 1}, upsert=1),
    "return_document in find and delete": lambda c: c.find_one_and_delete(
        {"_id": 1}, return_document=True
    ),
    "return_document BEFORE in find and delete": lambda c: c.find_one_and_delete(
        {"_id": 1}, return_document=False
    ),
    "array_filters in find and delete": lambda c: c.find_one_and_delete(
        {"_id": 1}, array_filters=[{"x": 1}]
    ),
    "array_filters in find and replace": lambda c: c.find_one_and_replace(
        {"_id": 1}, {}, array_filters=[{"x": 1}]
    ),
    "array_filters as a tuple in find and replace": lambda c: c.find_one_and_replace(
        {"_id": 1}, {}, array_filters=({"x": 1},)
    ),
    "array_filters None in find and replace": lambda c: c.find_one_and_replace(
        {"_id": 1}, {}, array_filters=None
    ),
    "arrayFilters option": lambda c: c.find_one_and_update(
        {}, {"$set": {"tags.$[x]": 0}}, arrayFilters=[{"x": 5}]
    ),
    "option None": lambda c: c.find_one_and_delete({}, maxTimeMS=None),
    "unencodable option": lambda c: c.find_one_and_delete({}, nope=object()),
}


@pytest.mark.parametrize(
    "name", [name for name in CALLS if not (IS_OLD and name.startswith("two bad: hint"))]
)
async def test_calls(name, compare):
    """Arguments together, further options, and what is refused first of two bad arguments."""

    async def call(side):
        return await CALLS[name](side.collection)

    await compare(call)


WITH_OPTIONS = {
    "insert": lambda c: c.insert_one({"_id": 9, "a": {"b": 1}}),
    "insert without _id": lambda c: c.insert_one({"b": 1}),
    "insert of raw": lambda c: c.insert_one(raw(a=1, _id=9)),
    "insert of values": lambda c: c.insert_one(
        {"_id": 9, "when": WHEN.replace(tzinfo=dt.UTC), "far": DatetimeMS(2**60), "x": Int64(1)}
    ),
    "insert of uuids": lambda c: c.insert_one({"_id": UUID, "a": [UUID]}),
    "insert of decimals": lambda c: c.insert_one(
        {"_id": 9, "a": [Decimal("1.5"), {"b": Decimal(2)}]}
    ),
    "insert of something strange": lambda c: c.insert_one(
        {"_id": 9, "a": uuid.UUID(int=1), "b": {1}}
    ),
    "duplicate": lambda c: c.insert_one({"_id": 1}),
    "duplicate decimal": lambda c: c.insert_one({"_id": 9, "key": Decimal128("1")}),
    "update": lambda c: c.update_one({"_id": 1}, {"$inc": {"n": 1}}),
    "update of uuids": lambda c: c.update_one({"u": UUID}, {"$set": {"u": UUID}}, comment=UUID),
    "update of decimals": lambda c: c.update_one(
        {"price": Decimal("1.5")}, [{"$set": {"a": Decimal("1.5")}}]
    ),
    "let with decimal": lambda c: c.update_one(
        {"_id": 1}, [{"$set": {"a": "$$v"}}], let={"v": Decimal(3)}
    ),
    "array filters with decimal": lambda c: c.update_one(
        {"_id": 1}, {"$set": {"tags.$[x]": 0}}, array_filters=[{"x": {"$gt": Decimal(4)}}]
    ),
    "comment with decimal": lambda c: c.replace_one({"_id": 1}, {}, comment=[Decimal(4)]),
    "upsert of uuid": lambda c: c.update_one({"_id": UUID}, {"$set": {"a": 1}}, upsert=True),
    "upsert of decimal": lambda c: c.replace_one({"_id": Decimal(7)}, {"a": 1}, upsert=True),
    "upsert of document": lambda c: c.replace_one(
        {"_id": {"a": WHEN, "b": [{"c": Decimal128("1")}]}}, {}, upsert=True
    ),
    "upsert of far date": lambda c: c.replace_one({"_id": DatetimeMS(2**60)}, {}, upsert=True),
    "upsert of bad text": lambda c: c.replace_one(broken(_id="utf8"), {}, upsert=True),
    "replace": lambda c: c.replace_one({"_id": 1}, {"when": WHEN}),
    "replace by raw": lambda c: c.replace_one(raw(_id=1), raw(a=1)),
    "delete": lambda c: c.delete_one({"_id": 1}),
    "delete of uuid": lambda c: c.delete_one({"u": UUID}, comment=[UUID]),
    "delete of decimal": lambda c: c.delete_one({"price": Decimal("1.50")}),
    "decimal as comment": lambda c: c.delete_one({"_id": 2}, comment=Decimal(1)),
    "delete of raw": lambda c: c.delete_one(raw(_id=2)),
    "delete of none": lambda c: c.delete_one({"_id": 99}),
    "find 1 and delete": lambda c: c.find_one_and_delete({"_id": 1}),
    "find 2 and delete": lambda c: c.find_one_and_delete({"_id": 2}),
    "find 3 and delete": lambda c: c.find_one_and_delete({"_id": 3}),
    "find 4 and delete": lambda c: c.find_one_and_delete({"_id": 4}),
    "find 5 and delete": lambda c: c.find_one_and_delete({"_id": 5}),
    "find none and delete": lambda c: c.find_one_and_delete({"_id": 99}),
    "find uuid and update": lambda c: c.find_one_and_update(
        {"u": UUID}, {"$push": {"us": UUID}}, return_document=AFTER, comment=UUID
    ),
    "find decimal and update": lambda c: c.find_one_and_update(
        {"price": Decimal("1.5")}, {"$inc": {"price": Decimal("1.5")}}, return_document=AFTER
    ),
    "find with decimal as comment": lambda c: c.find_one_and_delete({"_id": 2}, comment=Decimal(1)),
    "find raw and update": lambda c: c.find_one_and_update(
        raw(_id=1), raw(**{"$set": {"a": {"b": 1}}}), projection=raw(a=1), return_document=AFTER
    ),
    "find and pipe": lambda c: c.find_one_and_update(
        {"_id": 1}, [{"$set": {"a": WHEN}}], return_document=AFTER
    ),
    "find and replace": lambda c: c.find_one_and_replace(
        {"_id": 1}, {"when": WHEN, "a": Decimal128("1")}, return_document=AFTER
    ),
    "find and upsert": lambda c: c.find_one_and_replace(
        {"_id": 9}, {"a": 1}, upsert=True, return_document=AFTER
    ),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("options", OPTIONS)
async def test_collection_options(options, compare):
    """Write concern and codec options of a collection mean what they mean to Motor."""
    failed = {}
    for name, function in WITH_OPTIONS.items():

        async def call(side, function=function):
            return await function(side.collection)

        try:
            await compare(call, OPTIONS[options])
        except AssertionError as exc:
            failed[name] = str(exc)
    assert {} == failed


async def test_a_refused_find_and_modify_with_a_write_concern_error(server, stored):
    """A findAndModify that is refused says so, where Motor speaks of the write concern alone.

    The one difference that is meant: that the write was refused is what its caller has to know.
    """
    stored[DATABASE][OURS].delete_many({})
    stored[DATABASE][OURS].insert_many([{"_id": 1, "key": 1}, {"_id": 2, "key": 2}])
    raised = []
    for kind in (AsyncIOMotorClient, RetryClient):
        client = kind(server.uri, w=3, wtimeoutMS=50)
        with pytest.raises(OperationFailure) as caught:
            await client[DATABASE][OURS].find_one_and_replace({"_id": 2}, {"key": 1})
        raised.append(type(caught.value))
        client.close()
    assert [WriteConcernError, DuplicateKeyError] == raised


CLIENT_OPTIONS = {
    "tz_aware": {"tz_aware": True, "tzinfo": dt.timezone(dt.timedelta(hours=-3))},
    "uuids": {"uuidRepresentation": "standard"},
    "document_class": {"document_class": RawBSONDocument},
    "type_registry": {"type_registry": TypeRegistry([Money()], fallback_encoder=str)},
    "unicode": {"unicode_decode_error_handler": "replace"},
    "datetimes": {"datetime_conversion": "DATETIME_MS"},
    "write concern": {"w": 1, "journal": True, "wtimeoutMS": 3000},
    "unacknowledged": {"w": 0},
    "impossible write concern": {"w": 3, "wtimeoutMS": 50},
    "no retries": {"retryWrites": False},
    "compressed": {"compressors": "zlib"},
}


@pytest.mark.parametrize("options", CLIENT_OPTIONS)
async def test_client_options(options, compare_with):
    """The collections of a client have its options, and returned documents have its types."""

    async def call(side):
        return await side.collection.find_one_and_update(
            {"_id": 3}, {"$set": {"x": Decimal128("1"), "y": ["z"]}}, comment="why"
        )

    await compare_with(call, **CLIENT_OPTIONS[options])


# -- sessions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", COMMANDS)
@pytest.mark.parametrize("kind", SESSIONS)
async def test_explicit_sessions(kind, method, compare):
    """A write in a session of the user's is Motor's write in it, and advances its times."""
    advanced = {}

    async def call(side):
        session = await SESSIONS[kind](side)
        try:
            return await getattr(side.collection, method)(**required(method), session=session)
        finally:
            advanced[side.collection.name] = (session.operation_time is not None, session.has_ended)

    await compare(call)
    assert advanced[MOTORS] == advanced[OURS]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("method", COMMANDS)
async def test_transactions(method, commit, compare):
    """Inside a transaction, a write is part of it."""

    async def call(side):
        async with await side.client.start_session() as session:
            session.start_transaction()
            done = await getattr(side.collection, method)(**required(method), session=session)
            await (session.commit_transaction() if commit else session.abort_transaction())
            return done

    await compare(call)


# -- errors of the server --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", COMMANDS)
async def test_errors_of_the_server(method, fault, compare, stored):
    """What a server refuses or reports is Motor's exception with Motor's details."""
    data = {"failCommands": [COMMANDS[method]], **FAULTS[fault]}

    async def call(side):
        stored.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
        try:
            return await getattr(side.collection, method)(**required(method))
        finally:
            stored.admin.command("configureFailPoint", "failCommand", mode="off")

    outcome = await compare(call)
    assert "error" in outcome


# -- what the caller gave --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dict, SON, Bag])
async def test_an_id_is_added_in_place(make, compare):
    """The caller's document gets the _id that the server got."""

    async def call(side):
        document = make(n=8)
        future = side.collection.insert_one(document)
        inserted = await future
        assert inserted.inserted_id is document["_id"]
        assert list(document) == ["n", "_id"]
        return inserted

    await compare(call)


async def test_a_raw_document_stays_as_it_is(compare):
    """A raw document without _id gets one from the server, and its result has none."""

    async def call(side):
        document = raw(n=8)
        inserted = await side.collection.insert_one(document)
        assert "_id" not in document
        return inserted

    await compare(call)


@pytest.mark.parametrize(
    "name", sorted({n for m in COMMANDS for n in parameters(m)} - {"document"})
)
async def test_what_the_caller_gave_is_not_changed(name, compare):
    """Apart from a new _id, no argument is changed."""
    method = next(m for m in COMMANDS if name in parameters(m))

    async def call(side):
        for value in arguments()[name].values():
            if not isinstance(value, dict | list):
                continue
            before = repr(value)
            with contextlib.suppress(Exception):
                await getattr(side.collection, method)(**{**required(method), name: value})
            assert before == repr(value)

    await compare(call)
