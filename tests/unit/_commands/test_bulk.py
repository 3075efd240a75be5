"""Bulk operations without a server: what is sent in which command, and what becomes of answers."""

import bson
import pytest
from bson.codec_options import CodecOptions, TypeCodec, TypeRegistry
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.errors import (
    BulkWriteError,
    DocumentTooLarge,
    InvalidDocument,
    InvalidOperation,
    OperationFailure,
)
from pymongo.write_concern import WriteConcern

from aioretry import Outcome
from aioretry._commands.bulk_arguments import BulkRequests, InsertMany
from aioretry._commands.command import CommandLimits
from aioretry._commands.statements import Kind
from aioretry._commands.target import Target
from aioretry._drivers.motor import add_requests, encode_documents

OVERHEAD = 16 * 1024  # what a message holds beside the statements, and the server's tolerance
LOOK_AHEAD = 500
LARGE = CommandLimits(16 * 2**20, 48_000_000, 100_000)
APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
INCREMENT = {"$inc": {"n": 1}}

# An insert command without documents; what it leaves of a message is theirs.
EMPTY_INSERT = len(bson.encode({"insert": "c", "ordered": True}))


def limits(*, statements=100_000, room=48_000_000 - OVERHEAD - EMPTY_INSERT, document=16 * 2**20):
    """Limits of a server; room is what a message holds of inserted documents."""
    return CommandLimits(document, room + OVERHEAD + EMPTY_INSERT, statements)


def planned(plan):
    """Take all steps of a plan."""
    while True:
        try:
            next(plan)
        except StopIteration as stop:
            return stop.value


def inserting(documents, *, ordered=True, target=TARGET):
    """An insert_many."""
    return planned(InsertMany(documents, ordered, None, None).plan(target))


def writing(requests, *, ordered=True, target=TARGET):
    """A bulk_write."""
    return planned(BulkRequests(requests, ordered, None, None, None, add_requests).plan(target))


def fill(bulk, limits=LARGE):
    """Make the next command, as an attempt does."""
    command = bulk.next_command()
    command.prepare(limits, encode_documents)
    return command


def prepare_again(command, limits):
    """Prepare a retry, as an attempt does."""
    if command.prepare is not None:
        command.prepare(limits, encode_documents)


def held(command):
    """The statements of a command, decoded."""
    parts = command.body[Kind(command.name).field]
    return [bson.decode(one.raw) for part in parts for one in part.documents()]


def ok(command, **more):
    """The reply to a command that is applied."""
    return {"ok": 1, "n": len(held(command)), **more}


def drain(bulk, limits=LARGE, answer=ok):
    """Send everything; return the name and the statements of each command."""
    sent = []
    while bulk.has_more:
        command = fill(bulk, limits)
        sent.append((command.name, held(command)))
        bulk.merge(answer(command), NOT_APPLIED)
    return sent


def sizes(sent):
    """How many statements each command had."""
    return [len(statements) for _, statements in sent]


def documents(count, size=100):
    """Documents of so many bytes."""
    padding = b"\0" * (size - len(bson.encode({"_id": 0, "fill": b""})))
    return [{"_id": number, "fill": padding} for number in range(count)]


def write_error(index, code=11000):
    return {"index": index, "code": code, "errmsg": "scripted"}


CONCERN = {"code": 100, "errmsg": "scripted"}


