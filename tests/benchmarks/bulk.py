"""Throughput of insert_many and bulk_write, beside Motor or PyMongo's AsyncMongoClient.

Both clients take turns on one replica set: aioretry's, and the plain one that it is made of. What
counts is the ratio of each round, between two runs that were next to each other in it.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from pymongo import DeleteOne, InsertOne, UpdateOne
from rich.console import Console
from rich.table import Table

from aioretry.testing import ReplicaSet
from tests.benchmarks.figures import Spread, ratios
from tests.benchmarks.throughput.clients import MAKERS, MOTOR, PYMONGO, TITLES
from tests.clients import OURS, close

Send = Callable[[object, list], Awaitable[object]]


def documents(size: int) -> list[dict]:
    """Documents of some 100 bytes."""
    return [{"n": n, "text": "hello world " * 5, "sub": {"x": 1.5}} for n in range(size)]


def updates(size: int) -> list[object]:
    """An increment for each of so many documents."""
    return [UpdateOne({"_id": n}, {"$inc": {"n": 1}}, upsert=True) for n in range(size)]


def mixed(size: int) -> list[object]:
    """Documents that are inserted, updated and deleted again."""
    third = range(size // 3)
    return [
        *(InsertOne({"_id": f"m{n}", "n": n}) for n in third),
        *(UpdateOne({"_id": f"m{n}"}, {"$inc": {"n": 1}}) for n in third),
        *(DeleteOne({"_id": f"m{n}"}) for n in third),
    ]


CASES: dict[str, tuple[Callable[[int], list], Send]] = {
    "insert_many": (documents, lambda collection, batch: collection.insert_many(batch)),
    "bulk_write, inserts": (
        lambda size: [InsertOne(document) for document in documents(size)],
        lambda collection, batch: collection.bulk_write(batch),
    ),
    "bulk_write, updates": (updates, lambda collection, batch: collection.bulk_write(batch)),
    "bulk_write, mixed": (mixed, lambda collection, batch: collection.bulk_write(batch)),
}


async def measure(collection: object, case: str, options: argparse.Namespace) -> float:
    """Return how many statements a second went through."""
    make, send = CASES[case]
    batches = [make(options.size) for _ in range(options.batches)]
    started = time.perf_counter()
    for batch in batches:
        await send(collection, batch)
    return options.batches * options.size / (time.perf_counter() - started)


async def compare(uri: str, options: argparse.Namespace) -> Table:
    """Run all rounds."""
    peer = {"motor": MOTOR, "asyncio": PYMONGO}[options.client]
    title = TITLES[peer]
    table = Table("operation", f"{title} /s", "aioretry /s", f"aioretry by {title} (middle half)")
    clients = [MAKERS[peer](uri, w=1), OURS[options.client](uri, w=1)]
    try:
        for case in CASES:
            collections = [client.benchmarks[f"bulk{n}"] for n, client in enumerate(clients)]
            rounds: list[list[float]] = []
            for number in range(options.rounds + 1):
                speeds = [0.0, 0.0]
                for side in (0, 1) if number % 2 else (1, 0):
                    speeds[side] = await measure(collections[side], case, options)
                rounds.append(speeds)
            for collection in collections:
                await collection.drop()
            peers, own = zip(*rounds[1:], strict=True)  # the first one warms up
            table.add_row(
                case,
                f"{statistics.median(peers):.0f}",
                f"{statistics.median(own):.0f}",
                str(Spread.of(ratios(own, peers))),
            )
    finally:
        for client in clients:
            await close(client)
    return table


def main() -> None:
    """Compare, on a replica set of the benchmark's own."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bulk", description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--batches", type=int, default=10, help="for each client and round")
    parser.add_argument("--size", type=int, default=1000, help="statements in a batch")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--client", choices=OURS, default="motor", help="which of aioretry's")
    options = parser.parse_args(sys.argv[1:])
    with ReplicaSet(members=options.members) as replica_set:
        Console(width=100).print(asyncio.run(compare(replica_set.uri, options)))


if __name__ == "__main__":
    main()
