"""Throughput and CPU time of update_one, beside Motor and PyMongo's AsyncMongoClient.

All in one process and on one replica set, in turns, so that what the machine does besides meets
all of them alike. What counts are the ratios: of each round, between two that ran next to each
other in it. With w: 1 the set has one member, so that the servers leave the client a part of a
small machine; with majority it has three.
"""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient
from rich.console import Console
from rich.table import Table

from aioretry import RetryClient
from aioretry.testing import ReplicaSet

PEERS = ("Motor", "AsyncMongoClient")
Write = Callable[[int], Awaitable[object]]


@dataclass
class Series:
    """What one client did at one number of writers, round by round."""

    per_second: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Microseconds of the process's CPU time for each operation."""


async def measure(write: Write, writers: int, operations: int, series: Series) -> None:
    """Run a number of writes with so many writers at once."""
    numbers = iter(range(operations))

    async def writer(me: int) -> None:
        for _ in numbers:
            await write(me)

    cpu, started = cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(writer(me) for me in range(writers)))
    series.per_second.append(operations / (time.perf_counter() - started))
    series.cpu.append((cpu_seconds() - cpu) / operations * 1e6)


def cpu_seconds() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def clients(uri: str, w: str) -> dict[str, object]:
    """Make the clients that are compared."""
    concern = int(w) if w.isdigit() else w
    return {
        "aioretry": RetryClient(uri, w=concern),
        "Motor": AsyncIOMotorClient(uri, w=concern),
        "AsyncMongoClient": AsyncMongoClient(uri, w=concern),
    }


def write_of(client, name: str) -> Write:
    """Return the write that is measured: a counter for each writer."""
    collection = client.benchmarks[name]

    def write(me: int) -> Awaitable[object]:
        return collection.update_one({"_id": me}, {"$inc": {"n": 1}}, upsert=True)

    return write


async def compare(uri: str, w: str, options: argparse.Namespace) -> dict[int, dict[str, Series]]:
    """Run all rounds with one write concern."""
    connected = clients(uri, w)
    writes = {name: write_of(client, name) for name, client in connected.items()}
    results: dict[int, dict[str, Series]] = {}
    for writers in options.writers:
        share = (1 if writers > 1 else 4) * (1 if w == "1" else 3)
        operations = options.operations // share
        series = results[writers] = {name: Series() for name in writes}
        for write in writes.values():
            await measure(write, writers, max(writers, operations // 4), Series())
        order = list(writes)
        for _ in range(options.rounds):
            order.append(order.pop(0))
            for name in order:
                await measure(writes[name], writers, operations, series[name])
    for client in connected.values():
        closing = client.close()
        if closing is not None:
            await closing
    return results


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    """Round by round, ours by theirs."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def spread(values: list[float]) -> str:
    """The median, and from where to where the middle half lies."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def show(results: dict[int, dict[str, Series]], w: str, members: int) -> None:
    """Print a table."""
    table = Table("at once", "client", title=f"update_one, w: {w}, {members} member(s)")
    for heading in (
        "op/s",
        "CPU us/op",
        "throughput of aioretry by this",
        "CPU of aioretry by this",
    ):
        table.add_column(heading, justify="right")
    for writers, series in results.items():
        ours = series["aioretry"]
        for name, one in series.items():
            comparison = ("", "")
            if name in PEERS:
                comparison = (
                    spread(ratios(ours.per_second, one.per_second)),
                    spread(ratios(ours.cpu, one.cpu)),
                )
            table.add_row(
                str(writers),
                name,
                f"{statistics.median(one.per_second):.0f}",
                f"{statistics.median(one.cpu):.0f}",
                *comparison,
            )
        table.add_section()
    Console(width=110).print(table)


def summary(results: dict[int, dict[str, Series]]) -> dict[str, object]:
    """The medians, as data."""
    return {
        str(writers): {
            name: {
                "per_second": statistics.median(one.per_second),
                "cpu_us": statistics.median(one.cpu),
                "throughput_of_aioretry_by_this": statistics.median(
                    ratios(series["aioretry"].per_second, one.per_second)
                ),
                "cpu_of_aioretry_by_this": statistics.median(
                    ratios(series["aioretry"].cpu, one.cpu)
                ),
            }
            for name, one in series.items()
        }
        for writers, series in results.items()
    }


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--operations", type=int, default=4000, help="for each client and round")
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 50, 200])
    parser.add_argument("--w", nargs="+", default=["1", "majority"], help="write concerns")
    parser.add_argument("--members", type=int, help="by default 1 for w: 1 and 3 for others")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main() -> None:
    """Compare, on replica sets of the benchmark's own."""
    options = parse(sys.argv[1:])
    everything = {}
    for w in options.w:
        members = options.members or (1 if w == "1" else 3)
        with ReplicaSet(members=members) as replica_set:
            results = asyncio.run(compare(replica_set.uri, w, options))
        everything[w] = summary(results)
        if not options.json:
            show(results, w, members)
    if options.json:
        sys.stdout.write(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