class TestSplitting:
    """The limits of hello: maxWriteBatchSize, maxMessageSizeBytes, maxBsonObjectSize."""

    @pytest.mark.parametrize("given_as", [list, tuple, iter])
    @pytest.mark.parametrize(
        ("count", "expected"), [(1, [1]), (3, [3]), (4, [3, 1]), (6, [3, 3]), (7, [3, 3, 1])]
    )
    def test_by_statements(self, given_as, count, expected):
        """No command holds more statements than maxWriteBatchSize."""
        sent = drain(inserting(given_as(documents(count))), limits(statements=3))
        assert expected == sizes(sent)

    @pytest.mark.parametrize(("room", "expected"), [(400, [4, 4, 2]), (399, [3, 3, 3, 1])])
    @pytest.mark.parametrize("given_as", [list, iter])
    def test_by_the_message(self, given_as, room, expected):
        """Documents that fill a message to the byte are one command; one byte less, and one goes
        into the next."""
        sent = drain(inserting(given_as(documents(10))), limits(room=room))
        assert expected == sizes(sent)

    def test_options_take_room(self):
        """What the user's options need in the message is not there for the statements."""
        comment = "x" * 150
        bulk = planned(InsertMany(documents(10), True, None, comment).plan(TARGET))
        assert [2, 2, 2, 2, 2] == sizes(drain(bulk, limits(room=400)))

    @pytest.mark.parametrize("given_as", [list, iter])
    def test_large_after_small(self, given_as):
        """A change of size in the middle moves the boundary, and loses nothing."""
        mixed = documents(1000, 40) + documents(20, 20_000) + documents(1000, 40)
        sent = drain(inserting(given_as(mixed)), limits(room=50_000))
        assert mixed == [document for _, held in sent for document in held]
        for _, held in sent:
            assert sum(len(bson.encode(document)) for document in held) <= 50_000
        assert len(sent) <= 14

    def test_the_limits_of_the_server_that_is_asked(self):
        """Each command is filled for the server that it goes to."""
        bulk = inserting(documents(10))
        found = []
        for statements in (4, 1, 100):
            command = fill(bulk, limits(statements=statements))
            found.append(len(held(command)))
            bulk.merge(ok(command), NOT_APPLIED)
        assert [4, 1, 5] == found

    def test_a_retry_holds_the_same(self):
        """A retry sends what the first attempt sent, whatever the limits of its server."""
        bulk = inserting(iter(documents(10)))
        command = fill(bulk, limits(statements=4))
        before = command.body["documents"]
        prepare_again(command, limits(statements=1))
        assert before is command.body["documents"]
        assert 4 == len(held(command))

    @given(
        lengths=st.lists(st.integers(0, 300), min_size=1, max_size=80),
        statements=st.integers(1, 30),
        room=st.integers(340, 2000),
        lazy=st.booleans(),
    )
    def test_any_inserts(self, lengths, statements, room, lazy):
        """Every document is sent once, in order, within all limits, in as few commands as a
        greedy split makes."""
        given_ones = [{"_id": n, "x": b"\0" * length} for n, length in enumerate(lengths)]
        bulk = inserting(iter(given_ones) if lazy else given_ones)
        sent = drain(bulk, limits(statements=statements, room=room))
        assert given_ones == [document for _, held in sent for document in held]
        assert greedy([len(bson.encode(one)) for one in given_ones], statements, room) == sizes(
            sent
        )
        assert list(range(len(lengths))) == bulk.result().inserted_ids
        assert {APPLIED} == set(bulk.partial_result().outcomes)

    @given(
        kinds=st.lists(st.sampled_from("iud"), min_size=1, max_size=60),
        ordered=st.booleans(),
        statements=st.integers(1, 7),
    )
    def test_any_requests(self, kinds, ordered, statements):
        """Every request is sent once, with those of its kind; ordered ones in their order."""
        sent = drain(
            writing([request(kind, n) for n, kind in enumerate(kinds)], ordered=ordered),
            limits(statements=statements),
        )
        numbers = [[number_of(one) for one in held] for _, held in sent]
        flat = [number for command in numbers for number in command]
        assert list(range(len(kinds))) == sorted(flat)
        for (name, _), command in zip(sent, numbers, strict=True):
            assert {name[0]} == {kinds[number] for number in command}
            assert command == sorted(command)
            assert len(command) <= statements
        if ordered:
            assert flat == sorted(flat)


