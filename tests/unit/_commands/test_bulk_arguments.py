"""What users give to insert_many and bulk_write: what becomes of it, and what is refused."""

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.son import SON
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.errors import InvalidOperation
from pymongo.results import BulkWriteResult, InsertManyResult
from pymongo.write_concern import WriteConcern

from aioretry._commands.bulk_arguments import BulkRequests, InsertMany, Requests
from aioretry._commands.command import CommandLimits
from aioretry._commands.statements import Kind
from aioretry._commands.target import Target
from aioretry._drivers.motor import add_requests, encode_documents

TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
SET = {"$set": {"a": 1}}


def steps_of(plan):
    """What each step of a plan told, and the bulk operation."""
    told = []
    while True:
        try:
            told.append(next(plan))
        except StopIteration as stop:
            return told, stop.value


def inserting(documents, *, ordered=True, bypass=None, comment=None):
    """The plan of an insert_many."""
    return InsertMany(documents, ordered, bypass, comment).plan(TARGET)


def writing(requests, *, ordered=True, bypass=None, comment=None, let=None):
    """The plan of a bulk_write."""
    return BulkRequests(requests, ordered, bypass, comment, let, add_requests).plan(TARGET)


def bodies(bulk):
    """Make all commands; return each without its statements."""
    found = []
    while bulk.has_unsent:
        command, _ = bulk.next_command()
        found.append(bson.decode(bson.encode(command.body)))
        command.prepare(LIMITS, encode_documents)
    return found


def statements(requests, *, ordered=True):
    """Kind, statements and indexes of each run."""
    return [
        (run.kind, run.peek(99), list(run.take(len(run.peek(99)))))
        for run in requests.runs(ordered=ordered)
    ]


class TestStatements:
    @pytest.mark.parametrize(
        ("add", "kind", "expected"),
        [
            (
                lambda r: r.add_update({"x": 1}, SET, False, None),
                Kind.UPDATE,
                {"q": {"x": 1}, "u": SET, "multi": False},
            ),
            (
                lambda r: r.add_update({}, [SET], True, False, {"locale": "en"}, [], "", {"x": 1}),
                Kind.UPDATE,
                {
                    "q": {},
                    "u": [SET],
                    "multi": True,
                    "upsert": False,
                    "collation": {"locale": "en"},
                    "arrayFilters": [],
                    "hint": "",
                    "sort": {"x": 1},
                },
            ),
            (lambda r: r.add_replace({}, {}, None), Kind.UPDATE, {"q": {}, "u": {}}),
            (
                lambda r: r.add_replace({}, {"a": 1}, True, {"locale": "en"}, {"a": 1}, {"x": 1}),
                Kind.UPDATE,
                {
                    "q": {},
                    "u": {"a": 1},
                    "upsert": True,
                    "collation": {"locale": "en"},
                    "hint": {"a": 1},
                    "sort": {"x": 1},
                },
            ),
            (lambda r: r.add_delete({}, 0), Kind.DELETE, {"q": {}, "limit": 0}),
            (
                lambda r: r.add_delete({}, 1, {"locale": "en"}, "name"),
                Kind.DELETE,
                {"q": {}, "limit": 1, "collation": {"locale": "en"}, "hint": "name"},
            ),
        ],
        ids=["update", "update all", "replace", "replace all", "delete", "delete all"],
    )
    def test_fields(self, add, kind, expected):
        """A statement has the options that were given; only None means that one was not."""
        requests = Requests()
        add(requests)
        assert [(kind, [expected], [0])] == statements(requests)

    @pytest.mark.parametrize(
        ("add", "kind"),
        [
            (lambda r: r.add_update({}, {}, False, None), ValueError),
            (lambda r: r.add_update({}, {"a": 1}, False, None), ValueError),
            (lambda r: r.add_update({}, "a", False, None), TypeError),
            (lambda r: r.add_replace({}, SET, None), ValueError),
            (lambda r: r.add_replace({}, [SET], None), TypeError),
            (lambda r: r.add_insert(5), TypeError),
            (lambda r: r.add_insert([("_id", 1)]), TypeError),
        ],
    )
    def test_refused(self, add, kind):
        """What is no update, replacement or document is not added."""
        requests = Requests()
        with pytest.raises(kind):
            add(requests)
        assert (0, []) == (requests.count(), requests.runs(ordered=True))

    def test_ids(self):
        """The user's own document gets an id if it has none, and a raw one stays as it is."""
        requests = Requests()
        raw = RawBSONDocument(bson.encode({"x": 1}))
        given = [{"x": 1}, {"_id": None}, SON(x=1), raw]
        for document in given:
            requests.add_insert(document)
        assert isinstance(given[0]["_id"], ObjectId)
        assert isinstance(given[2]["_id"], ObjectId)
        assert ({"_id": None}, ["x"]) == (given[1], list(raw))
        ((_, added, _),) = statements(requests)
        assert all(one is own for one, own in zip(added, given, strict=True))

    def test_indexes(self):
        """Each run knows where its statements were in the call, whatever the order."""
        requests = Requests()
        for kind in "diiddu":
            match kind:
                case "d":
                    requests.add_delete({}, 1)
                case "i":
                    requests.add_insert({})
                case "u":
                    requests.add_update({}, SET, False, None)
        assert 6 == requests.count()
        assert [
            (Kind.DELETE, [0]),
            (Kind.INSERT, [1, 2]),
            (Kind.DELETE, [3, 4]),
            (Kind.UPDATE, [5]),
        ] == [(kind, indexes) for kind, _, indexes in statements(requests)]
        assert [(Kind.INSERT, [1, 2]), (Kind.UPDATE, [5]), (Kind.DELETE, [0, 3, 4])] == [
            (kind, indexes) for kind, _, indexes in statements(requests, ordered=False)
        ]


