"""What a document costs by its size: CPU time, and the longest stall of the event loop.

aioretry's client takes turns with Motor and PyMongo's AsyncMongoClient, one call at a time. What
counts is the ratio of each round. Stalls are told in elapsed time, and in the CPU time that this
process spent meanwhile, into which no other process's work comes.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from aioretry.testing import ReplicaSet
from tests.benchmarks.figures import Spread, ratios, shown
from tests.benchmarks.throughput.clients import DATABASE, OURS, PEERS, TITLES, make
from tests.clients import CHOSEN, close
from tests.clients import OURS as CLIENTS

SIZES = {"100 B": 100, "10 kB": 10_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
_LOOK_EVERY = 0.001
_BYTES = 20_000_000  # of each client in a round
_MOST_CALLS = 300

Call = Callable[[Any, dict[str, Any]], Awaitable[object]]
Series = dict[str, list["Seen"]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one client did in one round, each in seconds."""

    cpu: float
    """Of the whole process, for each call."""

    stall: float
    """The longest time for which the event loop came to nothing else."""

    busy: float
    """The most CPU time that passed before the event loop came to something else."""


CALLS: Mapping[str, Call] = {
    "replace_one": lambda collection, document: collection.replace_one(
        {"_id": document["_id"]}, document, upsert=True
    ),
    "find_one": lambda collection, document: collection.find_one({"_id": document["_id"]}),
    "find_one_and_update": lambda collection, document: collection.find_one_and_update(
        {"_id": document["_id"]}, {"$inc": {"n": 1}}
    ),
}


def document_of(size: int) -> dict[str, Any]:
    """A document of so many bytes of BSON, nearly: items of some 100 bytes each."""
    item = {"n": 1, "text": "hello world hello world hello world", "sub": {"x": 1.5, "y": True}}
    return {"_id": size, "n": 0, "items": [item for _ in range(max(1, size // 100))]}


async def measure(call: Call, collection: Any, document: dict[str, Any], times: int) -> Seen:
    """Call so many times, one after the other, while something else looks at the clocks."""
    looks = [(time.perf_counter(), time.process_time())]

    async def look() -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            looks.append((time.perf_counter(), time.process_time()))

    looking = asyncio.create_task(look())
    begun = time.process_time()
    for _ in range(times):
        await call(collection, document)
    cpu = time.process_time() - begun
    await asyncio.sleep(2 * _LOOK_EVERY)
    looking.cancel()
    between = list(itertools.pairwise(looks))
    stall = max(after[0] - before[0] for before, after in between) - _LOOK_EVERY
    return Seen(cpu / times, stall, max(after[1] - before[1] for before, after in between))


async def compare(
    options: argparse.Namespace, say: Callable[[str], object]
) -> dict[tuple[str, str], Series]:
    """Measure all sizes and operations, on a replica set of the benchmark's own."""
    found: dict[tuple[str, str], Series] = {}
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(ReplicaSet(options.members))
        collections = {}
        for key in (OURS, *PEERS):
            client = make(key, servers.uri, "1")
            stack.push_async_callback(close, client)
            collections[key] = client[DATABASE][f"sizes_{key}"]
        for title in options.sizes:
            document = document_of(SIZES[title])
            times = max(2, min(_MOST_CALLS, _BYTES // SIZES[title]))
            for operation, call in CALLS.items():
                say(f"{operation}, {title} ...")
                series = found[operation, title] = {key: [] for key in collections}
                order = list(collections)
                for number in range(options.rounds + 1):
                    order.append(order.pop(0))
                    for key in order:
                        seen = await measure(call, collections[key], document, times)
                        if number:  # the first round warms up
                            series[key].append(seen)
    return found


def show(console: Console, found: Mapping[tuple[str, str], Series]) -> None:
    """Print a table."""
    table = Table("operation", "size", "client", title="by size; ratios: aioretry by the peer")
    for heading in ("CPU ms", "stall ms", "stall, CPU ms", "CPU", "stall", "stall, CPU"):
        table.add_column(heading, justify="right")
    for (operation, size), series in found.items():
        for key, seen in series.items():
            columns = [[getattr(one, name) for one in seen] for name in Seen.__slots__]
            own = [[getattr(one, name) for one in series[OURS]] for name in Seen.__slots__]
            figures = [shown(statistics.median(column) * 1e3) for column in columns]
            by = [str(Spread.of(ratios(*pair))) for pair in zip(own, columns, strict=True)]
            told = by if key != OURS else [""] * len(by)
            table.add_row(operation, size, TITLES[key], *figures, *told)
        table.add_section()
    console.print(table)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sizes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11, help="that count; one more warms up")
    parser.add_argument("--members", type=int, default=1, help="of the replica set")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--client", choices=CLIENTS, default="motor", help="which of aioretry's")
    return parser.parse_args(arguments)


def main() -> None:
    """Compare what the command line says."""
    options = parse(sys.argv[1:])
    os.environ[CHOSEN] = options.client
    warnings.filterwarnings("ignore", message=".*[Mm]otor.*", category=DeprecationWarning)
    found = asyncio.run(compare(options, lambda text: sys.stderr.write(text + "\n")))
    show(Console(width=150, highlight=False), found)


if __name__ == "__main__":
    main()