def greedy(lengths, statements, room):
    """How many documents each command holds."""
    counts, left = [], 0
    for length in lengths:
        if not counts or counts[-1] == statements or length > left:
            counts.append(0)
            left = room
        counts[-1] += 1
        left -= length
    return counts


def request(kind, number):
    """A request whose number can be seen in what is sent."""
    match kind:
        case "i":
            return InsertOne({"_id": number})
        case "u":
            return UpdateOne({"_id": number}, INCREMENT)
        case _:
            return DeleteOne({"_id": number})


def number_of(statement):
    return statement.get("q", statement)["_id"]


class TestRuns:
    """Requests of different kinds."""

    REQUESTS = (
        InsertOne({"_id": 0}),
        UpdateOne({"_id": 1}, INCREMENT),
        ReplaceOne({"_id": 2}, {"n": 1}),
        DeleteOne({"_id": 3}),
        InsertOne({"_id": 4}),
        UpdateMany({"_id": 5}, INCREMENT),
        DeleteMany({"_id": 6}),
    )

    def test_ordered(self):
        """A command for each run of one kind, in their order."""
        sent = drain(writing(list(self.REQUESTS)))
        assert ["insert", "update", "delete", "insert", "update", "delete"] == [n for n, _ in sent]
        assert [[0], [1, 2], [3], [4], [5], [6]] == [list(map(number_of, s)) for _, s in sent]

    def test_unordered(self):
        """One command for each kind, as PyMongo sends them: inserts, updates, deletions."""
        sent = drain(writing(list(self.REQUESTS), ordered=False))
        assert ["insert", "update", "delete"] == [name for name, _ in sent]
        assert [[0, 4], [1, 2, 5], [3, 6]] == [list(map(number_of, held)) for _, held in sent]

    def test_only_commands_that_hold_a_multi_statement_say_so(self):
        """Whether a command can be numbered is its own matter."""
        bulk = writing(list(self.REQUESTS))
        found = []
        while bulk.has_more:
            command = fill(bulk)
            found.append(command.holds_multi)
            bulk.merge(ok(command), NOT_APPLIED)
        assert [False, False, False, False, True, True] == found

    def test_the_second_command_of_a_kind_may_be_without(self):
        """A multi statement marks its own command, not the next one of its run."""
        bulk = writing([UpdateMany({"_id": 0}, INCREMENT), *[UpdateOne({"_id": 1}, INCREMENT)] * 3])
        found = []
        while bulk.has_more:
            command = fill(bulk, limits(statements=2))
            found.append(command.holds_multi)
            bulk.merge(ok(command), NOT_APPLIED)
        assert [True, False] == found

    def test_the_id_comes_first(self):
        """Inserted documents are sent with their _id first; the user's own order is kept."""
        plain = {"x": 1, "_id": 2}
        given_ones = [plain, {"_id": 3, "x": 1}, bson.SON([("x", 1), ("_id", 4)]), {"x": 1}]
        ((_, sent),) = drain(inserting(given_ones))
        assert [["_id", "x"]] * 4 == [list(document) for document in sent]
        assert ["x", "_id"] == list(plain)
        assert given_ones[3]["_id"] == sent[3]["_id"]

    def test_raw_documents(self):
        """They are sent as they are, and have no id in the result."""
        raw = RawBSONDocument(bson.encode({"x": 1, "_id": 7}))
        bulk = inserting([raw, {"_id": 8}])
        command = fill(bulk)
        assert raw.raw == command.body["documents"][0].documents()[0].raw
        bulk.merge(ok(command), NOT_APPLIED)
        assert [8] == bulk.result().inserted_ids


