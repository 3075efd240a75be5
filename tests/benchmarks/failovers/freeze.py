"""The primary freezes (is killed, steps down) under load; another takes over, and it is back."""

import argparse
import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aioretry.testing import Member, ReplicaSet
from tests.benchmarks.failovers.clients import DATABASE, Kind
from tests.benchmarks.failovers.judging import judge
from tests.benchmarks.failovers.load import Load, Read, Reads
from tests.benchmarks.failovers.measuring import (
    Figures,
    Watch,
    longest_pause,
    watched,
)
from tests.benchmarks.failovers.servers import Election, last_election
from tests.benchmarks.figures import quantile
from tests.clients import close

COLLECTION = "freeze"
_HAVE_ENDED = 1.0  # reads that were due so shortly before the SIGSTOP may have met it
_WARM_UP = 2.0  # seconds of load that nothing is measured of
_PATIENCE = 10.0  # seconds beyond the time limit that a client may take to find the new primary
_LEAST_LIMIT = 30.0  # the majority may take long to follow the new primary, whatever the limit
_LEAST_READ_LIMIT_MS = 250.0


@dataclass(frozen=True)
class Moments:
    """When things happened, in monotonic seconds."""

    measured: float
    frozen: float
    thawed: float
    ended: float
    election: Election
    writable_after: float
    """How long after the SIGSTOP the new primary took writes, by its own log."""


async def run(kind: Kind, servers: ReplicaSet, options: argparse.Namespace) -> Figures:
    """Measure one client."""
    client = kind.open(servers.uri)
    collection = client[DATABASE][COLLECTION]
    async with watched() as watch:
        load = Load(kind, collection, options.writers, options.timeout)
        reads = Reads(lambda: kind.limit(options.timeout), collection)
        try:
            moments = await _fail_over(servers, load, options)
        finally:
            await reads.stop()
            await load.stop()
    await servers.heal()
    figures = _figures(load, reads, watch, moments)
    figures |= await judge(load.told, servers, COLLECTION)
    await close(client)
    return figures


async def _fail_over(servers: ReplicaSet, load: Load, options: argparse.Namespace) -> Moments:
    await asyncio.sleep(_WARM_UP)
    measured = time.monotonic()
    await asyncio.sleep(options.before)
    primary = await servers.primary()
    frozen, frozen_at = time.monotonic(), time.time()
    await _TAKE_AWAY[options.how](servers, primary)
    await servers.wait_for_primary(60.0, other_than=primary)
    await _serve_again(load, max(options.timeout, _LEAST_LIMIT) + _PATIENCE)
    await asyncio.sleep(options.hold)
    thawed = time.monotonic()
    await servers.heal()
    await asyncio.sleep(options.after)
    election = await last_election(servers, frozen_at)
    return Moments(
        measured, frozen, thawed, time.monotonic(), election, election.writable - frozen_at
    )


async def _serve_again(load: Load, seconds: float) -> None:
    """Wait until a write is acknowledged, which only the new primary can do."""
    before, until = len(load.acknowledged), time.monotonic() + seconds
    while len(load.acknowledged) == before and time.monotonic() < until:
        await asyncio.sleep(0.01)


async def _step_down(servers: ReplicaSet, _: Member) -> None:
    await servers.step_down()


_TAKE_AWAY: Mapping[str, Callable[[ReplicaSet, Member], Awaitable[None]]] = {
    "freeze": ReplicaSet.freeze,
    "kill": ReplicaSet.kill,
    "step-down": _step_down,
}
HOW = tuple(_TAKE_AWAY)


def _figures(load: Load, reads: Reads, watch: Watch, moments: Moments) -> Figures:
    pause = longest_pause(load.acknowledged, moments.measured, moments.ended)
    before = reads.between(moments.measured, moments.frozen - _HAVE_ENDED)
    during = reads.between(moments.frozen, moments.thawed)
    frozen_at = moments.election.writable - moments.writable_after
    p99 = quantile(_milliseconds(before), 0.99)
    return {
        "votes_won_after_s": _after(moments.election.elected, frozen_at),
        "new_primary_writable_after_s": moments.writable_after,
        "majority_follows_it_after_s": _after(moments.election.majority, frozen_at),
        "longest_time_without_an_acknowledged_write_s": pause,
        "that_by_new_primary_writable": pause / moments.writable_after,
        "that_by_majority_follows_it": pause / _after(moments.election.majority, frozen_at),
        "writes_a_second_before": sum(
            moments.measured <= when < moments.frozen for when in load.acknowledged
        )
        / (moments.frozen - moments.measured),
        "reads_before": len(before),
        "reads_p99_before_ms": p99,
        "reads_during": len(during),
        "reads_p99.9_during_ms": quantile(_milliseconds(during), 0.999),
        "reads_p99.9_may_be_ms": max(3 * p99, _LEAST_READ_LIMIT_MS),
        "read_errors": sum(read.error is not None for read in reads.done),
        "longest_stall_of_the_event_loop_ms": watch.longest_stall * 1000,
        "most_threads": watch.most_threads,
    }


def _after(moment: float | None, start: float) -> float:
    return math.nan if moment is None else moment - start


def _milliseconds(reads: list[Read]) -> list[float]:
    return [read.took * 1000 for read in reads]
