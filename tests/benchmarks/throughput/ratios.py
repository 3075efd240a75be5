"""The ratios that count, and what they have to be."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tests.benchmarks.figures import Spread, ratios
from tests.benchmarks.throughput.clients import COALESCED, FLOOR, MOTOR, OURS, PEERS, PYMONGO
from tests.benchmarks.throughput.rounds import Series


@dataclass(frozen=True, slots=True)
class Case:
    """What was measured: an operation, a write concern, and how many at once."""

    operation: str
    w: str
    writers: int

    def __str__(self) -> str:
        return f"{self.operation}, w: {self.w}, {self.writers} at once"


Results = Mapping[Case, Mapping[str, Series]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio between two clients."""

    key: str
    title: str
    value: Callable[[Series], list[float]]
    ours: str
    theirs: tuple[str, ...]
    """Whom it is compared with; of several, with the one that needs less."""

    def of(self, series: Mapping[str, Series]) -> Spread | None:
        """Round by round; None if not all of them were measured."""
        if self.ours not in series or not all(key in series for key in self.theirs):
            return None
        best = min(self.theirs, key=lambda key: Spread.of(self.value(series[key])).middle)
        return Spread.of(ratios(self.value(series[self.ours]), self.value(series[best])))


def _per_second(series: Series) -> list[float]:
    return series.per_second


def _p50(series: Series) -> list[float]:
    return series.p50_ms


def _cpu(series: Series) -> list[float]:
    return series.cpu_us


RATIOS = (
    Ratio("by_motor", "op/s, aioretry by Motor", _per_second, OURS, (MOTOR,)),
    Ratio("by_pymongo", "op/s, aioretry by AsyncMongoClient", _per_second, OURS, (PYMONGO,)),
    Ratio("by_floor", "op/s, aioretry by floor", _per_second, OURS, (FLOOR,)),
    Ratio("p50_by_motor", "p50, aioretry by Motor", _p50, OURS, (MOTOR,)),
    Ratio("cpu_by_better_peer", "CPU, aioretry by better peer", _cpu, OURS, PEERS),
    Ratio("cpu_by_motor", "CPU, aioretry by Motor", _cpu, OURS, (MOTOR,)),
    Ratio("cpu_by_pymongo", "CPU, aioretry by AsyncMongoClient", _cpu, OURS, (PYMONGO,)),
    Ratio("cpu_by_floor", "CPU, aioretry by floor", _cpu, OURS, (FLOOR,)),
    Ratio("coalesced_by_motor", "op/s, coalesced by Motor", _per_second, COALESCED, (MOTOR,)),
    Ratio("coalesced_by_plain", "op/s, coalesced by plain", _per_second, COALESCED, (OURS,)),
)
"""All of them; those of throughput want to be high, those of latency and CPU time low."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio's median has to be, on three members of 6.0."""

    case: Case
    ratio: str
    at_least: float | None = None
    at_most: float | None = None

    def met_by(self, value: float) -> bool:
        """Whether a median is good enough."""
        high_enough = self.at_least is None or value >= self.at_least
        return high_enough and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        title = next(ratio.title for ratio in RATIOS if ratio.key == self.ratio)
        bound = f">= {self.at_least:g}" if self.at_most is None else f"<= {self.at_most:g}"
        return f"{self.case}: {title} {bound}"


_UPDATES, _UPDATE = Case("update_one", "1", 50), Case("update_one", "1", 1)
TARGETS = (
    Target(_UPDATES, "by_motor", at_least=1.4),
    Target(_UPDATES, "by_pymongo", at_least=1.5),
    Target(_UPDATES, "cpu_by_better_peer", at_most=0.9),
    Target(Case("find_one", "1", 50), "cpu_by_pymongo", at_most=0.7),
    Target(Case("transfer", "1", 50), "cpu_by_motor", at_most=0.65),
    Target(_UPDATE, "p50_by_motor", at_most=1.0),
    Target(_UPDATE, "cpu_by_better_peer", at_most=0.9),
    Target(Case("insert_one", "majority", 200), "coalesced_by_motor", at_least=12),
    Target(Case("insert_one", "majority", 1000), "coalesced_by_motor", at_least=20),
    Target(Case("insert_one", "majority", 1), "coalesced_by_plain", at_least=0.95),
    Target(Case("counter", "majority", 200), "coalesced_by_plain", at_least=5),
)


def spreads(series: Mapping[str, Series]) -> dict[str, Spread]:
    """All ratios that can be told of what was measured."""
    found = ((ratio.key, ratio.of(series)) for ratio in RATIOS)
    return {key: spread for key, spread in found if spread is not None}


def judged(results: Results) -> Iterable[tuple[Target, float]]:
    """The targets that were measured, with what came of them."""
    for target in TARGETS:
        if target.case in results:
            spread = spreads(results[target.case]).get(target.ratio)
            if spread is not None:
                yield target, spread.middle
