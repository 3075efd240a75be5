"""What an idle client holds, in a process of its own that has nothing else in it.

Motor's process must not import aioretry, so that its imports count for it too; that is why this
module imports nothing of what the others share but how to read the figure.
"""

import asyncio
import gc
import json
import os
import sys
import warnings
from typing import Any

from tests.benchmarks.process import resident_kib, thread_count

_REST = 1.0


def _make(key: str, uri: str) -> Any:
    if key == "aioretry" and os.environ.get("AIORETRY_TEST_CLIENT") == "asyncio":
        from aioretry.pymongo import AsyncRetryClient

        return AsyncRetryClient(uri)
    if key == "aioretry":
        from aioretry import RetryClient

        return RetryClient(uri)
    if key == "motor":
        from motor.motor_asyncio import AsyncIOMotorClient

        return AsyncIOMotorClient(uri)
    from pymongo import AsyncMongoClient

    return AsyncMongoClient(uri)


async def idle(key: str, uri: str) -> dict[str, float]:
    """Connect, write once, rest, and look."""
    client = _make(key, uri)
    await client.benchmarks.idle.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
    await asyncio.sleep(_REST)
    gc.collect()
    figures = {"rss_kib": resident_kib(), "threads": float(thread_count())}
    closing = client.close()
    if closing is not None:
        await closing
    return figures


def main() -> None:
    """Measure what the command line says."""
    warnings.simplefilter("ignore", DeprecationWarning)
    told = asyncio.run(idle(*sys.argv[1:]))
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
