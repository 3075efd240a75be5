"""One form of BSON for one content, and its hash."""

import hashlib
import struct
import uuid
from datetime import UTC, datetime

import bson
import pytest
from bson import DatetimeMS, Int64, ObjectId
from bson.binary import Binary
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.errors import InvalidBSON
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioretry.idempotent._canonical import canonical, content_hash, snapshot

OPTIONS = CodecOptions()
ANY_DATE = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

EVERY_TYPE = {
    "double": 1.5,
    "text": "höhe",
    "document": {"b": 1, "a": [1, {"z": 1, "y": 2}]},
    "array": [3, 1, 2],
    "binary": b"\0\1",
    "binary of a subtype": Binary(b"abc", 128),
    "id": ObjectId("0123456789abcdef01234567"),
    "yes": True,
    "date": datetime(2026, 11, 22, tzinfo=UTC),
    "far date": DatetimeMS(2**60),
    "nothing": None,
    "pattern": Regex("^a", "im"),
    "code": Code("x"),
    "code with scope": Code("x", {"b": 1, "a": 2}),
    "small": 7,
    "large": 2**40,
    "timestamp": Timestamp(1, 2),
    "decimal": Decimal128("1.10"),
    "least": MinKey(),
    "most": MaxKey(),
    "reference": DBRef("c", 1),
}

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(NAMES, values, max_size=5)


def form_of(document):
    """The one form of a document."""
    return canonical(bson.encode(document))


def reversed_everywhere(value):
    """A value whose documents have their fields the other way round."""
    if isinstance(value, dict):
        return {name: reversed_everywhere(value[name]) for name in reversed(value)}
    return [reversed_everywhere(item) for item in value] if isinstance(value, list) else value


class TestCanonical:
    def test_bytes(self):
        """The form of a small document, byte for byte."""
        body = b"\x12a\0" + struct.pack("<q", 2) + b"\x02b\0" + struct.pack("<i", 2) + b"x\0"
        assert struct.pack("<i", len(body) + 5) + body + b"\0" == form_of({"b": "x", "a": 2})

    def test_empty(self):
        """The empty document is as it was."""
        assert bson.encode({}) == form_of({})

    def test_every_type(self):
        """Values of every type are as they were, but for the order of names and small integers."""
        again = bson.decode(form_of(EVERY_TYPE), ANY_DATE)
        assert sorted(EVERY_TYPE) == list(again)
        assert bson.decode(bson.encode(EVERY_TYPE), ANY_DATE) == again
        assert ["a", "b"] == list(again["document"])
        assert ["y", "z"] == list(again["document"]["a"][1])

    @UNHURRIED
    @given(documents)
    def test_order_of_fields(self, document):
        """The order of fields does not matter, at any level."""
        assert form_of(document) == form_of(reversed_everywhere(document))

    @UNHURRIED
    @given(documents)
    def test_is_its_own_form(self, document):
        """The form of the form is the form, and it is BSON."""
        form = form_of(document)
        assert form == canonical(form)
        assert form == form_of(bson.decode(form))

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ([1, 2], [2, 1]),
            (1, 1.0),
            (1, True),
            (0.0, -0.0),
            (1, "1"),
            ("a", b"a"),
            (None, ""),
            ({}, []),
            ([1], {"0": 1}),
            (Decimal128("1.1"), Decimal128("1.10")),
            ([], [None]),
        ],
        ids=repr,
    )
    def test_what_differs(self, one, other):
        """Other values, and other types of equal values, are other contents."""
        assert form_of({"v": one}) != form_of({"v": other})

    def test_a_missing_field_is_not_null(self):
        """A field that is null is there."""
        assert form_of({}) != form_of({"a": None})

    def test_integers_are_equal_by_value(self):
        """Whether an integer was stored with 32 or 64 bits does not matter."""
        assert form_of({"v": 5, "l": [5]}) == form_of({"v": Int64(5), "l": [Int64(5)]})

    def test_long_arrays_keep_their_order(self):
        """The names of an array's elements are not sorted as text."""
        assert list(range(12)) == bson.decode(form_of({"v": list(range(12))}))["v"]

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\5\0\0",
            b"\5\0\0\0\1",
            b"\6\0\0\0\0\0",
            b"\4\0\0\0",
            b"\x0d\0\0\0\x10a\0\1\0\0\0",
            b"\x0b\0\0\0\x10a\0\1\0\0",
            b"\x0c\0\0\0\x02a\0\xff\0\0\0",
            b"\x0c\0\0\0\x02a\0\xff\xff\xff\xff",
            b"\x08\0\0\0\x20a\0\0",
            b"\x10\0\0\0\x20a\0\1\0\0\0\0\0\0\0\0",
            b"\x0d\0\0\0\x03a\0\x20\0\0\0\0\0",
        ],
    )
    def test_what_is_not_bson(self, data):
        """Bytes that are no document are refused."""
        with pytest.raises(InvalidBSON):
            canonical(data)

    @UNHURRIED
    @given(documents, st.data())
    def test_cut_off(self, document, data):
        """A document that is cut off is refused, wherever it is."""
        encoded = bson.encode(document)
        size = data.draw(st.integers(0, len(encoded) - 1))
        with pytest.raises(InvalidBSON):
            canonical(encoded[:size])


