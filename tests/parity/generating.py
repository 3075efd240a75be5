"""Strategies for calls of the writes, as recipes: each of two sides makes its own from them."""

import collections
import datetime as dt
import inspect
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import bson
import pymongo
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
from bson.raw_bson import RawBSONDocument
from bson.son import SON
from comparing import COMMANDS, DIFFERS_IN_OLD, IS_OLD, OPTIONS, parameters
from given_values import FAULTS, UUID, WHEN, Bag, arguments
from hypothesis import strategies as st

# Deep documents are walked through by recursion.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 5000))

# -- recipes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Of:
    """A mapping of some type."""

    kind: Any
    items: dict[Any, Any]

    def make(self, made):
        return self.kind(make(self.items, made))


@dataclass(frozen=True)
class Deep:
    """A document in a document in a document."""

    levels: int

    def make(self, made):
        document: dict[str, Any] = {}
        for _ in range(self.levels):
            document = {"a": document}
        return document


@dataclass(frozen=True)
class Named:
    """One of the values that are written out."""

    argument: str
    value: str

    def make(self, made):
        return arguments()[self.argument][self.value]


@dataclass(frozen=True)
class Listed:
    """Some iterable, which may fail at its end."""

    kind: Any
    items: list[Any]
    error: type[Exception] | None = None

    def make(self, made):
        return self.kind(make(self.items, made), self.error)


@dataclass(frozen=True)
class Request:
    """A request of a bulk_write."""

    kind: type
    arguments: dict[str, Any]

    def make(self, made):
        return self.kind(**make(self.arguments, made))


@dataclass(frozen=True)
class Case:
    """A call: of what, with what, and under which circumstances."""

    method: str
    arguments: dict[str, Any]
    options: str | None = None
    session: str = "none"
    fault: dict[str, Any] = field(default_factory=dict)


def make(recipe, made):
    """A new value, as the recipe says; adds the documents and lists in it to what was made."""
    if isinstance(recipe, Of | Deep | Named | Listed | Request):
        value = recipe.make(made)
    elif type(recipe) is dict:
        value = {key: make(item, made) for key, item in recipe.items()}
    elif type(recipe) is list:
        value = [make(item, made) for item in recipe]
    else:
        return recipe
    if isinstance(value, Mapping | list):
        made.append(value)
    return value


def encoded(items):
    """A document that is encoded already."""
    return RawBSONDocument(bson.encode(items))


def _generator(items, error):
    yield from items
    if error is not None:
        raise error("nothing more to be had")


class _Reader:
    """An iterator of another kind: it goes on after it has failed."""

    def __init__(self, items, error):
        self._items, self._error = iter(items), error

    def __iter__(self):
        return self

    def __next__(self):
        for item in self._items:
            return item
        raise (self._error or StopIteration)("nothing more to be had")


def _tuple(items, _):
    return tuple(items)


def _deque(items, _):
    return collections.deque(items)


def _values(items, _):
    return dict(enumerate(items)).values()


# -- values ----------------------------------------------------------------------------------------

OTHERS = [
    WHEN,
    WHEN.replace(tzinfo=dt.timezone(dt.timedelta(hours=5))),
    dt.datetime(1, 1, 1),  # noqa: DTZ001 - as BSON's default
    DatetimeMS(2**60),
    ObjectId(b"x" * 12),
    Int64(5),
    2**31,
    -(2**63),
    5.0,
    -0.0,
    math.inf,
    b"bytes",
    Binary(b"bytes", 128),
    Binary(UUID.bytes, 4),
    Decimal128("1.50"),
    Decimal128("NaN"),
    Regex("a.*", "im"),
    re.compile("^a", re.IGNORECASE),
    Code("f()"),
    Code("f()", {"y": [1]}),
    DBRef("c", 1),
    DBRef("c", 1, "d", more={"x": 1}),
    MinKey(),
    MaxKey(),
    Timestamp(1, 2),
    Deep(3),
    Of(SON, {"z": 1, "a": 2}),
    Of(Bag, {"z": 1, "a": 2}),
    Of(encoded, {"z": 1, "_id": 2}),
    Of(collections.OrderedDict, {"z": 1, "_id": 2}),
]
BAD = [object(), {1, 2}, UUID, 2**64, "\ud800", dt.date(2024, 1, 1), Deep(150), Deep(210), {1: 2}]
MAPPINGS = [SON, Bag, encoded, collections.OrderedDict]

leaves = (
    st.integers(-3, 9)
    | st.sampled_from([None, True, False, "", "alpha", "Beta", 1.5])
    | st.text(max_size=4)
    | st.sampled_from(OTHERS)
)
keys = st.sampled_from(["a", "b", "z", "sub", "tags"]) | st.sampled_from(["", "ä", "$a", "a.b"])
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)
ids = st.integers(0, 9) | st.integers(0, 9) | st.sampled_from([None, "a", 3.0, {"a": 1}, [1]])


def chance(one_in):
    """True once in so many draws."""
    return st.integers(1, one_in).map(lambda n: n == one_in)


