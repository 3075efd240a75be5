"""What an aggregator can't count is told by an error that says what to do."""

import asyncio
from types import SimpleNamespace

import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from pymongo.errors import AutoReconnect, BulkWriteError

from aioretry.streams import (
    ChangeStreamSource,
    ChangeTooLargeError,
    CounterOverflowError,
    _following,
)
from aioretry.streams._errors import exceeds_a_transaction
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


@pytest.mark.parametrize("code", [257, 388, 10334])
async def test_more_than_a_transaction_takes(replica_set, documents, target, fresh, tags, code):
    """Batches that the server refuses are divided; a change alone is told of, and rebuilt."""
    aggregator = of_change_stream(documents, target)
    await aggregator.rebuild()
    await documents.insert_many([animal(n, f"x{n}") for n in range(8)])
    await documents.insert_one(animal(8, *(f"tag {n}" for n in range(50))))
    refused = replica_set.faults.error(
        code,
        "update",
        namespace=target.full_name,
        times=None,
        labels=(),
        where=lambda command: len(command["updates"]) > 4,
    )
    async with refused, asyncio.timeout(100.0):
        with pytest.raises(ChangeTooLargeError, match="moves 50 buckets") as caught:
            await aggregator.run(until_caught_up=True)
    assert code == caught.value.__cause__.code
    assert {f"x{n}" for n in range(8)} == set(tags())
    await aggregator.rebuild_after(caught.value)
    assert tags() == fresh()


@pytest.mark.parametrize("code", [257, 388, 10334, 2])
def test_which_write_errors_say_so(code):
    """In a bulk write the server's code stands in its write errors."""
    error = BulkWriteError({"writeErrors": [{"index": 0, "code": code}]})
    assert (code != 2) is exceeds_a_transaction(error)


@pytest.fixture
def clock(monkeypatch):
    """The time, which stands still by itself."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(_following, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


class Server:
    """Answers what it is asked, or does not."""

    def __init__(self, error=None):
        self.admin, self.error = self, error

    async def command(self, _):
        if self.error is not None:
            raise self.error


class Following(_following.Following):
    """For a lease of three seconds, which is over before anything is committed."""

    def __init__(self, clock, server):
        settings = SimpleNamespace(
            lease_seconds=3.0,
            client=server,
            parts=1,
            increments=None,
            target=SimpleNamespace(codec_options=None),
        )
        watermark = SimpleNamespace(build=1, sequence=1)
        super().__init__(settings, self, watermark, None, Pace(8), False)
        self.clock, self.lasts = clock, 3.0

    async def commit(self, *_):
        for _ in range(4):
            self.clock.now += self.lasts / 4
            await self.renew_when_due()
        raise asyncio.CancelledError


async def test_a_lease_that_is_over_before_its_commit(clock):
    """One that was cancelled by that has taken too long, as one that ran into its deadline."""
    following = Following(clock, Server())
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await following._commit(range(1000), None, 1)
    with pytest.raises(ChangeTooLargeError, match="3 times in a row"):
        await following._commit(range(1000), None, 1)
    following.watermark.build = 2  # somebody has rebuilt, and this is another change
    with pytest.raises(asyncio.CancelledError):
        await following._commit(range(1000), None, 1)


async def test_a_server_that_is_away(clock):
    """What takes long because nobody answers is not too large, however often."""
    following = Following(clock, Server(AutoReconnect("away")))
    for _ in range(5):
        with pytest.raises(asyncio.CancelledError):
            await following._commit(range(1000), None, 1)


async def test_increments_that_take_as_long(clock):
    """A lease that was over before the commit was sent was over because of the change, too."""
    following = Following(clock, Server())
    following.lasts = 0.0
    for _ in range(3):
        following._new_fold()
        clock.now += 4.0
        with pytest.raises(asyncio.CancelledError):
            await following._commit(range(1000), None, 1)
    assert following.pace.is_hopeless((1, 1))


async def test_a_batch_that_takes_too_long(clock):
    """It is divided, however its commit ended, until one change is left."""
    following, seen = Following(clock, Server()), []
    for changes in (5, 2, 1, 1):
        with pytest.raises(asyncio.CancelledError):
            await following._commit(range(1), None, changes)
        seen.append(following.pace.changes)
    assert [2, 1, 1, 1] == seen


async def test_a_large_change_among_others(replica_set, documents, target, fresh, tags):
    """The others are committed without it, and it is told of alone."""
    aggregator = of_change_stream(documents, target, lease_seconds=1.0)
    await aggregator.rebuild()
    await documents.insert_many([animal(n, f"x{n}") for n in range(3)])
    await documents.insert_one(animal(3, *(f"tag {n}" for n in range(1000))))
    slow = replica_set.faults.delay(
        1.5,
        "update",
        namespace=target.full_name,
        times=None,
        where=lambda command: len(command["updates"]) >= 1000,
    )
    async with slow, asyncio.timeout(100.0):
        with pytest.raises(ChangeTooLargeError, match="one change moves 1000 buckets"):
            await aggregator.run(until_caught_up=True)
    assert {"x0", "x1", "x2"} == set(tags())
    patient = of_change_stream(documents, target, lease_seconds=10.0)  # as the error advises
    await patient.run(until_caught_up=True)
    assert tags() == fresh()


async def test_a_large_change_and_a_lost_network(replica_set, documents, target, fresh, tags):
    """A change is not too large because the network was gone each time that it was committed."""
    aggregator = of_change_stream(documents, target, lease_seconds=3.0)
    await aggregator.rebuild()
    await documents.insert_one(animal(1, *(f"tag {n}" for n in range(1000))))
    working = asyncio.create_task(aggregator.run(until_caught_up=True))
    async with asyncio.timeout(100.0):
        for _ in range(3):
            async with replica_set.faults.watch("update", namespace=target.full_name) as commit:
                await commit.wait_until_fired(timeout=60.0)
            async with replica_set.faults.partition():
                await asyncio.sleep(3.5)  # for longer than the lease
        await working
    assert tags() == fresh()


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
