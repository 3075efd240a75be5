"""Good and bad values for the arguments of writes."""

import datetime as dt
import re
import uuid
from collections.abc import MutableMapping
from decimal import Decimal

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
from pymongo import ReturnDocument
from pymongo.collation import Collation

WHEN = dt.datetime(2024, 2, 29, 12, 30, 15, 123000)  # noqa: DTZ001 - as BSON's default
UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
HUGE = "x" * (17 * 1024 * 1024)
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


def raw(**fields):
    """A document that is encoded already."""
    return RawBSONDocument(bson.encode(fields))


def broken(**fields):
    """A document with a string that is no UTF-8."""
    return RawBSONDocument(bson.encode(fields).replace(b"utf8", b"ut\xff8"))


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
        "too large": {"n": 8, "a": HUGE},
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
        "too large": {"$set": {"a": HUGE}},
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
        "too large": {"a": HUGE},
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
