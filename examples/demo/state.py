"""What a run knows of itself while it goes on; of one event loop."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from examples.demo.counting import Told
from examples.demo.plan import Plan

BUCKETS_PER_SECOND = 2


@dataclass(frozen=True, slots=True)
class Action:
    """Something that was done, and when."""

    at: float
    """Seconds since the start of the run."""

    what: str
    """For people to read."""


@dataclass(slots=True)
class Cell:
    """One strategy under one fault, while it is being written."""

    fault: str
    strategy: str
    told: dict[int, Told] = field(default_factory=dict)
    retries: int = 0
    error_classes: Counter[str] = field(default_factory=Counter)
    longest_pause: float = 0.0
    _begun: int = 0
    _last: float = 0.0

    @property
    def collection(self) -> str:
        """The name of the collection that is this cell's own."""
        return f"{self.fault}.{self.strategy}"

    @property
    def acknowledged(self) -> int:
        """How many events were acknowledged so far."""
        return len(self.told) - self.errors

    @property
    def errors(self) -> int:
        """How many events failed so far."""
        return self.error_classes.total()

    def start(self) -> None:
        """Note that the writers begin: pauses are measured from here on."""
        self._last = time.monotonic()

    def begin(self) -> int:
        """Return the number of a new event."""
        self._begun += 1
        return self._begun

    def acknowledge(self, number: int) -> None:
        """Note that the write of an event returned."""
        self.told[number] = Told.ACKNOWLEDGED
        self.end_pause()

    def fail(self, number: int, told: Told, error: BaseException) -> None:
        """Note that the write of an event raised."""
        self.told[number] = told
        self.error_classes[type(error).__name__] += 1

    def end_pause(self) -> None:
        """Note that a time without any acknowledged event is over."""
        now = time.monotonic()
        self.longest_pause = max(self.longest_pause, now - self._last)
        self._last = now


class State:
    """A run, as the display sees it.

    Args:
        plan: Its figures.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.listeners: list[Callable[[Action], None]] = []  # told of every action at once
        self.started = time.monotonic()
        self.phase = "starting"
        self.about = ""  # one line about the servers and clients
        self.doing = ""
        self.members: Callable[[], Sequence[tuple[str, str]]] = tuple  # address and condition
        self.cells: dict[str, Cell] = {}  # of this phase, by strategy
        self.actions: list[Action] = []
        self.timeline: dict[str, Counter[int]] = {}  # acknowledged by strategy and half second

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def say(self, what: str) -> None:
        """Tell of something that is being done."""
        self.doing = what
        action = Action(self.elapsed, what)
        self.actions.append(action)
        for listener in self.listeners:
            listener(action)

    def begin_phase(self, title: str, cells: dict[str, Cell]) -> None:
        """Enter a phase."""
        self.phase, self.cells = title, cells
        self.say(title)

    def note_acknowledged(self, strategy: str) -> None:
        """Note an acknowledged event for the timeline."""
        bucket = int(self.elapsed * BUCKETS_PER_SECOND)
        self.timeline.setdefault(strategy, Counter())[bucket] += 1