@st.composite
def documents(draw, *, bad=20):
    """A document; one in so many can't be encoded, of 0 none."""
    pairs = draw(st.lists(st.tuples(keys, values), max_size=3))
    fields = [("n", st.integers(-1, 20)), ("key", st.integers(0, 6)), ("s", st.just("alpha"))]
    for name, its_values in fields:
        if draw(chance(4)):
            pairs.append((name, draw(its_values)))
    if bad and draw(chance(bad)):
        pairs.append(
            draw(
                st.sampled_from(
                    [*(("a", value) for value in BAD), ("_id", UUID), (1, 1), ("a\0", 1)]
                )
            )
        )
    if draw(st.booleans()):
        pairs.insert(draw(st.integers(0, len(pairs))), ("_id", draw(ids)))
    document = dict(pairs)
    if not draw(chance(4)):
        return document
    kind = draw(st.sampled_from(MAPPINGS))
    try:
        make(Of(kind, document), [])
    except Exception:  # noqa: BLE001 - raw documents hold what can be encoded
        return document
    return Of(kind, document)


def named(name, *, bad=8):
    """A value that is written out for an argument; one in so many may be a bad one, of 0 none."""
    not_here = NOT_HERE | (DIFFERS_IN_OLD.get(name, set()) if IS_OLD else set())
    all_ = [value for value in arguments()[name] if value not in not_here]
    good = [value for value in GOOD.get(name, ()) if value not in not_here]
    if not good:
        return st.sampled_from(all_).map(lambda value: Named(name, value))
    return (chance(bad) if bad else st.just(False)).flatmap(
        lambda is_bad: st.sampled_from(all_ if is_bad else good).map(
            lambda value: Named(name, value)
        )
    )


# A document larger than the server takes (known difference 1); what is made anew can't be compared.
NOT_HERE = {"too large"}
GOOD = {
    "upsert": ("True", "True", "True", "False"),
    "bypass_document_validation": ("True", "False", "None"),
    "hint": ("name", "_id_", "no such index"),
    "collation": ("Collation", "dict"),
    "array_filters": ("list", "raw", "unused"),
    "let": ("dict", "raw", "SON", "bag", "expression", "empty"),
    "comment": ("string", "empty", "zero", "False", "dict", "empty dict", "list", "raw", "bytes"),
    "projection": ("list", "tuple", "dict", "excluding", "expression", "raw"),
    "return_document": ("BEFORE", "AFTER"),
    "sort": ("list", "dict", "list of names", "SON"),
    "filter": ("empty", "none matches", "none matches, with operators", "raw", "SON", "bag", "$or"),
    "update": ("set", "no change", "raw", "SON", "duplicate", "invalid", "conflict", "pipeline"),
    "document": ("nested", "_id last", "every type", "SON", "raw", "bag", "duplicate", "invalid"),
    "replacement": ("empty", "_id last", "every type", "SON", "raw", "duplicate", "invalid"),
}


def required(*, bad):
    """Strategies for what writes have to be given; if not bad, the driver sends it."""
    filters = (
        st.integers(1, 10).map(lambda n: {"_id": n})
        | st.integers(0, 4).map(lambda n: {"n": {"$gte": n}})
        | st.sampled_from([{}, {"s": "BETA"}, {"$expr": {"$eq": ["$n", "$$v"]}}, {"tags": 5}])
        | documents(bad=6 * bad)
        | named("filter", bad=8 * bad)
    )
    updates = (
        st.integers(-9, 9).map(lambda n: {"$inc": {"n": n}})
        | st.integers(1, 9).map(lambda n: {"$set": {"key": n}, "$setOnInsert": {"b": n}})
        | st.tuples(keys, values).map(lambda pair: {"$set": dict([pair])})
        | st.sampled_from(
            [{"$set": {"tags.$[x]": 0}}, {"$push": {"tags": 7}}, {"$unset": {"s": ""}}]
        )
        | st.sampled_from([[{"$set": {"n": "$$v"}}], [{"$unset": "s"}, {"$set": {"z": "$n"}}]])
        | named("update", bad=8 * bad)
    )
    some = documents(bad=20 * bad)
    replacements = some if bad else some.filter(_replaces)
    return {
        "document": some | some | named("document", bad=8 * bad),
        "filter": filters,
        "update": updates,
        "replacement": replacements | replacements | named("replacement", bad=8 * bad),
    }


def _replaces(recipe):
    items = recipe.items if isinstance(recipe, Of) else recipe
    return not next(iter(items), "").startswith("$")


REQUIRED = required(bad=1)
CAREFUL = required(bad=0)

# -- calls -----------------------------------------------------------------------------------------

not_documents = st.sampled_from([None, 5, "x", [("_id", 1)], (), b"_id"])
NOT_LISTS = st.sampled_from(
    [None, 5, "", "ab", b"ab", {}, {"_id": 1}, set(), {1}, (), [], Of(Bag, {})]
)
ITERABLES = [_generator, _generator, _Reader, _tuple, _deque, _values]


