"""How a round is measured: the same few lines for every client, and for the floor."""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tests.benchmarks.figures import quantile
from tests.benchmarks.process import cpu_seconds

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one client did in one round."""

    operations: int
    seconds: float
    cpu_seconds: float
    """User and system time of the whole process, whichever thread spent it."""

    p50: float
    """The latency that half of the operations did not exceed, in seconds."""

    p99: float

    @classmethod
    def of(cls, latencies: Sequence[float], seconds: float, cpu: float) -> "Sample":
        """Of what was measured."""
        values = sorted(latencies)
        return cls(len(values), seconds, cpu, quantile(values, 0.5), quantile(values, 0.99))


@dataclass
class Series:
    """What one client did, round by round."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def per_second(self) -> list[float]:
        """Operations a second."""
        return [sample.operations / sample.seconds for sample in self.samples]

    @property
    def cpu_us(self) -> list[float]:
        """Microseconds of CPU time for each operation."""
        return [sample.cpu_seconds / sample.operations * 1e6 for sample in self.samples]

    @property
    def p50_ms(self) -> list[float]:
        """Median latencies in milliseconds."""
        return [sample.p50 * 1e3 for sample in self.samples]

    @property
    def p99_ms(self) -> list[float]:
        """99th percentiles of the latencies, in milliseconds."""
        return [sample.p99 * 1e3 for sample in self.samples]

    def medians(self) -> dict[str, float]:
        """The medians of all rounds."""
        return {
            "per_second": statistics.median(self.per_second),
            "p50_ms": statistics.median(self.p50_ms),
            "p99_ms": statistics.median(self.p99_ms),
            "cpu_us": statistics.median(self.cpu_us),
        }


async def measure(calls: Sequence[Callable[[], Awaitable[object]]], seconds: float) -> Sample:
    """Have each caller call in a loop; the last call of each begins before the time is over.

    Args:
        calls: One for each caller.
        seconds: For how long.

    Returns:
        What they did, until the last call had ended.
    """
    latencies: list[float] = []
    note, clock = latencies.append, time.perf_counter
    gc.collect()  # so that none pays for what another one left
    cpu, started = cpu_seconds(), clock()
    until = started + seconds

    async def repeat(call: Callable[[], Awaitable[object]]) -> None:
        while True:
            begun = clock()
            await call()
            ended = clock()
            note(ended - begun)
            if ended >= until:
                return

    await asyncio.gather(*(repeat(call) for call in calls))
    return Sample.of(latencies, clock() - started, cpu_seconds() - cpu)


def measure_blocking(call: Callable[[], object], seconds: float) -> Sample:
    """Measure a call that blocks, in a loop, as `measure` does."""
    latencies: list[float] = []
    note, clock = latencies.append, time.perf_counter
    gc.collect()
    cpu, started = cpu_seconds(), clock()
    until = started + seconds
    while True:
        begun = clock()
        call()
        ended = clock()
        note(ended - begun)
        if ended >= until:
            break
    return Sample.of(latencies, clock() - started, cpu_seconds() - cpu)


async def take_turns(
    measures: Mapping[Key, Callable[[float], Awaitable[Sample]]], rounds: int, seconds: float
) -> dict[Key, Series]:
    """Measure all of them in each round, each time in another order; the first round warms up.

    Args:
        measures: Measure one of them for so many seconds.
        rounds: How many rounds count.
        seconds: How long each is measured in a round.
    """
    series = {key: Series() for key in measures}
    order = list(measures)
    for number in range(rounds + 1):
        order.append(order.pop(0))
        for key in order:
            sample = await measures[key](seconds)
            if number:
                series[key].samples.append(sample)
    return series
