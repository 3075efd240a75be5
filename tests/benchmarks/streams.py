"""Counts by tag: followed by their changes, beside a full count by the server.

It makes documents with tags, counts them, changes some of them, and follows the changes. Then it
compares every aggregate with a fresh count, and tells what both ways have cost: documents touched,
and time. With --speed it measures how many changes a second the follower applies, by the number of
tags that a change touches.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from pymongo import InsertOne, UpdateOne
from pymongo.write_concern import WriteConcern
from rich.console import Console
from rich.table import Table

from aioretry._faces import Client, Collection, settled
from aioretry.streams import NO_WATERMARKS, Aggregator, Change, ChangeStreamSource
from aioretry.testing import ReplicaSet
from tests.clients import OURS

IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}
MAJORITY = WriteConcern(w="majority")
COUNT = [
    {"$unwind": "$tags"},
    {"$group": {"_id": "$tags", "count": {"$sum": 1}}},
]
_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way of counting has cost."""

    way: str
    read: int
    written: int
    seconds: float


def by_tag(change: Change) -> Iterator[tuple[str, dict[str, int]]]:
    """How many documents have each tag."""
    for document, sign in ((change.before, -1), (change.after, 1)):
        for tag in () if document is None else document["tags"]:
            yield tag, {"count": sign}


async def fill(documents: Collection, options: argparse.Namespace, rng: Random) -> None:
    """Insert the documents."""
    for start in range(0, options.documents, _AT_ONCE):
        keys = range(start, min(start + _AT_ONCE, options.documents))
        await documents.bulk_write(
            [InsertOne({"_id": n, "tags": tags(rng, options)}) for n in keys], ordered=False
        )


def tags(rng: Random, options: argparse.Namespace) -> list[str]:
    """Tags of one document, each once."""
    return [f"tag{n}" for n in rng.sample(range(options.all_tags), options.tags)]


async def change(
    documents: Collection, options: argparse.Namespace, rng: Random, touched: int
) -> None:
    """Change documents: each loses one tag and gets another, or loses and gets several."""
    for start in range(0, options.updates, _AT_ONCE):
        keys = [
            rng.randrange(options.documents)
            for _ in range(start, min(start + _AT_ONCE, options.updates))
        ]
        found = {d["_id"]: d async for d in documents.find({"_id": {"$in": keys}})}
        updates = []
        for key in keys:
            kept = found[key]["tags"][touched:]
            new = {*kept}
            while len(new) < options.tags:
                new.add(f"tag{rng.randrange(options.all_tags)}")
            found[key] = {"tags": sorted(new, key=lambda tag: (tag not in kept, tag))}
            updates.append(UpdateOne({"_id": key}, {"$set": {"tags": found[key]["tags"]}}))
        await documents.bulk_write(updates)


async def compare(client: Client, options: argparse.Namespace, say: Any) -> list[Cost]:
    """Build, follow, count anew, and compare."""
    database = client.get_database("benchmarks", write_concern=MAJORITY)
    documents = await database.create_collection("animals", **IMAGES)
    target, rng = database.tags, Random(options.seed)
    aggregator = Aggregator("tags", ChangeStreamSource(documents, fields=["tags"]), by_tag, target)
    say("inserting")
    await fill(documents, options, rng)
    say("building")
    built = await aggregator.rebuild()
    costs = [Cost("built (once)", built.documents, built.buckets, built.seconds)]
    say("changing")
    await change(documents, options, rng, touched=1)
    say("following")
    moved = await moved_buckets(aggregator, target)
    (part,) = (await aggregator.status()).parts
    costs.append(Cost("followed", part.changes, *moved))
    say("counting")
    started = time.perf_counter()
    counting = documents.aggregate([*COUNT, {"$out": "fresh"}], allowDiskUse=True)
    await (await settled(counting)).to_list(None)
    took = time.perf_counter() - started
    fresh = await database.fresh.find().sort("_id").to_list(None)
    costs.append(Cost("full count", options.documents, len(fresh), took))
    assert fresh == await target.find(NO_WATERMARKS).sort("_id").to_list(None), "they differ"
    say(f"all {len(fresh)} aggregates equal the fresh count")
    return costs


async def moved_buckets(aggregator: Aggregator, target: Collection) -> tuple[int, float]:
    """Follow to the end; return how many aggregates were written, and the seconds."""
    before = (await aggregator.client.admin.command("serverStatus"))["metrics"]["document"]
    started = time.perf_counter()
    await aggregator.run(until_caught_up=True)
    took = time.perf_counter() - started
    after = (await aggregator.client.admin.command("serverStatus"))["metrics"]["document"]
    return sum(after[what] - before[what] for what in ("updated", "inserted", "deleted")), took


async def speed(client: Client, options: argparse.Namespace, say: Any) -> Table:
    """Measure changes a second, by the number of tags that a change touches."""
    database = client.get_database("benchmarks", write_concern=MAJORITY)
    documents = await database.create_collection("animals", **IMAGES)
    table = Table("tags touched", "changes/s", "increments/s", "aggregates written")
    aggregator = Aggregator("tags", ChangeStreamSource(documents), by_tag, database.tags)
    rng = Random(options.seed)
    say("inserting and building")
    await fill(documents, options, rng)
    await aggregator.rebuild()
    for touched in (1, 2, 5, 10):
        if touched <= options.tags:
            say(f"{touched} tags")
            await change(documents, options, rng, touched)
            written, took = await moved_buckets(aggregator, database.tags)
            rate = options.updates / took
            table.add_row(
                str(2 * touched), f"{rate:.0f}", f"{2 * touched * rate:.0f}", str(written)
            )
    return table


def shown(costs: list[Cost]) -> Table:
    """The ways side by side."""
    table = Table("way", "documents read", "documents written", "seconds")
    for cost in costs:
        table.add_row(cost.way, str(cost.read), str(cost.written), f"{cost.seconds:.2f}")
    return table


async def run(options: argparse.Namespace) -> Table:
    """Measure, on a replica set of the benchmark's own."""

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")

    async with (
        ReplicaSet(members=options.members) as servers,
        OURS[options.client](servers.uri) as client,
    ):
        if options.speed:
            return await speed(client, options, say)
        return shown(await compare(client, options, say))


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.streams", description=__doc__)
    parser.add_argument("--speed", action="store_true", help="changes a second")
    parser.add_argument("--documents", type=int, default=120_000)
    parser.add_argument("--tags", type=int, default=10, help="of each document")
    parser.add_argument("--all-tags", type=int, default=30_000, help="that there are")
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--client", choices=OURS, default="motor", help="which of aioretry's")
    Console(width=100).print(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
