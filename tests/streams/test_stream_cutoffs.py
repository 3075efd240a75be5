"""Workers and rebuilds that are cut off at each of their commands."""

import pytest
from bson import ObjectId

from aioretry.streams._watermarks import watermark_id
from tests.idempotent.points import APP_NAME, at_each_kill, at_each_lost_reply
from tests.streams.recipe import follow
from tests.streams.tagging import animal

TARGET = "tests.streams.recipe:follow"

either = pytest.mark.parametrize("rebuilds", [False, True], ids=["update", "rebuild"])


@pytest.fixture
async def step(documents, aggregator):
    """Make a few changes that the next run has to apply."""
    await documents.insert_many([animal(n, f"t{n % 3}", "all") for n in range(6)])
    await aggregator.rebuild()

    async def step(number: int) -> None:
        await documents.update_one({"_id": number % 6}, {"$set": {"tags": [f"n{number}", "all"]}})
        await documents.replace_one(
            {"_id": 100 + number}, animal(100 + number, "new", "all"), upsert=True
        )
        await documents.delete_one({"_id": 99 + number})

    return step


@pytest.mark.sample(4)
@pytest.mark.timeout(300)  # each of some thirty kills waits for a lease to end
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@either
async def test_each_kill(rebuilds, applied, replica_set, documents, aggregator, step, fresh, tags):
    """Killed before or after any command, it has applied each change once, or the next one does."""

    async def recover(number: int) -> None:
        await aggregator.run(until_caught_up=True)
        assert tags() == fresh()
        await step(number)

    await step(0)
    arguments = {"name": documents.name, "rebuilds": rebuilds}
    kills = await at_each_kill(replica_set, TARGET, lambda _: arguments, recover, whens=[applied])
    assert kills >= 10


@pytest.mark.sample(2)
@either
async def test_each_lost_reply(rebuilds, replica_set, documents, step, fresh, tags):
    """Whichever reply is lost, it goes on by itself, and each change is applied once."""

    async def run(number: int) -> None:
        await step(number)
        joint = "&" if "?" in replica_set.uri else "?"
        await follow(f"{replica_set.uri}{joint}appName={APP_NAME}", documents.name, rebuilds)
        assert tags() == fresh()

    lost = await at_each_lost_reply(replica_set, run)
    assert lost >= 10


async def test_nothing_is_left(documents, aggregator, target):
    """A rebuild drops what an interrupted one has left behind, and nothing of anybody else."""
    await aggregator.rebuild()
    database = target.database
    left, log = (f"{target.name}.rebuild.{name}" for name in (ObjectId(), "log"))
    await database[left].insert_one(await target.find_one({"_id": watermark_id(0)}))
    await database[log].insert_one({"_id": "mine"})
    await aggregator.rebuild()
    names = await database.list_collection_names()
    assert [log] == [name for name in names if name.startswith(f"{target.name}.rebuild")]
