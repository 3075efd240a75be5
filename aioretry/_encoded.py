"""Documents that are encoded already, so that a retry sends the same without encoding it again."""

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

_size_at = struct.Struct("<i").unpack_from


class EncodedDocument(Mapping[str, Any]):
    """An encoded document; decoded only if somebody looks into it, such as a listener.

    Cheaper to make than a ``RawBSONDocument``, of which a bulk operation makes thousands.

    Args:
        raw: The BSON.
    """

    __slots__ = ("raw",)

    _type_marker = 101
    """By this, bson knows an object whose ``raw`` it takes as it is."""

    def __init__(self, raw: bytes | memoryview) -> None:
        self.raw = raw

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.raw!r})"

    def __getitem__(self, key: str) -> Any:
        return RawBSONDocument(self.raw)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(RawBSONDocument(self.raw))

    def __len__(self) -> int:
        return len(RawBSONDocument(self.raw))


def encode_all(
    documents: list[Mapping[str, Any]], codec_options: CodecOptions[Any]
) -> list[EncodedDocument]:
    """Encode several documents; plain dicts many at once, for a call costs more than a small one.

    Each comes out as if it had been encoded alone, but that its ``_id`` is not moved to the front.
    """
    if len(documents) == 1 or any(type(document) is not dict for document in documents):
        return [_encode(document, codec_options) for document in documents]
    array = bson.encode({"": documents}, codec_options=codec_options)
    # BSON specification: after the sizes of the document and of the array in its field "", each
    # element is a type, its position in decimal digits, a zero, and a document that begins with its
    # own size.
    encoded, end = [], 10
    for position in range(len(documents)):
        start = end + len(str(position)) + 2
        end = start + _size_at(array, start)[0]
        encoded.append(EncodedDocument(array[start:end]))
    return encoded


def _encode(document: Mapping[str, Any], codec_options: CodecOptions[Any]) -> EncodedDocument:
    if isinstance(document, RawBSONDocument):
        return EncodedDocument(document.raw)
    return EncodedDocument(bson.encode(document, codec_options=codec_options))
