"""The memory of an idle client: connected, after one write, in a process of its own each time."""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from aioretry.testing import ReplicaSet
from tests.benchmarks.figures import Spread, shown
from tests.benchmarks.throughput import child
from tests.benchmarks.throughput.clients import MOTOR, OURS, PYMONGO, TITLES
from tests.benchmarks.throughput.compare import Say

KEYS = (OURS, MOTOR, PYMONGO)
MOST_OVER_MOTOR = 5.0


@dataclass(frozen=True, slots=True)
class Idle:
    """What the processes held, round by round."""

    mib: Mapping[str, Sequence[float]]
    threads: Mapping[str, Sequence[float]]

    def over_motor(self) -> Spread:
        """How much more aioretry's held than Motor's, in MiB."""
        pairs = zip(self.mib[OURS], self.mib[MOTOR], strict=True)
        return Spread.of([ours - theirs for ours, theirs in pairs])

    @property
    def is_small(self) -> bool:
        """Whether that is little enough; also where nothing tells how much it is."""
        return not self.over_motor().middle >= MOST_OVER_MOTOR


async def measure_idle(options: argparse.Namespace, say: Say) -> Idle:
    """Measure on a replica set of its own, in turns."""
    mib: dict[str, list[float]] = {key: [] for key in KEYS}
    threads: dict[str, list[float]] = {key: [] for key in KEYS}
    order = list(KEYS)
    async with ReplicaSet(options.members, options.server) as servers:
        for number in range(options.rounds):
            say(f"idle clients, round {number + 1} of {options.rounds} ...")
            order.append(order.pop(0))
            for key in order:
                told = await child.run("tests.benchmarks.throughput.idle", key, servers.uri)
                mib[key].append(told["rss_kib"] / 1024)
                threads[key].append(told["threads"])
    return Idle(mib, threads)


def show(console: Console, measured: Idle) -> None:
    """Print a table."""
    table = Table("client", title="an idle client's process, after one write")
    for heading in ("RSS MiB", "threads"):
        table.add_column(heading, justify="right")
    for key in KEYS:
        rss = str(Spread.of(measured.mib[key]))
        table.add_row(TITLES[key], rss, shown(statistics.median(measured.threads[key])))
    console.print(table)
    verdict = "yes" if measured.is_small else "no"
    over = measured.over_motor()
    console.print(f"aioretry over Motor: {over} MiB; below {MOST_OVER_MOTOR:g} MiB: {verdict}")


def data(measured: Idle) -> dict[str, Any]:
    """The medians, as data."""
    return {
        "rss_mib": {key: statistics.median(measured.mib[key]) for key in KEYS},
        "threads": {key: statistics.median(measured.threads[key]) for key in KEYS},
        "over_motor_mib": measured.over_motor().middle,
        "met": measured.is_small,
    }
