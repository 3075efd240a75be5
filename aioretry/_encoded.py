"""Documents that are encoded already, so that a retry sends the same without encoding it again."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from bson.raw_bson import RawBSONDocument

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


def with_documents(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command with its documents one by one, for those who look at commands."""
    return {
        name: [document for part in value for document in part.documents()]
        if isinstance(value, list) and value and isinstance(value[0], EncodedDocuments)
        else value
        for name, value in body.items()
    }
