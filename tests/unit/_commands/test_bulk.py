"""Bulk operations without a server: what is sent in which command."""

import bson
import pytest
from bson.codec_options import CodecOptions, TypeCodec, TypeRegistry
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.errors import DocumentTooLarge, InvalidDocument, InvalidOperation
from pymongo.write_concern import WriteConcern

from aioretry._commands.bulk_arguments import InsertMany
from aioretry._commands.command import CommandLimits
from aioretry._commands.target import Target
from aioretry._drivers.motor import encode_documents
from tests.unit import bulks
from tests.unit.bulks import (
    EMPTY_INSERT,
    INCREMENT,
    LARGE,
    OVERHEAD,
    TARGET,
    BrokenError,
    breaking,
    documents,
    held,
    inserting,
    limits,
    number_of,
    planned,
    request,
    writing,
)

LOOK_AHEAD = 500


def fill(bulk, limits=LARGE):
    """Make the next command, as an attempt does."""
    return bulks.fill(bulk, limits)[0]


def drain(bulk, limits=LARGE):
    """Make all commands; return the name and the statements of each."""
    sent = []
    while bulk.has_unsent:
        command = fill(bulk, limits)
        sent.append((command.name, held(command)))
    return sent


def sizes(sent):
    """How many statements each command had."""
    return [len(statements) for _, statements in sent]


def prepare_again(command, limits):
    """Prepare a retry, as an attempt does."""
    if command.prepare is not None:
        command.prepare(limits, encode_documents)


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
        for _, found in sent:
            assert sum(len(bson.encode(document)) for document in found) <= 50_000
        assert len(sent) <= 14

    def test_the_limits_of_the_server_that_is_asked(self):
        """Each command is filled for the server that it goes to."""
        bulk = inserting(documents(10))
        found = []
        for statements in (4, 1, 100):
            command = fill(bulk, limits(statements=statements))
            found.append(len(held(command)))
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
        assert list(range(len(lengths))) == bulk.result({}).inserted_ids

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
        while bulk.has_unsent:
            command = fill(bulk)
            found.append(command.holds_multi)
        assert [False, False, False, False, True, True] == found

    def test_the_second_command_of_a_kind_may_be_without(self):
        """A multi statement marks its own command, not the next one of its run."""
        bulk = writing([UpdateMany({"_id": 0}, INCREMENT), *[UpdateOne({"_id": 1}, INCREMENT)] * 3])
        found = []
        while bulk.has_unsent:
            command = fill(bulk, limits(statements=2))
            found.append(command.holds_multi)
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
        assert [8] == bulk.result({}).inserted_ids


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
        assert len(given_ones) == bulk.count

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
            fill(bulk, small)
        with pytest.raises(DocumentTooLarge, match="statement 6"):
            fill(bulk, small)
        taken = 7 if not lazy else 6
        assert taken == bulk.count

    def test_larger_than_a_message(self):
        """One that fits into no message is refused though maxBsonObjectSize would allow it."""
        small = CommandLimits(16 * 2**20, 100 + OVERHEAD + EMPTY_INSERT, 100)
        assert [1, 1] == sizes(drain(inserting(documents(2, 100)), small))
        bulk = inserting([*documents(1, 100), *documents(1, 101)])
        fill(bulk, small)
        with pytest.raises(DocumentTooLarge, match=r"statement 1 \(insert\) has 101 bytes"):
            fill(bulk, small)

    def test_the_index_is_that_of_the_call(self):
        """The message names the request by its index in the call."""
        bulk = writing([request("i", 0), request("d", 1), InsertOne(documents(1, 20_000)[0])])
        small = CommandLimits(1000, 10**6, 3)
        for _ in range(2):
            fill(bulk, small)
        with pytest.raises(DocumentTooLarge, match=r"statement 2 \(insert\)"):
            fill(bulk, small)


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
        for _ in range(count // 3):
            assert 3 == len(held(fill(bulk, limits(statements=3))))
        with pytest.raises(BrokenError):
            fill(bulk, limits(statements=3))
        assert count == bulk.count

    @pytest.mark.parametrize("position", [0, 1, 3, 5, 6, 8, 700])
    @pytest.mark.parametrize("lazy", [True, False])
    def test_what_can_not_be_encoded(self, lazy, position):
        """It is refused when its command is made, whole commands before it are sent."""
        given_ones = documents(position + 10)
        given_ones[position]["x"] = object()
        bulk = inserting(iter(given_ones) if lazy else given_ones)
        small = limits(statements=3)
        for _ in range(position // 3):
            fill(bulk, small)
        with pytest.raises(InvalidDocument):
            fill(bulk, small)

    def test_what_is_no_document(self):
        """It is refused when its turn comes; those before it are sent."""
        bulk = inserting(iter([*documents(3), 5]))
        fill(bulk, limits(statements=3))
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
        while bulk.has_unsent:
            command = fill(bulk, limits(room=50_000))
            prepare_again(command, limits(room=50_000))
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
        while bulk.has_unsent:
            command = fill(bulk, limits(statements=10_000))
            del command
        assert 300_000 == len(bulk.result({}).inserted_ids)
        assert 10_000 <= most <= 10_000 + 2 * LOOK_AHEAD
        assert 0 == alive
