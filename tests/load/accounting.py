"""What a load run came to (pure): what the clients were told, beside what the database has."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    at: float
    """When it was answered, or failed, in seconds since the run began."""

    seconds: float
    """How long that took."""

    status: int | None
    """The HTTP status; None if the connection broke, or nothing came for too long."""

    text: str = ""
    """What it says, if it is no success."""

    service: str = ""
    """The URL of the process that was asked."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """Answers that no client should get, and that say the same."""

    what: str
    number: int
    first: float
    """When the first one came, in seconds since the run began."""

    last: float
    seconds: float
    """How long the slowest one took."""


@dataclass(slots=True)
class Asked:
    """An order that a client wants; each has an Idempotency-Key of its own."""

    key: str
    sku: str
    quantity: int
    ids: set[str] = field(default_factory=set)
    """The order's ids in the answers that accepted it."""

    refused: int | None = None
    """The status by which it was refused for good."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An order in the database."""

    id: str
    sku: str
    quantity: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """What was told of an order, once that was committed."""

    id: str
    """The entry's."""

    sku: str
    order: str
    left: int
    """The pieces of the article after the order: the next order of it leaves fewer."""

    by: int = 0
    """The process of the relay that has told it."""


@dataclass(frozen=True, slots=True)
class Handed:
    """Whether what was told agrees with the database."""

    deliveries: int
    again: int
    """How many of them were of an entry that was told before."""

    lost: int
    """Stored orders of which nothing was told."""

    strange: int
    """What was told of orders that are not stored, or was told twice with different ids."""

    disordered: int
    """What was told first after what came later."""

    @property
    def is_true(self) -> bool:
        """Whether each stored order was told, with one id, in its order."""
        return not (self.lost or self.strange or self.disordered)


@dataclass(frozen=True, slots=True)
class Figures:
    """How the service answered."""

    requests: int
    statuses: Mapping[int | None, int]
    broken: int
    """Answers 5xx but for 504, and connections that broke."""

    late: int
    """Answers later than the deadline and the grace."""

    p50: float
    p99: float
    longest: float
    pause: tuple[float, float]
    """The longest time without any success: when it began, and how many seconds it was."""

    complaints: Sequence[Complaint]


@dataclass(frozen=True, slots=True)
class Books:
    """Whether the database agrees with the clients."""

    accepted: int
    stored: int
    undecided: int
    """Orders of which their clients never learnt."""

    refused: int
    """Orders that were refused for good; none should be."""

    doubled: int
    """Orders in the database beyond one for each that was accepted or is undecided."""

    lost: int
    """Accepted orders that are not there, or not as they were asked for."""

    renamed: int
    """Orders whose repeated request was answered with another id."""

    stock_off: int
    """By how many pieces the stock is not what the stored orders have left of it."""

    @property
    def is_true(self) -> bool:
        """Whether every accepted order is there once, and the stock is right."""
        return not (self.refused or self.doubled or self.lost or self.renamed or self.stock_off)


def figures_of(
    answers: Sequence[Answer], *, seconds: float, deadline: float, grace: float
) -> Figures:
    """Sum up the answers.

    Args:
        answers: All of them, in any order.
        seconds: How long the run was.
        deadline: How many seconds each request gave.
        grace: How many more seconds an answer may take to arrive.
    """
    statuses = Counter(answer.status for answer in answers)
    taken = sorted(answer.seconds for answer in answers)
    successes = (answer.at for answer in answers if is_success(answer.status))
    latest = deadline + grace
    return Figures(
        requests=len(answers),
        statuses=statuses,
        broken=sum(number for status, number in statuses.items() if is_broken(status)),
        late=sum(answer.seconds > latest for answer in answers),
        p50=percentile(taken, 0.50),
        p99=percentile(taken, 0.99),
        longest=taken[-1] if taken else 0.0,
        pause=longest_pause(successes, seconds),
        complaints=complaints_of(answers, latest),
    )