class TestHash:
    @pytest.mark.parametrize(
        ("content", "sha256", "sha1"),
        [
            (
                {},
                "49e8e3297545c15ab6a79471a7a34d43e24a8f1cb25ea3d8417c61f699267a3f",
                "ec420d34cd99d6722c44e4a56b4dc598b5e2eb7a",
            ),
            (
                {"name": "bolt", "size": {"mm": 8, "in": 0.31}, "tags": ["a", "b"]},
                "99d055c0d03d6eb278f4b1dc72ff462ce8b7116fc6287364b1d5c69758a02bfc",
                "c4221ef92fbb668e3bc9715e9f6c13aa6acf1fa7",
            ),
            (
                EVERY_TYPE,
                "8a7c6ccdfbd0f18d31768fc5af24e9b6a4baf2f96a54b7b716a37a98e3e9a8e7",
                "e7d786135538407265b3f4abcca61404927e83d5",
            ),
        ],
        ids=["empty", "bolt", "every type"],
    )
    def test_fixed_vectors(self, content, sha256, sha1):
        """What is stored today is recognized by every later version."""
        stored = snapshot(content, OPTIONS)
        assert f"sha256:{sha256}" == content_hash(stored)
        assert f"sha1:{sha1}" == content_hash(stored, "sha1")

    def test_is_of_the_one_form(self):
        """The hash is that of the canonical bytes."""
        assert f"sha256:{hashlib.sha256(form_of({'a': 1})).hexdigest()}" == content_hash({"a": 1})

    @UNHURRIED
    @given(documents)
    def test_of_what_was_read(self, document):
        """A document that was stored and read has the hash that it was stored with."""
        stored = snapshot(document, OPTIONS)
        read = bson.decode(bson.encode(stored))
        assert content_hash(stored) == content_hash(snapshot(read, OPTIONS))


class TestSnapshot:
    def test_is_independent(self):
        """Later changes of the document don't reach it."""
        document = {"a": {"b": [1]}}
        stored = snapshot(document, OPTIONS)
        document["a"]["b"].append(2)
        assert {"a": {"b": [1]}} == stored

    def test_has_the_precision_of_bson(self):
        """Microseconds, which are not stored, don't count."""
        fine = snapshot({"at": datetime(2026, 1, 1, 0, 0, 0, 1999, tzinfo=UTC)}, OPTIONS)
        assert content_hash(fine) == content_hash(
            snapshot({"at": datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)}, OPTIONS)
        )

    def test_options(self):
        """Values are encoded as the collection says."""
        value = uuid.uuid4()
        standard = CodecOptions(uuid_representation=bson.binary.UuidRepresentation.STANDARD)
        assert {"v": Binary(value.bytes, 4)} == snapshot({"v": value}, standard)

    def test_raw_documents(self):
        """A raw document is like any other."""
        raw = RawBSONDocument(bson.encode(EVERY_TYPE))
        assert content_hash(snapshot(EVERY_TYPE, OPTIONS)) == content_hash(snapshot(raw, OPTIONS))
