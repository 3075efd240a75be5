"""Locks for PyMongo's asynchronous client that no cancellation can leave locked."""

import asyncio

from pymongo.errors import ServerSelectionTimeoutError

from aioretry.pymongo import AsyncRetryClient

NOBODY = "mongodb://127.0.0.1:1/?directConnection=true"


class TestTopology:
    """Its lock is real: PyMongo waits while it holds it."""

    async def test_nobody_leaves_it_locked(self):
        """Not even by a cancellation just when a wait for a server ends by itself."""
        async with AsyncRetryClient(NOBODY) as client, asyncio.timeout(60):
            await client.aconnect()
            topology = client._topology
            looking = [asyncio.create_task(client.things.things.find().to_list()) for _ in range(3)]
            while len(topology._condition._waiters) < len(looking):
                await asyncio.sleep(0)
            async with topology._lock:
                while topology._condition._waiters:  # as long as PyMongo waits at once
                    await asyncio.sleep(0.001)
                for each in looking:
                    each.cancel()
                await asyncio.wait(looking, timeout=0.05)
            async with topology._lock:
                assert topology._lock.locked()
            await asyncio.wait(looking)
            assert not topology._lock.locked()

    async def test_who_waits_without_a_limit(self):
        async with AsyncRetryClient(NOBODY) as client, asyncio.timeout(60):
            condition = client._topology._condition

            async def wait():
                async with condition:
                    return await condition.wait()

            waiting = asyncio.create_task(wait())
            while not condition._waiters:
                await asyncio.sleep(0)
            async with condition:
                condition.notify()
            assert await waiting
            assert not condition.locked()

    async def test_who_waits_has_it_again(self):
        uri = f"{NOBODY}&serverSelectionTimeoutMS=1200"
        async with AsyncRetryClient(uri) as client:
            things = client.things.things
            finding = (things.find().to_list() for _ in range(20))
            found = await asyncio.gather(*finding, return_exceptions=True)
            assert {ServerSelectionTimeoutError} == {type(each) for each in found}
            assert not client._topology._lock.locked()
            assert not getattr(client._topology._lock, "absent", None)
