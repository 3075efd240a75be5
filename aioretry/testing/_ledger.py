"""The ledger: what a test was told of its writes, and whether the database agrees."""

import inspect
import time
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from aioretry.errors import Outcome, outcome_of
from aioretry.testing._ledger_report import Entry, LedgerError, LedgerReport, compare, counted

T = TypeVar("T")

_KEYS_A_READ: Final = 2000
_READ_TIMEOUT_MS: Final = 30_000
_NOT_A_REPLICA_SET: Final = 123


class Collection(Protocol):
    """What a check needs of a collection: one of aioretry, of Motor, or of PyMongo's asyncio."""

    @property
    def write_concern(self) -> WriteConcern:
        """The write concern of its writes."""
        ...

    def with_options(self, *, read_preference: Any, read_concern: Any) -> Any:
        """Give the same collection, read in another way."""
        ...


class Ledger:
    """Records every logical write of a test, and checks the database against it.

    Each acknowledged write must be there exactly once, each `NOT_APPLIED` never, and each
    `UNKNOWN` at most once. Writes may share a key, as the increments of one counter do: then the
    key must be there at least as often as it was acknowledged, and at most so often and once more
    for each `UNKNOWN`::

        ledger = Ledger()
        await ledger.write("a", events.insert_one({"_id": "a"}))
        await ledger.check_marks(events)

    Any number of writes may run at once, on one event loop.

    Args:
        outcome: says how the write that raised an exception ended. Where it says None, as
            `outcome_of` does of other drivers' exceptions, the write counts as `UNKNOWN`.
    """

    def __init__(self, outcome: Callable[[BaseException], Outcome | None] = outcome_of) -> None:
        self._outcome_of = outcome
        self._entries: list[Entry] = []
        self._checked: tuple[Outcome, ...] = ()  # of the first entries, as they were last checked

    def __repr__(self) -> str:
        return f"<Ledger {counted(self._entries)}, {len(self.unchecked)} unchecked>"

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The writes so far, in the order of recording."""
        return tuple(self._entries)

    @property
    def unchecked(self) -> tuple[Entry, ...]:
        """The writes that no check has looked at since they were recorded, or since they ended.

        A write that a check found still running counts as checked while it stays `UNKNOWN`.
        """
        checked = len(self._checked)
        changed = [
            entry
            for entry, outcome in zip(self._entries, self._checked, strict=False)
            if entry.outcome is not outcome
        ]
        return (*changed, *self._entries[checked:])

    def write(self, key: Hashable, awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
        """Record a write, await it, and record how it ended.

        It is recorded by the call already, as `UNKNOWN`: a task that is cancelled before its first
        step has a driver's running future in its hands.

        Args:
            key: what the write leaves in the database; any hashable value.
            awaitable: the write: a driver's future, a coroutine, an HTTP call.

        Returns:
            A coroutine to be awaited once. It gives the awaitable's result; a result that says
            that it is not `acknowledged`, as at `w: 0`, leaves the write `UNKNOWN`.

        Raises:
            TypeError: the key can't be hashed, or nothing awaitable was given.
            BaseException: what the awaitable raises, cancellation included, as it is.
        """
        if not inspect.isawaitable(awaitable):
            raise TypeError(f"awaitable is {awaitable!r}: the awaitable of a write is needed")
        index = self._add(key, Outcome.UNKNOWN, running=True)
        return self._settle(index, time.monotonic(), awaitable)

    def record(self, key: Hashable, outcome: Outcome, error: BaseException | None = None) -> None:
        """Record a write whose outcome was learnt in another way, as from an HTTP status.

        Args:
            key: what the write leaves in the database; any hashable value.
            outcome: how it ended.
            error: what it failed with, if anything.

        Raises:
            TypeError: the key can't be hashed, or the outcome is none.
        """
        self._add(key, outcome, error=error)

    def check(self, applied: Mapping[Any, float], *, durable: bool = True) -> LedgerReport:
        """Compare the ledger with what was found in a database.

        Args:
            applied: how often each key was found; a key that is not in it was not found. Keys that
                no write was recorded for are no error, as a collection may hold other things; they
                are listed in the report.
            durable: whether the writes were acknowledged at `w: majority` and `j: true`. If not,
                acknowledged writes that are not there are no error: they may have been rolled
                back, and are listed in the report as such.

        Returns:
            What was found.

        Raises:
            LedgerError: they disagree.
        """
        __tracebackhide__ = True
        return self._check(self.entries, applied, durable)

    async def check_marks(
        self, collection: Collection, field: str = "_id", *, durable: bool | None = None
    ) -> LedgerReport:
        """Compare the ledger with the marks in a collection: values that are the writes' keys.

        The primary is read, once every acknowledged write is visible there, and only for the
        recorded keys. So keys must come back from the database as they went in.

        Args:
            collection: the collection that was written to, with the write concern of the writes.
            field: the field whose value is a key, or an array of keys.
            durable: as for `check`. None asks the collection, which knows only what was set in
                code or in the URI; a server's own default is taken for less than durable.

        Returns:
            What was found.

        Raises:
            LedgerError: they disagree.
            PyMongoError: the collection could not be read within 30 seconds.
        """
        __tracebackhide__ = True

        def pipeline(keys: Sequence[Hashable]) -> list[dict[str, Any]]:
            return [
                {"$match": {field: {"$in": keys}}},
                {"$project": {"_id": 0, "mark": f"${field}"}},
                {"$unwind": "$mark"},
                {"$match": {"mark": {"$in": keys}}},
                {"$group": {"_id": "$mark", "count": {"$sum": 1}}},
            ]

        return await self._check_collection(collection, pipeline, durable)

    async def check_counters(
        self, collection: Collection, field: str, *, durable: bool | None = None
    ) -> LedgerReport:
        """Compare the ledger with counters: `_id` is the key, and each of its writes added one.

        It reads as `check_marks` does.

        Args:
            collection: the collection that was written to, with the write concern of the writes.
            field: the field that counts; where it is missing or no number, the count is 0.
            durable: as for `check_marks`.

        Returns:
            What was found.

        Raises:
            LedgerError: they disagree.
            PyMongoError: the collection could not be read within 30 seconds.
        """
        __tracebackhide__ = True

        def pipeline(keys: Sequence[Hashable]) -> list[dict[str, Any]]:
            return [
                {"$match": {"_id": {"$in": keys}}},
                {"$group": {"_id": "$_id", "count": {"$sum": f"${field}"}}},
            ]

        return await self._check_collection(collection, pipeline, durable)

    def _add(
        self,
        key: Hashable,
        outcome: Outcome,
        *,
        error: BaseException | None = None,
        running: bool = False,
    ) -> int:
        hash(key)  # an unhashable one is refused here, not at the end of the test
        _require_outcome("outcome", outcome)
        index = len(self._entries)
        self._entries.append(
            Entry(index + 1, key, outcome, time.time(), error=error, running=running)
        )
        return index

    async def _settle(self, index: int, begun: float, awaitable: Awaitable[T]) -> T:
        try:
            result = await awaitable
        except BaseException as exc:
            self._end(index, begun, Outcome.UNKNOWN, exc)  # in case the next line raises
            outcome = self._outcome_of(exc) or Outcome.UNKNOWN
            _require_outcome("the result of `outcome`", outcome)
            self._end(index, begun, outcome, exc)
            raise
        refused = getattr(result, "acknowledged", True) is False
        self._end(index, begun, Outcome.UNKNOWN if refused else Outcome.APPLIED)
        return result

    def _end(
        self, index: int, begun: float, outcome: Outcome, error: BaseException | None = None
    ) -> None:
        self._entries[index] = replace(
            self._entries[index],
            outcome=outcome,
            duration=time.monotonic() - begun,
            error=error,
            running=False,
        )

    async def _check_collection(
        self,
        collection: Collection,
        pipeline: Callable[[Sequence[Hashable]], list[dict[str, Any]]],
        durable: bool | None,
    ) -> LedgerReport:
        __tracebackhide__ = True
        entries = self.entries
        keys = list(dict.fromkeys(entry.key for entry in entries))
        applied: dict[Any, float] = {}
        for start in range(0, len(keys), _KEYS_A_READ):
            applied |= await _count(collection, pipeline(keys[start : start + _KEYS_A_READ]))
        if durable is None:
            durable = _is_durable(collection.write_concern)
        return self._check(entries, applied, durable)

    def _check(
        self, entries: tuple[Entry, ...], applied: Mapping[Any, float], durable: bool
    ) -> LedgerReport:
        __tracebackhide__ = True
        self._checked = tuple(entry.outcome for entry in entries)
        # What began while the database was read may have been seen there, or not.
        begun = [replace(entry, outcome=Outcome.UNKNOWN) for entry in self._entries[len(entries) :]]
        report = compare((*entries, *begun), applied, durable=durable)
        if not report.ok:
            raise LedgerError(report)
        return report


def _require_outcome(name: str, outcome: object) -> None:
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{name} is {outcome!r}: an Outcome is needed")


def _is_durable(write_concern: WriteConcern) -> bool:
    document = write_concern.document
    return bool(document.get("w") == "majority" and document.get("j"))


async def _count(collection: Collection, pipeline: list[dict[str, Any]]) -> dict[Any, float]:
    # At read concern majority a primary that was just elected does not show yet what it took over
    # from its predecessor last, and one that was just deposed does not show its successor's
    # writes; linearizable waits for the former, and fails for the latter.
    try:
        return await _aggregate(collection, pipeline, ReadConcern("linearizable"))
    except OperationFailure as exc:
        if exc.code != _NOT_A_REPLICA_SET:
            raise
        return await _aggregate(collection, pipeline, ReadConcern("majority"))


async def _aggregate(
    collection: Collection, pipeline: list[dict[str, Any]], read_concern: ReadConcern
) -> dict[Any, float]:
    reader = collection.with_options(
        read_preference=ReadPreference.PRIMARY, read_concern=read_concern
    )
    # Keys are told apart by their bytes, whatever collation the collection has.
    cursor = reader.aggregate(pipeline, collation={"locale": "simple"}, maxTimeMS=_READ_TIMEOUT_MS)
    if inspect.isawaitable(cursor):
        cursor = await cursor
    return {_key(row["_id"]): row["count"] async for row in cursor}


def _key(value: Any) -> Hashable:
    return tuple(map(_key, value)) if isinstance(value, list) else value
