"""Queues as sources, and why an ObjectId is no watermark."""

import asyncio

import pytest
from bson import ObjectId

from aioretry.streams import Aggregator, ChangeKind, QueueSource, SourceError, append, entry
from tests.streams.tagging import animal, by_tag, counted, of_queue


@pytest.fixture
def queue(collection):
    """A collection of entries."""
    return collection.queue


@pytest.fixture
def of_entries(queue, target):
    """What follows a queue that has kept everything."""
    source = QueueSource(queue, keeps_all=True)
    return Aggregator(target.name, source, by_tag, target)


async def naive_follower(queue, after: ObjectId) -> list[dict]:
    """What many a worker does: read on behind the largest `_id` that it has seen."""
    return await queue.find({"_id": {"$gt": after}}).sort("_id").to_list(None)


async def test_an_object_id_is_no_watermark(queue, of_entries, tags):
    """An entry whose ObjectId was made first and that arrives last is lost by `_id`, not by us."""
    early = entry(ChangeKind.INSERT, 1, after=animal(1, "early"))  # its writer is slow
    await append(queue, ChangeKind.INSERT, 2, after=animal(2, "late"))
    await of_entries.rebuild()
    seen = (await naive_follower(queue, ObjectId("0" * 24)))[-1]["_id"]
    await queue.insert_one(early)
    assert early["_id"] < seen
    assert [] == await naive_follower(queue, seen)
    await of_entries.run(until_caught_up=True)
    assert {"early", "late"} == set(tags())


async def test_entries_in_transactions(
    replica_set, queue, client, collection, target, stored, tags
):
    """A document and its entry are written in one transaction, also while a rebuild runs."""
    aggregator = of_queue(queue, collection, target)

    async def move(session, *to) -> None:
        before = await collection.find_one_and_update(
            {"_id": 1}, {"$set": {"tags": list(to)}}, session=session
        )
        after = {**before, "tags": list(to)}
        await append(queue, ChangeKind.UPDATE, 1, before=before, after=after, session=session)

    await collection.insert_one(animal(1, "house"))
    async with await client.start_session() as session:
        await session.with_transaction(lambda s: move(s, "yard", "house"))
        async with replica_set.faults.hang("find", namespace=collection.full_name) as read:
            rebuilding = asyncio.create_task(aggregator.rebuild())
            await read.wait_until_fired()
            await session.with_transaction(lambda s: move(s, "forest", "house"))
            await session.with_transaction(lambda s: move(s, "forest", "den"))
        await rebuilding
    assert {"yard", "house"} == set(tags())
    await aggregator.run(until_caught_up=True)
    assert tags() == counted(stored)
    assert {"forest", "den"} == set(tags())


async def test_entries_that_expire(queue, of_entries, tags):
    """That entries are removed after a while changes nothing."""
    await of_entries.rebuild()
    await append(queue, ChangeKind.INSERT, 1, after=animal(1, "x"))
    await queue.delete_many({})
    await append(queue, ChangeKind.INSERT, 2, after=animal(2, "x"))
    await of_entries.run(until_caught_up=True)
    assert {"x": {"count": 2, "weight": 2}} == tags()


async def test_a_capped_queue(queue, of_entries, collection, target, tags):
    """A queue may be capped, and is not what a rebuild reads then."""
    await queue.database.create_collection(queue.name, capped=True, size=100_000)
    with pytest.raises(SourceError, match="is capped"):
        await of_entries.rebuild()
    aggregator = of_queue(queue, collection, target)
    await collection.insert_one(animal(1, "x"))
    await aggregator.rebuild()
    await append(queue, ChangeKind.DELETE, 1, before=animal(1, "x"))
    await append(queue.coalesced(), ChangeKind.INSERT, 2, after=animal(2, "y"))
    await aggregator.run(until_caught_up=True)
    assert {"y": {"count": 1, "weight": 1}} == tags()


async def test_two_consumers(queue, of_entries, client, tags, plain):
    """Consumers of one queue know nothing of each other."""
    target = client.aioretry_tests[f"{queue.name}_kinds"]

    def by_kind(change):
        yield change.kind.value, {"changes": 1}

    kinds = Aggregator(target.name, QueueSource(queue, keeps_all=True), by_kind, target)
    await append(queue, ChangeKind.INSERT, 1, after=animal(1, "x"))
    await of_entries.rebuild()
    await kinds.rebuild()
    await append(queue, ChangeKind.UPDATE, 1, before=animal(1, "x"), after=animal(1, "y"))
    await of_entries.run(until_caught_up=True)
    await kinds.run(until_caught_up=True)
    assert {"y"} == set(tags())
    found = await target.find({"changes": {"$gt": 0}}).to_list(None)
    assert {("insert", 1), ("update", 1)} == {(each["_id"], each["changes"]) for each in found}


async def test_what_is_no_entry(queue, of_entries):
    """A document that is no entry is an error, not a change to skip."""
    await of_entries.rebuild()
    await queue.insert_one({"hello": "world"})
    with pytest.raises(SourceError, match="not an entry"):
        await of_entries.run()


async def test_nothing_to_rebuild_from(queue, target):
    """A queue that forgets can't be what a rebuild reads."""
    with pytest.raises(SourceError, match="give it documents, or keeps_all"):
        await Aggregator("x", QueueSource(queue), by_tag, target).rebuild()
    with pytest.raises(ValueError, match="not both"):
        QueueSource(queue, documents=queue, keeps_all=True)
