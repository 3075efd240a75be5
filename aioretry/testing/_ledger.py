"""The ledger: what a test was told of its writes, and whether the database agrees."""

import inspect
import time
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from aioretry.errors import Outcome, outcome_of

T = TypeVar("T")

_KEYS_SHOWN: Final = 20
_WRITES_SHOWN: Final = 5
_KEY_LENGTH: Final = 100
_KEYS_A_READ: Final = 2000
_READ_TIMEOUT_MS: Final = 30_000
_NOT_A_REPLICA_SET: Final = 123


@dataclass(frozen=True, slots=True)
class Entry:
    """One logical write, as its caller saw it.

    Attributes:
        number: its place in the order of recording, from 1.
        key: what the test calls it.
        outcome: how it ended; UNKNOWN while it is still running.
        started: when it was recorded, in seconds since the epoch.
        duration: how long it took, in seconds; None while it is still running, and for a write
            that was recorded with its outcome.
        error: what it raised; None if it returned, or is still running.
        running: whether it has not ended yet.
    """

    number: int
    key: Hashable
    outcome: Outcome
    started: float
    duration: float | None = None
    error: BaseException | None = None
    running: bool = False

    def __str__(self) -> str:
        text = f"#{self.number} {self.outcome.value}"
        if self.running:
            return f"{text}, still running"
        if self.duration is not None:
            text = f"{text} after {self.duration:.3f} s"
        return text if self.error is None else f"{text}, {type(self.error).__name__}"


@dataclass(frozen=True, slots=True)
class KeyCount:
    """How often one key was found in the database, and the writes that were recorded for it.

    Attributes:
        key: the key.
        found: how often it was found.
        entries: the writes, in the order of recording.
    """

    key: Hashable
    found: float
    entries: tuple[Entry, ...]

    @property
    def least(self) -> int:
        """How often it must be there: as often as a write of it was acknowledged."""
        return len(self.ended(Outcome.APPLIED))

    @property
    def most(self) -> int:
        """How often it may be there: each `UNKNOWN` write may be there too."""
        return self.least + len(self.ended(Outcome.UNKNOWN))

    def ended(self, outcome: Outcome) -> tuple[Entry, ...]:
        """Give the writes that ended in an outcome."""
        return tuple(entry for entry in self.entries if entry.outcome is outcome)


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """What the comparison of a ledger with a database came to; `str()` of it is the full text.

    Attributes:
        entries: the writes that were compared.
        durable: whether an acknowledged write was acknowledged at `w: majority` and `j: true`.
        lost: keys that are there less often than they were acknowledged.
        doubled: keys that are there more often than they can be.
        misreported: keys that are there more often than they can be, with `NOT_APPLIED` writes.
        may_be_rolled_back: what would be lost, where acknowledged writes are not durable.
        unrecorded: keys that no write was recorded for, and how often each was found.
    """

    entries: tuple[Entry, ...]
    durable: bool
    lost: tuple[KeyCount, ...]
    doubled: tuple[KeyCount, ...]
    misreported: tuple[KeyCount, ...]
    may_be_rolled_back: tuple[KeyCount, ...]
    unrecorded: Mapping[Any, float]

    @property
    def ok(self) -> bool:
        """Whether ledger and database agree."""
        return not (self.lost or self.doubled or self.misreported)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


class LedgerError(AssertionError):
    """The database is not as the ledger says; the message names the writes.

    Args:
        report: what was found.
    """

    def __init__(self, report: LedgerReport) -> None:
        super().__init__(f"the database is not as the ledger says\n{report}")
        self.report: Final = report


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
    for each `UNKNOWN`.

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
        return f"<Ledger {_counts(self._entries)}, {len(self.unchecked)} unchecked>"

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
            BaseException: what the awaitable raises, cancellation included, as it is.
        """
        index = self._add(key, Outcome.UNKNOWN, running=True)
        return self._settle(index, time.monotonic(), awaitable)

    def record(self, key: Hashable, outcome: Outcome, error: BaseException | None = None) -> None:
        """Record a write whose outcome was learnt in another way, as from an HTTP status.

        Args:
            key: what the write leaves in the database; any hashable value.
            outcome: how it ended.
            error: what it failed with, if anything.
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
        index = len(self._entries)
        self._entries.append(
            Entry(index + 1, key, outcome, time.time(), error=error, running=running)
        )
        return index

    async def _settle(self, index: int, begun: float, awaitable: Awaitable[T]) -> T:
        try:
            result = await awaitable
        except BaseException as exc:
            self._end(index, begun, self._outcome_of(exc) or Outcome.UNKNOWN, exc)
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
        report = _compare((*entries, *begun), applied, durable)
        if not report.ok:
            raise LedgerError(report)
        return report


