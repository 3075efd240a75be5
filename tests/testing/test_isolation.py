"""Members that are parted from each other, while clients reach all of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pymongo
import pytest
from pymongo import WriteConcern
from pymongo.errors import WriteConcernError

from aioretry import deadline
from aioretry.pymongo import AsyncRetryClient
from aioretry.testing import FaultNotFiredError, Proxy, ReplicaSet


@pytest.fixture(scope="module")
def running() -> Iterator[ReplicaSet]:
    with ReplicaSet(member_proxies=True) as servers:
        yield servers


@pytest.fixture
async def parted(running: ReplicaSet) -> AsyncIterator[ReplicaSet]:
    yield running
    running.faults.clear()
    await running.heal()


@pytest.mark.slow
async def test_an_isolated_primary(parted: ReplicaSet) -> None:
    """The others elect one, who takes writes; what it alone had is lost, as it is for real."""
    old = await parted.primary()
    direct = pymongo.MongoClient(f"mongodb://{old.address}/?directConnection=true")
    with direct:
        async with parted.faults.isolate(old) as fault:
            alone = direct.isolated.get_collection("primary", write_concern=WriteConcern(1))
            await asyncio.to_thread(alone.insert_one, {"_id": "of a minority"})
            await parted.wait_for_primary(other_than=old)
            async with AsyncRetryClient(parted.uri) as client, deadline(30.0):
                await client.isolated.primary.insert_one({"_id": "of a majority"})
            assert fault.fired == fault.seen >= 4  # each of two speaks to it, and it to each

        await parted.heal()

        async with AsyncRetryClient(parted.uri) as client:
            found = await client.isolated.primary.find().to_list()

            async def knows_all() -> bool:
                ports = {port for _, port in client.nodes}
                return ports == {member.port for member in parted.members}

            await until(knows_all)
        assert [{"_id": "of a majority"}] == found


async def test_an_isolated_secondary(parted: ReplicaSet) -> None:
    """The set goes on without it, and it catches up."""
    lost, other = await parted.secondaries()
    with pymongo.MongoClient(lost.direct_uri) as direct, pymongo.MongoClient(parted.uri) as client:
        some, all_of_them = (
            client.isolated.get_collection("secondary", write_concern=WriteConcern(w, wtimeout=200))
            for w in ("majority", 3)
        )
        there = direct.isolated.secondary
        with parted.faults.isolate(lost):
            await asyncio.to_thread(some.insert_one, {"_id": 1})
            with pytest.raises(WriteConcernError):
                await asyncio.to_thread(all_of_them.insert_one, {"_id": 2})
            assert 0 == await asyncio.to_thread(there.count_documents, {})

        async def has_caught_up() -> bool:
            return 2 == await asyncio.to_thread(there.count_documents, {})

        await until(has_caught_up)
        await parted.heal()
    assert {lost, other} == {*(await parted.secondaries())}


async def test_the_side_without_a_majority_has_no_primary(parted: ReplicaSet) -> None:
    """Members that are isolated together reach each other, and nobody else."""
    one, two, _ = parted.members

    async def nobody_is_primary() -> bool:
        replies = [await member.command({"isMaster": 1}) for member in parted.members]
        return not any(reply["ismaster"] for reply in replies)

    with parted.faults.isolate(one, two):  # two of three go on
        with parted.faults.isolate(two):  # each by itself
            await until(nobody_is_primary)
        assert {one, two} >= {await parted.wait_for_primary()}


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["4.2", "4.4", "5.0"])
async def test_other_versions(version: str) -> None:
    """Members of every version tell who they are when they connect."""
    async with ReplicaSet(3, version, member_proxies=True) as servers:
        old = await servers.primary()
        async with servers.faults.isolate(old):
            await servers.wait_for_primary(other_than=old)
        await servers.heal()


async def test_bad_arguments(parted: ReplicaSet) -> None:
    """Nobody, and strangers, are refused at once; a set that is whole is told."""
    faults = parted.faults
    with pytest.raises(ValueError, match=r"members is \(\): some of those at 127.0.0.1:"):
        faults.isolate()
    with pytest.raises(TypeError, match="member is 'x'"):
        faults.isolate("x")  # type: ignore[arg-type]
    with Proxy("127.0.0.1", 1) as stranger:
        with pytest.raises(ValueError, match="member is <Proxy"):
            faults.isolate(parted.members[0], stranger)
    assert () == faults.declared

    with pytest.raises(FaultNotFiredError), faults.isolate(*parted.members):
        pass  # nobody is on the other side


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so on the servers."""
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.05)
