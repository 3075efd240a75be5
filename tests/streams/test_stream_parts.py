"""The pure parts of streams: folding, shares of the buckets, entries, errors, the command line."""

import re
import uuid
from collections import Counter
from random import Random

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.decimal128 import Decimal128
from bson.timestamp import Timestamp
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    CursorNotFound,
    NetworkTimeout,
    OperationFailure,
    ServerSelectionTimeoutError,
)

from aioretry import DeadlineExceeded
from aioretry.streams import (
    Change,
    ChangeKind,
    LeaseLostError,
    NotBuiltError,
    Position,
    PositionLostError,
    entry,
)
from aioretry.streams._errors import lost_position, passes_by_itself
from aioretry.streams._folding import Fold, part_of
from aioretry.streams._pace import Pace
from aioretry.streams._watermarks import Watermark
from tests.streams.tagging import animal, by_tag

HERE = Position(Timestamp(7, 3))
NAN, INFINITE = float("nan"), float("inf")
EQUAL = [
    (1, 1.0, bson.Int64(1), Decimal128("1"), Decimal128("1.00")),
    (0.5, Decimal128("0.50")),
    (2**53, float(2**53)),
    (0.0, -0.0, 0),
    (NAN, Decimal128("NaN")),
    (INFINITE, Decimal128("Infinity")),
    ({"year": 2026}, {"year": 2026.0}),
    ({"days": [1, 2]}, {"days": [1.0, bson.Int64(2)]}),
]
REFUSED = [["a"], ("a",), re.compile("^a"), bson.Regex("^a"), {"$gt": ""}, {"aioretry": 1}]
KEYS = [
    "a",
    "b",
    1,
    2**40,
    1.5,
    True,
    None,
    b"x",
    {"year": 2026, "month": 11},
    bson.ObjectId("6b02bc7f383e3e48cdcff3d8"),
]


def change(before=None, after=None) -> Change:
    """A change of a document."""
    return Change(ChangeKind.UPDATE, 1, before, after, HERE)


def sent(fold: Fold) -> dict:
    """The updates of a fold, by bucket."""
    return {update._filter["_id"]["$eq"]: update._doc["$inc"] for update in fold.updates()}


def encoded(key) -> bytes:
    """A bucket as a fold has it."""
    return bson.encode({"": key})


def of_pairs(*pairs) -> Fold:
    """A fold of these increments."""
    fold = Fold(lambda _: pairs)
    fold.add(change())
    return fold


