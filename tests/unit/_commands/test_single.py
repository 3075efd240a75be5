"""Commands of single writes: what of the arguments is in them, and what replies become."""

from collections import UserDict
from types import MappingProxyType

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.collation import Collation
from pymongo.errors import DuplicateKeyError
from pymongo.write_concern import WriteConcern

from aioretry._commands.single import Delete, FindAndModify, Insert, UpdateOrReplace
from aioretry._commands.target import Target

TARGET = Target.of("db", "c", CodecOptions(), WriteConcern("majority"))
SET = {"$set": {"a": 1}}
ENGLISH = {"locale": "en"}


def sent(arguments):
    """The fields of a command as a server gets them, in their order."""
    return bson.decode(bson.encode(arguments.command(TARGET).body))


def result(arguments, reply):
    """What the user gets for a reply."""
    return arguments.command(TARGET).result(reply)


def find_and(what, update=None, **more):
    """A find_one_and_...; None to delete."""
    return FindAndModify(f"find_one_and_{what}", {"x": 1}, update, **more)


class TestInsert:
    @pytest.mark.parametrize("form", [dict, bson.SON, UserDict])
    def test_without_id(self, form):
        """The user's own document gets one, which is in the result and the same in each command."""
        document = form({"x": 1})
        insert = Insert(document)
        first, second = sent(insert), sent(insert)
        assert isinstance(document["_id"], ObjectId)
        assert [{"_id": document["_id"], "x": 1}] == first["documents"] == second["documents"]
        assert document["_id"] == result(insert, {"n": 1}).inserted_id

    def test_with_id(self):
        """Any id stays, None too."""
        document = {"_id": None}
        command = Insert(document).command(TARGET)
        assert ("insert_one", "insert", False) == (
            command.operation,
            command.name,
            command.holds_multi,
        )
        found = command.result({"n": 1})
        assert (None, True) == (found.inserted_id, found.acknowledged)
        assert {"_id": None} == document

    def test_raw(self):
        """What is encoded already is not looked into."""
        raw = RawBSONDocument(bson.encode({"x": 1, "_id": 7}))
        (document,) = Insert(raw).command(TARGET).body["documents"]
        assert raw is document
        assert result(Insert(raw), {"n": 1}).inserted_id is None

    @pytest.mark.parametrize("document", [None, [("_id", 1)], "x", MappingProxyType({"_id": 1})])
    def test_no_document(self, document):
        """What can't get an id is refused."""
        with pytest.raises(TypeError, match="document must be an instance of dict"):
            Insert(document).command(TARGET)

    def test_options(self):
        """A comment and a bypass that are false are sent; those that are None are not."""
        expected = {"insert": "c", "ordered": True, "documents": [{"_id": 1}]}
        assert expected == sent(Insert({"_id": 1}))
        expected |= {"bypassDocumentValidation": False, "comment": ""}
        assert expected == sent(Insert({"_id": 1}, False, ""))


