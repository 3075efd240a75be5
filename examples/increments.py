"""Count exactly once on any server, a standalone one too, though some writers are cut off.

python examples/increments.py "mongodb://localhost"
"""

import argparse
import asyncio
import uuid

from bson import ObjectId
from pymongo.errors import PyMongoError

from aioretry import deadline
from aioretry.idempotent import PendingUpdates
from aioretry.pymongo import AsyncRetryClient

SOLD_ONE = {"$inc": {"sold": 1}}


async def sell(updates: PendingUpdates, item: str, token: ObjectId, patience: float) -> None:
    try:
        async with asyncio.timeout(patience), deadline(20.0):
            await updates.apply(item, SOLD_ONE, token=token, upsert=True)
    except (TimeoutError, PyMongoError):
        pass  # whoever asked will ask again, with the same token


async def main(uri: str, number: int) -> None:
    item = uuid.uuid4().hex
    tokens = [ObjectId() for _ in range(number)]
    async with AsyncRetryClient(uri) as client:
        stock = client.aioretry_examples.stock
        updates = PendingUpdates(stock, max_pending=number)
        await updates.create_index()
        # Every other caller loses patience at some point of its two writes.
        await asyncio.gather(
            *(sell(updates, item, token, n % 2 or n / 1000) for n, token in enumerate(tokens))
        )
        report = await updates.clean_up(older_than=0)
        print(f"left and finished: {report.finished}")
        await asyncio.gather(*(sell(updates, item, token, 20.0) for token in tokens))
        document = await stock.find_one({"_id": item})
        print(f"sold: {0 if document is None else document['sold']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count exactly once on any server.")
    parser.add_argument("uri", help="of any deployment")
    parser.add_argument("--number", type=int, default=100, help="how many (default: 100)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.uri, arguments.number))
