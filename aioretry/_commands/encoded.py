"""Documents that are encoded already, so that a retry sends the same without encoding it again."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion, TypeRegistry
from bson.raw_bson import RawBSONDocument

_NO_TYPES = TypeRegistry()

_size_at = struct.Struct("<i").unpack_from


class EncodedDocuments:
    """Encoded documents, one behind the other, as a message holds them.

    The driver takes it for one document and copies it whole.

    Args:
        raw: Their BSON.
        count: How many there are.
        largest: The size of the largest of them, in bytes.
    """

    __slots__ = ("count", "largest", "raw")

    _type_marker = 101
    """By this, bson knows an object whose ``raw`` it takes as it is."""

    def __init__(self, raw: bytes, count: int, largest: int) -> None:
        self.raw = raw
        self.count = count
        self.largest = largest

    def sizes(self) -> list[int]:
        """Return the size of each document, in bytes."""
        sizes, start = [], 0
        for _ in range(self.count):  # each begins with its own size
            (size,) = _size_at(self.raw, start)
            sizes.append(size)
            start += size
        return sizes

    def cut(self, count: int) -> "tuple[EncodedDocuments, EncodedDocuments]":
        """Return so many of the first, and the others."""
        sizes = self.sizes()
        first, others = sizes[:count], sizes[count:]
        end = sum(first)
        return (
            EncodedDocuments(self.raw[:end], len(first), max(first, default=0)),
            EncodedDocuments(self.raw[end:], len(others), max(others, default=0)),
        )

    def document(self, index: int) -> RawBSONDocument:
        """Return one of the documents."""
        sizes = self.sizes()
        start = sum(sizes[:index])
        return RawBSONDocument(self.raw[start : start + sizes[index]])

    def documents(self) -> list[RawBSONDocument]:
        """Return the documents; each is decoded when somebody looks into it."""
        documents, start = [], 0
        for size in self.sizes():
            documents.append(RawBSONDocument(self.raw[start : start + size]))
            start += size
        return documents


def section(parts: Sequence[EncodedDocuments], positions: Sequence[int]) -> list[EncodedDocuments]:
    """Return some of the documents that are in several parts, all in one.

    Args:
        parts: All documents.
        positions: Which of them, in ascending order.
    """
    wanted = set(positions)
    raws: list[bytes] = []
    first = 0
    for part in parts:
        if positions[0] < first + part.count and first <= positions[-1]:
            start = 0
            for offset, size in enumerate(part.sizes(), first):
                if offset in wanted:
                    raws.append(part.raw[start : start + size])
                start += size
        first += part.count
    return [EncodedDocuments(b"".join(raws), len(raws), max(map(len, raws)))]


def shown(
    body: Mapping[str, Any], codec_options: CodecOptions[Any], *, is_sent: bool
) -> dict[str, Any]:
    """Return a command for those who look at commands: with plain documents, one by one.

    Args:
        body: The command.
        codec_options: Those that the driver will encode it with.
        is_sent: Whether it is what the driver encodes, so that it must come to the same.
    """
    options: CodecOptions[dict[str, Any]] = codec_options.with_options(
        document_class=dict,
        type_registry=_NO_TYPES,  # the user's type decoders are for replies
        datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    )
    return {name: _shown(value, options, is_sent=is_sent) for name, value in body.items()}


def _shown(value: Any, options: CodecOptions[dict[str, Any]], *, is_sent: bool) -> Any:
    if isinstance(value, list):
        parts = [
            part.documents() if isinstance(part, EncodedDocuments) else [part] for part in value
        ]
        return [
            _plain(each, options, is_sent=is_sent)
            if isinstance(each, RawBSONDocument)
            else _shown(each, options, is_sent=is_sent)
            for part in parts
            for each in part
        ]
    if isinstance(value, RawBSONDocument):
        return _plain(value, options, is_inside=True, is_sent=is_sent)
    return value


def _plain(
    encoded: RawBSONDocument,
    options: CodecOptions[dict[str, Any]],
    *,
    is_inside: bool = False,
    is_sent: bool,
) -> Mapping[str, Any]:
    """Return a document as a dict, unless it is sent and would not be encoded to the same again.

    Args:
        encoded: The document.
        options: Those that the driver will encode it with.
        is_inside: Whether it is a field's value, so that its ``_id`` is not put first.
        is_sent: Whether it will.
    """
    try:
        plain = bson.decode(encoded.raw, options)
        if not is_sent:
            return plain
        given: Any = {"": plain} if is_inside else plain
        same: Any = bson.encode({"": encoded}) if is_inside else encoded.raw
        return plain if bson.encode(given, codec_options=options) == same else encoded
    except Exception:  # noqa: BLE001 - the user's own bytes, or what Python has no value for
        return encoded
