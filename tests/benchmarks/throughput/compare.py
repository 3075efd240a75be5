"""The comparison: every operation, concurrency and write concern, on every client in turns."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pymongo import MongoClient

from aioretry.testing import ReplicaSet
from tests.benchmarks.throughput import child
from tests.benchmarks.throughput.clients import COALESCED, DATABASE, FLOOR, Clients, concern
from tests.benchmarks.throughput.floor import Floor
from tests.benchmarks.throughput.operations import OPERATIONS, TOGETHER, Operation, stored
from tests.benchmarks.throughput.ratios import Case
from tests.benchmarks.throughput.rounds import (
    Sample,
    Series,
    measure,
    measure_blocking,
    take_turns,
)

Say = Callable[[str], object]

_ON_STORED = {"find_one", "transfer"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was measured."""

    results: dict[Case, dict[str, Series]]
    peaks: dict[tuple[str, str], float]
    """The peak memory under load in KiB, by operation and client."""

    peak_writers: int


async def compare(options: argparse.Namespace, say: Say) -> Comparison:
    """Measure all that was asked for, on a replica set of its own."""
    results: dict[Case, dict[str, Series]] = {}
    peaks: dict[tuple[str, str], float] = {}
    async with ReplicaSet(options.members, options.server) as servers:
        primary = await servers.primary()
        address = (primary.host, primary.port)
        for w in options.w:
            async with Clients(servers.uri, w) as clients:
                with Floor(address, DATABASE, concern(w)) as floor:
                    for name in options.only:
                        for writers in options.writers:
                            case = Case(name, w, writers)
                            say(f"{case} ...")
                            await empty(servers.uri)
                            await _fill(servers.uri, case, options.clients)
                            measures = _measures(case, clients, floor, options.clients)
                            results[case] = await take_turns(
                                measures, options.rounds, options.seconds
                            )
        if options.peaks:
            peaks = await _peaks(servers.uri, options, say)
    return Comparison(results, peaks, max(options.writers))


def keys(operation: str, chosen: list[str]) -> list[str]:
    """Those of the clients that take part in an operation."""
    left_out = set()
    if operation not in TOGETHER:
        left_out.add(COALESCED)
    if OPERATIONS[operation].body is None:
        left_out.add(FLOOR)
    return [key for key in chosen if key not in left_out]


def _measures(
    case: Case, clients: Clients, floor: Floor, chosen: list[str]
) -> dict[str, Callable[[float], Awaitable[Sample]]]:
    operation = OPERATIONS[case.operation]
    measures: dict[str, Callable[[float], Awaitable[Sample]]] = {}
    for key in keys(case.operation, chosen):
        name = f"{case.operation}_{key}"
        if key == FLOOR and operation.body is not None:
            call = floor.read if operation.is_read else floor.write
            body = operation.body(name, 0)
            measures[key] = partial(_measure_floor, lambda call=call, body=body: call(body()))
        else:
            calls = calls_of(operation, clients.collection(key, name), case.writers)
            measures[key] = partial(measure, calls)
    return measures


async def _measure_floor(call: Callable[[], object], seconds: float) -> Sample:
    return measure_blocking(call, seconds)


def calls_of(operation: Operation, collection: Any, writers: int) -> list[Any]:
    """The calls of so many callers."""
    return [operation.call(collection, me) for me in range(writers)]


async def empty(uri: str) -> None:
    """Forget what was written, so that no case pays for the ones before."""

    def drop() -> None:
        client: MongoClient[Any] = MongoClient(uri, w="majority")
        with client:
            client.drop_database(DATABASE)

    await asyncio.to_thread(drop)


async def _fill(uri: str, case: Case, chosen: list[str]) -> None:
    """Store what an operation finds; the others make it themselves."""
    if case.operation not in _ON_STORED:
        return

    def insert() -> None:
        client: MongoClient[Any] = MongoClient(uri, w="majority")
        with client:
            for key in keys(case.operation, chosen):
                client[DATABASE][f"{case.operation}_{key}"].insert_many(stored(case.writers))

    await asyncio.to_thread(insert)


async def _peaks(uri: str, options: argparse.Namespace, say: Say) -> dict[tuple[str, str], float]:
    found = {}
    writers = max(options.writers)
    for operation in options.only:
        for key in keys(operation, options.clients):
            if key == FLOOR:
                continue
            say(f"peak memory: {operation}, {writers} at once, {key} ...")
            await empty(uri)
            arguments = [key, operation, uri, options.w[0], str(writers), str(options.seconds)]
            told = await child.run("tests.benchmarks.throughput.peak", *arguments)
            found[operation, key] = float(told["peak_kib"])
    return found
