"""Pure: many changes become few increments."""

import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import bson
from bson.codec_options import DEFAULT_CODEC_OPTIONS, CodecOptions, DatetimeConversion
from bson.decimal128 import Decimal128
from bson.regex import Regex
from pymongo import UpdateOne

from aioretry.streams._changes import Change
from aioretry.streams._errors import CounterOverflowError

Increments = Callable[[Change], Iterable[tuple[Any, Mapping[str, int]]]]

RESERVED = "aioretry"
_MOST = 2**63 - 1
_OVERHEAD = 32  # bytes of an update statement, its bucket and counters apart
_AS_STORED = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_MS)


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
        self._buckets: dict[bytes, dict[str, int]] = {}
        self.size = 0
        """About how many bytes the updates have."""

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, change: Change) -> None:
        """Add what a change means.

        Raises:
            TypeError: A counter's increment is not a whole number, or a bucket is a list or a
                regular expression.
            ValueError: A bucket or a counter has a name that is not allowed.
        """
        for bucket, counters in self._increments(change):
            key = self._encoded(bucket)
            if self._part is None or part_of(bucket, self._parts, key) == self._part:
                self._add(key, counters)

    def updates(self) -> list[UpdateOne]:
        """Return one update for each bucket that the changes have moved.

        Raises:
            CounterOverflowError: A counter is moved by more than the server can add.
        """
        for key, counters in self._buckets.items():
            for name, by in counters.items():
                if not -_MOST - 1 <= by <= _MOST:
                    raise CounterOverflowError(overflow(_decoded(key), f"counter {name!r}"))
        return [
            UpdateOne({"_id": {"$eq": _decoded(key)}}, {"$inc": moved}, upsert=True)
            for key, counters in self._buckets.items()
            if (moved := {name: by for name, by in counters.items() if by})
        ]

    def buckets(self) -> list[Any]:
        """Return the buckets of these updates."""
        return [_decoded(key) for key, counters in self._buckets.items() if any(counters.values())]

    def counters(self) -> list[str]:
        """Return the names of all counters in them."""
        return sorted({name for counters in self._buckets.values() for name in counters})

    def _add(self, key: bytes, counters: Mapping[str, int]) -> None:
        totals = self._buckets.get(key)
        if totals is None:
            totals = self._buckets[key] = {}
            self.size += len(key) + _OVERHEAD
        for name, by in counters.items():
            if name not in totals:
                _check_name(name)
                self.size += len(name) + 16
                totals[name] = 0
            if type(by) is not int:
                _check_number(name, by)
            totals[name] += by

    def _encoded(self, bucket: Any) -> bytes:
        _check_bucket(bucket)
        return bson.encode({"": bucket}, codec_options=self._codec_options)


def overflow(bucket: Any, counter: str) -> str:
    """Return what is wrong with a counter that is too large for a server, and what to do."""
    return (
        f"{counter} of bucket {bucket!r} would leave the range of 64-bit integers: let the "
        "increments count in larger units, or in more buckets, under another version, and rebuild"
    )


def part_of(bucket: Any, parts: int, encoded: bytes) -> int:
    """Return the number of the worker that a bucket belongs to; the same in every process."""
    if isinstance(bucket, int | float | Decimal128 | Mapping):
        encoded = bson.encode({"": _without_types(bucket)}, codec_options=_AS_STORED)
    return zlib.crc32(encoded) % parts


def _without_types(value: Any) -> Any:
    """Have numbers that are equal for the server look alike, whatever their types."""
    if isinstance(value, Mapping):
        return {name: _without_types(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_types(each) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        return value
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    # A signaling one, which float() refuses, is the same for the server.
    if number.is_nan() if isinstance(number, Decimal) else math.isnan(number):
        return "nan"
    try:
        return str(Fraction(number))
    except OverflowError:  # infinite
        return str(float(number)).lower()


def _decoded(key: bytes) -> Any:
    # The object that the user gave may be another one by now.
    return bson.decode(key, codec_options=_AS_STORED)[""]


def _check_bucket(bucket: Any) -> None:
    if isinstance(bucket, Mapping):
        if RESERVED in bucket:
            raise ValueError(f"a bucket must not have the field {RESERVED!r}: {bucket!r}")
        if any(str(name).startswith("$") for name in bucket):
            raise ValueError(f"no field of a bucket may begin with '$': {bucket!r}")
    elif isinstance(bucket, list | tuple | re.Pattern | Regex):
        raise TypeError(f"a bucket can't be a {type(bucket).__name__}: {bucket!r}")


def _check_name(name: str) -> None:
    if not name or name == "_id" or name.startswith("$") or "." in name or "\0" in name:
        raise ValueError(f"a counter can't be named {name!r}")


def _check_number(name: str, by: object) -> None:
    # Sums of floats depend on their order: they would never equal a fresh count.
    if isinstance(by, bool) or not isinstance(by, int):
        raise TypeError(f"counter {name!r} is counted in whole numbers, not by {by!r}")
