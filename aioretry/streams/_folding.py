"""Pure: many changes become few increments."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import bson
from bson.codec_options import DEFAULT_CODEC_OPTIONS, CodecOptions
from pymongo import UpdateOne

from aioretry.streams._changes import Change

Increments = Callable[[Change], Iterable[tuple[Any, Mapping[str, int]]]]

RESERVED = "aioretry"
_OVERHEAD = 32  # bytes of an update statement, its bucket and counters apart


class Fold:
    """The increments of many changes, added up.

    Args:
        increments: The user's function.
        part: The number of the worker.
        parts: How many workers share the buckets.
        codec_options: How buckets are encoded.
    """

    def __init__(
        self,
        increments: Increments,
        part: int | None = None,
        parts: int = 1,
        codec_options: CodecOptions[Any] = DEFAULT_CODEC_OPTIONS,
    ) -> None:
        self._increments = increments
        self._part = part
        self._parts = parts
        self._codec_options = codec_options
        self._buckets: dict[bytes, tuple[Any, dict[str, int]]] = {}
        self.size = 0
        """About how many bytes the updates have."""

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, change: Change) -> None:
        """Add what a change means.

        Raises:
            TypeError: A counter's increment is not a whole number.
            ValueError: A bucket or a counter has a name that is not allowed.
        """
        for bucket, counters in self._increments(change):
            key = self._encoded(bucket)
            if self._part is None or part_of(key, self._parts) == self._part:
                self._add(key, bucket, counters)

    def updates(self) -> list[UpdateOne]:
        """Return one update for each bucket that the changes have moved."""
        return [
            UpdateOne({"_id": bucket}, {"$inc": moved}, upsert=True)
            for bucket, counters in self._buckets.values()
            if (moved := {name: by for name, by in counters.items() if by})
        ]

    def buckets(self) -> list[Any]:
        """Return the buckets of these updates."""
        return [bucket for bucket, counters in self._buckets.values() if any(counters.values())]

    def counters(self) -> list[str]:
        """Return the names of all counters in them."""
        return sorted({name for _, counters in self._buckets.values() for name in counters})

    def _add(self, key: bytes, bucket: Any, counters: Mapping[str, int]) -> None:
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = (bucket, {})
            self.size += len(key) + _OVERHEAD
        totals = found[1]
        for name, by in counters.items():
            if name not in totals:
                _check_name(name)
                self.size += len(name) + 16
                totals[name] = 0
            if type(by) is not int:
                _check_number(name, by)
            totals[name] += by

    def _encoded(self, bucket: Any) -> bytes:
        if isinstance(bucket, Mapping) and RESERVED in bucket:
            raise ValueError(f"a bucket must not have the field {RESERVED!r}: {bucket!r}")
        return bson.encode({"": bucket}, codec_options=self._codec_options)


def part_of(encoded: bytes, parts: int) -> int:
    """Return the number of the worker that a bucket belongs to; the same in every process."""
    return zlib.crc32(encoded) % parts


def _check_name(name: str) -> None:
    if not name or name == "_id" or name.startswith("$") or "." in name or "\0" in name:
        raise ValueError(f"a counter can't be named {name!r}")


def _check_number(name: str, by: object) -> None:
    # Sums of floats depend on their order: they would never equal a fresh count.
    if isinstance(by, bool) or not isinstance(by, int):
        raise TypeError(f"counter {name!r} is counted in whole numbers, not by {by!r}")