class TestMerging:
    """Replies become one result, in the indexes of the call."""

    def test_counts(self):
        """What the servers count is added up, of each kind."""
        requests = [request("i", 0), request("u", 1), request("d", 2)] * 2
        replies = iter(
            [{"n": 1}, {"n": 1, "nModified": 0}, {"n": 0}, {"n": 1}, {"n": 1, "nModified": 1}]
        )
        bulk = writing(requests)
        drain(bulk, answer=lambda command: next(replies, {"n": 1}))
        result = bulk.result()
        assert (2, 2, 1, 1) == (
            result.inserted_count,
            result.matched_count,
            result.modified_count,
            result.deleted_count,
        )

    @pytest.mark.parametrize("ordered", [True, False])
    def test_upserts(self, ordered):
        """Upserted ids are known by the index of their request, also in a second command."""
        requests = []
        for number in range(3):
            requests += [
                InsertOne({"_id": number}),
                UpdateOne({"_id": f"u{number}"}, INCREMENT, upsert=True),
            ]

        def answer(command):
            if command.name == "insert":
                return ok(command)
            upserted = [
                {"index": index, "_id": one["q"]["_id"]} for index, one in enumerate(held(command))
            ]
            return ok(command, nModified=0, upserted=upserted)

        bulk = writing(requests, ordered=ordered)
        drain(bulk, limits(statements=2), answer)
        result = bulk.result()
        assert {1: "u0", 3: "u1", 5: "u2"} == result.upserted_ids
        assert (3, 3, 0) == (result.inserted_count, result.upserted_count, result.matched_count)

    def test_write_errors_of_an_unordered_one(self):
        """They have the index of the call and the statement, sorted by index; others are sent."""
        requests = [request(kind, n) for n, kind in enumerate("uidiud")]
        bulk = writing(requests, ordered=False)
        sent = drain(
            bulk, answer=lambda command: {"n": 1, "writeErrors": [write_error(1, code=7000)]}
        )
        assert 3 == len(sent)
        with pytest.raises(BulkWriteError) as caught:
            bulk.result()
        found = caught.value.details["writeErrors"]
        assert [3, 4, 5] == [error["index"] for error in found]
        assert [3, 4, 5] == [number_of(error["op"]) for error in found]
        assert {(7000, "scripted")} == {(error["code"], error["errmsg"]) for error in found}

    def test_a_write_error_ends_an_ordered_one(self):
        """Nothing is sent after it."""
        bulk = inserting(documents(9))
        sent = drain(
            bulk,
            limits(statements=3),
            lambda command: (
                {"n": 1, "writeErrors": [write_error(1)]}
                if held(command)[0]["_id"] == 3
                else ok(command)
            ),
        )
        assert 2 == len(sent)
        with pytest.raises(BulkWriteError) as caught:
            bulk.result()
        assert 4 == caught.value.details["nInserted"]
        (error,) = caught.value.details["writeErrors"]
        assert (4, 4) == (error["index"], error["op"]["_id"])

    @pytest.mark.parametrize("ordered", [True, False])
    def test_concern_errors_are_gathered(self, ordered):
        """Those of every command are in the error, with their labels; none ends the operation."""
        bulk = inserting(documents(9), ordered=ordered)
        drain(
            bulk,
            limits(statements=3),
            lambda command: ok(command, writeConcernError=CONCERN, errorLabels=["some"]),
        )
        with pytest.raises(BulkWriteError) as caught:
            bulk.result()
        details = caught.value.details
        assert [CONCERN | {"errorLabels": ["some"]}] * 3 == details["writeConcernErrors"]
        assert (9, []) == (details["nInserted"], details["writeErrors"])

    def test_no_retryable_writes(self):
        """Code 20 in a write error is replaced by the error that tells what to do."""
        bulk = inserting(documents(1))
        error = {"index": 0, "code": 20, "errmsg": "Transaction numbers are only allowed on a"}
        drain(bulk, answer=lambda command: {"n": 0, "writeErrors": [error]})
        with pytest.raises(OperationFailure, match="retryWrites=false") as caught:
            bulk.result()
        assert 20 == caught.value.code


