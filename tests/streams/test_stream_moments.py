"""Between what a rebuild reads and what is followed afterwards, nothing is lost or told twice."""

import asyncio

from bson import Timestamp

from aioretry.streams._rebuilding import At
from aioretry.streams._watermarks import watermark_id
from tests.streams.tagging import animal


async def read_at(documents, time: Timestamp) -> int:
    """How many documents a rebuild reads at a cluster time."""
    return len(await documents.with_options(read_concern=At(time)).find().to_list(None))


async def test_a_change_at_the_very_time(
    documents, aggregator, target, client, plain, stored, fresh, tags
):
    """What happened at the time of the rebuild is in what it reads, and is not told again."""
    await documents.insert_one(animal(0, "old"))
    await aggregator.rebuild()
    built = await target.find_one({"_id": watermark_id(0)})

    async def both(session) -> None:
        await documents.insert_one(animal(1, "x"), session=session)
        await documents.insert_one(animal(2, "x"), session=session)

    with stored.watch() as stream:
        async with await client.start_session() as session:
            await session.with_transaction(both)
        time, same = (next(stream)["clusterTime"] for _ in range(2))
    assert time == same
    before = Timestamp(time.time, time.inc - 1)
    assert (1, 3) == (await read_at(documents, before), await read_at(documents, time))

    marks = plain[target.database.name][target.name]
    for at, expected in (before, fresh()), (time, {"old": {"count": 1, "weight": 1}}):
        marks.delete_one({"_id": "x"})
        back = {**built["watermark"], "time": at, "token": None}
        marks.update_one({"_id": built["_id"]}, {"$set": {"watermark": back}})
        await aggregator.run(until_caught_up=True)
        assert tags() == expected


async def test_changes_before_the_first_read(replica_set, documents, aggregator, fresh, tags):
    """What is written after the rebuild's time and before its read is told by the stream alone."""
    await documents.insert_many([animal(n, "old", "all") for n in range(6)])
    before = fresh()
    async with replica_set.faults.hang("find", namespace=documents.full_name) as read:
        rebuilding = asyncio.create_task(aggregator.rebuild())
        await read.wait_until_fired()
        await documents.insert_one(animal(10, "new", "all"))
        await documents.update_one({"_id": 1}, {"$set": {"tags": ["new", "all"]}})
        await documents.delete_one({"_id": 2})
    await rebuilding
    assert tags() == before
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()
