"""The document that a transaction could not write, as its command names it."""

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from aioretry._commands.encoded import EncodedDocuments
from aioretry._writes.contention import contended

CONFLICT = OperationFailure("WriteConflict", 112)


def raw(document):
    """A document as it is sent."""
    return RawBSONDocument(bson.encode(document))


def insert(*documents):
    """A command that inserts."""
    return {"insert": "things", "documents": [raw(each) for each in documents]}


def update(query, change):
    """A command that updates."""
    return {"update": "things", "updates": [raw({"q": query, "u": change})]}


class Session:
    """One in which something was sent last."""

    def __init__(self, command):
        self._calls = self
        self._command = command

    def latest(self, session):
        assert session is self
        return self._command


def named(command, error=CONFLICT):
    """What is named."""
    return contended(Session(command), error)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (insert({"_id": 1, "n": 1}), insert({"_id": 1, "n": 2})),
        (update({"_id": 1, "n": 1}, {"$inc": {"n": 1}}), update({"_id": 1}, {"$set": {"n": 2}})),
        (update({"sku": "tea"}, {"$inc": {"n": 1}}), update({"sku": "tea"}, {"$inc": {"n": 2}})),
        ({"delete": "things", "deletes": [{"q": {"_id": 1}, "limit": 1}]}, insert({"_id": 1})),
        ({"findAndModify": "things", "query": {"_id": 1}, "remove": True}, update({"_id": 1}, {})),
        (
            {"insert": "things", "documents": [EncodedDocuments(bson.encode({"_id": 1}), 1, 14)]},
            insert({"_id": 1}),
        ),
    ],
    ids=["insert", "update", "filter", "delete", "find and modify", "bulk"],
)
def test_the_same_document(one, other):
    """Two commands for one document name the same, and none the same as for another one."""
    assert named(one) == named(other)
    assert named(one) not in {named(insert({"_id": 2})), named(update({"_id": 2}, {})), None}


def test_what_says_nothing():
    """A command without a document is named by itself; so is the lack of any."""
    assert named({"commitTransaction": 1}) is not None
    assert named({}) is not None


def test_other_errors():
    """Only a write conflict, alone or in a group, is about a document."""
    command = insert({"_id": 1})
    assert named(command, ExceptionGroup("tasks", [ValueError(), CONFLICT])) == named(command)
    for error in OperationFailure("no such transaction", 251), ValueError():
        assert named(command, error) is None
