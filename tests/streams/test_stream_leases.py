"""One worker at a time: leases, takeovers, and who comes too late."""

import asyncio

import pytest

from aioretry.streams import LeaseKind, _status
from tests.streams.tagging import animal, of_change_stream

FROZEN = "frozen"


async def until(condition) -> None:
    """Wait until something is true."""
    while not await condition():
        await asyncio.sleep(0.02)


def holds(aggregator, owner=None):
    """Whether somebody holds the lease; somebody in particular, or anybody."""

    async def look() -> bool:
        (part,) = (await aggregator.status()).parts
        return part.owner is not None if owner is None else part.owner == owner

    return look


def caught_up(tags, fresh):
    """Whether the aggregates equal a full count."""

    async def look() -> bool:
        return tags() == fresh()

    return look


@pytest.fixture
async def frozen(replica_set, documents, target, client_class):
    """An aggregator with a short lease, over a client whose commands can be held up."""
    async with client_class(replica_set.uri, appName=FROZEN) as client:
        yield of_change_stream(
            client.aioretry_tests[documents.name],
            client.aioretry_tests[target.name],
            lease_seconds=1.0,
        )


async def test_one_at_a_time(aggregator, following, documents, fresh, tags):
    """Of two workers one waits; when the first one ends, the second one takes over at once."""
    await aggregator.rebuild()
    first = following(aggregator)
    await until(holds(aggregator))
    (held,) = (await aggregator.status()).parts
    second = following(aggregator)
    await documents.insert_one(animal(1, "x"))
    await until(caught_up(tags, fresh))
    assert await holds(aggregator, held.owner)()
    first.cancel()
    await asyncio.wait([first])
    await documents.insert_one(animal(2, "x"))
    await until(caught_up(tags, fresh))
    (taken,) = (await aggregator.status()).parts
    assert not second.done()
    assert held.owner != taken.owner
    assert held.fence < taken.fence
    assert LeaseKind.UPDATE is taken.kind


@pytest.mark.parametrize("applied", [False, True], ids=["request", "reply"])
async def test_a_frozen_worker(
    applied, replica_set, frozen, aggregator, documents, following, fresh, tags
):
    """Who hangs in a commit is taken over, also its locks; what it sends later is worth nothing."""
    await aggregator.rebuild()
    faults = replica_set.faults
    async with (
        faults.hang("commitTransaction", applied=applied, app_name=FROZEN) as commit,
        faults.hang(
            times=None, app_name=FROZEN, where=lambda _: bool(commit.fired), must_fire=False
        ),
    ):
        worker = following(frozen)
        await documents.insert_one(animal(1, "x"))
        await commit.wait_until_fired()
        await documents.insert_one(animal(2, "x"))
        await aggregator.run(until_caught_up=True)
        assert tags() == fresh() == {"x": {"count": 2, "weight": 2}}
    await documents.insert_one(animal(3, "y"))
    await until(caught_up(tags, fresh))
    await aggregator_caught_up_twice(aggregator, frozen, worker)
    assert tags() == fresh()


async def aggregator_caught_up_twice(aggregator, frozen, worker) -> None:
    """The thawed worker goes on, ends, and another one finds nothing to do."""
    assert not worker.done()
    worker.cancel()
    await asyncio.wait([worker])
    await frozen.run(until_caught_up=True)
    await aggregator.run(until_caught_up=True)


async def test_status(aggregator, documents, following, fresh, tags):
    """It tells who holds what, and what waits."""
    (never,) = (await aggregator.status()).parts
    assert (None, False, "it was never built") == (never.owner, never.is_built, never.problem)
    await aggregator.rebuild()
    await documents.insert_many([animal(n, "x") for n in range(5)])
    (behind,) = (await aggregator.status()).parts
    assert (None, True, None, 0) == (behind.kind, behind.is_built, behind.problem, behind.changes)
    assert (5, True) == (behind.lag.changes, behind.lag.is_all)
    (some,) = (await aggregator.status(count_up_to=3)).parts
    assert (3, False) == (some.lag.changes, some.lag.is_all)
    following(aggregator)
    await until(caught_up(tags, fresh))
    (held,) = (await aggregator.status()).parts
    assert LeaseKind.UPDATE is held.kind
    assert 0.0 < held.seconds_left <= 15.0
    assert (0, 0.0, 5) == (held.lag.changes, held.lag.seconds, held.changes)


async def test_status_of_parts(documents, target, fresh):
    """Each part is as far behind as it is, wherever the others are."""
    aggregator = of_change_stream(documents, target, parts=3)
    await aggregator.rebuild()
    await documents.insert_many([animal(n, f"t{n}") for n in range(5)])
    await aggregator.run(1, until_caught_up=True)
    await documents.insert_one(animal(5, "t"))
    await aggregator.run(2, until_caught_up=True)
    parts = (await aggregator.status()).parts
    assert [(6, True), (1, True), (0, True)] == [
        (each.lag.changes, each.lag.is_all) for each in parts
    ]
    assert [0, 1, 2] == [each.part for each in parts]
    some = (await aggregator.status(count_up_to=6)).parts
    assert [(2, False), (1, True), (0, True)] == [
        (each.lag.changes, each.lag.is_all) for each in some
    ]


async def test_status_in_time(replica_set, aggregator, documents, monkeypatch):
    """What can't be counted in time is said to be more than was counted."""
    await aggregator.rebuild()
    await documents.insert_one(animal(1, "x"))
    monkeypatch.setattr(_status, "_PATIENCE", 3.0)
    async with replica_set.faults.hang("aggregate", namespace=documents.full_name, times=None):
        (part,) = (await aggregator.status()).parts
    assert (0, False, None) == (part.lag.changes, part.lag.is_all, part.problem)


async def test_it_moves_on_without_changes(documents, target, client, following):
    """While only other collections are written, the watermark does not stay behind for ever."""
    aggregator = of_change_stream(documents, target, lease_seconds=1.0)
    await aggregator.rebuild()
    following(aggregator)

    async def token():
        (part,) = (await aggregator.status()).parts
        return part.position.token

    other = client.aioretry_tests[f"{documents.name}_other"]
    async with asyncio.timeout(60.0):
        while (first := await token()) is None:
            await asyncio.sleep(0.02)
        await other.insert_one({})
        while await token() == first:
            await asyncio.sleep(0.02)
