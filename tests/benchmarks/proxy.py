"""What a proxy of the test kit adds to an operation's time.

Plain PyMongo, one thread, one member: directly and through a proxy, in turns, so that what the
machine does besides meets both alike.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

from pymongo import MongoClient
from rich.console import Console
from rich.table import Table

from aioretry.testing import ReplicaSet

WAYS = ("directly", "through a proxy")
Samples = dict[str, dict[str, list[float]]]


def operations(uri: str) -> tuple[MongoClient, dict[str, Callable[[], object]]]:
    """Connect, and make the operations that are measured."""
    client: MongoClient = MongoClient(uri, directConnection=True, w=1)
    counters = client.benchmarks.proxy
    return client, {
        "ping": lambda: client.admin.command("ping"),
        "update": lambda: counters.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True),
    }


def measure(operation: Callable[[], object], times: int) -> list[float]:
    """Time each of a number of calls, in microseconds."""
    samples = []
    for _ in range(times):
        started = time.perf_counter()
        operation()
        samples.append((time.perf_counter() - started) * 1e6)
    return samples


def compare(uris: dict[str, str], options: argparse.Namespace) -> Samples:
    """Run all rounds."""
    clients, ways = {}, {}
    for way, uri in uris.items():
        clients[way], ways[way] = operations(uri)
    samples: Samples = {name: {way: [] for way in ways} for name in next(iter(ways.values()))}
    order = list(ways)
    for number in range(options.rounds + 1):
        order.append(order.pop(0))
        for name, series in samples.items():
            for way in order:
                measured = measure(ways[way][name], options.operations)
                series[way] += measured if number else []  # the first round warms up
    for client in clients.values():
        client.close()
    return samples


def summary(samples: Samples) -> dict[str, dict[str, float]]:
    """The medians, and the difference."""
    result = {}
    for name, series in samples.items():
        medians = {way: statistics.median(series[way]) for way in WAYS}
        result[name] = medians | {"difference": medians[WAYS[1]] - medians[WAYS[0]]}
    return result


def show(results: dict[str, dict[str, float]]) -> None:
    """Print a table."""
    table = Table("operation", title="median, in microseconds")
    for heading in (*WAYS, "difference"):
        table.add_column(heading, justify="right")
    for name, medians in results.items():
        table.add_row(name, *(f"{medians[key]:.0f}" for key in (*WAYS, "difference")))
    Console(width=110).print(table)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.proxy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--operations", type=int, default=500, help="of each kind, way and round")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main() -> None:
    """Compare, on a replica set of the benchmark's own."""
    options = parse(sys.argv[1:])
    with ReplicaSet(members=1, faults=True) as replica_set:
        [member] = replica_set.members
        uris = dict(zip(WAYS, (member.direct_uri, f"mongodb://{member.address}/"), strict=True))
        results = summary(compare(uris, options))
    if options.json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")
    else:
        show(results)


if __name__ == "__main__":
    main()
