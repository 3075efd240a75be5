"""What follows from a key, by fixed vectors and by what it must depend on."""

import uuid

import pytest
from bson.objectid import ObjectId

from aioretry.idempotent import Keys
from aioretry.idempotent._keys_derived import Names, key_of

NAMES = Names(b"0123456789abcdef", "shop", "db.orders", key_of("order-42"))
COMMAND = {"insert": "orders", "documents": [{"_id": 1, "n": 2}], "ordered": True}
SESSION_IDS = ["aaee579d-4abd-4543-98f3-8af27fc86036", "547c107e-6fd3-4cce-b1a4-61d357b2e2fc"]
RECORD_ID = "87c2fba08be4728d8b60256b8292ce01788938c2dada0b45dc3ebfc977c0dda9"
OPERATION_ID = "09fe72b6ea98322b06b8d3f8ca57284454224c7f038567f7628e2987b608b76a"
DOCUMENT_ID = "0b9b6e89c194b933ab68407e"
FINGERPRINT = "725295d24039fa01000baf2566c57587ae344713baf5f2cbaf52b69e84ab72d1"
OTHERS = [
    Names(b"0123456789abcdeg", "shop", "db.orders", key_of("order-42")),
    Names(b"0123456789abcdef", "shop2", "db.orders", key_of("order-42")),
    Names(b"0123456789abcdef", "shop", "db.orders2", key_of("order-42")),
    Names(b"0123456789abcdef", "shop", "db.orders", key_of("order-43")),
    Names(b"0123456789abcdef", "shop", "db.orders", key_of(b"order-42")),
    Names(b"0123456789abcdef", "shopdb", ".orders", key_of("order-42")),
]


class TestVectors:
    """These never change: processes of different versions have to agree."""

    def test_session_ids(self):
        """One for each statement, in the form of a UUID of version 4."""
        ids = [uuid.UUID(bytes=bytes(NAMES.session_id(index))) for index in (0, 1)]
        assert SESSION_IDS == list(map(str, ids))
        assert [4, 4] == [each.version for each in ids]
        assert [4, 4] == [NAMES.session_id(index).subtype for index in (0, 1)]

    def test_records(self):
        """A record has an id of 32 bytes."""
        assert RECORD_ID == NAMES.record_id(0).hex()
        assert OPERATION_ID == NAMES.record_id().hex()

    def test_documents(self):
        """A document without an `_id` gets an ObjectId."""
        assert ObjectId(DOCUMENT_ID) == NAMES.document_id(0)

    def test_fingerprints(self):
        """A fingerprint is of the whole command."""
        assert FINGERPRINT == NAMES.fingerprint(0, COMMAND).hex()


class TestDifferences:
    @pytest.mark.parametrize("other", OTHERS)
    def test_every_part_counts(self, other):
        """Another secret, namespace, collection or key makes everything another."""
        assert NAMES.session_id(0) != other.session_id(0)
        assert NAMES.record_id(0) != other.record_id(0)
        assert NAMES.record_id() != other.record_id()
        assert NAMES.document_id(0) != other.document_id(0)
        assert NAMES.fingerprint(0, COMMAND) != other.fingerprint(0, COMMAND)

    def test_the_place_counts(self):
        """So does the statement's place in the operation."""
        assert 50 == len({bytes(NAMES.session_id(index)) for index in range(50)})
        assert NAMES.record_id() not in {NAMES.record_id(index) for index in range(50)}
        assert NAMES.document_id(0) != NAMES.document_id(1)

    @pytest.mark.parametrize(
        "command",
        [
            COMMAND | {"documents": [{"n": 2, "_id": 1}]},
            COMMAND | {"documents": [{"_id": 1, "n": 2.0}]},
            COMMAND | {"bypassDocumentValidation": True},
        ],
    )
    def test_the_payload_counts(self, command):
        """Values, their types and the order of fields make another fingerprint."""
        assert NAMES.fingerprint(0, COMMAND) != NAMES.fingerprint(0, command)

    def test_a_comment_does_not_count(self):
        """It tells of the call, as the id of a trace does."""
        commented = COMMAND | {"comment": "trace 1"}
        assert NAMES.fingerprint(0, COMMAND) == NAMES.fingerprint(0, commented)


class TestSecrecy:
    def test_reprs_tell_nothing(self):
        """Neither the secret nor the key is in any repr."""
        keys = Keys(b"a secret of many bytes", "shop")
        texts = [repr(keys), repr(keys("order-42")), repr(keys("order-42", durable=True))]
        texts += [repr(NAMES)]
        assert [] == [text for text in texts if "secret of" in text or "0123" in text]
        assert [] == [text for text in texts if "order-42" in text]


class TestBadInput:
    @pytest.mark.parametrize(
        ("secret", "namespace", "error", "text"),
        [
            ("text" * 8, "shop", TypeError, "secret must be bytes"),
            (b"short", "shop", ValueError, "at least 16 bytes, not 5"),
            (b"x" * 16, b"shop", TypeError, "namespace must be a str"),
            (b"x" * 16, "", ValueError, "namespace must not be empty"),
        ],
    )
    def test_of_keys(self, secret, namespace, error, text):
        """A secret is long, and a namespace says something."""
        with pytest.raises(error, match=text):
            Keys(secret, namespace)

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"fingerprints": "none"}, ValueError, "fingerprints must be"),
            ({"keep_seconds": 60}, ValueError, "keep_seconds must be .* from 3600 on"),
            ({"keep_seconds": "1"}, TypeError, "keep_seconds must be a number"),
            ({"durable_seconds": float("inf")}, ValueError, "durable_seconds must be"),
            ({"durable_seconds": float("nan")}, ValueError, "durable_seconds must be"),
            ({"per_second": 0}, ValueError, "per_second must be a number above 0"),
            ({"per_second": True}, TypeError, "per_second must be a number"),
            ({"per_second": float("nan")}, ValueError, "per_second must be"),
            ({"batch": 0}, ValueError, "batch must be from 1 to 10,000"),
            ({"batch": 10_001}, ValueError, "batch must be from 1 to 10,000"),
            ({"batch": 1.5}, TypeError, "batch must be a whole number"),
        ],
    )
    def test_of_options(self, options, error, text):
        """Options out of their range are refused at once."""
        with pytest.raises(error, match=text):
            Keys(b"x" * 16, "shop", **options)

    @pytest.mark.parametrize(
        ("key", "error", "text"),
        [
            ("", ValueError, "must not be empty"),
            (b"", ValueError, "must not be empty"),
            (42, TypeError, "must be a str or bytes, not int"),
            (None, TypeError, "must be a str or bytes"),
        ],
    )
    def test_of_a_key(self, key, error, text):
        """A key is a text or bytes, and not empty."""
        with pytest.raises(error, match=text):
            Keys(b"x" * 16, "shop")(key)
