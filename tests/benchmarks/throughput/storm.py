"""A fault storm: one reply of ten is lost, beside a calm run through the same proxies."""

import argparse
import random
import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from aioretry.testing import ReplicaSet
from tests.benchmarks.figures import Spread, ratios, shown
from tests.benchmarks.throughput.child import Child
from tests.benchmarks.throughput.clients import FLOOR, MOTOR, OURS, TITLES
from tests.benchmarks.throughput.compare import Say
from tests.benchmarks.throughput.rounds import Sample, Series, take_turns

LOST = 0.1
LEAST = 0.75
CALM, STORM = "calm", "storm"
KEYS = (OURS, MOTOR, FLOOR)
_TIMEOUT = 30.0
_LOAD = "tests.benchmarks.throughput.storm_load"


class Losses:
    """Chooses the commands whose replies are lost, and counts what passes.

    Args:
        seed: Decides which.
    """

    def __init__(self, seed: int = 1) -> None:
        self.share = 0.0
        self.passed = 0
        self.lost = 0
        self._random = random.Random(seed)

    def take(self, command: Mapping[str, Any]) -> bool:
        """Say whether the reply to a command is to be lost."""
        self.passed += 1
        is_lost = self._random.random() < self.share
        self.lost += is_lost
        return is_lost


@dataclass(frozen=True, slots=True)
class Note:
    """What happened besides in one round."""

    attempts: float
    """Commands that were sent, for each operation."""

    connections: float
    """Connections that the primary was opened, for each lost reply; NaN if none was lost."""

    failed: int


@dataclass(slots=True)
class Storm:
    """What came of one number of writers: the series and notes, by client and weather."""

    series: Mapping[tuple[str, str], Series]
    notes: dict[tuple[str, str], list[Note]] = field(default_factory=dict)

    def kept(self, key: str) -> Spread:
        """The throughput in the storm by that in the calm."""
        storm, calm = self.series[key, STORM], self.series[key, CALM]
        return Spread.of(ratios(storm.per_second, calm.per_second))

    def by_floor(self) -> Spread:
        """What aioretry keeps of its throughput by what the floor keeps of its own, in a round."""
        kept = {
            key: ratios(self.series[key, STORM].per_second, self.series[key, CALM].per_second)
            for key in (OURS, FLOOR)
        }
        return Spread.of(ratios(kept[OURS], kept[FLOOR]))


class _Weather:
    """The servers with their proxies, and the process that writes through them."""

    def __init__(self, servers: ReplicaSet, losses: Losses, load: Child) -> None:
        self.notes: dict[tuple[str, str], list[Note]] = {}
        self._servers = servers
        self._losses = losses
        self._load = load

    async def measure(self, key: str, weather: str, writers: int, seconds: float) -> Sample:
        """Have a client write for a while."""
        losses = self._losses
        losses.share = LOST if weather == STORM else 0.0
        losses.passed = losses.lost = 0
        before = await self._connections()
        told = await self._load.ask({"client": key, "writers": writers, "seconds": seconds})
        opened = await self._connections() - before
        sample = Sample(**told["sample"])
        note = Note(
            losses.passed / sample.operations,
            opened / losses.lost if losses.lost else float("nan"),
            told["failed"],
        )
        self.notes.setdefault((key, weather), []).append(note)
        return sample

    async def _connections(self) -> int:
        primary = await self._servers.primary()
        reply = await primary.command({"serverStatus": 1})
        return int(reply["connections"]["totalCreated"])


async def measure_storm(options: argparse.Namespace, say: Say) -> dict[int, Storm]:
    """Measure on a replica set of its own behind proxies, in turns."""
    found = {}
    [w, *_] = options.w
    async with ReplicaSet(options.members, options.server, faults=True) as servers:
        losses = Losses()
        # In the calm as well: that it looks into each command costs the same in both.
        fault = servers.faults.drop_reply("update", times=None, where=losses.take, must_fire=False)
        async with Child(_LOAD, servers.uri, w, str(_TIMEOUT)) as load:
            for writers in options.writers:
                say(f"storm, w: {w}, {writers} at once ...")
                weather = _Weather(servers, losses, load)
                series = await take_turns(
                    _measures(weather, writers), options.rounds, options.seconds
                )
                notes = {key: all_of[1:] for key, all_of in weather.notes.items()}
                found[writers] = Storm(series, notes)
        fault.disarm()
    return found


def _measures(
    weather: _Weather, writers: int
) -> dict[tuple[str, str], Callable[[float], Awaitable[Sample]]]:
    return {
        (key, kind): partial(weather.measure, key, kind, writers)
        for key in KEYS
        for kind in (CALM, STORM)
    }


def show(console: Console, found: Mapping[int, Storm]) -> None:
    """Print a table, and whether enough was kept."""
    table = Table("at once", "client", title=f"update_one, {LOST:.0%} of the replies lost")
    for heading in (
        "calm op/s",
        "storm op/s",
        "storm by calm",
        "p99 ms",
        "CPU us/op",
        "attempts/op",
        "opened/loss",
        "failed",
    ):
        table.add_column(heading, justify="right")
    for writers, storm in found.items():
        for key in KEYS:
            calm, stormy = (storm.series[key, kind].medians() for kind in (CALM, STORM))
            attempts, connections, failed = _noted(storm, key)
            table.add_row(
                str(writers),
                TITLES[key],
                shown(calm["per_second"]),
                shown(stormy["per_second"]),
                str(storm.kept(key)),
                f"{shown(calm['p99_ms'])} -> {shown(stormy['p99_ms'])}",
                f"{shown(calm['cpu_us'])} -> {shown(stormy['cpu_us'])}",
                shown(attempts),
                shown(connections),
                str(failed),
            )
        table.add_section()
    console.print(table)
    for writers, storm in found.items():
        kept, least = storm.kept(OURS).middle, storm.kept(FLOOR).middle
        verdict = "yes" if kept >= LEAST else "no"
        console.print(
            f"{writers} at once: aioretry keeps {kept:.2f}; >= {LEAST:g}: {verdict}. "
            f"The floor keeps {least:.2f}: aioretry by the floor {storm.by_floor()}"
        )


def data(found: Mapping[int, Storm]) -> list[dict[str, Any]]:
    """The medians, as data."""
    told = []
    for writers, storm in found.items():
        for key in KEYS:
            attempts, connections, failed = _noted(storm, key)
            told.append(
                {
                    "at_once": writers,
                    "client": key,
                    CALM: storm.series[key, CALM].medians(),
                    STORM: storm.series[key, STORM].medians(),
                    "storm_by_calm": storm.kept(key).middle,
                    "attempts_an_operation": attempts,
                    "connections_a_loss": connections,
                    "failed": failed,
                }
            )
    return told


def _noted(storm: Storm, key: str) -> tuple[float, float, int]:
    notes = storm.notes[key, STORM]
    return (
        statistics.median(note.attempts for note in notes),
        statistics.median(note.connections for note in notes),
        sum(note.failed for note in notes),
    )
