"""The end of a client, of an event loop and of a process, while the loop holds connections."""

import asyncio
import os
import threading

import pytest

from aioretry import RetryClient
from tests.integration.looping import all_given_back, held, increment, pools, seed


@pytest.fixture
async def things(replica_set, collection):
    """The collection, of a client that the test closes, with connections that are kept."""
    client = RetryClient(replica_set.uri)
    things = client[collection.database.name][collection.name]
    await seed(things)
    await asyncio.gather(*(increment(things) for _ in range(8)))
    yield things
    client.close()


def kept(client):
    """The connections that are kept for the next write."""
    return client._driver._dispatch._connections._kept


async def keep_one(things):
    """Have a connection kept, and give it."""
    while True:
        await increment(things)
        if found := list(kept(things.database.client)):
            return found[0]


class TestClosing:
    async def test_in_the_loop(self, things):
        """What is kept is closed at once."""
        client = things.database.client
        one = await keep_one(things)
        connection = one.connection
        client.close()
        assert [] == kept(client)
        assert connection.closed
        assert {(0, 0, 0, 0)} == {held(pool) for pool in pools(client)}

    async def test_from_another_thread(self, things):
        """What is kept is closed by the loop."""
        client = things.database.client
        connection = (await keep_one(things)).connection
        closing = threading.Thread(target=client.close)
        closing.start()
        await asyncio.to_thread(closing.join)
        await all_given_back(client)
        assert connection.closed

    async def test_while_writes_are_under_way(self, things):
        """Their connections are closed when they have their answers."""
        client = things.database.client
        writes = [increment(things) for _ in range(8)]
        client.close()
        async with asyncio.timeout(60):
            ended = await asyncio.gather(*writes, return_exceptions=True)
        assert 8 == len(ended)
        await all_given_back(client)
        assert [] == [one for pool in pools(client) for one in pool.conns]


class TestTheLoop:
    @pytest.mark.sample(3)
    @pytest.mark.parametrize("when", ["inside", "after", "from a thread"])
    @pytest.mark.parametrize("hanging", ["", "hanging"])
    async def test_it_ends_with_writes_under_way(
        self, replica_set, collection, run_script, when, hanging
    ):
        """Nobody complains of a socket that was left open."""
        await seed(collection)
        arguments = (replica_set.uri, collection.database.name, collection.name, when)
        if not hanging:
            await asyncio.to_thread(run_script, ENDING, *arguments)
            return
        # The last ones are held up until the process has ended.
        async with replica_set.faults.hang("update", times=None, namespace=collection.full_name):
            await asyncio.to_thread(run_script, ENDING, *arguments)


ENDING = """
import asyncio, gc, sys, threading
from aioretry import RetryClient

uri, database, name, when = sys.argv[1:]

async def main():
    global client
    client = RetryClient(uri)
    things = client[database][name]
    await asyncio.gather(*(things.find_one_and_update({}, {"$inc": {"n": 1}}) for _ in range(8)))
    writes = [things.update_one({}, {"$inc": {"n": 1}}) for _ in range(4)]
    await asyncio.sleep(0)
    if when == "inside":
        client.close()

asyncio.run(main())
if when == "after":
    client.close()
elif when == "from a thread":
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join()
del client
gc.collect()
"""

FORKING = """
import asyncio, os, sys
from aioretry import RetryClient

uri, database, name = sys.argv[1:]
loop = asyncio.new_event_loop()
client = RetryClient(uri, io_loop=loop)
things = client[database][name]

async def write():
    async with asyncio.timeout(60):
        await things.update_one({}, {"$inc": {"n": 1}})

async def start():
    while not (client._driver._dispatch and client._driver._dispatch._connections._kept):
        await write()

loop.run_until_complete(start())
child = os.fork()
if not child:
    status = 1
    try:
        client._driver.close()
        status = 0
    finally:
        os._exit(status)
assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
for _ in range(5):
    loop.run_until_complete(write())
client.close()
loop.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
async def test_a_forked_child_takes_nothing_away(replica_set, collection, run_script):
    """A child that closes its copy of a client leaves the parent's loop its connections."""
    await seed(collection)
    await asyncio.to_thread(
        run_script,
        FORKING,
        replica_set.uri,
        collection.database.name,
        collection.name,
        ignoring=["This process:DeprecationWarning"],
    )
