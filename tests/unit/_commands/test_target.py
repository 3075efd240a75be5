"""Where writes go, and how what the user gave is encoded on the way."""

import uuid
from datetime import UTC, datetime

import bson
import pytest
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion, TypeCodec, TypeRegistry
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from bson.son import SON
from pymongo.errors import WriteError
from pymongo.write_concern import WriteConcern

from aioretry._commands.target import Target, top_level, write_concern_of

RAW = CodecOptions(document_class=RawBSONDocument)


def target(options=None, concern=None):
    """A target with options of the user's."""
    return Target.of("db", "c.d", options or CodecOptions(), concern or WriteConcern())


class TestOptions:
    def test_replies_hold_no_documents_of_the_users(self):
        """They are plain dicts, whatever is in their texts; all else is as the user set it."""
        options = CodecOptions(SON, tz_aware=True, uuid_representation=UuidRepresentation.STANDARD)
        made = target(options)
        expected = options.with_options(document_class=dict, unicode_decode_error_handler="replace")
        assert (options, expected) == (made.codec_options, made.reply_codec_options)

    def test_namespace(self):
        """The collection's own dots stay."""
        assert "db.c.d" == target().namespace

    def test_write(self):
        """A command gets the target's concern and reads its reply as one of a write."""
        made = target(RAW, WriteConcern("majority"))
        body = {"insert": "c.d"}
        command = made.write("insert_one", "insert", body, len, holds_multi=True)
        assert ("insert_one", "insert", "db", "c.d", body) == (
            command.operation,
            command.name,
            command.database,
            command.collection,
            command.body,
        )
        assert (WriteConcern("majority"), made.reply_codec_options, None, True) == (
            command.write_concern,
            command.codec_options,
            command.user_fields,
            command.holds_multi,
        )
        assert 2 == command.result({"ok": 1, "n": 1})
        assert isinstance(command.error_in({"writeErrors": [{"code": 1}]}), WriteError)
        assert not made.write("insert_one", "insert", body, len).holds_multi


class TestEncoding:
    def test_once(self):
        """What changes after is not sent; what is encoded already is sent as it is."""
        document = {"a": [1]}
        encoded = target().encode(document)
        document["a"].append(2)
        assert {"a": [1]} == bson.decode(encoded.raw)
        assert encoded is target().encode(encoded)

    def test_with_the_users_options(self):
        """They say how a UUID is written."""
        number = uuid.UUID(int=1)
        java = CodecOptions(uuid_representation=UuidRepresentation.JAVA_LEGACY)
        encoded = target(java).encode({"_id": number})
        assert bson.encode({"_id": number}, codec_options=java) == encoded.raw
        with pytest.raises(ValueError, match="cannot encode native uuid"):
            target().encode({"_id": number})

    @pytest.mark.parametrize("name", ["encode", "size"])
    def test_what_can_not_be_encoded(self, name):
        """It is refused before anything is sent."""
        with pytest.raises(InvalidDocument):
            getattr(target(), name)({"a": object()})

    @pytest.mark.parametrize("document", [{}, {"a": "é"}, RawBSONDocument(bson.encode({"a": 1}))])
    def test_size(self, document):
        """It is that of the encoded document, in bytes."""
        assert len(bson.encode(document)) == target().size(document)

    def test_options(self):
        """What is None is left out, and what is only false is not."""
        expected = {"comment": "", "bypass": False, "n": 0}
        assert expected == target().encode_options(let=None, **expected)
        assert {} == target().encode_options(let=None)

    def test_options_once(self):
        """What changes after is not sent."""
        given = {"v": [1]}
        options = target().encode_options(let=given)
        given["v"].append(2)
        assert {"let": {"v": [1]}} == bson.decode(bson.encode(options))


class TestTopLevel:
    @pytest.mark.parametrize(
        "value",
        [
            bson.Int64(1),
            datetime(2000, 1, 1, tzinfo=UTC),
            bson.DatetimeMS(10**17),  # later than Python's last year
            bson.Binary(b"0" * 16, 3),
            bson.Regex("a", "i"),
            bson.Timestamp(1, 2),
            {"b": [{"c": bson.Int64(2)}, []]},
            [{"b": bson.DatetimeMS(-(10**17))}],
        ],
    )
    def test_nothing_is_lost(self, value):
        """The fields make the same bytes again."""
        encoded = target().encode({"z": 1, "a": value})
        fields = top_level(encoded)
        assert ["z", "a"] == list(fields)
        assert encoded.raw == bson.encode(fields)

    def test_the_users_options_do_not_count(self):
        """Type decoders and conversions of the user are for replies."""

        class Codec(TypeCodec):
            python_type = complex
            bson_type = int

            def transform_python(self, value):
                return int(value.real)

            def transform_bson(self, value):
                raise AssertionError

        options = CodecOptions(
            tz_aware=True,
            datetime_conversion=DatetimeConversion.DATETIME,
            type_registry=TypeRegistry([Codec()]),
        )
        late = bson.DatetimeMS(10**17)
        assert {"n": 7, "late": late} == target(options).encode_options(n=complex(7), late=late)


class TestWriteConcerns:
    @pytest.mark.parametrize(
        ("concern", "without", "under_deadline"),
        [
            (WriteConcern(), {}, {}),
            (WriteConcern(1), {"w": 1}, {"w": 1}),
            (WriteConcern(0), {"w": 0}, {"w": 0}),
            (WriteConcern(j=False), {"j": False}, {"j": False}),
            (WriteConcern(3, 5, True), {"w": 3, "wtimeout": 5, "j": True}, {"w": 3, "j": True}),
            (WriteConcern(wtimeout=5), {"wtimeout": 5}, None),
            (WriteConcern(2, wtimeout=0), {"w": 2, "wtimeout": 0}, {"w": 2}),
        ],
    )
    def test_as_they_are_sent(self, concern, without, under_deadline):
        """Under a deadline there is no wtimeout, and no concern if nothing else was asked."""

        def sent(document):
            return {"writeConcern": document} if document else {}

        before = concern.document
        assert sent(under_deadline) == write_concern_of(concern, under_deadline=True)
        assert sent(without) == write_concern_of(concern, under_deadline=False)
        assert before == concern.document
