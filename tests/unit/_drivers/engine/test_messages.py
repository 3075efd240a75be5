"""Messages that are sent in parts come to what PyMongo makes of them."""

import struct

import bson
import pytest
from bson.codec_options import DEFAULT_CODEC_OPTIONS
from bson.raw_bson import RawBSONDocument
from pymongo import message

from aioretry._commands.encoded import EncodedDocuments
from aioretry._drivers.engine.messages import encode_documents, reply_in, request_of

LARGE = {"_id": 1, "data": b"x" * 1_000_000}


def raw(document):
    """A document that is encoded already."""
    return RawBSONDocument(bson.encode(document))


def of_pymongo(body):
    """The message that PyMongo makes, without its request id, and its size."""
    _, data, size, _ = message._op_msg(0, dict(body), "db", None, DEFAULT_CODEC_OPTIONS)
    return data[:4] + data[8:], size


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ({"insert": "c", "ordered": True, "documents": [raw(LARGE)], "n": 1}, 2),
        ({"update": "c", "updates": [raw({"q": {}, "u": LARGE, "multi": False})]}, 2),
        ({"delete": "c", "deletes": [raw({"q": LARGE, "limit": 1})], "n": 1}, 2),
        (
            {
                "insert": "c",
                "documents": [encode_documents([LARGE, LARGE, {}], DEFAULT_CODEC_OPTIONS)],
            },
            2,
        ),
        ({"insert": "c", "documents": [raw({"n": 1})]}, 1),
        ({"insert": "c", "documents": [LARGE]}, 1),
        ({"insert": "c", "documents": [raw(LARGE), raw(LARGE)]}, 1),
        ({"findAndModify": "c", "update": raw(LARGE)}, 1),
        ({"find": "c", "documents": [raw(LARGE)]}, 1),
    ],
)
def test_requests(body, parts):
    """A message is the same in one part or two; the command stays as it was."""
    before = dict(body)
    request_id, sent, size = request_of(body, "db", None, DEFAULT_CODEC_OPTIONS)
    whole = b"".join(sent)
    assert len(sent) == parts
    assert (whole[:4] + whole[8:], size) == of_pymongo(before)
    assert struct.unpack_from("<ii", whole) == (len(whole), request_id)
    assert body == {**before, "$db": "db"}


def test_what_is_large_is_not_copied():
    """It is the very bytes that were encoded."""
    document = raw(LARGE)
    _, (_, sent), _ = request_of(
        {"insert": "c", "documents": [document]}, "db", None, DEFAULT_CODEC_OPTIONS
    )
    assert sent is document.raw


def test_what_only_looks_as_if_it_were_encoded():
    """A document whose fields are attributes, too."""

    class Fields(dict):
        raw = property(lambda self: self["raw"])

    body = {"insert": "c", "documents": [Fields(_id=1, raw=b"x" * 1_000_000)]}
    _, (whole,), _ = request_of(body, "db", None, DEFAULT_CODEC_OPTIONS)
    assert whole[:4] + whole[8:] == of_pymongo(body)[0]


def test_one_that_can_not_be_encoded():
    """The command still has its documents."""
    documents = [EncodedDocuments(bson.encode(LARGE), 1, 0)]
    body = {"insert": "c", "documents": documents, "comment": object()}
    with pytest.raises(bson.errors.InvalidDocument):
        request_of(body, "db", None, DEFAULT_CODEC_OPTIONS)
    assert body["documents"] is documents


@pytest.mark.parametrize("kind", [bytes, lambda data: memoryview(bytearray(data))])
def test_a_reply_is_decoded_where_it_is(kind):
    """In the space that it was received in, too."""
    body = bson.encode(LARGE)
    data = kind(b"\0" * 16 + struct.pack("<IB", 0, 0) + body)
    assert reply_in(data, DEFAULT_CODEC_OPTIONS, None) == LARGE