class TestInsertMany:
    @pytest.mark.parametrize("documents", [None, 5, [], (), "", {}, {"a": 1}, SON(a=1)])
    def test_no_documents(self, documents):
        """A single document is no list of them, nor is an empty one."""
        with pytest.raises(TypeError, match="documents must be a non-empty list"):
            next(inserting(documents))

    @pytest.mark.parametrize("form", [list, tuple])
    @pytest.mark.parametrize(("count", "steps"), [(1, 1), (500, 1), (501, 2), (1001, 3)])
    def test_steps(self, form, count, steps):
        """A list is looked at in steps of 500; each tells how many documents there are."""
        documents = form({} for _ in range(count))
        plan = inserting(documents)
        assert count == next(plan)
        assert min(500, count) == sum("_id" in document for document in documents)
        told, bulk = steps_of(plan)
        assert [count] * (steps - 1) == told
        assert count == bulk.count
        assert 1 == len(bodies(bulk))
        assert [document["_id"] for document in documents] == bulk.result({}).inserted_ids

    def test_a_list_that_grows_meanwhile(self):
        """What was in it at the beginning is inserted."""
        documents = [{"_id": number} for number in range(501)]
        plan = inserting(documents)
        next(plan)
        documents.append({"_id": "late"})
        _, bulk = steps_of(plan)
        bodies(bulk)
        assert list(range(501)) == bulk.result({}).inserted_ids

    def test_a_bad_one_refuses_all(self):
        """Of a list it is found before anything is sent, in the step that comes to it."""
        plan = inserting([*({} for _ in range(600)), 5])
        next(plan)
        with pytest.raises(TypeError, match="document must be an instance of dict"):
            next(plan)

    def test_an_iterator_is_left_alone(self):
        """It needs no steps, and nothing is taken from it; how many there are is not known."""
        documents = iter([{}, {}])
        told, bulk = steps_of(inserting(documents))
        assert ([], 0, 2) == (told, bulk.count, len(list(documents)))

    def test_result(self):
        """It is PyMongo's, and has no ids of documents that are encoded already."""
        raw = RawBSONDocument(bson.encode({"_id": 1}))
        _, bulk = steps_of(inserting([{"_id": 0}, raw, {"_id": 2}]))
        bodies(bulk)
        result = bulk.result({})
        assert ("insert_many", InsertManyResult) == (bulk.operation, type(result))
        assert [0, 2] == result.inserted_ids
        assert result.acknowledged


class TestBulkRequests:
    @pytest.mark.parametrize(
        ("requests", "more", "kind", "text"),
        [
            ((InsertOne({}),), {}, TypeError, "requests must be a list"),
            (iter([InsertOne({})]), {}, TypeError, "requests must be a list"),
            (5, {"let": 5}, TypeError, "requests must be a list"),
            ([InsertOne({})], {"let": 5}, TypeError, "let must be an instance of dict"),
            ([], {"let": 5}, TypeError, "let must be an instance of dict"),
            ([], {}, InvalidOperation, "No operations to execute"),
            ([InsertOne({}), {}], {}, TypeError, "is not a valid request"),
        ],
    )
    def test_refused(self, requests, more, kind, text):
        """What is looked at first is told first: the list, then let, then the requests."""
        with pytest.raises(kind, match=text):
            next(writing(requests, **more))

    def test_steps(self):
        """Requests are looked at in steps too; those that come meanwhile are not of the call."""
        documents = [{} for _ in range(501)]
        requests = [InsertOne(document) for document in documents]
        plan = writing(requests)
        assert 501 == next(plan)
        assert "_id" not in documents[-1]
        requests.append(InsertOne({}))
        _, bulk = steps_of(plan)
        assert "_id" in documents[-1]
        assert 501 == bulk.count

    def test_result(self):
        """It is PyMongo's."""
        _, bulk = steps_of(writing([InsertOne({})]))
        result = bulk.result({"nInserted": 1})
        assert ("bulk_write", BulkWriteResult) == (bulk.operation, type(result))
        assert (1, True) == (result.inserted_count, result.acknowledged)


class TestOptions:
    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({}, {}),
            ({"comment": "why", "bypass": True}, {"comment": "why", "bypass": True}),
            ({"comment": "", "bypass": False}, {"bypass": False}),
            ({"comment": 0}, {}),
        ],
    )
    def test_of_inserts(self, ordered, given, expected):
        """A comment that is false is left out, as PyMongo does; a bypass that is, is not."""
        names = {"bypass": "bypassDocumentValidation", "comment": "comment"}
        expected = {names[name]: value for name, value in expected.items()}
        for plan in (
            inserting([{}], ordered=ordered, **given),
            writing([InsertOne({})], ordered=ordered, **given),
        ):
            _, bulk = steps_of(plan)
            assert [{"insert": "c", "ordered": ordered, **expected}] == bodies(bulk)

    def test_let_is_not_for_inserts(self):
        """A server would refuse an insert with variables."""
        requests = [InsertOne({}), UpdateOne({}, SET), DeleteOne({})]
        _, bulk = steps_of(writing(requests, let={"v": 1}, comment="why"))
        shared = {"ordered": True, "comment": "why"}
        assert [
            {"insert": "c", **shared},
            {"update": "c", **shared, "let": {"v": 1}},
            {"delete": "c", **shared, "let": {"v": 1}},
        ] == bodies(bulk)

    def test_are_encoded_at_once(self):
        """What changes after is not sent."""
        comment = {"why": [1]}
        _, bulk = steps_of(inserting([{}], comment=comment))
        comment["why"].append(2)
        (body,) = bodies(bulk)
        assert {"why": [1]} == body["comment"]
