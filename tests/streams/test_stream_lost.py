"""What makes a position worthless is an error that says so, and a rebuild helps."""

from dataclasses import replace
from pathlib import Path

import pytest
from bson import Timestamp
from pymongo.write_concern import WriteConcern

from aioretry import RetryClient
from aioretry.streams import (
    NO_WATERMARKS,
    PositionLostError,
    RebuildNeededError,
    SourceChangedError,
)
from aioretry.testing import Mongod, ReplicaSet, find_mongod
from tests.streams.tagging import IMAGES, animal, of_change_stream


@pytest.fixture
async def built(documents, aggregator):
    """Aggregates of two documents, followed for a while."""
    await documents.insert_one(animal(1, "x"))
    await aggregator.rebuild()
    await documents.insert_one(animal(2, "y"))
    await aggregator.run(until_caught_up=True)
    return aggregator


async def helps(aggregator, fresh, tags) -> None:
    """A rebuild brings everything to rights."""
    await aggregator.rebuild()
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()


async def problem_of(aggregator) -> str:
    """Why it can't go on, by its status."""
    (part,) = (await aggregator.status()).parts
    assert (part.lag is None) == (part.problem is not None)
    return part.problem or ""


@pytest.fixture
def hasty(server_version, tmp_path: Path) -> Mongod:
    """A server that makes a checkpoint each second: what the last one needs is not truncated."""
    mongod = find_mongod(server_version)
    script = tmp_path / "mongod"
    script.write_text(f'#!/bin/sh\nexec "{mongod.path}" "$@" --syncdelay 1\n')
    script.chmod(0o755)
    return replace(mongod, path=script)


async def roll_over(client: RetryClient, after: Timestamp) -> None:
    """Write until the oplog begins after a point in time."""
    oplog = client.local["oplog.rs"]
    filler = client.aioretry_tests.get_collection("filler", write_concern=WriteConcern(w=1))
    while (await oplog.find().sort("$natural", 1).limit(1).to_list(1))[0]["ts"] <= after:
        await filler.insert_many([{"text": "x" * 1_000_000} for _ in range(8)])
        await filler.delete_many({})


@pytest.mark.parametrize("follows", [True, False], ids=["followed", "just rebuilt"])
async def test_the_oplog_has_rolled_over(follows, hasty, client_class):
    """A watermark that is older than the oplog is an error, again and again, until a rebuild."""
    async with (
        ReplicaSet(members=1, mongod=hasty) as servers,
        client_class(servers.uri) as client,
    ):
        documents = await client.zoo.create_collection("animals", **IMAGES)
        target = client.zoo.tags
        aggregator = of_change_stream(documents, target)
        await documents.insert_one(animal(1, "x"))
        await aggregator.rebuild()
        await documents.insert_one(animal(2, "y"))
        if follows:
            await aggregator.run(until_caught_up=True)
        (part,) = (await aggregator.status()).parts
        await documents.insert_one(animal(3, "z"))
        await roll_over(client, part.position.after())
        before = await target.find().to_list(None)
        for _ in range(2):
            with pytest.raises(PositionLostError, match="no longer in the oplog") as caught:
                await aggregator.run()
            assert 286 == caught.value.__cause__.code
        assert before == await target.find().to_list(None)
        (part,) = (await aggregator.status()).parts
        assert part.lag is None
        assert "rebuild" in part.problem
        await aggregator.rebuild()
        await aggregator.run(until_caught_up=True)
        assert 3 == await target.count_documents(NO_WATERMARKS)


async def test_while_it_follows(replica_set, built, documents, following, fresh, tags):
    """A stream that loses its position on the way is an error too."""
    worker = following(built)
    async with replica_set.faults.error(286, "getMore", namespace=documents.full_name):
        with pytest.raises(PositionLostError):
            await worker
    await helps(built, fresh, tags)


async def test_images_are_gone(built, documents, fresh, tags):
    """A change without its image is an error; it is not taken for one that changes nothing."""
    off = {"collMod": documents.name, "changeStreamPreAndPostImages": {"enabled": False}}
    await documents.database.command(off)
    await documents.update_one({"_id": 1}, {"$set": {"tags": ["z"]}})
    with pytest.raises(PositionLostError, match="image"):
        await built.run()
    assert "image" in await problem_of(built)
    await documents.database.command({"collMod": documents.name, **IMAGES})
    await helps(built, fresh, tags)


async def test_a_dropped_collection(built, documents, fresh, tags):
    """A dropped collection is an error, also for a worker that was not there then."""
    await documents.drop()
    for _ in range(2):
        with pytest.raises(SourceChangedError, match="has ended"):
            await built.run()
        assert "has ended (drop)" in await problem_of(built)
    await documents.database.create_collection(documents.name, **IMAGES)
    await documents.insert_one(animal(5, "new"))
    with pytest.raises(SourceChangedError):
        await built.run()
    await helps(built, fresh, tags)
    assert {"new"} == set(tags())


async def test_a_dropped_collection_while_it_follows(built, documents, following):
    """So it is for one that is there."""
    worker = following(built)
    await documents.drop()
    with pytest.raises(SourceChangedError, match="has ended"):
        await worker


async def test_a_renamed_collection(built, documents, target, client, fresh, tags):
    """A renamed collection is an error, and its aggregator is made anew."""
    name = f"{documents.name}_new"
    await documents.rename(name)
    with pytest.raises(RebuildNeededError, match="rename"):
        await built.run()
    assert "has ended (rename)" in await problem_of(built)
    renamed = of_change_stream(client.aioretry_tests[name], target)
    await renamed.rebuild()
    assert {"x", "y"} == set(tags())


async def test_dropped_aggregates(built, target, documents, fresh, tags):
    """Whoever drops the aggregates drops their watermark, and has to rebuild them."""
    await target.drop()
    with pytest.raises(RebuildNeededError, match="never built"):
        await built.run()
    await helps(built, fresh, tags)
