"""What PyMongo makes of documents, requests and errors."""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any

import bson
from bson.codec_options import DEFAULT_CODEC_OPTIONS, CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import message

from aioretry._commands.encoded import EncodedDocuments

# In an OP_MSG: its header and flags, the section of an empty body, and what a section of documents
# that is called "_" begins with.
_BEFORE_DOCUMENTS = 16 + 4 + 6 + 7
# In a reply: its flags, the kind of its only section, and how large the document in that is.
_SECTION = Struct("<IBi")
_SECTIONS = {"insert": "documents", "update": "updates", "delete": "deletes"}
_ENCODED = (EncodedDocuments, RawBSONDocument)
_LARGE = 64 * 1024  # to copy less costs no more than to send it apart
_int32 = Struct("<i").pack
_HEADER_SIZE = 16
_BEFORE_BODY = _HEADER_SIZE + 5


def encode_documents(
    documents: list[Mapping[str, Any]], codec_options: CodecOptions[Any]
) -> EncodedDocuments:
    """Encode documents as PyMongo does, each with its ``_id`` first."""
    # Public encoding takes one document a call, which costs more than a small document does.
    encode = getattr(message, "_op_msg_uncompressed", None)
    if encode is None:
        each = [bson.encode(document, codec_options=codec_options) for document in documents]
        return EncodedDocuments(b"".join(each), len(each), max(map(len, each)))
    _, sent, _, largest = encode(0, {}, "_", documents, codec_options)
    return EncodedDocuments(sent[_BEFORE_DOCUMENTS:], len(documents), largest)


def request_of(
    body: dict[str, Any], database: str, preference: Any, codec_options: CodecOptions[Any]
) -> tuple[int, Sequence[bytes], int]:
    """Return a command's request id, its message, and its size in bytes.

    The message is in two parts if it holds much that is encoded already, which is not copied.
    """
    section = _SECTIONS.get(next(iter(body)))
    documents: Sequence[Any] = () if section is None else body[section]
    only = documents[0] if len(documents) == 1 else None
    raw: Any = only.raw if isinstance(only, _ENCODED) else b""
    if section is None or len(raw) < _LARGE:
        request_id, data, size, _ = message._op_msg(0, body, database, preference, codec_options)
        return request_id, (data,), size
    del body[section]
    try:
        request_id, data, size, _ = message._op_msg(0, body, database, preference, codec_options)
    finally:
        body[section] = documents
    name = section.encode() + b"\0"
    more = 4 + len(name) + len(raw)
    head = _int32(len(data) + 1 + more) + data[4:] + b"\1" + _int32(more) + name
    return request_id, (head, raw), size + more


def reply_in(
    data: bytes | memoryview,
    codec_options: CodecOptions[Any],
    user_fields: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the document in a reply, which has its header still.

    Raises:
        ProtocolError: It is more, or another thing, than one document.
    """
    flags, kind, size = _SECTION.unpack_from(data, _HEADER_SIZE)
    if flags or kind or size != len(data) - _BEFORE_BODY:
        message._OpMsg.unpack(data[_HEADER_SIZE:])  # says what is wrong, if anything is
    reply: dict[str, Any] = bson._decode_all_selective(
        data[_BEFORE_BODY:], codec_options, user_fields
    )[0]
    return reply


def ping(connection: Any) -> tuple[int, Sequence[bytes]]:
    """Return the request id and the message that ask over a connection for a sign of life."""
    body: dict[str, Any] = {"ping": 1, "$db": "admin"}
    connection.add_server_api(body)
    request_id, data, _ = request_of(body, "admin", None, DEFAULT_CODEC_OPTIONS)
    return request_id, data


def add_requests(requests: Iterable[Any], bulk: object) -> None:
    """Have the requests of a ``bulk_write`` add themselves to a bulk operation.

    Raises:
        TypeError: One is no request.
    """
    for request in requests:
        try:
            request._add_to_bulk(bulk)
        except AttributeError:
            raise TypeError(f"{request!r} is not a valid request") from None
