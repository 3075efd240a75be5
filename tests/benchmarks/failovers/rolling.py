"""All members are restarted under load, one after the other, more than once."""

import argparse
import asyncio
import time

from aioretry.testing import ReplicaSet
from tests.benchmarks.failovers.clients import DATABASE, Kind
from tests.benchmarks.failovers.judging import judge
from tests.benchmarks.failovers.load import Load
from tests.benchmarks.failovers.measuring import Figures, longest_pause, watched
from tests.benchmarks.failovers.servers import elections
from tests.clients import close

COLLECTION = "rolling"
_QUIET = 3.0  # seconds of load before, between and after


async def run(kind: Kind, servers: ReplicaSet, options: argparse.Namespace) -> Figures:
    """Measure one client."""
    client = kind.open(servers.uri)
    async with watched() as watch:
        load = Load(kind, client[DATABASE][COLLECTION], options.writers, options.timeout)
        try:
            await asyncio.sleep(_QUIET)
            begun, begun_at = time.monotonic(), time.time()
            for _ in range(options.rounds):
                await servers.rolling_restart()
                await servers.heal()
                await asyncio.sleep(_QUIET)
            ended = time.monotonic()
        finally:
            await load.stop()
    figures: Figures = {
        "restarts": options.rounds * len(servers.members),
        "elections": len(elections(servers, begun_at)),
        "took_s": ended - begun,
        "longest_time_without_an_acknowledged_write_s": longest_pause(
            load.acknowledged, begun, ended
        ),
        "longest_stall_of_the_event_loop_ms": watch.longest_stall * 1000,
        "most_threads": watch.most_threads,
    }
    figures |= await judge(load.told, servers, COLLECTION)
    await close(client)
    return figures
