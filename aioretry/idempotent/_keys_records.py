"""The collections in which records of keys are kept for a while."""

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from bson.codec_options import CodecOptions
from pymongo import ReadPreference, ReturnDocument
from pymongo.errors import AutoReconnect, DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry import DeadlineExceeded, KeyedStatement, deadline, detached, run_transaction
from aioretry._faces import Collection, Database, Session
from aioretry.errors import copy_of
from aioretry.idempotent._errors import IdempotencyConflict, KeyExpiredError
from aioretry.idempotent._per_client import PerClient
from aioretry.idempotent._repeat import until_done

T = TypeVar("T")

MAJORITY = WriteConcern(w="majority", j=True)
MOST_BYTES = 15 * 2**20
"""How much of what is kept of an operation, or of work, fits into its record."""

_PLAIN: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
_PAUSE = 0.1
# Of several upserts of one record at the same time, all but one may be refused, once.
_MOST_TRIES = 5
_TRANSIENT = "RetryableWriteError"


class Records:
    """One collection of records in each database.

    Args:
        name: The collection's.
        seconds: How long a record is kept.
    """

    def __init__(self, name: str, seconds: int) -> None:
        self._name = name
        self._seconds = seconds
        self._prepared: PerClient[set[str]] = PerClient(lambda _: set())
        self._preparing: dict[tuple[int, str], asyncio.Task[str]] = {}

    async def of(self, database: Database) -> Collection:
        """Return the records in a database; the first time, with their index."""
        records: Collection = database.get_collection(
            self._name,
            codec_options=_PLAIN,
            read_preference=ReadPreference.PRIMARY,
            write_concern=MAJORITY,
            read_concern=ReadConcern("majority"),
        )
        prepared = self._prepared.of(database.client)
        if database.name not in prepared:
            place = (id(database.client), database.name)
            await insist(lambda: self._prepare(place, records))
            prepared.add(database.name)
        return records

    async def _prepare(self, place: tuple[int, str], records: Collection) -> None:
        """Make the index, or wait for another caller's doing so, as long as the deadline allows."""
        task = self._preparing.get(place)
        if task is None:
            # Many wait for it: whoever began it may be cancelled, or have less time than others.
            task = detached(asyncio.create_task, self._create_index(records))
            self._preparing[place] = task
            task.add_done_callback(lambda task: self._end(place, task))
        with deadline(None) as limit:
            left = limit.remaining() if limit is not None and limit.is_limited else None
        done, _ = await asyncio.wait({task}, timeout=left)
        if not done:
            raise DeadlineExceeded("the deadline is over; the records of keys have no index yet")
        error = task.exception()
        if error is not None:
            raise copy_of(error).with_traceback(error.__traceback__)

    async def _create_index(self, records: Collection) -> str:
        return await records.create_index("at", expireAfterSeconds=self._seconds)

    def _end(self, place: tuple[int, str], task: "asyncio.Task[str]") -> None:
        del self._preparing[place]
        if not task.cancelled():
            task.exception()  # those who wait have it, if any are left


async def transact(database: Database, work: Callable[[Session], Awaitable[T]]) -> T:
    """Run work and commit it with its record, whatever the defaults of the database's client."""
    return await run_transaction(
        database.client,
        work,
        read_concern=ReadConcern("majority"),
        write_concern=MAJORITY,
        read_preference=ReadPreference.PRIMARY,
    )


async def remember(
    records: Collection,
    record_id: bytes,
    statement: KeyedStatement,
    fingerprint: bytes,
) -> float:
    """Record what a key is used for, or compare it with what it was used for.

    Returns:
        How long ago the key was used first, in seconds, by the servers' clocks.

    Raises:
        IdempotencyConflict: It was used for something else.
        KeyExpiredError: It was used so long ago that the servers may have forgotten.
    """
    began = time.monotonic()
    record = await _first(records, record_id, statement.operation, fingerprint)
    require_same(statement, fingerprint, record)
    by_clocks: float = (record["seen"] - record["at"]).total_seconds()
    by_cluster_time: int = record["seen_cluster_time"].time - record["cluster_time"].time
    age = max(0.0, by_clocks, by_cluster_time) + time.monotonic() - began
    if age >= statement.trusted_seconds:
        raise KeyExpiredError(
            f"this key was first used {age:.0f} s ago; what the servers remember can be relied on "
            f"for {statement.trusted_seconds:.0f} s"
        )
    return age


def require_same(statement: KeyedStatement, fingerprint: bytes, record: Any) -> None:
    """Raise an IdempotencyConflict if a record is of another statement."""
    where = f"write {statement.index + 1} under this key"
    if record["kind"] != statement.operation:
        raise IdempotencyConflict(
            f"{where} was {record['kind']} when it was used first, and is {statement.operation} now"
        )
    if record["payload"] != fingerprint:
        raise IdempotencyConflict(
            f"{where} is {statement.operation} as it was first, but its arguments are others"
        )


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Do what can be repeated, again after a lost connection: once, or while a deadline allows.

    Args:
        call: Does it; under a deadline it fails by itself once that is over.
    """
    tries = itertools.count(1)

    def wait_after(exc: Exception) -> float | None:
        number = next(tries)
        lost = isinstance(exc, PyMongoError) and (
            isinstance(exc, AutoReconnect) or exc.has_error_label(_TRANSIENT)
        )
        passes = lost and not cast(PyMongoError, exc).timeout
        return _PAUSE * number if passes and number < _MOST_TRIES else None

    return await until_done(call, wait_after)


async def _first(
    records: Collection,
    record_id: bytes,
    operation: str,
    fingerprint: bytes,
) -> dict[str, Any]:
    # All times are the servers', so that the processes' clocks don't matter.
    first = {
        "kind": {"$ifNull": ["$kind", {"$literal": operation}]},
        "payload": {"$ifNull": ["$payload", {"$literal": fingerprint}]},
        "at": {"$ifNull": ["$at", "$$NOW"]},
        "seen": "$$NOW",
        # Cluster time never goes back. A server whose clock was ahead may have forgotten by it.
        "cluster_time": {"$ifNull": ["$cluster_time", "$$CLUSTER_TIME"]},
        "seen_cluster_time": "$$CLUSTER_TIME",
    }
    tries = 0
    while True:
        tries += 1
        try:
            found = await records.find_one_and_update(
                {"_id": record_id},
                [{"$set": first}],
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        except DuplicateKeyError:
            if tries == _MOST_TRIES:
                raise
        else:
            return cast(dict[str, Any], found)


def whole_seconds(name: str, value: object, least: int) -> int:
    """Return a number of seconds, rounded up."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not least <= value < math.inf:
        raise ValueError(f"{name} must be a number of seconds from {least} on, not {value!r}")
    return math.ceil(value)
