"""Import events that may come again; begun again at any time, it leaves each event there once.

python examples/import_once.py "mongodb://localhost/"
"""

import argparse
import asyncio
from collections import Counter

from pymongo.write_concern import WriteConcern

from aioretry.idempotent import InsertConflict, insert_once
from aioretry.pymongo import AsyncRetryClient, AsyncRetryCollection

DURABLE = WriteConcern(w="majority", j=True)


async def take(events: AsyncRetryCollection, event: dict[str, object]) -> str:
    try:
        result = await insert_once(events, event, timeout=20.0)
    except InsertConflict:  # the same number, and another content
        return "conflicts"
    return "there before" if result.was_there else "new"


async def main(uri: str, name: str, number: int) -> None:
    async with AsyncRetryClient(uri) as client:
        events = client.aioretry_examples.get_collection(name, write_concern=DURABLE)
        # The number of an event is its _id.
        received = [{"_id": n, "kind": "login"} for n in range(number)]
        ends = Counter(await asyncio.gather(*(take(events, event) for event in received)))
        stored = await events.count_documents({})
    for end in ("new", "there before", "conflicts"):
        print(f"{end}: {ends[end]}")
    print(f"stored: {stored}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Import events, each of them once.")
    parser.add_argument("uri", help="of any deployment, a standalone server too")
    parser.add_argument("--collection", default="imported", help="where to (default: imported)")
    parser.add_argument("--number", type=int, default=100, help="how many (default: 100)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.uri, arguments.collection, arguments.number))
