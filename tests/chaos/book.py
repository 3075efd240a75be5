"""What the writers were told: a ledger for each kind of write, the tickets, and figures."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from aioretry import Outcome
from aioretry.testing import Ledger

COUNTERS = 20
SHEETS = 100

OutcomeOf = Callable[[BaseException], Outcome | None]


@dataclass(slots=True)
class Tickets:
    """What the takers of tickets were told."""

    given: list[int] = field(default_factory=list)
    """The numbers, in the order in which they were given."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    """How the calls ended that raised."""


@dataclass(slots=True)
class Figures:
    """What is counted of the calls of one client."""

    acknowledged: Counter[str] = field(default_factory=Counter)
    """By kind of call."""

    failed: Counter[str] = field(default_factory=Counter)
    """By what the error said of the write."""

    errors: Counter[str] = field(default_factory=Counter)
    """By the class of the error."""

    cancelled: int = 0
    """Calls that were cancelled while they ran."""

    resolved: Counter[str] = field(default_factory=Counter)
    """What came of resolving."""

    longest: float = 0.0
    """Seconds that the slowest call took, without what came after its end."""


class Book:
    """All that the writers of one client were told.

    Args:
        outcome_of: What an exception says of a write.
    """

    def __init__(self, outcome_of: OutcomeOf) -> None:
        self.outcome_of = outcome_of
        self.ledgers = {
            name: Ledger(outcome_of) for name in ("increments", "inserts", "pushes", "deletes")
        }
        self.tickets = Tickets()
        self.figures = Figures()
        self.findings: list[str] = []
        self._numbers: Counter[str] = Counter()

    def number(self, kind: str) -> int:
        """Return a new number of a kind, from 0 on."""
        self._numbers[kind] += 1
        return self._numbers[kind] - 1

    def find(self, what: str) -> None:
        """Note something that must not be."""
        self.findings.append(what)


@dataclass(frozen=True, slots=True)
class Statement:
    """One write, as the ledger and the database know it."""

    ledger: str
    """Which ledger it is for."""

    key: Hashable
    """What it is called there."""

    document: str
    """The `_id` of its document."""


def increment(counter: int) -> Statement:
    """The increment of a counter; its key is shared by all of them."""
    return Statement("increments", counter, f"counter-{counter}")


def insert(number: int) -> Statement:
    """The insert of a document."""
    return Statement("inserts", number, f"insert-{number}")


def push(number: int) -> Statement:
    """The push of a number to one of the sheets."""
    return Statement("pushes", number, f"sheet-{number % SHEETS}")


def delete(number: int) -> Statement:
    """The delete of a document that was there from the beginning."""
    return Statement("deletes", number, f"victim-{number}")


TICKET = "ticket"
