"""What happens in a run: operations and faults, all of it decided by one seed."""

from dataclasses import dataclass, fields, replace
from random import Random

from tests.simulation.driver import Network

WRITES = (
    "insert",
    "update",
    "upsert",
    "replace",
    "delete",
    "find_one_and_update",
    "insert_many",
    "bulk_write",
    "coalesced",
    "together",
    "update_many",
    "operation",
    "user_session",
    "keyed",
    "contested",
)
TRAVELLING = frozenset({"coalesced", "together"})
"""What goes in one command with others: inserts, and updates and deletes."""

READS = ("find_one", "count", "estimated", "distinct", "causal")
TRANSFERS = ("with_transaction", "run_transaction", "transaction", "explicit")
KINDS = WRITES + READS + TRANSFERS
FAULTS = (
    "kill",
    "freeze",
    "cut_off",
    "step_down",
    "wall_clock",
    "outage",
    "kill_router",
    "freeze_router",
    "partition",
)
SECONDS = 40.0

_WITH_IDS = ("insert", "update", "upsert", "coalesced", "together", "keyed")
_GROUPS = (WRITES, WRITES, WRITES + READS, KINDS, KINDS, TRANSFERS, TRANSFERS + READS)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a client."""

    index: int
    at: float
    kind: str
    deadline: float | None
    """Seconds, or None."""

    cancelled: float | None
    """After how many seconds, if it is not over by then."""

    resolved: float | None
    """After how many seconds an unknown outcome is resolved, or None."""

    count: int
    """How many statements it has, if it may have several."""

    ordered: bool
    refused: int | None
    """Which of its statements is refused, if it has several; None if all are good.

    Of a contested document it says that one is inserted, and not deleted; of an insert that travels
    with others, 0 says that there is such a document already, and 1 that nobody can encode it.
    """

    how: int = 0
    """Some number, for what else its callers have to choose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a member."""

    at: float
    kind: str
    member: int | None
    """None for the primary."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A run."""

    seed: int
    operations: tuple[Operation, ...]
    faults: tuple[Fault, ...]
    network: Network
    version: tuple[int, int]
    """That of the servers."""

    connections: int
    at_once: int
    together: tuple[int, int]
    """How many documents, and bytes of them, travel together at most."""

    routers: float | None
    """How often routers lose their connection to the shard, as a probability; None without any."""

    closed_at: float | None
    """When the client is closed, whatever is under way; None if that is at the end."""

    has_coroutines: bool
    """Whether the face is that of PyMongo's asyncio client, and not Motor's."""

    fail_fast_after: float | None
    """After how many seconds without a server no write waits; None if each does."""

    retry_budget: int | None
    """What the client may spend on retries, or None."""

    @classmethod
    def of(cls, seed: int, count: int = 150) -> "Plan":
        """Return the run of a seed: its own mix of loads and faults."""
        random = Random(f"plan {seed}")
        group = random.choice(_GROUPS)
        kinds = random.sample(group, random.randint(1, len(group)))
        kinds_of_faults = random.sample(FAULTS, random.randint(0, 4))
        network = Network(opening=random.choice([0.0, 0.3, 1.0]))
        for name in (field.name for field in fields(Network)):
            if name != "opening" and random.random() < 0.25:
                network = replace(network, **{name: random.choice([0.01, 0.05, 0.3])})
        if random.random() < 0.05:
            # One of twenty gets through.
            network = Network(opening=network.opening, unanswered=0.95)
        theme, deadlines, routers = random.random(), None, [None] * 7 + [0.0, 0.05, 0.5]
        times, seconds = [1, 3, 8], [0.05, 1.0, 12.0, 25.0, 2400.0]
        if theme < 0.06:
            # What was sent is sent again when nobody remembers it.
            kinds = random.sample(_WITH_IDS, 2)
            kinds_of_faults, network = ["partition"], Network(unanswered=0.3)
            deadlines, seconds = [7200.0], [2400.0]
        elif theme < 0.12:
            # What is in doubt at one server is refused at another, and executed later all the same.
            kinds, kinds_of_faults = ["contested"], ["step_down"]
            network = Network(late=0.3, unanswered=0.05)
        elif theme < 0.16:
            # Who has no deadline waits for nobody who is away for long.
            kinds, kinds_of_faults, network = random.sample(_WITH_IDS, 3), ["freeze"], Network()
            deadlines, times, seconds = [None], [1], [2400.0]
        elif theme < 0.2:
            # Of what its last answer says nothing a router can't tell: it has found no primary.
            kinds, kinds_of_faults, network = random.sample(_WITH_IDS, 3), ["outage"], Network()
            deadlines, times, seconds, routers = [None], [1], [25.0], [0.5]
        elif theme < 0.24:
            # What begins a transaction comes when that was aborted.
            kinds, kinds_of_faults, network = [*TRANSFERS], [], Network(late=0.3)
        faults = tuple(
            Fault(
                random.uniform(0, SECONDS),
                random.choice(kinds_of_faults),
                random.choice([None, None, None, 0, 1, 2]),
                random.choice(seconds),
            )
            for _ in range(random.choice(times) if kinds_of_faults else 0)
        )
        # Where nothing is heard of a command for a while, a few connections are not enough.
        least = 10 if network.holds or "partition" in kinds_of_faults else 1
        styles = _Styles(random, [fault.at for fault in faults], deadlines)
        breaks = random.choice(routers)
        transfers = sum(kind in TRANSFERS for kind in kinds) / len(kinds)
        count = round(count / (1 + 1.5 * transfers))  # each of them is many commands
        # Whole transactions are run again as long as there is time.
        is_rough = network.befalls >= 0.3 or (breaks or 0.0) >= 0.3
        operations = [styles.operation(index, random.choice(kinds)) for index in range(count)]
        spared = Random(f"spared {seed}")  # of its own: all else stays as it was without
        return cls(
            seed,
            tuple(_bounded(one, 5.0 if is_rough else 60.0) for one in operations),
            faults,
            network,
            version=random.choice([(6, 0), (6, 0), (5, 0), (4, 4)]),
            connections=max(least, random.choice([1, 2, 10, 100])),
            at_once=max(least, random.choice([1, 2, 10, 256])),
            together=random.choice([(1000, 2**24), (1000, 2**24), (3, 2**24), (1000, 100)]),
            routers=breaks,
            closed_at=random.uniform(0, SECONDS) if random.random() < 0.1 else None,
            has_coroutines=seed % 2 == 0,
            fail_fast_after=spared.choice([None] * 9 + [0.5, 3.0, 20.0]),
            retry_budget=spared.choice([None] * 9 + [1, 5, 100]),
        )


