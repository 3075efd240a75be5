"""Take orders whose requests come more than once; each is taken once, and answered the same.

python examples/idempotency_keys.py "mongodb://localhost/?replicaSet=rs0"
"""

import argparse
import asyncio
import secrets
import uuid

from pymongo.write_concern import WriteConcern

from aioretry.idempotent import IdempotencyConflict, Keys
from aioretry.pymongo import AsyncRetryClient, AsyncRetryCollection

DURABLE = WriteConcern(w="majority", j=True)


async def take(
    orders: AsyncRetryCollection, keys: Keys, request: str, item: str, *, durable: bool
) -> int:
    async with orders.operation(timeout=30.0, key=keys(request, durable=durable)) as op:
        await op.insert_one({"request": request, "item": item})
        counter = await op.find_one_and_update(
            {"_id": "counter"}, {"$inc": {"n": 1}}, upsert=True, return_document=True
        )
    number: int = counter["n"]
    return number


async def main(uri: str, number: int) -> None:
    run = uuid.uuid4().hex
    # A service reads it from where it keeps its secrets: all of its processes need the same.
    secret = secrets.token_bytes(32)
    async with AsyncRetryClient(uri) as client, Keys(secret, "examples") as keys:
        for durable in (False, True):
            name = f"orders_{run}_{'durable' if durable else 'native'}"
            orders = client.aioretry_examples.get_collection(name, write_concern=DURABLE)
            await orders.insert_one({"_id": "counter", "n": 0})
            requests = [f"{run}-{n}" for n in range(number)]
            calls = [take(orders, keys, each, "book", durable=durable) for each in requests * 3]
            answers = await asyncio.gather(*calls)
            taken = await orders.count_documents({"item": "book"})
            same = answers[:number] == answers[number : 2 * number] == answers[2 * number :]
            print(f"{len(calls)} requests, {taken} orders, the same answers: {same}")
            try:
                await take(orders, keys, requests[0], "bicycle", durable=durable)
            except IdempotencyConflict as exc:
                print(exc)
            await orders.drop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Take orders, each of them three times.")
    parser.add_argument("uri", help="of a replica set or a sharded cluster")
    parser.add_argument("--number", type=int, default=10, help="how many orders (default: 10)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.uri, arguments.number))
