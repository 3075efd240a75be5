"""Count events from many tasks at once, each under a deadline, and find out about those in doubt.

python examples/counter.py "mongodb://localhost/?replicaSet=rs0"
"""

import argparse
import asyncio
from collections import Counter
from datetime import UTC, datetime

from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from aioretry import Outcome, deadline, outcome_of, resolve
from aioretry.pymongo import AsyncRetryClient, AsyncRetryCollection

DURABLE = WriteConcern(w="majority", j=True)


async def count_one(events: AsyncRetryCollection, day: str) -> Outcome | None:
    try:
        async with deadline(20.0):
            await events.update_one({"_id": day}, {"$inc": {"counter": 1}}, upsert=True)
    except PyMongoError as exc:
        if outcome_of(exc) is not Outcome.UNKNOWN:
            return outcome_of(exc)
        return await find_out(exc)
    return Outcome.APPLIED


async def find_out(doubt: PyMongoError) -> Outcome | None:
    try:
        await resolve(doubt, timeout=60.0)
    except PyMongoError as exc:
        return outcome_of(exc)
    return Outcome.APPLIED


async def counted(events: AsyncRetryCollection, day: str) -> int:
    document = await events.find_one({"_id": day})
    return 0 if document is None else document["counter"]


async def main(uri: str, number: int) -> None:
    day = datetime.now(UTC).date().isoformat()
    async with AsyncRetryClient(uri) as client:
        events = client.aioretry_examples.get_collection("events", write_concern=DURABLE)
        before = await counted(events, day)
        outcomes = Counter(await asyncio.gather(*(count_one(events, day) for _ in range(number))))
        added = await counted(events, day) - before
    for outcome in Outcome:
        print(f"{outcome.value}: {outcomes[outcome]}")
    print(f"counted: {added}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count events, each under a deadline.")
    parser.add_argument("uri", help="of a replica set or a sharded cluster")
    parser.add_argument("--number", type=int, default=100, help="how many events (default: 100)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.uri, arguments.number))