def _bounded(operation: Operation, most: float) -> Operation:
    """Return a transaction with so many seconds for all its runs; 120 are many where all fail.

    If it is cancelled at once, that is anywhere in its first run.
    """
    if operation.kind not in TRANSFERS:
        return operation
    limit, cancelled = operation.deadline, operation.cancelled
    if cancelled is not None and cancelled < 0.1:
        operation = replace(operation, cancelled=0.001 * (operation.how % 40))
    if limit is None and most > 5:
        return operation
    return replace(operation, deadline=most if limit is None else min(limit, most))


class _Styles:
    """How the callers of a run go about it."""

    def __init__(
        self, random: Random, faults: list[float], deadlines: list[float | None] | None
    ) -> None:
        self._random = random
        self._faults = faults
        chosen = random.sample([None, 0.02, 0.5, 5.0, 60.0, 7200.0], random.randint(1, 3))
        self._deadlines = chosen if deadlines is None else deadlines
        self._cancelled = random.choice([0.0, 0.0, 0.1, 0.5])
        self._resolved = random.choice([0.0, 0.5, 1.0])
        self._burst = random.random() < 0.3

    def operation(self, index: int, kind: str) -> Operation:
        """Return an operation."""
        random = self._random
        at = random.uniform(0, SECONDS)
        if self._faults and random.random() < 0.3:  # what is under way meanwhile is what matters
            at = max(0.0, random.choice(self._faults) + random.uniform(-0.03, 0.01))
        is_cancelled = random.random() < self._cancelled
        is_resolved = random.random() < self._resolved
        return Operation(
            index,
            round(at) if self._burst else at,
            kind,
            random.choice(self._deadlines),
            random.choice([0.0, 0.001, 0.003, 0.1, 2.0]) if is_cancelled else None,
            random.choice([0.0, 0.0, 1.0, 30.0, 2500.0]) if is_resolved else None,
            random.randint(1, 6),
            random.random() < 0.5,
            random.choice([None, None, 0, 1, 2]),
            random.randrange(1000),
        )
