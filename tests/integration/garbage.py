"""Prints what calls leave to the garbage collector: ``python -m tests.integration.garbage``.

In a process of its own, where nobody else leaves anything.
"""

import asyncio
import gc
import json
import sys
import uuid
from collections import Counter

from aioretry import deadline, run_transaction, transaction
from aioretry._writes.context import settled
from aioretry.idempotent import Keys
from tests.clients import chosen_client

INCREMENT = {"$inc": {"n": 1}}


async def update(client, things):
    await things.update_one({"_id": 1}, INCREMENT)


async def find(client, things):
    await things.find_one({"_id": 1})


async def insert_many(client, things):
    await things.insert_many([{}, {}])


async def in_an_operation(client, things):
    async with deadline(60), things.operation(timeout=60) as operation:
        await operation.update_one({"_id": 1}, INCREMENT)


async def coalesced(client, things):
    await asyncio.gather(*(things.coalesced().insert_one({}) for _ in range(5)))


async def with_transaction(client, things):
    async with await settled(client.start_session()) as session:
        await session.with_transaction(
            lambda given: things.update_one({"_id": 1}, INCREMENT, session=given)
        )


async def in_a_transaction(client, things):
    async with transaction(client, timeout=60) as session:
        await things.update_one({"_id": 1}, INCREMENT, session=session)


async def run_in_a_transaction(client, things):
    await run_transaction(
        client, lambda given: things.update_one({"_id": 1}, INCREMENT, session=given)
    )


async def once(client, things):
    async def work(session):
        await things.update_one({"_id": 1}, INCREMENT, session=session)
        return {}

    async with Keys(b"a secret of 32 bytes for the test", "garbage") as keys:
        await keys.once(uuid.uuid4().hex, work, database=things.database)


CALLS = (
    update,
    find,
    insert_many,
    in_an_operation,
    coalesced,
    with_transaction,
    in_a_transaction,
    run_in_a_transaction,
    once,
)


async def main(uri):
    """Print the types of what is left, by the call."""
    left = {}
    async with chosen_client()(uri) as client:
        things = client.aioretry_tests[f"c{uuid.uuid4().hex}"]
        await things.insert_one({"_id": 1, "n": 0})
        for call in CALLS:
            await call(client, things)
            gc.collect()
            gc.set_debug(gc.DEBUG_SAVEALL)
            for _ in range(3):
                await call(client, things)
            gc.collect()
            gc.set_debug(0)
            types = Counter(f"{type(each).__module__}.{type(each).__name__}" for each in gc.garbage)
            ours = {name: count for name, count in types.items() if name.startswith("aioretry")}
            if ours:
                left[call.__name__] = ours
            gc.garbage.clear()
    sys.stdout.write(json.dumps(left))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