def complaints_of(answers: Iterable[Answer], latest: float) -> list[Complaint]:
    """Put together what was broken or late, the most frequent first.

    Args:
        answers: All of them, in any order.
        latest: The seconds that an answer may take.
    """
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        told = f"{answer.status or 'no answer'} {answer.text}".strip()
        if is_broken(answer.status):
            found.setdefault(f"broken: {told}", []).append(answer)
        elif answer.seconds > latest:
            found.setdefault(f"late: {told}", []).append(answer)
    complaints = [
        Complaint(
            what,
            len(those),
            min(answer.at for answer in those),
            max(answer.at for answer in those),
            max(answer.seconds for answer in those),
        )
        for what, those in found.items()
    ]
    return sorted(complaints, key=lambda complaint: -complaint.number)


def is_success(status: int | None) -> bool:
    """Tell whether a request was granted."""
    return status is not None and status < 300


def is_broken(status: int | None) -> bool:
    """Tell whether an answer is one that no client should get."""
    return status is None or (status >= 500 and status != 504)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Give the smallest value that this share of all does not exceed; 0 for none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def longest_pause(times: Iterable[float], seconds: float) -> tuple[float, float]:
    """Give the longest time between two successes, the ends of the run included.

    Args:
        times: When successes were, in seconds since the run began, in any order.
        seconds: How long the run was.

    Returns:
        When that time began, and how many seconds it was.
    """
    marks = [0.0, *(min(at, seconds) for at in sorted(times)), seconds]
    pauses = [(earlier, later - earlier) for earlier, later in pairwise(marks)]
    return max(pauses, key=lambda pause: pause[1])


def compare(
    asked: Iterable[Asked],
    stored: Sequence[Stored],
    stock_before: Mapping[str, int],
    stock_after: Mapping[str, int],
) -> Books:
    """Compare what the clients were told with the database.

    Args:
        asked: What they wanted, and were told.
        stored: The orders in the database.
        stock_before: The pieces of each article before the run.
        stock_after: The same after it.
    """
    asked = list(asked)
    there = {order.id: order for order in stored}
    accepted = [order for order in asked if order.ids]
    found = sum(not order.ids.isdisjoint(there) for order in accepted)
    undecided = sum(not order.ids and order.refused is None for order in asked)
    refused = sum(not order.ids and order.refused is not None for order in asked)
    left = Counter(stock_before)
    for order in stored:
        left[order.sku] -= order.quantity
    return Books(
        accepted=len(accepted),
        stored=len(stored),
        undecided=undecided,
        refused=refused,
        doubled=max(0, len(stored) - found - undecided),
        lost=sum(not is_there(order, there) for order in accepted),
        renamed=sum(len(order.ids) > 1 for order in accepted),
        stock_off=sum(abs(left[sku] - stock_after.get(sku, 0)) for sku in left),
    )


def handed_on(stored: Iterable[Stored], told: Sequence[Delivered]) -> Handed:
    """Compare what was told with the database.

    Args:
        stored: The orders in the database.
        told: What a receiver was told, in that order.
    """
    orders = {order.id for order in stored}
    first = {delivered.id: delivered for delivered in reversed(told)}
    in_order = list(dict.fromkeys(delivered.id for delivered in told))
    least: dict[str, float] = {}
    disordered = 0
    for name in in_order:
        sku, left = first[name].sku, first[name].left
        disordered += left >= least.get(sku, math.inf)
        least[sku] = min(left, least.get(sku, math.inf))
    ids = Counter(delivered.order for delivered in first.values())
    return Handed(
        deliveries=len(told),
        again=len(told) - len(first),
        lost=len(orders - ids.keys()),
        strange=len(ids.keys() - orders) + sum(number - 1 for number in ids.values()),
        disordered=disordered,
    )


def is_there(order: Asked, there: Mapping[str, Stored]) -> bool:
    """Tell whether an accepted order is stored under each of its ids, as it was asked for."""
    return all(there.get(name) == Stored(name, order.sku, order.quantity) for name in order.ids)
