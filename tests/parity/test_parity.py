"""The seven writes do what Motor's do: the same calls, side by side, on the same real server."""

import contextlib
import copy
import datetime as dt
import inspect
import re
import uuid
import warnings
from collections.abc import Mapping, MutableMapping
from decimal import Decimal

import bson
import pymongo
import pytest
import pytest_asyncio
from bson import (
    Binary,
    Code,
    DatetimeMS,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion, TypeCodec, TypeRegistry
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from bson.son import SON
from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorCollection
from pymongo import MongoClient, ReturnDocument, monitoring
from pymongo.collation import Collation
from pymongo.errors import (
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.write_concern import WriteConcern

from aioretry import RetryClient, RetryMotorCollection
from aioretry.testing import ReplicaSet

pytestmark = pytest.mark.asyncio(loop_scope="module")

DATABASE = "aioretry_parity"
MOTORS, OURS = "side_a", "side_b"
COMMANDS = {
    "insert_one": "insert",
    "update_one": "update",
    "replace_one": "update",
    "delete_one": "delete",
    "find_one_and_delete": "findAndModify",
    "find_one_and_replace": "findAndModify",
    "find_one_and_update": "findAndModify",
}
UPSERTING = ("update_one", "replace_one", "find_one_and_replace", "find_one_and_update")
HAS_SORT = "sort" in inspect.signature(AsyncIOMotorCollection.update_one).parameters
# Older PyMongos send only a true bypass_document_validation, as True, refuse a bad
# return_document as a ValueError, look at a hint last, and word their refusals differently.
IS_OLD = pymongo.version_tuple < (4, 17)
DIFFERS_IN_OLD = {
    "bypass_document_validation": {"False", "1", "yes", "object"},
    "return_document": {"1", "None", "a string"},
}
WHEN = dt.datetime(2024, 2, 29, 12, 30, 15, 123000)  # noqa: DTZ001 - as BSON's default
UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
VOLATILE = {
    "$clusterTime",
    "operationTime",
    "electionId",
    "opTime",
    "retriedStmtIds",
    "topologyVersion",
    "lsid",
    "txnNumber",
}


# -- the two sides ---------------------------------------------------------------------------------


class Sent(monitoring.CommandListener):
    """Remembers the writes that a client sent."""

    def __init__(self):
        self.commands = []

    def started(self, event):
        if event.command_name in COMMANDS.values():
            self.commands.append(event.command)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


class Money(TypeCodec):
    """Decimal in Python, Decimal128 in MongoDB."""

    python_type = Decimal
    bson_type = Decimal128

    def transform_python(self, value):
        return Decimal128(value)

    def transform_bson(self, value):
        return value.to_decimal()


class Strange:
    """What only a fallback encoder can encode."""


class Bag(MutableMapping):
    """A mutable mapping that is no dict."""

    def __init__(self, *args, **kwargs):
        self._items = dict(*args, **kwargs)

    def __getitem__(self, key):
        return self._items[key]

    def __setitem__(self, key, value):
        self._items[key] = value

    def __delitem__(self, key):
        del self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


def codec(**options):
    """Codec options for a collection."""
    return {"codec_options": CodecOptions(**options)}


def concern(**options):
    """A write concern for a collection."""
    return {"write_concern": WriteConcern(**options)}


LENIENT = CodecOptions(
    SON,
    unicode_decode_error_handler="replace",
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)
MONEY = codec(type_registry=TypeRegistry([Money()]))
FALLBACK = codec(type_registry=TypeRegistry([], fallback_encoder=str))
STANDARD = codec(uuid_representation=UuidRepresentation.STANDARD)
AWARE = codec(tz_aware=True, tzinfo=dt.timezone(dt.timedelta(hours=2)))


def raw(**fields):
    """A document that is encoded already."""
    return RawBSONDocument(bson.encode(fields))


def broken(**fields):
    """A document with a string that is no UTF-8."""
    return RawBSONDocument(bson.encode(fields).replace(b"utf8", b"ut\xff8"))


def seed():
    """The documents that each collection begins with."""
    return [
        {"_id": 1, "n": 1, "s": "alpha", "key": 1, "tags": [1, 5, 9], "sub": {"a": 1, "b": [2]}},
        {"_id": 2, "n": 2, "s": "Beta", "key": 2, "tags": [5], "price": Decimal128("1.50")},
        {"_id": 3, "n": 3, "s": "beta", "when": WHEN, "u": Binary(UUID.bytes, 4)},
        broken(_id=4, n=4, text="utf8", x=Int64(7)),
        {"_id": 5, "n": 5, "far": DatetimeMS(2**60), "items": [{"k": 1}, {"k": 2}]},
    ]


# -- comparing -------------------------------------------------------------------------------------


def plain(value):
    """A value with its type, without what differs from call to call."""
    if isinstance(value, RawBSONDocument):
        return ("RawBSONDocument", *plain(bson.decode(value.raw, LENIENT))[1:])
    if isinstance(value, Mapping):
        items = [(key, plain(item)) for key, item in value.items() if key not in VOLATILE]
        return (type(value).__name__, items)
    if isinstance(value, list | tuple):
        return (type(value).__name__, [plain(item) for item in value])
    if isinstance(value, str):
        return text(value)
    if isinstance(value, ObjectId):
        return "<ObjectId>"
    return (type(value).__name__, repr(value))


def text(value):
    """A text without what differs from call to call."""
    value = value.partition(", full error: ")[0]
    value = re.sub(r"^Invalid document .* \| ", "Invalid document: ", value, flags=re.DOTALL)
    value = re.sub("side_[ab]", "<collection>", value)
    value = re.sub("Retry(Motor)?Collection|AsyncIOMotorCollection|Collection", "<class>", value)
    value = re.sub(r"(_method|_unwrap\w*)\b", "<method>", value)
    return re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{24}\b", "<hex>", value)


def result(value):
    """Everything that a caller sees of a result."""
    if not hasattr(value, "acknowledged"):
        return plain(value)
    seen = {"type": type(value)}
    for name in sorted(vars_of(value)):
        try:
            seen[name] = plain(getattr(value, name))
        except (PyMongoError, AssertionError) as exc:  # PyMongo asserts that it was acknowledged
            seen[name] = failure(exc)
    return seen


def vars_of(value):
    return {name for name in dir(type(value)) if not name.startswith("_")}


def failure(exc):
    """Everything that a caller sees of an exception."""
    seen = {"type": type(exc), "str": text(str(exc)), "args": len(exc.args)}
    if IS_OLD and type(exc) in {TypeError, ValueError}:
        del seen["str"]
    if isinstance(exc, PyMongoError):
        seen["labels"] = sorted(exc._error_labels)
        seen["timeout"] = exc.timeout
    if isinstance(exc, OperationFailure):
        seen["code"] = exc.code
        seen["details"] = plain(exc.details)
    if hasattr(exc, "document"):
        seen["document"] = type(exc.document)
    return seen


def unordered(value):
    """A command, whose options have no order, down to its statement."""
    value = bson.decode(value, LENIENT)
    return {key: unordered_statement(item) for key, item in value.items() if key not in VOLATILE}


def unordered_statement(value):
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        return {key: plain(item) for key, item in value[0].items()}
    return plain(value)


class Side:
    """One of the two collections, and what a call on it comes to."""

    def __init__(self, client, name, sent, stored, options):
        options = dict(options)
        codec_options = options.pop("codec_options", None)
        self.client = client
        self.collection = client[DATABASE].get_collection(name, codec_options, **options)
        self._sent = sent
        self._codec_options = codec_options or CodecOptions()
        self._stored = stored[DATABASE].get_collection(name, DEFAULT_RAW_BSON_OPTIONS)

    async def outcome(self, call):
        """Make a call; return everything that can be seen of it."""
        self._stored.delete_many({})
        self._stored.insert_many(seed())
        self._sent.commands.clear()
        seen = {}
        try:
            seen["result"] = result(await call(self))
        except AssertionError:
            raise
        except Exception as exc:  # noqa: BLE001 - to be compared
            seen["error"] = failure(exc)
        # On the connection of the write, so that one without acknowledgement is over as well.
        await self.client.admin.command("ping")
        seen["sent"] = [self._command(command) for command in self._sent.commands]
        seen["stored"] = [plain(document) for document in self._stored.find()]
        return seen

    def _command(self, command):
        document = {key: item for key, item in command.items() if key not in VOLATILE}
        try:
            document = bson.encode(document, codec_options=self._codec_options)
        except Exception as exc:  # noqa: BLE001 - it could not be sent either
            return type(exc)
        return unordered(document)


@pytest.fixture(scope="module")
def server():
    """One member, for the whole module."""
    with ReplicaSet(members=1) as replica_set:
        yield replica_set


@pytest.fixture(scope="module")
def stored(server):
    """PyMongo's client, to prepare the collections and to look at them."""
    with MongoClient(server.uri, w=1) as client:
        for name in (MOTORS, OURS):
            collection = client[DATABASE].create_collection(
                name, validator={"n": {"$not": {"$lt": 0}}}
            )
            collection.create_index("n")
            collection.create_index("key", unique=True, sparse=True)
            collection.create_index("s", collation=Collation("en", strength=2), name="by_s")
        yield client


def differences(expected, actual):
    """What differs between two outcomes, each as Motor's and ours."""
    if not (isinstance(expected, dict) and isinstance(actual, dict)):
        return (expected, actual)
    names = [*expected, *(name for name in actual if name not in expected)]
    return {
        name: differences(expected.get(name), actual.get(name))
        for name in names
        if expected.get(name) != actual.get(name)
    }


class Pair:
    """A client of Motor's and one of ours, with the same options."""

    def __init__(self, uri, stored, **options):
        self._stored = stored
        self._sent = (Sent(), Sent())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.motors = AsyncIOMotorClient(uri, event_listeners=[self._sent[0]], **options)
        self.ours = RetryClient(uri, event_listeners=[self._sent[1]], **options)

    async def __call__(self, call, options=None):
        """Make the same call on both sides; compare all that can be seen of it."""
        sent, stored, options = self._sent, self._stored, options or {}
        expected = await Side(self.motors, MOTORS, sent[0], stored, options).outcome(call)
        actual = await Side(self.ours, OURS, sent[1], stored, options).outcome(call)
        assert {} == differences(expected, actual)
        return actual

    def close(self):
        """Close both."""
        self.motors.close()
        self.ours.close()


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


def required(method):
    """What the method has to be given."""
    some = {"n": {"$gte": 2}}
    return {
        "insert_one": {"document": {"_id": 9, "n": 9}},
        "update_one": {"filter": some, "update": {"$inc": {"n": 10}}},
        "replace_one": {"filter": some, "replacement": {"n": 7, "z": 1, "a": 2}},
        "delete_one": {"filter": some},
        "find_one_and_delete": {"filter": some},
        "find_one_and_replace": {"filter": some, "replacement": {"n": 7, "z": 1, "a": 2}},
        "find_one_and_update": {"filter": some, "update": {"$inc": {"n": 10}}},
    }[method]


def documents():
    """Good and bad documents, for what is stored."""
    return {
        "empty": {},
        "nested": {"n": 8, "a": {"b": {"c": [1, {"d": None}]}}},
        "_id last": {"n": 8, "z": 1, "_id": 2},
        "every type": {
            "n": 8,
            "a": [WHEN, ObjectId(b"x" * 12), 2**40, Int64(1), 1.5, True, b"bytes"],
            "b": [Decimal128("1"), Regex("a", "i"), Code("x"), Code("x", {"y": 1})],
            "c": [DBRef("c", 1), MinKey(), MaxKey(), Timestamp(1, 2), DatetimeMS(2**60)],
            "d": re.compile("a+"),
            "e": Binary(UUID.bytes, 4),
        },
        "SON": SON([("n", 8), ("b", SON([("z", 1), ("a", 2)]))]),
        "raw": raw(_id=2, n=8),
        "raw without _id": raw(n=8),
        "broken raw": broken(_id=2, text="utf8"),
        "bag": Bag(_id=2, n=8),
        "duplicate": {"_id": 2, "key": 1},
        "invalid": {"_id": 2, "n": -1},
        "operator": {"$set": {"n": 8}},
        "operator last": {"n": 8, "$set": 1},
        "dotted": {"n": 8, "a.b": 1},
        "a list": [{"n": 8}],
        "a string": "n",
        "a number": 8,
        "None": None,
        "unencodable": {"n": 8, "a": object()},
        "unencodable inside": {"n": 8, "a": [{"b": {1, 2}}]},
        "uuid": {"n": 8, "a": UUID},
        "decimal": {"n": 8, "a": Decimal(1)},
        "too large": {"n": 8, "a": "x" * (16 * 1024 * 1024)},
        "65 bits": {"n": 2**64},
        "NUL in key": {"n": 8, "a\0b": 1},
        "non-string key": {"n": 8, 1: 1},
        "first key no string": {1: 1},
        "surrogate": {"n": 8, "a": "\ud800"},
        "array as _id": {"_id": [1]},
        "null as _id": {"_id": None},
        "immutable _id": {"_id": 77},
        "raw inside": {"n": 8, "a": raw(b=1, c=[raw(d=1)])},
    }


def updates():
    """Good and bad updates."""
    return {
        "set": {"$set": {"n": 8, "sub.a": 5}, "$unset": {"s": ""}},
        "no change": {"$set": {"n": 2}},
        "pipeline": [{"$set": {"n": {"$add": ["$n", 1]}}}, {"$unset": "s"}],
        "bad pipeline": [{"$nope": 1}],
        "pipeline of no documents": [1],
        "pipeline as a tuple": ({"$set": {"n": 1}},),
        "raw": raw(**{"$set": {"n": 8}}),
        "raw in pipeline": [raw(**{"$set": {"n": 8}})],
        "SON": SON([("$set", SON([("b", 1), ("a", 2)]))]),
        "bag": Bag({"$set": Bag(a=1)}),
        "raw value": {"$set": {"a": raw(b=1)}},
        "empty": {},
        "empty list": [],
        "no operator": {"n": 8},
        "raw without operator": raw(n=8),
        "operator first": {"$set": {"a": 1}, "n": 8},
        "unknown operator": {"$nope": {"n": 8}},
        "duplicate": {"$set": {"key": 1}},
        "invalid": {"$set": {"n": -1}},
        "conflict": {"$set": {"n": 1}, "$inc": {"n": 1}},
        "not a number": {"$inc": {"n": "x"}},
        "immutable _id": {"$set": {"_id": 77}},
        "array filter missing": {"$set": {"tags.$[x]": 0}},
        "a string": "n",
        "None": None,
        "unencodable": {"$set": {"a": object()}},
        "unencodable in pipeline": [{"$set": {"a": object()}}],
        "too large": {"$set": {"a": "x" * (16 * 1024 * 1024)}},
        "65 bits": {"$set": {"n": 2**64}},
        "NUL in key": {"$set": {"a\0b": 1}},
        "first key no string": {1: 1},
    }


def filters():
    """Good and bad filters."""
    return {
        "empty": {},
        "none matches": {"_id": 99},
        "none matches, with operators": {"_id": {"$gt": 99}, "s": "new", "t": {"$gt": 1}},
        "raw": raw(_id=1),
        "SON": SON([("n", SON([("$gte", 1), ("$lt", 3)]))]),
        "bag": Bag(_id=1),
        "regex": {"s": re.compile("^B")},
        "$or": {"$or": [{"_id": 1}, {"n": 2}]},
        "unknown operator": {"n": {"$nope": 1}},
        "unknown top-level operator": {"$nope": 1},
        "unencodable": {"a": object()},
        "65 bits": {"n": 2**64},
        "NUL in key": {"a\0b": 1},
        "non-string key": {1: 1},
        "too large": {"a": "x" * (17 * 1024 * 1024)},
        "a list": [("_id", 1)],
        "a string": "_id",
        "an ObjectId": ObjectId(b"x" * 12),
        "None": None,
    }


def sorts():
    """Good and bad orders."""
    return {
        "list": [("n", -1)],
        "list of names": ["s", "n"],
        "mixed list": ["s", ("n", pymongo.DESCENDING)],
        "tuple": (("n", -1),),
        "lists in list": [["n", -1]],
        "dict": {"n": -1},
        "SON": SON([("s", 1), ("n", -1)]),
        "raw": raw(n=-1),
        "raw with Int64": raw(n=Int64(-1)),
        "bag": Bag(n=-1),
        "duplicate": [("n", 1), ("n", -1)],
        "$meta": [("score", {"$meta": "textScore"})],
        "None": None,
        "empty list": [],
        "empty dict": {},
        "a string": "n",
        "a number": 1,
        "a set": {"n"},
        "items": {"n": -1}.items(),
        "wrong direction": [("n", 5)],
        "wrong type of direction": [("n", 1.5)],
        "wrong type of direction in dict": {"n": None},
        "wrong type of key": [(1, 1)],
        "wrong type of key in dict": {1: 1},
        "triple": [("n", 1, 1)],
        "single": [("n",)],
        "a number in list": [1],
        "a string of two": [("ab")],
        "unknown direction": [("n", "nope")],
        "bool": [("n", True)],
    }


def arguments():
    """Values for every argument, made anew for every call: some are changed by it."""
    return {
        "document": documents(),
        "replacement": documents(),
        "update": updates(),
        "filter": filters(),
        "sort": sorts(),
        "hint": {
            "name": "n_1",
            "_id_": "_id_",
            "no such index": "nope",
            "no such keys": [("nope", 1)],
            "empty name": "",
            "bytes": b"n_1",
            **sorts(),
        },
        "upsert": {
            "True": True,
            "False": False,
            "1": 1,
            "0": 0,
            "yes": "yes",
            "None": None,
        },
        "bypass_document_validation": {
            "True": True,
            "False": False,
            "None": None,
            "1": 1,
            "yes": "yes",
            "object": object(),
        },
        "collation": {
            "Collation": Collation("en", strength=2),
            "dict": {"locale": "en", "strength": 2},
            "raw": raw(locale="en"),
            "unknown locale": Collation("nope"),
            "unknown option": {"locale": "en", "nope": 1},
            "empty": {},
            "a string": "en",
            "a list": [("locale", "en")],
            "None": None,
        },
        "array_filters": {
            "list": [{"x": {"$gt": 4}}],
            "raw": [raw(x={"$gt": 4})],
            "unused": [{"y": 1}],
            "empty": [],
            "None": None,
            "a tuple": ({"x": 1},),
            "a dict": {"x": 1},
            "a string": "x",
            "list of numbers": [1],
            "unencodable": [{"x": object()}],
        },
        "let": {
            "dict": {"v": 3},
            "raw": raw(v=3),
            "SON": SON([("v", 3), ("w", 4)]),
            "bag": Bag(v=3),
            "expression": {"v": {"$add": [1, 2]}},
            "empty": {},
            "None": None,
            "a list": [("v", 3)],
            "a string": "v",
            "bad name": {"V": 3},
            "unencodable": {"v": object()},
        },
        "comment": {
            "string": "why",
            "empty": "",
            "number": 5,
            "zero": 0,
            "Int64": Int64(5),
            "False": False,
            "None": None,
            "dict": {"why": {"not": [1]}},
            "empty dict": {},
            "list": ["a", 1, {"b": 2}],
            "SON": SON([("z", 1), ("a", 2)]),
            "raw": raw(a=1),
            "datetime": WHEN,
            "far datetime": DatetimeMS(2**60),
            "far datetime in a list": [DatetimeMS(-(2**60))],
            "bytes": b"abc",
            "uuid": Binary(UUID.bytes, 4),
            "legacy uuid": Binary(UUID.bytes, 3),
            "regex": re.compile("a"),
            "ObjectId": ObjectId(b"x" * 12),
            "DBRef": DBRef("c", 1),
            "Decimal128": Decimal128("1.5"),
            "Timestamp": Timestamp(1, 2),
            "MinKey": MinKey(),
            "unencodable": object(),
            "raw uuid": UUID,
        },
        "projection": {
            "list": ["n"],
            "tuple": ("n", "s"),
            "set": {"n"},
            "frozenset": frozenset({"n"}),
            "keys": {"n": 1}.keys(),
            "dict": {"n": 1, "_id": 0},
            "excluding": {"n": 0},
            "expression": {"double": {"$multiply": ["$n", 2]}},
            "raw": raw(n=1),
            "empty list": [],
            "empty dict": {},
            "a string": "ns",
            "contradictory": {"n": 1, "s": 0},
            "None": None,
            "a number": 1,
            "a generator": (name for name in ["n"]),
            "list of numbers": [1],
            "unencodable": {"n": object()},
        },
        "return_document": {
            "BEFORE": ReturnDocument.BEFORE,
            "AFTER": ReturnDocument.AFTER,
            "1": 1,
            "None": None,
            "a string": "after",
        },
        "session": {"None": None},
    }


def parameters(method):
    """The names of the method's parameters, as Motor has them."""
    listed = inspect.signature(getattr(AsyncIOMotorCollection, method)).parameters.values()
    return [p.name for p in listed if p.name != "self" and p.kind is not p.VAR_KEYWORD]


VALUES = {name: tuple(values) for name, values in arguments().items()}
EACH_VALUE = [
    pytest.param(method, name, value, id=f"{method}-{name}-{value}")
    for method in COMMANDS
    for name in parameters(method)
    for value in VALUES[name]
    if not (IS_OLD and value in DIFFERS_IN_OLD.get(name, ()))
]


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


OPTIONS = {
    "w1": concern(w=1),
    "majority": concern(w="majority"),
    "journaled": concern(j=True),
    "not journaled": concern(w=1, j=False),
    "majority with wtimeout": concern(w="majority", j=True, wtimeout=5000),
    "unacknowledged": concern(w=0),
    "more members than there are": concern(w=3, wtimeout=50),
    "no such mode": concern(w="nope"),
    "raw": codec(document_class=RawBSONDocument),
    "SON": codec(document_class=SON),
    "bag": codec(document_class=Bag),
    "aware": AWARE,
    "tz_aware": codec(tz_aware=True),
    "standard uuids": STANDARD,
    "legacy uuids": codec(uuid_representation=UuidRepresentation.PYTHON_LEGACY),
    "custom type": MONEY,
    "fallback": FALLBACK,
    "custom type in raw": codec(
        document_class=RawBSONDocument, type_registry=TypeRegistry([Money()])
    ),
    "replacing bad text": codec(unicode_decode_error_handler="replace"),
    "ignoring bad text": codec(unicode_decode_error_handler="ignore"),
    "DatetimeMS": codec(datetime_conversion=DatetimeConversion.DATETIME_MS),
    "datetime clamped": codec(datetime_conversion=DatetimeConversion.DATETIME_CLAMP),
    "datetime auto": codec(datetime_conversion=DatetimeConversion.DATETIME_AUTO),
}
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


async def _ended(side):
    session = await side.client.start_session()
    await session.end_session()
    return session


async def _open(side):
    return await side.client.start_session()


async def _synchronous(side):
    return side.client.delegate.start_session()


SESSIONS = {"open": _open, "ended": _ended, "a delegate": _synchronous}


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

WTIMEOUT = {"code": 64, "errmsg": "waiting timed out", "errInfo": {"wtimeout": True}}
FAULTS = {
    "unauthorized": {"errorCode": 13},
    "MaxTimeMSExpired": {"errorCode": 50},
    "CursorNotFound": {"errorCode": 43},
    "WriteConflict": {"errorCode": 112},
    "DuplicateKey": {"errorCode": 11000},
    "labelled": {"errorCode": 8, "errorLabels": ["One", "Other"]},
    "wtimeout": {"writeConcernError": WTIMEOUT},
    "wtimeout without errInfo": {"writeConcernError": {"code": 64, "errmsg": "timed out"}},
    "MaxTimeMSExpired after the write": {"writeConcernError": {"code": 50, "errmsg": "late"}},
    "unsatisfiable": {"writeConcernError": {"code": 100, "errmsg": "no", "errInfo": {"a": [1]}}},
    "labelled concern": {
        "writeConcernError": {"code": 100, "errmsg": "no"},
        "errorLabels": ["One", "Other"],
    },
}


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