class TestUpdateOrReplace:
    @pytest.mark.parametrize(
        ("operation", "update", "is_multi"),
        [
            ("update_one", SET, False),
            ("update_one", [SET], False),
            ("update_many", SET, True),
            ("replace_one", {}, False),
        ],
    )
    def test_command(self, operation, update, is_multi):
        """Only update_many is of several documents, in what is sent and what is known of it."""
        arguments = UpdateOrReplace(operation, {"x": 1}, update)
        statement = {"q": {"x": 1}, "u": update, "multi": is_multi, "upsert": False}
        assert {"update": "c", "ordered": True, "updates": [statement]} == sent(arguments)
        command = arguments.command(TARGET)
        assert (operation, "update", is_multi) == (
            command.operation,
            command.name,
            command.holds_multi,
        )

    @pytest.mark.parametrize("collation", [ENGLISH, Collation("en")])
    @pytest.mark.parametrize("hint", ["x_1", {"x": 1}, [("x", 1)], ["x"]])
    def test_options(self, collation, hint):
        """Those of the statement and those of the command have their places."""
        arguments = UpdateOrReplace(
            "update_one",
            {},
            SET,
            upsert=True,
            bypass_document_validation=False,
            collation=collation,
            array_filters=[],
            hint=hint,
            let={"v": 1},
            sort={},
            comment=0,
        )
        command = sent(arguments)
        (statement,) = command.pop("updates")
        assert {
            "update": "c",
            "ordered": True,
            "let": {"v": 1},
            "comment": 0,
            "bypassDocumentValidation": False,
        } == command
        assert {
            "q": {},
            "u": SET,
            "multi": False,
            "upsert": True,
            "collation": ENGLISH,
            "hint": "x_1" if hint == "x_1" else {"x": 1},
            "sort": {},
            "arrayFilters": [],
        } == statement

    @pytest.mark.parametrize(
        ("operation", "update", "more", "kind", "text"),
        [
            ("update_one", {}, {}, ValueError, "update cannot be empty"),
            ("update_many", {"a": 1}, {}, ValueError, r"only works with \$ operators"),
            ("replace_one", SET, {}, ValueError, r"can not include \$ operators"),
            ("replace_one", [SET], {}, TypeError, "replacement must be"),
            (
                "update_one",
                SET,
                {"array_filters": ({},)},
                TypeError,
                "array_filters must be a list",
            ),
            ("update_one", SET, {"upsert": 1}, TypeError, "upsert must be True or False"),
            ("update_one", SET, {"upsert": None}, TypeError, "upsert must be True or False"),
            ("update_one", SET, {"collation": "en"}, TypeError, "collation must be a dict"),
            ("update_one", SET, {"hint": {}}, ValueError, "must not be empty"),
            ("update_one", SET, {"sort": [("a", 1)]}, TypeError, "sort must be"),
            ("update_one", SET, {"let": [1]}, TypeError, "let must be"),
            ("replace_one", {}, {"let": [1]}, TypeError, "let must be"),
        ],
    )
    def test_refused(self, operation, update, more, kind, text):
        """Each argument is looked at before anything is sent."""
        with pytest.raises(kind, match=text):
            UpdateOrReplace(operation, {}, update, **more).command(TARGET)

    @pytest.mark.parametrize(
        ("operation", "update", "more", "text"),
        [
            ("update_one", {}, {"filter": 1, "upsert": 1}, "filter must be"),
            ("update_one", SET, {"array_filters": 1, "upsert": 1}, "array_filters must be"),
            ("update_one", SET, {"upsert": 1, "let": 1}, "upsert must be"),
            ("replace_one", {}, {"upsert": 1, "let": 1}, "let must be"),
            ("update_one", SET, {"sort": 1, "let": 1}, "sort must be"),
        ],
    )
    def test_of_two_mistakes(self, operation, update, more, text):
        """The same one is told as PyMongo tells: let comes first in a replacement only."""
        arguments = {"filter": {}, **more}
        with pytest.raises(TypeError, match=text):
            UpdateOrReplace(operation, update=update, **arguments).command(TARGET)

    @pytest.mark.parametrize(
        ("reply", "expected"),
        [
            ({"n": 1, "nModified": 1}, (1, 1, None, False, True)),
            ({"n": 0, "nModified": 0}, (0, 0, None, False, False)),
            ({"nModified": 0}, (0, 0, None, False, False)),
            (
                {"n": 1, "nModified": 0, "upserted": [{"index": 0, "_id": 9}]},
                (0, 0, 9, True, False),
            ),
            (
                {"n": 1, "nModified": 0, "upserted": [{"index": 0, "_id": 0}]},
                (0, 0, 0, True, False),
            ),
        ],
    )
    def test_result(self, reply, expected):
        """What was upserted was not matched; the reply itself stays as it was."""
        before = dict(reply)
        found = result(UpdateOrReplace("update_one", {}, SET), reply)
        assert expected == (
            found.matched_count,
            found.modified_count,
            found.upserted_id,
            found.did_upsert,
            found.raw_result["updatedExisting"],
        )
        assert before == reply


class TestDelete:
    @pytest.mark.parametrize(
        ("operation", "limit", "is_multi"), [("delete_one", 1, False), ("delete_many", 0, True)]
    )
    def test_command(self, operation, limit, is_multi):
        """Only delete_one has a limit, and is about one document."""
        command = Delete(operation, {"x": 1}).command(TARGET)
        assert (operation, "delete", is_multi) == (
            command.operation,
            command.name,
            command.holds_multi,
        )
        expected = {
            "delete": "c",
            "ordered": True,
            "deletes": [{"q": {"x": 1}, "limit": limit}],
        }
        assert expected == sent(Delete(operation, {"x": 1}))
        assert 3 == command.result({"n": 3}).deleted_count

    def test_options(self):
        """Those of the statement and those of the command have their places."""
        command = sent(Delete("delete_one", {}, Collation("en"), ["x"], {"v": 1}, ""))
        assert ({"v": 1}, "") == (command["let"], command["comment"])
        expected = {"q": {}, "limit": 1, "collation": ENGLISH, "hint": {"x": 1}}
        assert [expected] == command["deletes"]

    @pytest.mark.parametrize(
        ("more", "kind", "text"),
        [
            ({"filter": None, "collation": 1}, TypeError, "filter must be"),
            ({"collation": 1, "hint": 1}, TypeError, "collation must be"),
            ({"hint": [], "let": 1}, ValueError, "must not be empty"),
            ({"let": MappingProxyType({})}, TypeError, "let must be"),
        ],
    )
    def test_refused(self, more, kind, text):
        """Each argument is looked at, in PyMongo's order."""
        with pytest.raises(kind, match=text):
            Delete("delete_one", **{"filter": {}, **more}).command(TARGET)


