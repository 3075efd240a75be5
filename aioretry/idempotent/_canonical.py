"""One form of BSON for one content, and its hash. Pure.

Fields are sorted by the bytes of their names, in embedded documents too; arrays keep their order.
Integers of 32 bits become integers of 64 bits: in Python nobody sees a difference. Every other
value keeps its type and its bytes, so that 1 and 1.0 differ.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidBSON

__all__ = ["canonical", "content_hash", "snapshot"]

_INT = struct.Struct("<i")
_LONG = struct.Struct("<q")

_DOCUMENT, _ARRAY, _BINARY, _REGEX, _POINTER = 0x03, 0x04, 0x05, 0x0B, 0x0C
_INT32, _INT64 = 0x10, 0x12
_FIXED = {
    0x01: 8,  # double
    0x06: 0,  # undefined
    0x07: 12,  # ObjectId
    0x08: 1,  # boolean
    0x09: 8,  # date
    0x0A: 0,  # null
    _INT32: 4,
    0x11: 8,  # timestamp
    _INT64: 8,
    0x13: 16,  # Decimal128
    0x7F: 0,  # MaxKey
    0xFF: 0,  # MinKey
}
_TEXTS = frozenset({0x02, 0x0D, 0x0E})
_SELF_SIZED = frozenset({_DOCUMENT, _ARRAY, 0x0F})  # their size counts itself

_AS_IT_IS: CodecOptions[dict[str, Any]] = CodecOptions(
    document_class=dict, tz_aware=False, datetime_conversion=DatetimeConversion.DATETIME_MS
)


def snapshot(document: Mapping[str, Any], options: CodecOptions[Any]) -> dict[str, Any]:
    """Return a document as it is stored, so that later changes of the original don't matter.

    Args:
        document: Any mapping that can be encoded.
        options: How the collection encodes, type codecs included.

    Returns:
        The document in BSON's own types.

    Raises:
        InvalidDocument: It can't be encoded.
    """
    encoded = bson.encode(document, codec_options=options)
    return bson.decode(encoded, codec_options=_AS_IT_IS)


def content_hash(content: Mapping[str, Any], algorithm: str = "sha256") -> str:
    """Return the hash of a content, with the mark of its algorithm.

    Args:
        content: What :func:`snapshot` gave, less what does not count.
        algorithm: ``sha256``, or ``sha1`` to compare with old data.
    """
    data = canonical(bson.encode(content))
    digest = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
    return f"{algorithm}:{digest}"


def canonical(data: bytes) -> bytes:
    """Return the one form of an encoded document.

    Raises:
        InvalidBSON: It is not one.
    """
    try:
        (size,) = _INT.unpack_from(data)
        if size != len(data):
            raise InvalidBSON("the size of the document is wrong")
        return _document(data, 0, is_array=False)
    except (IndexError, ValueError, struct.error) as exc:
        raise InvalidBSON("the document is cut off or malformed") from exc


def _document(data: bytes, start: int, *, is_array: bool) -> bytes:
    elements = list(_elements(data, start))
    if is_array:
        named = [(str(index).encode(), rest) for index, (_, rest) in enumerate(elements)]
    else:
        named = sorted(elements, key=lambda element: element[0])
    body = b"".join(kind + name + b"\0" + value for name, (kind, value) in named)
    return _INT.pack(len(body) + 5) + body + b"\0"


def _elements(data: bytes, start: int) -> Iterator[tuple[bytes, tuple[bytes, bytes]]]:
    """Give the name of each element of a document, and its type and value in the one form."""
    (size,) = _INT.unpack_from(data, start)
    at, end = start + 4, start + size - 1
    while at < end:
        kind = data[at]
        name_end = data.index(b"\0", at + 1, end)
        value_start = name_end + 1
        value_end = value_start + _size(data, kind, value_start)
        if value_end > end:
            raise InvalidBSON("a value reaches beyond its document")
        yield data[at + 1 : name_end], _value(data, kind, value_start, value_end)
        at = value_end
    if at != end or data[end] != 0:
        raise InvalidBSON("a document does not end where it says")


def _value(data: bytes, kind: int, start: int, end: int) -> tuple[bytes, bytes]:
    if kind in {_DOCUMENT, _ARRAY}:
        value = _document(data, start, is_array=kind == _ARRAY)
    elif kind == _INT32:
        kind, value = _INT64, _LONG.pack(*_INT.unpack_from(data, start))
    else:
        value = data[start:end]
    return bytes((kind,)), value


def _size(data: bytes, kind: int, start: int) -> int:
    """Return how many bytes a value takes."""
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed
    if kind == _REGEX:
        pattern_end = data.index(b"\0", start)
        return data.index(b"\0", pattern_end + 1) + 1 - start
    (size,) = _INT.unpack_from(data, start)
    if size < 0:
        raise InvalidBSON("a size is negative")
    if kind in _SELF_SIZED:
        return int(size)
    if kind in _TEXTS:
        return int(size) + 4
    if kind == _BINARY:
        return int(size) + 5
    if kind == _POINTER:
        return int(size) + 16
    raise InvalidBSON(f"type {kind:#x} is not known")
