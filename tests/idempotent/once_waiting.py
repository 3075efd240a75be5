"""What a process runs that is killed while the work of its keys waits."""

import asyncio

from aioretry.idempotent import Keys
from tests.clients import chosen_client
from tests.idempotent.keyed import NAMESPACE, SECRET, keyed_collection

MARK = {"$set": {"by": "the dead"}}


async def wait_in_work(uri: str, *, name: str, keys: list[str]) -> None:
    """Do work for some keys that takes a document and never ends; tell when each has its one."""
    async with chosen_client()(uri) as client, Keys(SECRET, NAMESPACE) as made:
        collection = keyed_collection(client, name)
        written, names = [], iter(keys)

        async def work(session):
            taken = {"_id": next(names)}
            written.append(await collection.update_one(taken, MARK, upsert=True, session=session))
            if len(written) == len(keys):
                print("written", flush=True)
            await asyncio.Event().wait()

        database = collection.database
        await asyncio.gather(*(made.once(key, work, database=database) for key in keys))