def _compare(
    entries: tuple[Entry, ...], applied: Mapping[Any, float], durable: bool
) -> LedgerReport:
    by_key: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        by_key.setdefault(entry.key, []).append(entry)
    counts = [KeyCount(key, applied.get(key, 0), tuple(own)) for key, own in by_key.items()]
    missing = tuple(count for count in counts if count.found < count.least)
    excess = [count for count in counts if count.found > count.most]
    return LedgerReport(
        entries,
        durable,
        lost=missing if durable else (),
        doubled=tuple(count for count in excess if not count.ended(Outcome.NOT_APPLIED)),
        misreported=tuple(count for count in excess if count.ended(Outcome.NOT_APPLIED)),
        may_be_rolled_back=() if durable else missing,
        unrecorded={key: found for key, found in applied.items() if found and key not in by_key},
    )


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


def _counts(entries: Sequence[Entry]) -> str:
    outcomes = Counter(entry.outcome for entry in entries)
    running = sum(entry.running for entry in entries)
    parts = [f"{outcomes[outcome]} {outcome.value}" for outcome in Outcome if outcomes[outcome]]
    total = "1 write" if len(entries) == 1 else f"{len(entries)} writes"
    text = ", ".join([total, *parts])
    return f"{text} ({running} still running)" if running else text


def _lines(report: LedgerReport) -> Iterator[str]:
    yield _counts(report.entries)
    yield from _section("lost, acknowledged and yet not there", report.lost, _with(Outcome.APPLIED))
    yield from _section("doubled, there more often than it can be", report.doubled, _doubtful_first)
    yield from _section(
        "misreported, NOT_APPLIED and yet there", report.misreported, _with(Outcome.NOT_APPLIED)
    )
    if not report.durable:
        yield "below w: majority and j: true, an acknowledged write may be rolled back"
    yield from _section(
        "may be rolled back, acknowledged and not there",
        report.may_be_rolled_back,
        _with(Outcome.APPLIED),
    )
    if report.unrecorded:
        shown = [
            f"  {_shown(key)}: found {found}"
            for key, found in list(report.unrecorded.items())[:_KEYS_SHOWN]
        ]
        yield f"there, and not recorded (keys: {len(report.unrecorded)}):"
        yield from _cut(shown, len(report.unrecorded), "  ", "keys")


def _section(
    title: str, counts: Sequence[KeyCount], choose: Callable[[KeyCount], Sequence[Entry]]
) -> Iterator[str]:
    if not counts:
        return
    yield f"{title} (keys: {len(counts)}):"
    lines = [_line(count, choose(count)) for count in counts[:_KEYS_SHOWN]]
    yield from _cut(lines, len(counts), "  ", "keys")


def _line(count: KeyCount, entries: Sequence[Entry]) -> str:
    expected = f"{count.least}" if count.least == count.most else f"{count.least} to {count.most}"
    writes = _cut(list(map(str, entries[:_WRITES_SHOWN])), len(entries), "", "writes")
    return f"  {_shown(count.key)}: expected {expected}, found {count.found}: {'; '.join(writes)}"


def _cut(shown: Sequence[str], total: int, indent: str, what: str) -> Sequence[str]:
    rest = total - len(shown)
    return [*shown, f"{indent}and {rest} more {what}"] if rest else shown


def _with(outcome: Outcome) -> Callable[[KeyCount], Sequence[Entry]]:
    return lambda count: count.ended(outcome)


def _doubtful_first(count: KeyCount) -> Sequence[Entry]:
    return sorted(count.entries, key=lambda entry: entry.outcome is Outcome.APPLIED)


def _shown(key: Hashable) -> str:
    text = repr(key)
    return text if len(text) <= _KEY_LENGTH else f"{text[:_KEY_LENGTH]}..."
