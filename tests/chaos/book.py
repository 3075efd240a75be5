"""What the writers were told: a ledger for each kind of write, the tickets, and figures."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

from aioretry import Outcome
from aioretry.testing import Ledger

COUNTERS = 20
SHEETS = 100
UNITS = "transactions", "done once"

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

    sessions: dict[str, int] = field(default_factory=dict)
    """How many the servers keep in the end, by when they were counted and how many may be."""

    longest: float = 0.0
    """Seconds that the slowest call took, without what came after its end."""


@dataclass(slots=True)
class Unit:
    """Writes that are applied all or none: a transaction, or work that is done once for a key.

    Each run of it inserts documents of its own.
    """

    kind: str
    number: int
    parts: int
    """How many documents each run inserts, and has inserted before it ends."""

    told: set[Outcome] = field(default_factory=set)
    """How its calls have ended."""

    run: int | None = None
    """The run that was acknowledged."""

    refused: set[str] = field(default_factory=set)
    """Documents that came too late, of which it was said that nothing was sent."""

    @property
    def outcome(self) -> Outcome:
        """How it ended, as far as it was told."""
        return together(self.told or {Outcome.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that ended with an error, of nobody's making but the servers' or the network's."""

    began: float
    ended: float
    """In seconds since the start."""

    is_limited: bool
    """Whether it had a deadline, so that it is retried as often as time allows."""

    text: str


class Book:
    """All that the writers of one client were told.

    Args:
        outcome_of: What an exception says of a write.
    """

    def __init__(self, outcome_of: OutcomeOf) -> None:
        self.outcome_of = outcome_of
        self.ledgers = {
            name: Ledger(outcome_of)
            for name in ("increments", "inserts", "pushes", "deletes", "coalesced", "keyed")
        }
        self.units: list[Unit] = []
        self.tickets = Tickets()
        self.figures = Figures()
        self.sessions: dict[int, Any] = {}
        """PyMongo's, of the transactions."""

        self.abandoned = 0
        """Transactions that were cancelled, whose sessions are not used again."""

        self.failures: list[Failed] = []
        self.findings: list[str] = []
        self._numbers: Counter[str] = Counter()

    def number(self, kind: str) -> int:
        """Return a new number of a kind, from 0 on."""
        self._numbers[kind] += 1
        return self._numbers[kind] - 1

    def unit(self, kind: str, parts: int) -> Unit:
        """Begin a new unit."""
        self.units.append(Unit(kind, self.number(kind), parts))
        return self.units[-1]

    @property
    def dropped_sessions(self) -> int:
        """How many sessions of transactions were neither pooled nor ended."""
        return self.abandoned + sum(session.dirty for session in self.sessions.values())

    @property
    def open_questions(self) -> int:
        """How many writes may still be resolved: those in doubt whose errors are kept here."""
        entries = [entry for ledger in self.ledgers.values() for entry in ledger.entries]
        errors = {id(entry.error): entry.error for entry in entries if entry.error is not None}
        return sum(self.outcome_of(error) is Outcome.UNKNOWN for error in errors.values())

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


def coalesced(number: int) -> Statement:
    """The insert of a document together with others."""
    return Statement("coalesced", number, f"coalesced-{number}")


def keyed(number: int) -> Statement:
    """The push of a number under a key."""
    return Statement("keyed", number, f"keyed-{number % SHEETS}")


def delete(number: int) -> Statement:
    """The delete of a document that was there from the beginning."""
    return Statement("deletes", number, f"victim-{number}")


def document_of(unit: Unit, run: int, part: str) -> str:
    """The `_id` of a document that a run of a unit inserts."""
    return f"{unit.kind}-{unit.number}-{run}-{part}"


def together(told: Collection[Outcome]) -> Outcome:
    """What is known of a write by the ends of several calls for it."""
    return next(outcome for outcome in _BY_WEIGHT if outcome in told)


_BY_WEIGHT = Outcome.APPLIED, Outcome.UNKNOWN, Outcome.NOT_APPLIED

TICKET = "ticket"