class TestFold:
    def test_moves(self):
        """A tag that is replaced by another one is one update of each."""
        fold = Fold(by_tag)
        fold.add(change(animal(1, "house", "dog"), animal(1, "backyard", "dog")))
        expected = {"house": {"count": -1, "weight": -1}, "backyard": {"count": 1, "weight": 1}}
        assert expected == sent(fold)
        assert {"house", "backyard"} == set(fold.buckets())

    def test_many_changes_are_few_updates(self):
        """A thousand changes of three tags are three updates, at most."""
        rng, fold, expected = Random(3), Fold(by_tag), Counter()
        for _ in range(1000):
            tags = rng.sample("abc", 2)
            fold.add(change(None, animal(1, *tags)))
            expected.update(tags)
        assert expected == {tag: counters["count"] for tag, counters in sent(fold).items()}

    def test_what_cancels_out_is_not_sent(self):
        """A change and its opposite are no update."""
        fold = Fold(by_tag)
        fold.add(change(None, animal(1, "x")))
        fold.add(change(animal(1, "x"), None))
        assert ({}, []) == (sent(fold), fold.buckets())

    @pytest.mark.parametrize("key", KEYS, ids=repr)
    def test_buckets_of_any_type(self, key):
        """Whatever can be an `_id` can be a bucket, and equal ones are one."""
        fold = of_pairs((key, {"n": 1}), (key, {"n": 2}))
        (update,) = fold.updates()
        assert {"_id": {"$eq": key}} == update._filter
        assert {"$inc": {"n": 3}} == update._doc

    @pytest.mark.parametrize("key", REFUSED, ids=repr)
    def test_refused_buckets(self, key):
        """What a filter would take for something else is no bucket."""
        with pytest.raises((TypeError, ValueError), match="bucket"):
            of_pairs((key, {"n": 1}))

    def test_a_bucket_that_is_changed_later(self):
        """A bucket is what it was when it was given, also if its object is used again."""
        bucket = {}

        def increments(_):
            for name in ("x", "y"):
                bucket["tag"] = name
                yield bucket, {"n": 1}

        fold = Fold(increments)
        fold.add(change())
        assert [{"tag": "x"}, {"tag": "y"}] == fold.buckets()

    def test_buckets_are_told_apart_by_type(self):
        """True is another bucket than 1, as for the server."""
        assert 2 == len(of_pairs((True, {"n": 1}), (1, {"n": 1})))

    def test_codec_options(self):
        """Buckets are encoded as the target says."""
        pairs = [(uuid.UUID(int=7), {"n": 1})]
        options = CodecOptions(uuid_representation=bson.binary.UuidRepresentation.STANDARD)
        fold = Fold(lambda _: pairs, codec_options=options)
        fold.add(change())
        assert 1 == len(fold.updates())

    @pytest.mark.parametrize("name", ["", "_id", "$inc", "a.b", "a\0"])
    def test_names_of_counters(self, name):
        """A counter's name is that of a field."""
        with pytest.raises(ValueError, match="can't be named"):
            of_pairs(("x", {name: 1}))

    @pytest.mark.parametrize("by", [1.0, True, "1", None])
    def test_whole_numbers(self, by):
        """Counters are counted in whole numbers."""
        with pytest.raises(TypeError, match="whole numbers"):
            of_pairs(("x", {"n": by}))

    def test_bson_numbers(self):
        """An Int64 is a whole number."""
        assert {"x": {"n": 5}} == sent(of_pairs(("x", {"n": bson.Int64(5)})))

    def test_reserved_buckets(self):
        """A bucket can't be mistaken for a watermark."""
        with pytest.raises(ValueError, match="must not have the field"):
            of_pairs(({"aioretry": 1}, {"n": 1}))

    def test_size(self):
        """The size grows with buckets and counters, and not with changes of the same."""
        fold = of_pairs(("x", {"n": 1}))
        before = fold.size
        fold.add(change())
        assert before == fold.size > 0
        assert of_pairs(("x", {"n": 1}), ("y", {"n": 1})).size > before


class TestParts:
    def test_each_bucket_has_one_part(self):
        """The workers' updates are those of one alone, divided."""
        pairs = [(f"tag{n}", {"n": n + 1}) for n in range(300)]
        folds = [Fold(lambda _: pairs, part, 4) for part in range(4)]
        for fold in folds:
            fold.add(change())
        shares = [sent(fold) for fold in folds]
        assert 300 == sum(map(len, shares))
        assert dict(pairs) == {**shares[0], **shares[1], **shares[2], **shares[3]}
        assert all(len(share) > 40 for share in shares)

    def test_is_the_same_everywhere(self):
        """A bucket's part depends on nothing of the process."""
        assert [0, 2, 2] == [part_of(key, 4, encoded(key)) for key in ("house", None, 7)]

    @pytest.mark.parametrize("equal", EQUAL, ids=repr)
    def test_equal_numbers(self, equal):
        """Numbers that are one bucket for the server have one part, whatever their types."""
        assert 1 == len({part_of(key, 1009, encoded(key)) for key in equal})


class TestPositions:
    def test_after(self):
        """The next cluster time is the smallest that is later."""
        assert Timestamp(7, 4) == HERE.after()

    def test_watermark(self):
        """A watermark is read from what it is written as."""
        mark = Watermark(
            part=2,
            parts=4,
            name="tags",
            version="7",
            build=bson.ObjectId(),
            sequence=5,
            changes=17,
            position=Position(Timestamp(1, 2), {"_data": "x"}),
        )
        assert mark == Watermark.of(mark.document())
        moved = mark.moved(HERE, 3)
        assert (6, 20, HERE, 2) == (moved.sequence, moved.changes, moved.position, moved.part)


