"""What was told beside what the database has; pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aioretry import Outcome
from aioretry.testing import KeyCount, Ledger, LedgerError
from tests.chaos.book import Book, Tickets
from tests.chaos.truth import Found


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
    return [*verdicts, judge_tickets(book.tickets, found.tickets)]


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
