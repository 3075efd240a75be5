"""Connections that break while their server is well: what it costs the writes."""

import asyncio

import pytest

from aioretry import RetryClient
from tests.integration.looping import all_given_back, pools
from tests.integration.relaying import Relay
from tests.integration.test_on_loop_broken import both_ways

WARM = 30


@pytest.fixture
async def relay(replica_set):
    """A relay of connections to the primary."""
    primary = await replica_set.primary()
    async with Relay(primary.host, primary.port) as relay:
        yield relay


async def warm_up(client, things, replica_set):
    """Have so many connections open and idle that have just been used."""
    async with replica_set.faults.hang(
        "update", times=WARM, namespace="aioretry_tests.breaks"
    ) as hang:
        writes = [update(things, number) for number in range(WARM)]
        await hang.wait_until_fired(WARM, timeout=60)
    await asyncio.gather(*writes)
    await all_given_back(client)


def update(things, number):
    return things.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True)


class TestIdleConnections:
    @both_ways
    async def test_that_broke_with_another_one(self, replica_set, relay, listeners):
        """Half of the connections are gone at once: no write finds one after the other."""
        async with RetryClient(
            f"mongodb://{relay.address}/?directConnection=true", event_listeners=listeners
        ) as client:
            things = client.aioretry_tests.breaks
            await warm_up(client, things, replica_set)
            assert WARM // 2 == relay.cut(2)

            async def write(number):
                for _ in range(10):
                    await update(things, number)

            async with asyncio.timeout(60):
                await asyncio.gather(*(write(number) for number in range(20)))
            await all_given_back(client)

    @both_ways
    async def test_that_are_well_are_kept(self, replica_set, relay, listeners):
        """The others are asked, and none is closed or opened for it."""
        async with RetryClient(
            f"mongodb://{relay.address}/?directConnection=true", event_listeners=listeners
        ) as client:
            things = client.aioretry_tests.breaks
            await warm_up(client, things, replica_set)
            (pool,) = pools(client)
            opened = pool.next_connection_id
            for _ in range(3):
                async with replica_set.faults.drop_reply("update"):
                    await update(things, 1)
            await warm_up_again(things)
            assert opened == pool.next_connection_id
            await all_given_back(client)
            assert WARM - 3 == len(pool.conns)


async def warm_up_again(things):
    """Use several connections once."""
    await asyncio.gather(*(update(things, number) for number in range(WARM // 2)))