class TestOutcomes:
    """How each statement has ended."""

    def outcomes(self, answer, *, ordered=True, count=7, denied=NOT_APPLIED):
        """Of seven documents in commands of three; the second command is answered so."""
        bulk = inserting(documents(count), ordered=ordered)
        replies = [None, answer, None]
        for reply in replies:
            if not bulk.has_more:
                break
            command = fill(bulk, limits(statements=3))
            bulk.merge(ok(command) if reply is None else reply, denied)
        return bulk.partial_result().outcomes

    def test_all_applied(self):
        """What was acknowledged is applied."""
        assert (APPLIED,) * 7 == self.outcomes({"n": 3})

    @pytest.mark.parametrize("denied", [NOT_APPLIED, UNKNOWN])
    def test_a_write_error_in_an_ordered_one(self, denied):
        """Those before it are applied, those after it in its command ended as it did, and what was
        not sent is not applied."""
        answer = {"n": 1, "writeErrors": [write_error(1)]}
        expected = (APPLIED,) * 4 + (denied,) * 2 + (NOT_APPLIED,)
        assert expected == self.outcomes(answer, denied=denied)

    @pytest.mark.parametrize("denied", [NOT_APPLIED, UNKNOWN])
    def test_a_write_error_in_an_unordered_one(self, denied):
        """All others are applied."""
        answer = {"n": 2, "writeErrors": [write_error(1)]}
        expected = (APPLIED,) * 4 + (denied,) + (APPLIED,) * 2
        assert expected == self.outcomes(answer, ordered=False, denied=denied)

    def test_a_concern_error(self):
        """What was applied, but not as the concern asks, is unknown."""
        expected = (APPLIED,) * 3 + (UNKNOWN,) * 3 + (APPLIED,)
        assert expected == self.outcomes({"n": 3, "writeConcernError": CONCERN})

    def test_a_concern_error_beside_a_write_error(self):
        """The refused one is not applied all the same."""
        answer = {"n": 2, "writeConcernError": CONCERN, "writeErrors": [write_error(0)]}
        expected = (APPLIED,) * 3 + (NOT_APPLIED, UNKNOWN, UNKNOWN) + (APPLIED,)
        assert expected == self.outcomes(answer, ordered=False)

    @pytest.mark.parametrize("outcome", [NOT_APPLIED, UNKNOWN])
    @pytest.mark.parametrize("lazy", [True, False])
    def test_given_up(self, lazy, outcome):
        """The command without an answer ended as its attempts did; what comes after it is not
        applied, and not in the answer if nobody has taken it from an iterator."""
        bulk = inserting(iter(documents(9)) if lazy else documents(9))
        command = fill(bulk, limits(statements=3))
        bulk.merge(ok(command), NOT_APPLIED)
        fill(bulk, limits(statements=3))
        bulk.give_up(outcome)
        expected = (APPLIED,) * 3 + (outcome,) * 3 + ((NOT_APPLIED,) * 3 if not lazy else ())
        partial = bulk.partial_result()
        assert expected == partial.outcomes
        assert (3, True) == (partial.result.inserted_count, partial.result.acknowledged)

    def test_in_the_order_of_the_call(self):
        """Those of an unordered bulk_write are where their requests were."""
        bulk = writing([request(kind, n) for n, kind in enumerate("duidui")], ordered=False)
        bulk.merge(ok(fill(bulk)), NOT_APPLIED)
        fill(bulk)
        bulk.give_up(UNKNOWN)
        expected = (NOT_APPLIED, UNKNOWN, APPLIED) * 2
        assert expected == bulk.partial_result().outcomes


