"""What is switched on costs: update_one plainly, and with one thing more, in turns."""

import argparse
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pymongo
from pymongo import monitoring
from rich.console import Console
from rich.table import Table

from aioretry import Event, RetryScheduled, deadline, every_event
from aioretry.testing import ReplicaSet
from tests.benchmarks.figures import Spread, ratios, shown
from tests.benchmarks.throughput.clients import DATABASE, OURS, make
from tests.benchmarks.throughput.compare import Say
from tests.benchmarks.throughput.operations import Call
from tests.benchmarks.throughput.rounds import Sample, Series, measure, take_turns

PLAIN = "plain"
Costs = dict[int, dict[str, Series]]
"""What was measured, by how many were at once and what was switched on."""

_TIMEOUT = 30.0
_UPDATE = {"$inc": {"n": 1}}


class _Listener(monitoring.CommandListener):
    """A listener that does nothing."""

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        pass

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


def _hook(event: RetryScheduled) -> None:
    """A hook that does nothing."""


def _follow(event: Event) -> None:
    """A hook that does nothing, and wants to be told of everything."""


def _plain(collection: Any, me: int) -> Call:
    return lambda: collection.update_one({"_id": me}, _UPDATE, upsert=True)


def _within_deadline(collection: Any, me: int) -> Call:
    async def call() -> None:
        async with deadline(_TIMEOUT):
            await collection.update_one({"_id": me}, _UPDATE, upsert=True)

    return call


def _within_timeout(collection: Any, me: int) -> Call:
    async def call() -> None:
        with pymongo.timeout(_TIMEOUT):
            await collection.update_one({"_id": me}, _UPDATE, upsert=True)

    return call


def _in_a_coroutine(collection: Any, me: int) -> Call:
    async def call() -> None:
        await collection.update_one({"_id": me}, _UPDATE, upsert=True)

    return call


def _within_operation(collection: Any, me: int) -> Call:
    async def call() -> None:
        async with collection.operation() as op:
            await op.update_one({"_id": me}, _UPDATE, upsert=True)

    return call


async def measure_costs(options: argparse.Namespace, say: Say) -> Costs:
    """Measure on a replica set of its own."""
    costs: Costs = {}
    [w, *_] = options.w
    async with (
        ReplicaSet(options.members, options.server) as servers,
        make(OURS, servers.uri, w) as client,
        make(OURS, servers.uri, w, event_listeners=[_Listener()]) as listening,
        make(OURS, servers.uri, w, hooks=[_hook]) as hooked,
        make(OURS, servers.uri, w, hooks=[every_event(_follow)]) as followed,
        make(OURS, servers.uri, "majority") as certain,
    ):
        kinds: dict[str, tuple[Any, Callable[[Any, int], Call]]] = {
            PLAIN: (client, _plain),
            "a coroutine around each": (client, _in_a_coroutine),
            "a PyMongo CommandListener": (listening, _plain),
            "a hook": (hooked, _plain),
            "a hook that wants every event": (followed, _plain),
            "deadline() around each": (client, _within_deadline),
            "pymongo.timeout() around each": (client, _within_timeout),
            "collection.operation() around each": (client, _within_operation),
            "w: majority": (certain, _plain),
            "w: majority, deadline() around each": (certain, _within_deadline),
        }
        for writers in options.writers:
            say(f"costs, w: {w}, {writers} at once ...")
            measures: dict[str, Callable[[float], Awaitable[Sample]]] = {}
            for number, (name, (owner, call)) in enumerate(kinds.items()):
                collection = owner[DATABASE][f"costs{number}"]
                measures[name] = partial(measure, [call(collection, me) for me in range(writers)])
            costs[writers] = await take_turns(measures, options.rounds, options.seconds)
    return costs


def show(console: Console, costs: Costs) -> None:
    """Print a table."""
    table = Table("at once", "switched on", title="update_one: what is switched on, by plain")
    for heading in ("op/s", "CPU us/op", "op/s by plain", "CPU by plain"):
        table.add_column(heading, justify="right")
    for writers, series in costs.items():
        for name, one in series.items():
            medians = one.medians()
            throughput, cpu = (str(spread) for spread in _by_plain(one, series[PLAIN]))
            told = ("", "") if name == PLAIN else (throughput, cpu)
            figures = shown(medians["per_second"]), shown(medians["cpu_us"])
            table.add_row(str(writers), name, *figures, *told)
        table.add_section()
    console.print(table)


def data(costs: Costs) -> list[dict[str, Any]]:
    """The medians, as data."""
    told = []
    for writers, series in costs.items():
        for name, one in series.items():
            throughput, cpu = _by_plain(one, series[PLAIN])
            by_plain = {"per_second_by_plain": throughput.middle, "cpu_by_plain": cpu.middle}
            told.append({"at_once": writers, "on": name, **one.medians(), **by_plain})
    return told


def _by_plain(one: Series, plain: Series) -> tuple[Spread, Spread]:
    throughput = Spread.of(ratios(one.per_second, plain.per_second))
    return throughput, Spread.of(ratios(one.cpu_us, plain.cpu_us))
