"""Who is taken over while it hangs, and what it sends too late."""

import asyncio
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioretry.streams import LeaseKind, LeaseLostError, Progress
from aioretry.streams._leases import LEASES
from aioretry.testing._admin import CommandFailedError, run_command, split_address
from tests.streams.tagging import animal, of_change_stream

FROZEN = "frozen"
GONE = 251  # NoSuchTransaction


class Seen(list[Mapping[str, Any]]):
    """The commands that a fault was for."""

    def note(self, command: Mapping[str, Any]) -> bool:
        """Take note of one."""
        self.append(command)
        return True


@pytest.fixture
async def frozen(replica_set, documents, target, client_class):
    """An aggregator with a short lease, over a client whose commands can be held up."""
    async with client_class(replica_set.uri, appName=FROZEN) as client:
        yield of_change_stream(
            client.aioretry_tests[documents.name],
            client.aioretry_tests[target.name],
            lease_seconds=1.0,
        )


@asynccontextmanager
async def frozen_at(faults, *commands, **only):
    """Hold up a command, and all that its client sends from then on."""
    async with (
        faults.hang(*commands, app_name=FROZEN, **only) as first,
        faults.hang(
            times=None, app_name=FROZEN, where=lambda _: bool(first.fired), must_fire=False
        ),
    ):
        yield first


async def outcome_of(task: asyncio.Task) -> object:
    """What it has returned or raised."""
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    return outcome


async def test_open_transactions_are_ended(replica_set, frozen, aggregator, documents, tags, fresh):
    """Whoever takes a lease over ends what its owner has left open, and waits for no lock of it."""
    await aggregator.rebuild()
    commits, kills = Seen(), Seen()
    faults = replica_set.faults
    async with (
        faults.watch("killSessions", where=kills.note),
        frozen_at(faults, "commitTransaction", where=commits.note) as commit,
    ):
        worker = asyncio.create_task(frozen.run())
        await documents.insert_one(animal(1, "x"))
        await commit.wait_until_fired()
        await aggregator.run(until_caught_up=True)
        assert tags() == fresh() == {"x": {"count": 1, "weight": 1}}
        held = commits[0]
        killed = [session["id"] for kill in kills for session in kill["killSessions"]]
        assert held["lsid"]["id"] in killed
        late = {name: held[name] for name in ("commitTransaction", "lsid", "txnNumber")}
        primary = await replica_set.wait_for_primary()
        with pytest.raises(CommandFailedError) as caught:
            run_command(
                *split_address(primary.address), {**late, "autocommit": False}, timeout=10.0
            )
        assert GONE == caught.value.code
        worker.cancel()
        await asyncio.wait([worker])
    assert tags() == fresh()


async def test_a_lost_rebuild_does_not_swap(
    replica_set, aggregator, documents, target, plain, tags, fresh
):
    """A rebuild that was taken over before it swaps says so, and leaves the aggregates alone."""
    await documents.insert_one(animal(1, "old"))
    await aggregator.rebuild()
    before = fresh()
    await documents.insert_one(animal(2, "new"))

    def is_last(command: Mapping[str, Any]) -> bool:
        is_staging = str(command["update"]).startswith(f"{target.name}.rebuild.")
        return is_staging and "watermark.building" in str(command["updates"][0]["u"])

    faults = replica_set.faults
    async with faults.watch("renameCollection", must_fire=False) as rename:
        async with faults.hang("update", applied=True, where=is_last) as finish:
            late = asyncio.create_task(aggregator.rebuild())
            await finish.wait_until_fired()
            records = plain[target.database.name][LEASES]
            taken = {"$set": {"owner": "another"}, "$inc": {"fence": 1}}
            records.update_one({"_id.aggregator": aggregator.name}, taken)
        assert isinstance(await outcome_of(late), LeaseLostError)
        assert 0 == rename.fired
    assert tags() == before


async def test_a_rebuild_after_another(replica_set, frozen, aggregator, documents, fresh, tags):
    """A rebuild whose swap comes after another rebuild has no effect on the numbers."""
    await documents.insert_many([animal(n, f"t{n % 7}") for n in range(50)])
    async with frozen_at(replica_set.faults, "renameCollection") as rename:
        late = asyncio.create_task(frozen.rebuild())
        await rename.wait_until_fired()
        await documents.delete_many({"_id": {"$lt": 20}})
        await aggregator.rebuild()
        assert tags() == fresh()
    assert isinstance(await outcome_of(late), LeaseLostError)
    await documents.insert_one(animal(100, "new"))
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()


async def test_a_rebuild_after_a_worker(
    replica_set, frozen, aggregator, documents, following, fresh, tags, until_equal
):
    """A swap that comes while somebody follows puts old aggregates back, which are followed on."""
    await documents.insert_many([animal(n, f"t{n % 7}") for n in range(50)])
    await aggregator.rebuild()
    async with frozen_at(replica_set.faults, "renameCollection") as rename:
        late = asyncio.create_task(frozen.rebuild())
        await rename.wait_until_fired()
        await documents.delete_many({"_id": {"$lt": 20}})
        worker = following(aggregator)
        await until_equal()
        await documents.delete_many({"_id": {"$lt": 25}})
    assert isinstance(await outcome_of(late), LeaseLostError | Progress)
    await documents.insert_one(animal(100, "new"))
    await until_equal()
    assert not worker.done()


async def test_a_rebuild_and_an_update_never_run_together(
    replica_set, aggregator, frozen, documents, following, tags, until_equal
):
    """While a rebuild runs the worker waits, and applies nothing."""
    await documents.insert_one(animal(1, "old"))
    await aggregator.rebuild()
    following(frozen)
    await documents.insert_one(animal(2, "old"))
    await until_equal()
    before = tags()
    async with replica_set.faults.hang("renameCollection") as rename:
        rebuilding = asyncio.create_task(aggregator.rebuild())
        await rename.wait_until_fired()
        await documents.insert_one(animal(3, "new"))
        async with replica_set.faults.watch("aggregate", app_name=FROZEN) as looks:
            await looks.wait_until_fired(5, timeout=60.0)
        (part,) = (await aggregator.status()).parts
        assert LeaseKind.REBUILD is part.kind
        assert tags() == before
    await rebuilding
    await until_equal()
