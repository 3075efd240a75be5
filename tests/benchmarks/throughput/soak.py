"""A soak: a mixed load for minutes, and whether anything grows meanwhile."""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from aioretry.testing import ReplicaSet
from tests.benchmarks.figures import shown
from tests.benchmarks.throughput.clients import DATABASE, OURS, make
from tests.benchmarks.throughput.compare import Say
from tests.benchmarks.throughput.growth import Growth, Held, judge, look

_LEAST_SAMPLES = 12


@dataclass(frozen=True, slots=True)
class Soaked:
    """What was seen."""

    operations: int
    seconds: float
    samples: list[Held]
    growths: list[Growth]

    @property
    def is_steady(self) -> bool:
        """Whether nothing grew."""
        return not any(growth.is_growth for growth in self.growths)


class _Load:
    """Callers of all kinds.

    Their inserts go to a new collection for each sample, so that the old ones can be dropped.
    """

    def __init__(self, database: Any, callers: int) -> None:
        self.operations = 0
        self._database = database
        self._age = 0
        self._stopped = False
        self._updates = database.soak
        self._turn()
        kinds = (self._update, self._insert, self._find, self._insert_together)
        self._tasks = [
            asyncio.create_task(self._repeat(kinds[me % len(kinds)], me)) for me in range(callers)
        ]

    async def age(self) -> None:
        """Turn to new collections, and drop those before the last."""
        self._turn()
        await self._database.drop_collection(f"inserts{self._age - 2}")

    async def stop(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self._stopped = True
        await asyncio.gather(*self._tasks)

    def check(self) -> None:
        """Raise what a caller has raised."""
        for task in self._tasks:
            if task.done():
                task.result()

    def _turn(self) -> None:
        self._age += 1
        self._inserts = self._database[f"inserts{self._age}"]
        self._coalesced = self._inserts.coalesced()

    async def _repeat(self, call: Callable[[int], Awaitable[object]], me: int) -> None:
        while not self._stopped:
            await call(me)
            self.operations += 1

    async def _update(self, me: int) -> None:
        await self._updates.update_one({"_id": me}, {"$inc": {"n": 1}}, upsert=True)

    async def _find(self, me: int) -> None:
        await self._updates.find_one_and_update({"_id": me}, {"$inc": {"n": 1}}, upsert=True)

    async def _insert(self, me: int) -> None:
        await self._inserts.insert_one({"n": me})

    async def _insert_together(self, me: int) -> None:
        await self._coalesced.insert_one({"n": me})


async def soak(options: argparse.Namespace, say: Say) -> Soaked:
    """Write for so many minutes, on a replica set of its own."""
    seconds = options.soak * 60.0
    every = min(10.0, seconds / _LEAST_SAMPLES)
    [callers, *_] = options.writers
    [w, *_] = options.w
    samples: list[Held] = []
    async with (
        ReplicaSet(options.members, options.server) as servers,
        make(OURS, servers.uri, w) as client,
    ):
        started = time.monotonic()
        load = _Load(client[DATABASE], callers)
        while time.monotonic() - started < seconds or len(samples) < _LEAST_SAMPLES:
            await asyncio.sleep(every)
            load.check()
            await load.age()
            samples.append(look(time.monotonic() - started, client))
            figures = (f"{name} {shown(one)}" for name, one in samples[-1].figures.items())
            say(f"{samples[-1].at:5.0f} s: {load.operations} operations, {', '.join(figures)}")
        await load.stop()
        took = time.monotonic() - started
    return Soaked(load.operations, took, samples, judge(samples, callers))


def show(console: Console, soaked: Soaked) -> None:
    """Print a table, and whether something grew."""
    table = Table("held", title=f"{soaked.operations} operations in {soaked.seconds:.0f} s")
    for heading in ("first half", "second half", "at most", "grew"):
        table.add_column(heading, justify="right")
    for growth in soaked.growths:
        figures = map(shown, (growth.first, growth.second, growth.allowed))
        table.add_row(growth.name, *figures, "[red]yes[/red]" if growth.is_growth else "no")
    console.print(table)
    console.print("nothing grows" if soaked.is_steady else "something grows")


def data(soaked: Soaked) -> dict[str, Any]:
    """What was seen, as data."""
    return {
        "operations": soaked.operations,
        "seconds": soaked.seconds,
        "steady": soaked.is_steady,
        "samples": [{"at": sample.at, **sample.figures} for sample in soaked.samples],
        "growths": [
            {"name": one.name, "first": one.first, "second": one.second, "at_most": one.allowed}
            for one in soaked.growths
        ],
    }
