"""What an aggregator can't count is told by an error that says what to do."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64

from aioretry.streams import (
    ChangeStreamSource,
    ChangeTooLargeError,
    CounterOverflowError,
    _following,
)
from aioretry.streams._folding import part_of
from aioretry.streams._pace import Pace
from tests.streams.tagging import animal, of_change_stream

_MOST = 2**63 - 1


async def test_a_change_of_too_many_buckets(replica_set, documents, target, fresh, tags):
    """It says that a rebuild is needed, instead of trying for ever; and the rebuild does."""
    aggregator = of_change_stream(documents, target, lease_seconds=2.0)
    await aggregator.rebuild()
    await documents.insert_one(animal(1, *(f"tag {n}" for n in range(1000))))
    # As if there were so many that the increments alone take longer than the lease.
    slow = replica_set.faults.delay(3.0, "update", namespace=target.full_name, times=None)
    async with slow, asyncio.timeout(100.0):
        with pytest.raises(ChangeTooLargeError, match="one change moves 1000 buckets") as caught:
            await aggregator.run(until_caught_up=True)
    await aggregator.rebuild_after(caught.value)
    await documents.insert_one(animal(2, "x"))
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()


async def test_a_lease_that_is_over_before_its_commit(monkeypatch):
    """One that was cancelled by that has taken too long, as one that ran into its deadline."""
    clock = itertools.count(step=2.0)  # seconds
    monkeypatch.setattr(_following, "time", SimpleNamespace(monotonic=clock.__next__))

    class Committer:
        async def commit(self, *_):
            raise asyncio.CancelledError

    settings = SimpleNamespace(lease_seconds=3.0)
    following = _following.Following(settings, Committer(), None, None, Pace(1), False)
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await following._commit(range(1000), None, 1)
    with pytest.raises(ChangeTooLargeError, match="3 times in a row"):
        await following._commit(range(1000), None, 1)


async def test_a_counter_that_is_full(documents, target, aggregator, tags):
    """A counter is not moved beyond 64 bits, by changes or by a rebuild."""
    await documents.insert_one(animal(1, "x", weight=Int64(_MOST)))
    await aggregator.rebuild()
    await documents.insert_one(animal(2, "x"))
    with pytest.raises(CounterOverflowError, match="of bucket 'x' would leave the range of 64-bit"):
        await aggregator.run(until_caught_up=True)
    assert {"x": {"count": 1, "weight": _MOST}} == tags()
    with pytest.raises(CounterOverflowError, match="in larger units"):
        await aggregator.rebuild()
    assert {"x": {"count": 1, "weight": _MOST}} == tags()


async def test_increments_that_are_too_large(documents, target):
    """So it is where the increments themselves, or their sum, have more than 64 bits."""

    def twice(change):
        yield "x", {"weight": 2 * change.after["weight"]}

    aggregator = of_change_stream(documents, target, twice)
    await aggregator.rebuild()
    await documents.insert_one(animal(1, weight=Int64(2**62)))
    with pytest.raises(CounterOverflowError, match="counter 'weight' of bucket 'x'"):
        await aggregator.run(until_caught_up=True)


def test_numbers_that_are_none():
    """They are one bucket for the server, also a signaling one, and belong to one worker."""
    names = ["NaN", "-NaN", "sNaN", "-sNaN"]
    numbers = [float("nan"), *map(Decimal128, names)]
    assert {part_of(float("nan"), 4, b"")} == {part_of(number, 4, b"") for number in numbers}


@pytest.mark.parametrize("parts", [1, 4])
async def test_a_signaling_one(parts, documents, target):
    """No worker stops at it."""

    def by_key(change):
        yield change.after["key"], {"count": 1}

    aggregator = of_change_stream(documents, target, by_key, parts=parts)
    await aggregator.rebuild()
    keys = [Decimal128("sNaN"), float("nan"), Decimal128("1")]
    await documents.insert_many([{"key": key} for key in keys])
    for part in range(parts):
        await aggregator.run(part, until_caught_up=True)
    assert [1, 2] == sorted([found["count"] async for found in target.find({"count": {"$gt": 0}})])


@pytest.mark.parametrize(
    ("fields", "kind"),
    [("tags", TypeError), (b"tags", TypeError), (["tags", 1], TypeError), (7, TypeError)]
    + [([name], ValueError) for name in ["", "$tags", "a..b", "a\0"]],
)
async def test_names_of_fields(fields, kind, collection):
    """A text is not taken for the list of its letters, which would count nothing."""
    with pytest.raises(kind, match="fields must"):
        ChangeStreamSource(collection, fields=fields)
