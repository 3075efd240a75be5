"""Who gets how much of the time; pure."""

from dataclasses import dataclass
from typing import Final

LEAST_SECONDS: Final = 20.0
MOST_WRITERS: Final = 200
EVENTS_PER_SECOND: Final = 50.0  # of each strategy: an ordinary machine carries that for all five
_CLOSING: Final = 2.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is like: figures in seconds, made from its length and its number of writers."""

    seconds: float
    """How long everything together may take, the start of the servers included."""

    writers: int
    """Concurrent tasks of each strategy."""

    client: str = "motor"
    """Whose clients write: Motor's, or with "asyncio" PyMongo's own asynchronous ones."""

    @property
    def server_selection_timeout(self) -> float:
        """How long every client looks for a primary: longer than an election, as a rule."""
        return min(5.0, max(2.0, round(self.seconds / 18, 1)))

    @property
    def calm(self) -> float:
        """How long nothing is done before a trouble and after it."""
        return min(1.5, self.seconds / 40)

    @property
    def outage(self) -> float:
        """How long no primary is possible: longer than any client looks for one."""
        return self.server_selection_timeout * 1.6

    @property
    def deadline(self) -> float:
        """The deadline of the strategy that has one: longer than the outage and an election."""
        return round(self.outage + 12.0)

    @property
    def freeze(self) -> float:
        """How long a frozen primary stays so."""
        return self.seconds * 0.15

    @property
    def beat(self) -> float:
        """From one event of a writer to its next one."""
        return self.writers / EVENTS_PER_SECOND

    @property
    def drain(self) -> float:
        """How long writes that are under way at the end of a phase may take."""
        return 2 * self.server_selection_timeout + 5.0

    def phase_end(self, now: float, share: float, shares: float) -> float:
        """Return when a phase ends.

        Args:
            now: Seconds since the start of the run.
            share: The phase's share of the time that is left.
            shares: The shares of this phase and all later ones.
        """
        return now + max(1.0, (self.seconds - _CLOSING - now) * share / shares)