@st.composite
def many_documents(draw):
    """What insert_many is given: mostly a list of documents."""
    if draw(chance(15)):
        return draw(NOT_LISTS)
    items = draw(st.lists(documents(bad=30), min_size=1, max_size=12))
    if draw(chance(12)):
        items.insert(draw(st.integers(0, len(items))), draw(not_documents))
    if not draw(chance(3)):
        return items
    error = st.sampled_from([None, None, ValueError, KeyError, bson.errors.InvalidDocument])
    return Listed(draw(st.sampled_from(ITERABLES)), items, draw(error))


# Older PyMongos say in a ReplaceOne of a bulk_write what newer ones leave to the server.
REQUESTS = {
    pymongo.InsertOne: ["document"],
    pymongo.UpdateOne: ["filter", "update"],
    pymongo.UpdateMany: ["filter", "update"],
    **({} if IS_OLD else {pymongo.ReplaceOne: ["filter", "replacement"]}),
    pymongo.DeleteOne: ["filter"],
    pymongo.DeleteMany: ["filter"],
}
NOT_REQUESTS = st.sampled_from([None, 5, {"insertOne": {}}, pymongo.InsertOne, {}])


@st.composite
def requests(draw, *, careful):
    """A request of a bulk_write; a careful one is sent."""
    if not careful and draw(chance(15)):
        return draw(NOT_REQUESTS)
    kind = draw(st.sampled_from(list(REQUESTS)))
    source = CAREFUL if careful else REQUIRED
    given = {name: draw(source[name]) for name in REQUESTS[kind]}
    for name in inspect.signature(kind).parameters:
        if name in REQUESTS[kind] or not draw(chance(3 if name == "upsert" else 6)):
            continue
        if name == "namespace":
            given[name] = None if careful else draw(st.sampled_from([None, "a.b"]))
        elif name != "sort" or not careful:  # of which MongoDB 8.0 is the first to know
            given[name] = draw(named(name, bad=0 if careful else 10))
    _fit(given)
    return Request(kind, given)


@st.composite
def many_requests(draw):
    """What bulk_write is given: mostly a list of requests."""
    if draw(chance(20)):
        return draw(NOT_LISTS | st.just(Listed(_generator, [])) | st.just(Listed(_tuple, [])))
    careful = not draw(chance(4))
    return draw(st.lists(requests(careful=careful), min_size=1, max_size=10))


def _fit(given):
    """Have the update use its array filters, mostly."""
    if "array_filters" in given and given["array_filters"] != Named("array_filters", "unused"):
        given["update"] = {"$set": {"tags.$[x]": 0}}


SEVERAL = {"documents": many_documents(), "requests": many_requests()}
EXCEEDED_TIME_LIMIT = 262  # retryable, and leaves the server in its state
SESSIONS = ["none"] * 6 + ["open"] * 2 + ["ended", "transaction"]
FAULTS_HERE = FAULTS | {
    "ExceededTimeLimit": {"errorCode": EXCEEDED_TIME_LIMIT},
    "ExceededTimeLimit after the write": {
        "writeConcernError": {"code": EXCEEDED_TIME_LIMIT, "errmsg": "late"}
    },
}
MULTI = (pymongo.UpdateMany, pymongo.DeleteMany)


def holds_multi(case):
    """Whether a case is a bulk_write with statements that may change several documents."""
    requests = case.arguments.get("requests")
    return isinstance(requests, list) and any(
        isinstance(request, Request) and request.kind in MULTI for request in requests
    )


def reads_lazily(case):
    """Whether a case is an insert_many that may end before it has read all documents: because there
    is one in an iterator that can't be encoded."""
    listed = case.arguments.get("documents")
    if not isinstance(listed, Listed) or listed.kind is _tuple:
        return False
    try:
        for document in listed.items:
            bson.encode(make(document, []))
    except Exception:  # noqa: BLE001 - one of many
        return True
    return False


@st.composite
def cases(draw, method):
    """A call of a method."""
    given = {}
    for name in parameters(method):
        if name in REQUIRED:
            given[name] = draw(REQUIRED[name])
        elif name in SEVERAL:
            given[name] = draw(SEVERAL[name])
        elif name == "ordered":
            given[name] = draw(st.booleans() if draw(chance(2)) else st.just(True))
        elif name != "session" and draw(chance(5)):
            given[name] = draw(named(name))
    _fit(given)
    options = draw(st.none() | st.none() | st.sampled_from(list(OPTIONS)))
    session = draw(st.sampled_from(SESSIONS))
    fault = {}
    if options != "unacknowledged" and draw(chance(4)):
        fault = draw(_faults(method))
    case = Case(method, given, options, session, fault)
    # Without a transaction id Motor retries nothing of it (known difference 3).
    return replace(case, fault={}) if holds_multi(case) and _is_retryable(fault) else case


def _is_retryable(fault):
    code = fault.get("errorCode") or fault.get("writeConcernError", {}).get("code")
    return code == EXCEEDED_TIME_LIMIT


@st.composite
def _faults(draw, method):
    command = draw(st.sampled_from(["insert", "update", "delete"]))
    if method != "bulk_write":
        command = COMMANDS[method.replace("_many", "_one")]
    return {"failCommands": [command], **FAULTS_HERE[draw(st.sampled_from(list(FAULTS_HERE)))]}
