"""What was told beside what the database has; pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aioretry import Outcome
from aioretry.testing import KeyCount, Ledger, LedgerError
from tests.chaos.book import UNITS, Book, Failed, Tickets, Unit, document_of
from tests.chaos.schedule import Kind
from tests.chaos.timeline import Happened
from tests.chaos.truth import Found

# How often one call may be sent in the first second, and in each one after that; and how many calls
# a writer has at once, where it resolves a burst.
_FIRST, _LATER = 7, 2
_CALLS_AT_ONCE = 2
_AFTERMATH = 5.0  # seconds in which what was healed may still be felt, as by an election


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is true of the writes of one kind."""

    kind: str
    writes: int
    outcomes: Mapping[Outcome, int]
    """How many writes ended so, as it was told."""

    late: int
    """Writes that failed, and were applied all the same."""

    lost: int = 0
    """Acknowledged, and not there."""

    doubled: int = 0
    """There more often than it can be."""

    wrong: int = 0
    """Said to be not applied, and there."""

    details: str = ""
    """What the ledger says of those."""

    @property
    def is_true(self) -> bool:
        """Whether nothing is lost or doubled, and nothing was said that is not so."""
        return not (self.lost or self.doubled or self.wrong)


def judge(book: Book, found: Found) -> list[Verdict]:
    """Compare all that was told with what the database has.

    Args:
        book: What the writers were told.
        found: What the database has.

    Returns:
        A verdict for each kind of write.
    """
    verdicts = [
        judge_ledger(kind, ledger, found.applied[kind]) for kind, ledger in book.ledgers.items()
    ]
    verdicts.append(judge_tickets(book.tickets, found.tickets))
    for kind in UNITS:
        units = [unit for unit in book.units if unit.kind == kind]
        verdicts.append(judge_units(kind, units, found.units[kind]))
    return verdicts


def judge_ledger(kind: str, ledger: Ledger, applied: Mapping[int, int]) -> Verdict:
    """Ask a ledger.

    Args:
        kind: The kind of its writes.
        ledger: What was told.
        applied: How often each of them was found.
    """
    details = ""
    try:
        report = ledger.check(applied)
    except LedgerError as exc:
        report, details = exc.report, str(exc)
    if report.unrecorded:
        details = details or str(report)
    outcomes = Counter(entry.outcome for entry in report.entries)
    strange = sum(report.unrecorded.values())
    lost = sum(count.least - count.found for count in report.lost)
    doubled = strange + _beyond(report.doubled)
    wrong = _beyond(report.misreported)
    late = sum(applied.values()) - outcomes[Outcome.APPLIED] + lost - doubled
    return Verdict(
        kind, len(report.entries), outcomes, int(late), int(lost), int(doubled), int(wrong), details
    )


def _beyond(counts: Sequence[KeyCount]) -> float:
    return sum(count.found - count.most for count in counts)


def judge_tickets(tickets: Tickets, last: int) -> Verdict:
    """Compare the tickets that were given with the counter that they come from.

    Args:
        tickets: What their takers were told.
        last: The counter.
    """
    given = Counter(tickets.given)
    outcomes = Counter(tickets.outcomes)
    applied_for_nobody = outcomes[Outcome.APPLIED]
    nobodys = sum(number not in given for number in range(1, last + 1))
    lost = sum(not 1 <= number <= last for number in given) + max(0, applied_for_nobody - nobodys)
    doubled = sum(times - 1 for times in given.values())
    wrong = max(0, nobodys - applied_for_nobody - outcomes[Outcome.UNKNOWN])
    outcomes[Outcome.APPLIED] += len(tickets.given)
    return Verdict(
        "tickets",
        outcomes.total(),
        outcomes,
        nobodys,
        lost,
        doubled,
        wrong,
        _tickets_text(given, last) if lost or doubled or wrong else "",
    )


def _tickets_text(given: Counter[int], last: int) -> str:
    twice = sorted(number for number, times in given.items() if times > 1)
    strange = sorted(number for number in given if not 1 <= number <= last)
    nobodys = [number for number in range(1, last + 1) if number not in given]
    return (
        f"tickets, of which the last is {last}: given twice {twice[:20]}, "
        f"given and not there {strange[:20]}, given to nobody {nobodys[:20]}"
    )


def judge_units(
    kind: str, units: Sequence[Unit], found: Mapping[int, Mapping[int, Collection[str]]]
) -> Verdict:
    """Compare what was told of transactions with what is there: all of one run, or nothing.

    Args:
        kind: Their kind.
        units: What was told.
        found: The parts of each run that were found, by unit.
    """
    outcomes = Counter(unit.outcome for unit in units)
    late = lost = doubled = wrong = 0
    details = []
    for unit in units:
        runs = found.get(unit.number, {})
        whole = {str(part) for part in range(unit.parts)}
        torn = [run for run, parts in runs.items() if not whole.issubset(parts)]
        strays = [
            document
            for run, parts in runs.items()
            for document in (document_of(unit, run, part) for part in parts)
            if document in unit.refused
        ]
        told = unit.outcome
        is_lost = told is Outcome.APPLIED and unit.run not in runs
        is_wrong = bool(torn or strays or (told is Outcome.NOT_APPLIED and runs))
        late += told is not Outcome.APPLIED and bool(runs)
        lost += is_lost
        doubled += len(runs) > 1
        wrong += is_wrong
        if is_lost or is_wrong or len(runs) > 1:
            details.append(f"{unit}: found {runs}")
    return Verdict(kind, len(units), outcomes, late, lost, doubled, wrong, "\n".join(details[:20]))


def unexplained(failures: Iterable[Failed], faults: Sequence[Happened]) -> list[Failed]:
    """Find calls that failed although nothing was broken that a healthy driver would not bear.

    That is a part of the connections: a call that is cut once is retried, and under a deadline it
    is retried as often as it is cut.

    Args:
        failures: Calls that failed, and were neither cancelled nor hurried.
        faults: What was broken when.
    """
    cuts = [fault for fault in faults if fault.kind is Kind.HALF_DEAD]
    others = [fault for fault in faults if fault.kind is not Kind.HALF_DEAD]

    def is_explained(call: Failed) -> bool:
        if any(one.began <= call.ended and call.began <= one.ended + _AFTERMATH for one in others):
            return True
        times = sum(call.began <= at <= call.ended for one in cuts for at in one.strokes)
        return times > 1 and not call.is_limited

    return [call for call in failures if not is_explained(call)]


def too_hot(faults: Iterable[Happened], writers: int) -> list[Happened]:
    """Find commands that broke their connections, and were sent again without measure.

    Args:
        faults: What was broken.
        writers: How many tasks wrote at once.
    """
    calls = writers * _CALLS_AT_ONCE
    return [
        fault
        for fault in faults
        if fault.kind is Kind.HOT_BREAK
        and fault.fired > calls * (_FIRST + _LATER * (fault.ended - fault.began))
    ]
