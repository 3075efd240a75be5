"""What the writers were told of each event, beside what the database counted of it; pure.

An event is one thing that happened and should be counted once. It has a number, and the update
that counts it leaves that number in the document too, so that a doubled event and a lost one are
both seen where a plain counter would show neither.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aioretry import Outcome


class Told(enum.Enum):
    """What the caller knows of an event when its write has ended."""

    ACKNOWLEDGED = "acknowledged"
    """The write returned."""

    APPLIED = "applied"
    """It raised, and the error says that the write was applied."""

    NOT_APPLIED = "not applied"
    """It raised, and the error says that the write changed nothing."""

    UNKNOWN = "unknown"
    """It raised, and the error says that this can't be known."""

    NOTHING = "nothing"
    """It raised, and the error says nothing about the write, as a plain driver's errors."""


_BY_OUTCOME: Mapping[Outcome | None, Told] = {
    Outcome.APPLIED: Told.APPLIED,
    Outcome.NOT_APPLIED: Told.NOT_APPLIED,
    Outcome.UNKNOWN: Told.UNKNOWN,
    None: Told.NOTHING,
}


def told_by(outcome: Outcome | None) -> Told:
    """Return what an error with this outcome tells."""
    return _BY_OUTCOME[outcome]


@dataclass(frozen=True, slots=True)
class Tally:
    """One cell of the result: one strategy under one fault."""

    events: int
    """Events that happened."""

    acknowledged: int
    """Events whose write returned."""

    errors: int
    """Events whose write raised."""

    unknown: int
    """Events whose error leaves open whether they were counted, and says so."""

    counted: int
    """What the counters in the database add up to."""

    over: int
    """How often events were counted beyond their first time."""

    under: int
    """Events that were never counted."""

    counted_errors: int
    """Events that were counted although their write raised."""

    false: int
    """Events of which something untrue was told: acknowledged but not counted exactly once, said to
    be not applied but counted, doubled, or, from aioretry, an error without any word."""


def tally(
    told: Mapping[int, Told], times: Mapping[int, int], counter: int, *, must_tell: bool
) -> Tally:
    """Compare what was told with what was counted.

    Args:
        told: What the caller was told of each event, by its number.
        times: How often the database counted each event, by its number.
        counter: What the database's counters add up to.
        must_tell: Whether an error has to say what became of the write.

    Returns:
        The figures.
    """
    numbers = told.keys() | times.keys()
    kinds = list(told.values())
    acknowledged = kinds.count(Told.ACKNOWLEDGED)
    # The counter and the numbers are changed by the same update; they can't differ, unless ...
    broken = abs(counter - sum(times.values()))
    return Tally(
        events=len(told),
        acknowledged=acknowledged,
        errors=len(told) - acknowledged,
        unknown=kinds.count(Told.UNKNOWN),
        counted=counter,
        over=sum(max(0, times.get(number, 0) - (number in told)) for number in numbers),
        under=sum(not times.get(number, 0) for number in told),
        counted_errors=sum(
            bool(times.get(number, 0)) and what is not Told.ACKNOWLEDGED
            for number, what in told.items()
        ),
        false=broken
        + sum(
            not _is_true(told.get(number), times.get(number, 0), must_tell=must_tell)
            for number in numbers
        ),
    )


def _is_true(told: Told | None, times: int, *, must_tell: bool) -> bool:
    match told:
        case Told.ACKNOWLEDGED | Told.APPLIED:
            return times == 1
        case Told.NOT_APPLIED:
            return times == 0
        case Told.UNKNOWN:
            return times <= 1
        case Told.NOTHING:
            return times <= 1 and not must_tell
        case None:
            return False


def exit_code(ours: Iterable[Tally]) -> int:
    """Return 1 if aioretry lost or doubled a write, or told something untrue of one, else 0.

    Args:
        ours: The cells of aioretry's strategies.
    """
    return int(any(cell.false for cell in ours))