class TestFindAndModify:
    @pytest.mark.parametrize(
        ("what", "update", "expected"),
        [
            ("delete", None, {"remove": True}),
            ("replace", {}, {"update": {}}),
            ("update", [SET], {"update": [SET]}),
        ],
    )
    def test_command(self, what, update, expected):
        """A deletion says so; the others have what they put there, also if it is empty."""
        command = {"findAndModify": "c", "query": {"x": 1}, "new": False, **expected}
        assert command == sent(find_and(what, update))
        assert "findAndModify" == next(iter(sent(find_and(what, update))))

    def test_options(self):
        """Each has its own form in the command."""
        arguments = find_and(
            "update",
            SET,
            projection=("a", "b"),
            sort=[("x", -1)],
            upsert=False,
            return_document=True,
            array_filters=[{"e": 1}],
            hint={"x": 1},
            let={"v": 1},
            comment="",
            options={"collation": Collation("en"), "maxTimeMS": 5},
        )
        assert {
            "findAndModify": "c",
            "query": {"x": 1},
            "new": True,
            "let": {"v": 1},
            "collation": ENGLISH,
            "maxTimeMS": 5,
            "update": SET,
            "comment": "",
            "hint": {"x": 1},
            "fields": {"a": 1, "b": 1},
            "sort": {"x": -1},
            "upsert": False,
            "arrayFilters": [{"e": 1}],
        } == sent(arguments)

    def test_names_of_the_helper(self):
        """Of a deletion they come with the options, under their names in Python, and none of
        those is sent."""
        options = {
            "upsert": False,
            "array_filters": ({"e": 1},),
            "return_document": True,
            "collation": None,
        }
        before = dict(options)
        assert {
            "findAndModify": "c",
            "query": {"x": 1},
            "new": True,
            "remove": True,
            "upsert": False,
            "arrayFilters": [{"e": 1}],
        } == sent(find_and("delete", options=options))
        assert before == options
        nothing = find_and("delete", options={"upsert": None, "array_filters": None})
        assert {"findAndModify": "c", "query": {"x": 1}, "new": False, "remove": True} == sent(
            nothing
        )

    @pytest.mark.parametrize(
        ("what", "update", "more", "kind", "text"),
        [
            ("replace", SET, {}, ValueError, r"can not include \$ operators"),
            ("update", {"a": 1}, {}, ValueError, r"only works with \$ operators"),
            ("update", SET, {"array_filters": ({},)}, TypeError, "array_filters must be a list"),
            ("update", {}, {"filter": 1}, ValueError, "update cannot be empty"),
            ("delete", None, {"filter": 1, "return_document": 1}, TypeError, "filter must be"),
            ("update", SET, {"return_document": 1, "hint": 1}, TypeError, "BEFORE or"),
            ("delete", None, {"options": {"return_document": None}}, TypeError, "BEFORE or"),
            ("delete", None, {"options": {"collation": "en"}, "hint": 1}, TypeError, "collation"),
            ("delete", None, {"hint": (), "let": 1}, ValueError, "must not be empty"),
            ("delete", None, {"let": 1, "projection": 1}, TypeError, "let must be"),
            ("delete", None, {"projection": 1, "sort": 1}, TypeError, "projection must be"),
            ("update", SET, {"sort": [], "upsert": 1}, ValueError, "must not be empty"),
            ("update", SET, {"upsert": 1}, TypeError, "upsert must be True or False"),
            ("delete", None, {"options": {"upsert": 1}}, TypeError, "upsert must be True or"),
        ],
    )
    def test_refused(self, what, update, more, kind, text):
        """Each argument is looked at before anything is sent, in PyMongo's order."""
        arguments = {"filter": {}, "update": update, **more}
        with pytest.raises(kind, match=text):
            FindAndModify(f"find_one_and_{what}", **arguments).command(TARGET)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, WriteConcern("majority")),
            ({"writeConcern": None}, WriteConcern("majority")),
            ({"writeConcern": {"w": 2, "j": True}}, WriteConcern(2, j=True)),
            ({"writeConcern": {}}, WriteConcern()),
        ],
    )
    def test_write_concern(self, options, expected):
        """One of its own takes the place of the collection's, be it the server's default."""
        command = find_and("delete", options=options).command(TARGET)
        assert expected == command.write_concern

    @pytest.mark.parametrize(
        ("reply", "expected"),
        [({"value": {"_id": 1}}, {"_id": 1}), ({"value": None}, None), ({"ok": 1}, None)],
    )
    def test_result(self, reply, expected):
        """It is the document, or None if there was none."""
        assert expected == result(find_and("delete"), reply)

    @pytest.mark.parametrize(
        ("what", "update"),
        [("delete", None), ("replace", {"n": 1}), ("update", {"$set": {"n": 1}})],
    )
    def test_the_reply(self, what, update):
        """It holds a document of the user's, which the user's own options decode."""
        target = Target.of("db", "c", CodecOptions(bson.SON), WriteConcern())
        command = find_and(what, update).command(target)
        assert ("findAndModify", target.codec_options, {"value": 1}, False) == (
            command.name,
            command.codec_options,
            command.user_fields,
            command.holds_multi,
        )
        error = command.error_in({"writeErrors": [{"code": 11000}]})
        assert isinstance(error, DuplicateKeyError)