class TestTooLarge:
    """Documents that no message can hold, or no server takes."""

    LIMITS = CommandLimits(1000, 3 * 1000 + OVERHEAD + EMPTY_INSERT, 100)

    @pytest.mark.parametrize("before", [0, 1, 5])
    def test_nothing_of_its_command(self, before):
        """It is refused when its command is made; nothing of it is sent."""
        given_ones = [*documents(before), *documents(1, 1000 + OVERHEAD + 1)]
        bulk = inserting(given_ones)
        with pytest.raises(
            DocumentTooLarge, match=rf"statement {before} \(insert\) has 17385 bytes"
        ):
            fill(bulk, CommandLimits(1000, 10**6, 100))
        bulk.give_up(NOT_APPLIED)
        assert (NOT_APPLIED,) * len(given_ones) == bulk.partial_result().outcomes

    def test_as_large_as_a_server_takes(self):
        """Servers take some more than maxBsonObjectSize; they judge it themselves."""
        bulk = inserting(documents(2, 1000 + OVERHEAD))
        assert [2] == sizes(drain(bulk, CommandLimits(1000, 10**6, 100)))

    @pytest.mark.parametrize("lazy", [True, False])
    def test_earlier_commands_are_sent(self, lazy):
        """Those that are full before it comes."""
        given_ones = [*documents(6), *documents(1, 20_000)]
        bulk = inserting(iter(given_ones) if lazy else given_ones)
        small = CommandLimits(1000, 10**6, 3)
        for _ in range(2):
            bulk.merge(ok(fill(bulk, small)), NOT_APPLIED)
        with pytest.raises(DocumentTooLarge, match="statement 6"):
            fill(bulk, small)
        bulk.give_up(NOT_APPLIED)
        taken = 7 if not lazy else 6
        assert (APPLIED,) * 6 == bulk.partial_result().outcomes[:6]
        assert taken == len(bulk.partial_result().outcomes)

    def test_larger_than_a_message(self):
        """One that fits into no message is refused though maxBsonObjectSize would allow it."""
        small = CommandLimits(16 * 2**20, 100 + OVERHEAD + EMPTY_INSERT, 100)
        assert [1, 1] == sizes(drain(inserting(documents(2, 100)), small))
        bulk = inserting([*documents(1, 100), *documents(1, 101)])
        bulk.merge(ok(fill(bulk, small)), NOT_APPLIED)
        with pytest.raises(DocumentTooLarge, match=r"statement 1 \(insert\) has 101 bytes"):
            fill(bulk, small)

    def test_the_index_is_that_of_the_call(self):
        """The message names the request by its index in the call."""
        bulk = writing([request("i", 0), request("d", 1), InsertOne(documents(1, 20_000)[0])])
        small = CommandLimits(1000, 10**6, 3)
        for _ in range(2):
            bulk.merge(ok(fill(bulk, small)), NOT_APPLIED)
        with pytest.raises(DocumentTooLarge, match=r"statement 2 \(insert\)"):
            fill(bulk, small)


class BrokenError(Exception):
    """What an iterator of the user raises."""


def breaking(count):
    """So many documents, and then an error."""
    yield from documents(count)
    raise BrokenError


