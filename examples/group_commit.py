"""Take events from many tasks at once; those of one moment travel in one command.

python examples/group_commit.py "mongodb://localhost/?replicaSet=rs0"
"""

import argparse
import asyncio
import uuid
from collections import Counter
from time import perf_counter

from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from aioretry import Outcome, deadline, outcome_of
from aioretry.pymongo import AsyncRetryClient, AsyncRetryCollection

DURABLE = WriteConcern(w="majority", j=True)


async def take(events: AsyncRetryCollection, event: dict[str, object]) -> Outcome | None:
    try:
        async with deadline(20.0):
            await events.insert_one(event)
    except PyMongoError as exc:  # this event's own: the others have theirs
        return outcome_of(exc)
    return Outcome.APPLIED


async def main(uri: str, number: int) -> None:
    run = uuid.uuid4().hex
    async with AsyncRetryClient(uri) as client:
        stored = client.aioretry_examples.get_collection("log", write_concern=DURABLE)
        events = stored.coalesced()
        started = perf_counter()
        # The last one has the key of the first.
        keys = [f"{run}-{n % (number - 1)}" for n in range(number)]
        outcomes = Counter(
            await asyncio.gather(*(take(events, {"_id": key, "run": run}) for key in keys))
        )
        took = perf_counter() - started
        found = await stored.count_documents({"run": run})
    for outcome in Outcome:
        print(f"{outcome.value}: {outcomes[outcome]}")
    print(f"stored: {found}, in {took:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Insert events that travel together.")
    parser.add_argument("uri", help="of a replica set or a sharded cluster")
    parser.add_argument("--number", type=int, default=5000, help="how many (default: 5000)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.uri, arguments.number))
