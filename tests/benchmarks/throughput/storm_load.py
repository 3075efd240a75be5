"""The load of a fault storm, in a process of its own: the proxies are in the other one.

It reads what to do from its standard input, a line each, and answers with a line each.
"""

import asyncio
import dataclasses
import json
import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

from aioretry import deadline
from tests.benchmarks.throughput.clients import DATABASE, FLOOR, MOTOR, OURS, Clients, concern
from tests.benchmarks.throughput.floor_at_once import FloorAtOnce
from tests.benchmarks.throughput.operations import OPERATIONS, Call
from tests.benchmarks.throughput.rounds import Sample, measure

_LIMITS: dict[str, Callable[[float], AbstractContextManager[object]]] = {
    OURS: deadline,
    MOTOR: pymongo.timeout,
}


class _Load:
    """Writers of one client; an error ends a write and is counted."""

    def __init__(self, key: str, collection: Any, timeout: float) -> None:
        self.failed = 0
        self._limit = _LIMITS[key]
        self._collection = collection
        self._timeout = timeout

    def call(self, me: int) -> Call:
        """Make the call of one writer."""

        async def call() -> None:
            try:
                with self._limit(self._timeout):
                    await self._collection.update_one({"_id": me}, {"$inc": {"n": 1}}, upsert=True)
            except PyMongoError:
                self.failed += 1

        return call


def _measure_floor(uri: str, w: str, writers: int, seconds: float) -> Sample:
    with pymongo.MongoClient[Any](uri) as client:
        client.admin.command("ping")
        address = client.primary
    assert address is not None
    make_body = OPERATIONS["update_one"].body
    bodies = [make_body(f"storm_{FLOOR}", me) for me in range(writers)]
    floor = FloorAtOnce(address, DATABASE, concern(w), bodies)
    try:
        return floor.measure(seconds)
    finally:
        floor.close()


async def serve(uri: str, w: str, timeout: float) -> None:
    """Do what the lines say, until there are no more."""
    async with Clients(uri, w) as clients:
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            key, writers, seconds = asked["client"], asked["writers"], asked["seconds"]
            failed = 0
            if key == FLOOR:
                sample = _measure_floor(uri, w, writers, seconds)
            else:
                load = _Load(key, clients.collection(key, f"storm_{key}"), timeout)
                sample = await measure([load.call(me) for me in range(writers)], seconds)
                failed = load.failed
            told = {"sample": dataclasses.asdict(sample), "failed": failed}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()


def main() -> None:
    """Serve the process that started this one."""
    warnings.simplefilter("ignore", DeprecationWarning)
    logging.getLogger("aioretry").setLevel(logging.ERROR)  # else it reports every retry
    uri, w, timeout = sys.argv[1:]
    asyncio.run(serve(uri, w, float(timeout)))


if __name__ == "__main__":
    main()
