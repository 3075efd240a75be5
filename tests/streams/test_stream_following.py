"""Aggregates follow their documents, and equal a fresh count."""

import asyncio
from random import Random

import pytest
from pymongo import UpdateOne

from aioretry.streams import MismatchError, NotBuiltError, SourceError
from aioretry.testing import FakeMongoses
from tests.streams.tagging import animal, of_change_stream


async def write_at_random(documents, rng: Random, number: int) -> None:
    """Insert, update, replace and delete."""
    for _ in range(number):
        key, tags = rng.randrange(40), rng.sample("abcdefghij", rng.randrange(5))
        match rng.randrange(4):
            case 0 | 1:
                await documents.replace_one(
                    {"_id": key}, animal(key, *tags, weight=rng.randrange(-3, 4)), upsert=True
                )
            case 2:
                await documents.update_one({"_id": key}, {"$set": {"tags": tags}})
            case 3:
                await documents.delete_one({"_id": key})


async def test_from_the_beginning(documents, aggregator, fresh, tags):
    """What is there is counted by a rebuild, and what comes later is followed."""
    await documents.insert_many([animal(1, "house", "dog"), animal(2, "house", weight=5)])
    progress = await aggregator.rebuild()
    assert 2 == progress.documents
    assert (
        tags() == fresh() == {"house": {"count": 2, "weight": 6}, "dog": {"count": 1, "weight": 1}}
    )
    await documents.update_one({"_id": 1}, {"$set": {"tags": ["backyard", "dog"]}})
    await documents.replace_one({"_id": 2}, animal(2, "house", weight=7))
    await documents.insert_one(animal(3, "house", "cat"))
    await documents.delete_one({"_id": 3})
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()
    assert {"backyard", "dog", "house"} == set(tags())


async def test_at_random(documents, aggregator, fresh, tags):
    """Any changes, followed while they happen, and again after a pause, leave a full count."""
    rng = Random(9)
    await write_at_random(documents, rng, 60)
    await aggregator.rebuild()
    for _ in range(3):
        await asyncio.gather(
            write_at_random(documents, rng, 60), aggregator.run(until_caught_up=True)
        )
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()


async def test_a_rebuild_while_others_write(documents, aggregator, fresh, tags, following):
    """A rebuild takes the lease from the worker, which goes on afterwards, and nothing is lost."""
    rng = Random(5)
    await aggregator.rebuild()
    worker = following(aggregator)
    writing = asyncio.create_task(write_at_random(documents, rng, 200))
    for _ in range(3):
        await aggregator.rebuild()
    await writing
    assert not worker.done()
    await aggregator.rebuild()
    assert tags() == fresh()


async def test_small_batches(replica_set, documents, target, fresh, tags):
    """A read of many changes is committed in parts, if it makes many updates."""
    aggregator = of_change_stream(documents, target, max_bytes=200, max_changes=7)
    await aggregator.rebuild()
    await documents.insert_many([animal(n, f"t{n % 13}", f"u{n % 7}") for n in range(50)])
    async with replica_set.faults.watch("commitTransaction") as commits:
        await aggregator.run(until_caught_up=True)
    assert commits.fired > 50 / 7 + 1  # more than one for a read
    assert tags() == fresh()


async def test_several_workers(documents, target, fresh, tags, following):
    """Each worker counts its own buckets, and a rebuild is for all of them."""
    aggregator = of_change_stream(documents, target, parts=3)
    await documents.insert_many([animal(n, f"t{n % 13}", f"u{n % 7}") for n in range(50)])
    await aggregator.rebuild()
    assert tags() == fresh()
    await documents.bulk_write(
        [UpdateOne({"_id": n}, {"$set": {"tags": [f"t{n % 11}", "all"]}}) for n in range(50)]
    )
    await asyncio.gather(*(aggregator.run(part, until_caught_up=True) for part in range(3)))
    assert tags() == fresh()


async def test_another_number_of_workers(documents, target, fresh, tags):
    """Aggregates that were built for another number of workers have to be rebuilt."""
    await of_change_stream(documents, target, parts=3).rebuild()
    two = of_change_stream(documents, target, parts=2)
    with pytest.raises(MismatchError, match="3 workers, not for 2"):
        await two.run(until_caught_up=True)
    await documents.insert_one(animal(1, "x"))
    await two.rebuild()
    assert tags() == fresh()


async def test_never_built(aggregator, tags):
    """Without a rebuild there is nothing to follow from, and an error says so."""
    with pytest.raises(NotBuiltError, match="was never built"):
        await aggregator.run()
    assert {} == tags()


async def test_no_images(collection, target):
    """A collection that keeps no images is refused, with the command that changes that."""
    await collection.insert_one(animal(1, "x"))
    with pytest.raises(SourceError, match="collMod"):
        await of_change_stream(collection, target).rebuild()


async def test_increments_that_fail(documents, target, tags):
    """An error of the increments ends the worker, and nothing of the batch is applied."""
    aggregator = of_change_stream(documents, target)
    await aggregator.rebuild()
    await documents.insert_many([animal(1, "x"), {"_id": 2, "weight": 1}])
    with pytest.raises(KeyError, match="tags"):
        await aggregator.run()
    assert {} == tags()


async def test_indexes_and_options_stay(documents, target, aggregator):
    """The target's indexes and options are the same after a rebuild."""
    await target.database.create_collection(target.name, collation={"locale": "en"})
    await target.create_index([("count", -1)], name="by_count")
    await target.create_index("weight", sparse=True)
    options, indexes = await target.options(), await target.index_information()
    await aggregator.rebuild()
    assert await target.options() == options
    assert await target.index_information() == indexes


async def test_through_mongoses(documents, target, fresh, tags, shared_set, client, client_class):
    """Routers make no difference."""

    async with FakeMongoses(shared_set) as cluster, client_class(cluster.uri) as routed:
        aggregator = of_change_stream(
            routed.aioretry_tests[documents.name], routed.aioretry_tests[target.name]
        )
        await documents.insert_many([animal(n, f"t{n % 5}") for n in range(30)])
        await aggregator.rebuild()
        await documents.update_many({}, {"$push": {"tags": "all"}})
        await aggregator.run(until_caught_up=True)
        assert tags() == fresh()