class TestIterators:
    """Documents from an iterator, which may fail."""

    def test_none(self):
        """An iterator without documents is refused as an empty list of requests is."""
        with pytest.raises(InvalidOperation, match="No operations"):
            fill(inserting(iter(())))

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7, 1000])
    def test_failing(self, count):
        """Whole commands before the error are sent, and then it is raised."""
        bulk = inserting(breaking(count))
        small = limits(statements=3)
        while True:
            command = bulk.next_command()
            try:
                command.prepare(small, encode_documents)
            except BrokenError:
                break
            bulk.merge(ok(command), NOT_APPLIED)
        bulk.give_up(NOT_APPLIED)
        whole = count // 3 * 3
        expected = (APPLIED,) * whole + (NOT_APPLIED,) * (count - whole)
        assert expected == bulk.partial_result().outcomes

    def test_a_write_error_comes_first(self):
        """An error of the iterator behind the one that ends an ordered operation is nobody's."""
        bulk = inserting(breaking(3))
        command = fill(bulk, limits(statements=3))
        bulk.merge({"n": 0, "writeErrors": [write_error(0)]}, NOT_APPLIED)
        assert not bulk.has_more
        assert 3 == len(held(command))

    @pytest.mark.parametrize("position", [0, 1, 3, 5, 6, 8, 700])
    @pytest.mark.parametrize("lazy", [True, False])
    def test_what_can_not_be_encoded(self, lazy, position):
        """It is refused when its command is made, whole commands before it are sent."""
        given_ones = documents(position + 10)
        given_ones[position]["x"] = object()
        bulk = inserting(iter(given_ones) if lazy else given_ones)
        small = limits(statements=3)
        for _ in range(position // 3):
            bulk.merge(ok(fill(bulk, small)), NOT_APPLIED)
        with pytest.raises(InvalidDocument):
            fill(bulk, small)
        bulk.give_up(NOT_APPLIED)
        outcomes = bulk.partial_result().outcomes
        whole = position // 3 * 3
        assert (APPLIED,) * whole == outcomes[:whole]
        assert {NOT_APPLIED} >= set(outcomes[whole:])

    def test_what_is_no_document(self):
        """It is refused when its turn comes; those before it are sent."""
        bulk = inserting(iter([*documents(3), 5]))
        bulk.merge(ok(fill(bulk, limits(statements=3))), NOT_APPLIED)
        with pytest.raises(TypeError, match="document"):
            fill(bulk, limits(statements=3))

    @pytest.mark.parametrize(
        "most", [limits(statements=1000), limits(room=100_000)], ids=["statements", "message"]
    )
    def test_is_read_as_far_as_a_command_needs(self, most):
        """A command takes what it holds, and looks a little ahead."""
        taken = 0

        def numbered():
            nonlocal taken
            for document in documents(20_000):
                taken += 1
                yield document

        bulk = inserting(numbered())
        assert 0 == taken
        sent = 0
        for _ in range(3):
            command = fill(bulk, most)
            sent += 1000
            assert 1000 == len(held(command))
            assert sent <= taken <= sent + LOOK_AHEAD
            bulk.merge(ok(command), NOT_APPLIED)
            assert taken <= sent + LOOK_AHEAD

    def test_looking_ahead_is_bounded_in_bytes(self):
        """Large documents after small ones are not read by the hundred, where ten fill a
        message."""
        read = 0

        def growing():
            nonlocal read
            yield from documents(2000)
            for document in documents(1000, 100_000):
                read += 1
                yield document

        fill(inserting(growing()), limits(room=1_000_000))
        assert read <= 10 + 64

    def test_once(self):
        """A document is taken, and encoded, once."""
        encoded = 0

        class Amount:
            pass

        class Codec(TypeCodec):
            python_type = Amount
            bson_type = int

            def transform_python(self, value):
                nonlocal encoded
                encoded += 1
                return 7

            def transform_bson(self, value):
                return value

        codec_options = CodecOptions(type_registry=TypeRegistry([Codec()]))
        target = Target.of("db", "c", codec_options, WriteConcern())
        amounts = ({"_id": n, "fill": b"\0" * (n * 37 % 300), "x": Amount()} for n in range(3000))
        bulk = inserting(amounts, target=target)
        commands = 0
        while bulk.has_more:
            command = fill(bulk, limits(room=50_000))
            prepare_again(command, limits(room=50_000))
            bulk.merge(ok(command), NOT_APPLIED)
            commands += 1
        assert commands > 5
        assert 3000 == encoded

    def test_what_was_sent_is_forgotten(self):
        """Of 300,000 documents no more than a command, and what is looked ahead, live at once."""
        alive = most = 0

        class Value(int):
            def __init__(self, _number):
                nonlocal alive, most
                alive += 1
                most = max(alive, most)

            def __del__(self):
                nonlocal alive
                alive -= 1

        bulk = inserting({"_id": n, "x": Value(n)} for n in range(300_000))
        while bulk.has_more:
            command = fill(bulk, limits(statements=10_000))
            bulk.merge({"n": command.statement_count}, NOT_APPLIED)
            del command
        assert 300_000 == len(bulk.result().inserted_ids)
        assert 10_000 <= most <= 10_000 + 2 * LOOK_AHEAD
        assert 0 == alive
