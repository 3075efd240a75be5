"""What a ledger's comparison with a database comes to, and how it reads."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aioretry.errors import Outcome

_KEYS_SHOWN: Final = 20
_WRITES_SHOWN: Final = 5
_KEY_LENGTH: Final = 100


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
        """How often it must be there; as often as a write of it was acknowledged."""
        return len(self.ended(Outcome.APPLIED))

    @property
    def most(self) -> int:
        """How often it may be there; each ``UNKNOWN`` write may be there too."""
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


def compare(
    entries: tuple[Entry, ...], applied: Mapping[Any, float], *, durable: bool
) -> LedgerReport:
    """Compare writes with what was found."""
    counts = _count(entries, applied)
    missing = tuple(count for count in counts.values() if count.found < count.least)
    excess: dict[bool, list[KeyCount]] = {True: [], False: []}
    for count in counts.values():
        if count.found > count.most:
            excess[bool(count.ended(Outcome.NOT_APPLIED))].append(count)
    return LedgerReport(
        entries,
        durable,
        lost=missing if durable else (),
        doubled=tuple(excess[False]),
        misreported=tuple(excess[True]),
        may_be_rolled_back=() if durable else missing,
        unrecorded={key: found for key, found in applied.items() if found and key not in counts},
    )


def _count(entries: tuple[Entry, ...], applied: Mapping[Any, float]) -> Mapping[Hashable, KeyCount]:
    by_key: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        by_key.setdefault(entry.key, []).append(entry)
    return {key: KeyCount(key, applied.get(key, 0), tuple(own)) for key, own in by_key.items()}


def counted(entries: Sequence[Entry]) -> str:
    """Say how many writes there are, and how they ended."""
    outcomes = Counter(entry.outcome for entry in entries)
    running = sum(entry.running for entry in entries)
    parts = [f"{outcomes[outcome]} {outcome.value}" for outcome in Outcome if outcomes[outcome]]
    total = "1 write" if len(entries) == 1 else f"{len(entries)} writes"
    text = ", ".join([total, *parts])
    return f"{text} ({running} still running)" if running else text


def _lines(report: LedgerReport) -> Iterator[str]:
    yield counted(report.entries)
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