class TestPace:
    def test_what_takes_too_long(self):
        """After each timeout less is read at once, and waited for longer; progress undoes that."""
        pace = Pace(5)
        first = pace.patience
        for _ in range(4):
            pace.fail(NetworkTimeout("late"))
        assert (1, 16 * first, False) == (pace.changes, pace.patience, pace.is_stuck)
        pace.fail(AutoReconnect("closed"))
        assert (1, 16 * first, True) == (pace.changes, pace.patience, pace.is_stuck)
        pace.succeed()
        assert (2, first, False) == (pace.changes, pace.patience, pace.is_stuck)
        for _ in range(30):
            pace.succeed()
            pace.fail(NetworkTimeout("late"))
        assert pace.changes <= 5
        assert not pace.is_stuck

    def test_patience_has_an_end(self):
        """However often it fails, a read is not waited for without end."""
        pace = Pace(5)
        for _ in range(100):
            pace.fail(NetworkTimeout("late"))
        assert 3600.0 == pace.patience


class TestEntries:
    @pytest.mark.parametrize(
        ("kind", "given"),
        [
            (ChangeKind.INSERT, {}),
            (ChangeKind.INSERT, {"before": {}, "after": {}}),
            (ChangeKind.UPDATE, {"after": {}}),
            (ChangeKind.REPLACE, {"before": {}}),
            (ChangeKind.DELETE, {"after": {}}),
        ],
    )
    def test_wrong_documents(self, kind, given):
        """An entry needs the documents that its kind has, and no others."""
        with pytest.raises(ValueError, match="wrong documents"):
            entry(kind, 1, **given)

    def test_right_documents(self):
        """An entry tells of both documents."""
        made = entry(ChangeKind.UPDATE, 1, before={"a": 1}, after={"a": 2})
        assert {"kind": "update", "key": 1, "before": {"a": 1}, "after": {"a": 2}} == {
            name: value for name, value in made.items() if name != "_id"
        }


def labelled(*labels: str) -> OperationFailure:
    """An error with labels."""
    return OperationFailure("no", 1, {"errorLabels": list(labels)})


class TestErrors:
    @pytest.mark.parametrize(
        "exc",
        [
            AutoReconnect("lost"),
            ServerSelectionTimeoutError("no primary"),
            DeadlineExceeded("late"),
            CursorNotFound("gone", 43),
            OperationFailure("write conflict", 112),
            OperationFailure("stepped down", 10107),
            labelled("TransientTransactionError"),
            labelled("ResumableChangeStreamError"),
            LeaseLostError("lost"),
            ConfigurationError("Sessions are not supported by this MongoDB deployment"),
        ],
        ids=repr,
    )
    def test_pass(self, exc):
        """After these a worker begins again at its watermark."""
        assert passes_by_itself(exc)

    @pytest.mark.parametrize(
        "exc",
        [
            OperationFailure("unauthorized", 13),
            OperationFailure("lost", 286),
            ConfigurationError("wrong"),
            NotBuiltError("never"),
            PositionLostError("lost"),
            KeyError("tags"),
        ],
        ids=repr,
    )
    def test_stay(self, exc):
        """These are raised."""
        assert not passes_by_itself(exc)

    @pytest.mark.parametrize("code", [136, 260, 280, 286, 47, 10334])
    def test_lost(self, code):
        """What says that changes can't be read any more becomes one error."""
        lost = lost_position(OperationFailure("gone", code))
        assert isinstance(lost, PositionLostError)
        assert "rebuild" in str(lost)

    def test_not_lost(self):
        """Other errors don't."""
        assert lost_position(OperationFailure("no", 13)) is None
        assert lost_position(AutoReconnect("no")) is None
