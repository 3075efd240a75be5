"""The same call by Motor and by aioretry, and all that can be seen of the two."""

import contextlib
import datetime as dt
import inspect
import re
import warnings
from collections.abc import Mapping
from decimal import Decimal

import bson
import pymongo
from bson import DatetimeMS, Decimal128, Int64, ObjectId
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion, TypeCodec, TypeRegistry
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from bson.son import SON
from given_values import UUID, WHEN, Bag, broken
from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorCollection
from pymongo import MongoClient, monitoring
from pymongo.collation import Collation
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from aioretry import RetryClient

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
# Older PyMongos send only a true bypass_document_validation, as True, refuse a bad
# return_document as a ValueError, look at a hint last, and word their refusals differently.
IS_OLD = pymongo.version_tuple < (4, 17)
DIFFERS_IN_OLD = {
    "bypass_document_validation": {"False", "1", "yes", "object"},
    "return_document": {"1", "None", "a string"},
}
VOLATILE = {
    "$clusterTime",
    "operationTime",
    "afterClusterTime",
    "electionId",
    "opTime",
    "retriedStmtIds",
    "topologyVersion",
    "lsid",
    "txnNumber",
}


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


def seed():
    """The documents that each collection begins with."""
    return [
        {"_id": 1, "n": 1, "s": "alpha", "key": 1, "tags": [1, 5, 9], "sub": {"a": 1, "b": [2]}},
        {"_id": 2, "n": 2, "s": "Beta", "key": 2, "tags": [5], "price": Decimal128("1.50")},
        {"_id": 3, "n": 3, "s": "beta", "when": WHEN, "u": Binary(UUID.bytes, 4)},
        broken(_id=4, n=4, text="utf8", x=Int64(7)),
        {"_id": 5, "n": 5, "far": DatetimeMS(2**60), "items": [{"k": 1}, {"k": 2}]},
    ]


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
        return value  # until all of them are numbered
    return (type(value).__name__, text(repr(value)))


def text(value):
    """A text without what differs from call to call."""
    value = value.partition(", full error: ")[0]
    value = re.sub(r"^Invalid document .* \| ", "Invalid document: ", value, flags=re.DOTALL)
    value = re.sub("side_[ab]", "<collection>", value)
    value = re.sub("Retry(Motor)?Collection|AsyncIOMotorCollection|Collection", "<class>", value)
    value = re.sub(r"(_method|_unwrap\w*)\b", "<method>", value)
    value = re.sub(r"(txnNumber:|Transaction) \d+", "<number>", value)
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
        seen["document"] = plain(exc.document)
    return seen


def numbered(value, known):
    """The same, with a number for each ObjectId: those of the two sides are never the same."""
    if isinstance(value, ObjectId):
        return f"<ObjectId {known.setdefault(value, len(known))}>"
    if isinstance(value, dict):
        # An error last: it may name one document more.
        names = sorted(value, key=lambda name: (name == "error", name))
        return {name: numbered(value[name], known) for name in names}
    if isinstance(value, list | tuple):
        return type(value)(numbered(item, known) for item in value)
    return value


def unordered(document):
    """A command, whose options have no order, down to its statements."""
    if document.get("readConcern", {}).keys() <= {"afterClusterTime"}:
        document = {key: item for key, item in document.items() if key != "readConcern"}
    return {
        key: unordered_statements(key, item)
        for key, item in document.items()
        if key not in VOLATILE
    }


def unordered_statements(name, value):
    if name in {"updates", "deletes"}:
        return [{key: plain(item) for key, item in statement.items()} for statement in value]
    return plain(value)


def encoded(document, codec_options):
    """What a driver sends of a command that it has announced, decoded: each document begins with
    its _id."""
    documents = [
        bson.decode(bson.encode(one, codec_options=codec_options), LENIENT)
        for one in document.get("documents", ())
    ]
    command = {key: item for key, item in document.items() if key not in {*VOLATILE, "documents"}}
    command = bson.decode(bson.encode(command, codec_options=codec_options), LENIENT)
    return command | {"documents": documents}


def holds_multi(command):
    """Whether a statement of a command may change several documents."""
    return any(s.get("multi") for s in command.get("updates", ())) or any(
        s["limit"] == 0 for s in command.get("deletes", ())
    )


@contextlib.contextmanager
def prepared(uri):
    """PyMongo's client, to prepare the collections and to look at them."""
    with MongoClient(uri, w=1) as client:
        for name in (MOTORS, OURS):
            collection = client[DATABASE].create_collection(
                name, validator={"n": {"$not": {"$lt": 0}}}
            )
            collection.create_index("n")
            collection.create_index("key", unique=True, sparse=True)
            collection.create_index("s", collation=Collation("en", strength=2), name="by_s")
        yield client


class Side:
    """One of the two collections, and what a call on it comes to.

    A call may put into `given` what it has given away, to be looked at afterwards.
    """

    def __init__(self, client, name, sent, stored, options):
        options = dict(options)
        codec_options = options.pop("codec_options", None)
        self.client = client
        self.collection = client[DATABASE].get_collection(name, codec_options, **options)
        self.given = []
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
        sent = self._sent.commands
        seen["sent"] = [self._command(command) for command in sent]
        seen["sessions"] = ["lsid" in command for command in sent]
        seen["transaction ids"] = ["txnNumber" in command for command in sent]
        seen["multi"] = [holds_multi(command) for command in sent]
        seen["given"] = plain(self.given)
        seen["stored"] = [plain(document) for document in self._stored.find()]
        return numbered(seen, {})

    def _command(self, command):
        try:
            return unordered(encoded(command, self._codec_options))
        except Exception as exc:  # noqa: BLE001 - it could not be sent either
            return type(exc)


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
        expected, actual = await self.outcomes(call, options)
        for side in (expected, actual):  # which document an error names is of no importance here
            side.get("error", {}).pop("document", None)
        assert {} == differences(expected, actual)
        return actual

    async def outcomes(self, call, options=None):
        """Make the same call on both sides; return what it comes to, Motor's first."""
        sent, stored, options = self._sent, self._stored, options or {}
        return (
            await Side(self.motors, MOTORS, sent[0], stored, options).outcome(call),
            await Side(self.ours, OURS, sent[1], stored, options).outcome(call),
        )

    def close(self):
        """Close both."""
        self.motors.close()
        self.ours.close()


async def _ended(side):
    session = await side.client.start_session()
    await session.end_session()
    return session


async def _open(side):
    return await side.client.start_session()


async def _synchronous(side):
    return side.client.delegate.start_session()


SESSIONS = {"open": _open, "ended": _ended, "a delegate": _synchronous}


def parameters(method):
    """The names of the method's parameters, as Motor has them."""
    listed = inspect.signature(getattr(AsyncIOMotorCollection, method)).parameters.values()
    return [p.name for p in listed if p.name != "self" and p.kind is not p.VAR_KEYWORD]


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
