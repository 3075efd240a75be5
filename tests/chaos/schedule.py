"""What is going to be broken, when, how and for how long; decided by the seed alone."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

CALM = 8.0
"""Seconds at the end in which nothing is broken."""

COMMANDS = (
    "insert",
    "update",
    "delete",
    "findAndModify",
    "commitTransaction",
    "abortTransaction",
)

_AT_ONCE = 0.25  # how often a second fault begins while the first one lasts
_STATE_CHANGES = (91, 189, 10107, 11600, 11602, 13435, 13436)
_ERRORS = (6, 89, 9001, *_STATE_CHANGES)
_WRITE_CONCERN_ERRORS = (64, 91, 189, 11600, 11602)


class Kind(enum.Enum):
    """A kind of fault; its value is what people read."""

    DROP_REQUEST = "requests lost"
    DROP_REPLY = "replies lost"
    DELAY = "delays"
    HANG = "commands held up"
    ERROR = "error replies"
    WRITE_CONCERN_ERROR = "write concern errors"
    REFUSE = "connections refused"
    PARTITION = "partition"
    ISOLATE = "members parted from each other"
    HALF_DEAD = "a third of the connections lost"
    HOT_BREAK = "one command breaks connections"
    KILL = "kill -9, restart"
    FREEZE = "SIGSTOP, SIGCONT"
    STEP_DOWN = "step-down"
    RESTART = "clean restart"

    @property
    def is_of_processes(self) -> bool:
        """Whether it is something that is done to the server, not to the network."""
        return self in _SECONDS_OF_PROCESSES


_SECONDS_OF_PROCESSES = {
    Kind.KILL: (1.0, 9.0),
    Kind.FREEZE: (2.0, 12.0),
    Kind.STEP_DOWN: (2.0, 8.0),
    Kind.RESTART: (1.0, 6.0),
}
_SECONDS = {
    Kind.DROP_REQUEST: (0.5, 5.0),
    Kind.DROP_REPLY: (0.5, 5.0),
    Kind.DELAY: (1.0, 6.0),
    Kind.HANG: (0.5, 7.0),
    Kind.ERROR: (0.5, 5.0),
    Kind.WRITE_CONCERN_ERROR: (0.5, 5.0),
    Kind.REFUSE: (0.5, 5.0),
    Kind.PARTITION: (0.5, 8.0),
    Kind.ISOLATE: (1.0, 12.0),
    Kind.HALF_DEAD: (1.0, 6.0),
    Kind.HOT_BREAK: (1.0, 6.0),
    **_SECONDS_OF_PROCESSES,
}
_TIMES = (1, 5, 25, 100, None)
_WITHOUT_PROXIES_BETWEEN = tuple(kind for kind in Kind if kind is not Kind.ISOLATE)
_OFTEN = 5  # how much more often than the others


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault of a schedule. What a kind has no use for is drawn all the same."""

    at: float
    """When it begins, in seconds since the start of the load."""

    kind: Kind
    """What happens."""

    lasts: float
    """After how many seconds it is healed."""

    primary: bool
    """Whether it is to meet the primary of the moment, where there is one."""

    member: int
    """The member that it meets otherwise: the number of one that is whole."""

    everywhere: bool
    """Whether it meets all members at once, where that is not for good."""

    commands: tuple[str, ...]
    """The commands that it strikes."""

    times: int | None
    """How often it strikes at most; None for every time."""

    code: int
    """The code of an error."""

    wait: float
    """How long a command is held up, in seconds."""

    applied: bool
    """Whether the server runs the command before."""

    @property
    def until(self) -> float:
        """When it is healed, in seconds since the start of the load."""
        return self.at + self.lasts


def schedule(seed: int, seconds: float, members: int, *, isolates: bool = False) -> list[Planned]:
    """Decide what is going to happen.

    Args:
        seed: The same seed gives the same schedule.
        seconds: How long the load lasts; the last `CALM` of them are quiet.
        members: How many servers there are.
        isolates: Whether members are parted from each other, too, and more often than all else.

    Returns:
        The faults, in the order of their beginnings.
    """
    rng = Random(seed)
    kinds = [*Kind, *[Kind.ISOLATE] * (_OFTEN - 1)] if isolates else _WITHOUT_PROXIES_BETWEEN
    bag: list[Kind] = []
    end = seconds - CALM
    plan: list[Planned] = []
    at = rng.uniform(1.0, 2.5)
    while (first := _plan(rng, _draw(rng, bag, kinds), at, members)).until <= end:
        plan.append(first)
        until = first.until
        if rng.random() < _AT_ONCE:
            beside = _plan(rng, _draw(rng, bag, kinds), rng.uniform(at, until), members)
            if beside.until <= end:
                plan.append(beside)
                until = max(until, beside.until)
        at = until + rng.uniform(0.5, 4.0)
    return sorted(plan, key=lambda planned: planned.at)


def _draw(rng: Random, bag: list[Kind], kinds: Sequence[Kind]) -> Kind:
    """Take a kind out of a bag, so that each comes before one comes again."""
    if not bag:
        bag += kinds
        rng.shuffle(bag)
    return bag.pop()


def _plan(rng: Random, kind: Kind, at: float, members: int) -> Planned:
    codes = _WRITE_CONCERN_ERRORS if kind is Kind.WRITE_CONCERN_ERROR else _ERRORS
    everything = rng.random() < 0.5
    is_hot = kind is Kind.HOT_BREAK
    return Planned(
        at=round(at, 3),
        kind=kind,
        lasts=round(rng.uniform(*_SECONDS[kind]), 3),
        primary=rng.random() < 0.75,
        member=rng.randrange(members),
        everywhere=rng.random() < 0.3,
        commands=COMMANDS if everything and not is_hot else (rng.choice(COMMANDS),),
        times=None if is_hot else rng.choice(_TIMES),
        code=rng.choice(codes),
        wait=round(rng.uniform(0.02, 3.0), 3),
        applied=rng.random() < 0.5,
    )
