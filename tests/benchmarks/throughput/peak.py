"""The memory that one operation takes at its peak, in a process of its own.

It is what the process holds beyond what it held before, connected and after one operation: the
operations under way, their threads and their connections.
"""

import asyncio
import gc
import json
import sys
import time
import warnings
from typing import Any

from tests.benchmarks.process import peak_kib, reset_peak, resident_kib
from tests.benchmarks.throughput.clients import DATABASE, make, view
from tests.benchmarks.throughput.operations import OPERATIONS
from tests.clients import close


async def peak(
    key: str, name: str, uri: str, w: str, writers: int, seconds: float
) -> dict[str, Any]:
    """Run an operation for a while, and see how much more memory it took; in KiB."""
    client = make(key, uri, w)
    collection = view(key, client[DATABASE][f"{name}_{key}"])
    calls = [OPERATIONS[name].call(collection, me) for me in range(writers)]
    await calls[0]()
    gc.collect()
    reset_peak()
    before = resident_kib()
    until = time.perf_counter() + seconds

    async def repeat(call: Any) -> None:
        while True:
            await call()
            if time.perf_counter() >= until:
                return

    await asyncio.gather(*map(repeat, calls))
    taken = peak_kib() - before
    await close(client)
    return {"peak_kib": taken}


def main() -> None:
    """Measure what the command line says."""
    warnings.simplefilter("ignore", DeprecationWarning)
    key, name, uri, w, writers, seconds = sys.argv[1:]
    told = asyncio.run(peak(key, name, uri, w, int(writers), float(seconds)))
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
