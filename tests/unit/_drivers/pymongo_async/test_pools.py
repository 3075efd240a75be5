"""The pools of an asynchronous client."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from aioretry.pymongo import AsyncRetryClient


@pytest.fixture
def port():
    """A port where connecting takes for ever: as many as fit wait there to be accepted."""
    with socket.socket() as listener, socket.socket() as waiting, socket.socket() as another:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting.connect(address)
        another.setblocking(False)
        another.connect_ex(address)
        yield address[1]


class TestConnecting:
    async def test_it_leaves_no_socket_when_it_is_cancelled(self, port, monkeypatch):
        """PyMongo leaves it to the garbage collector, which warns of it."""
        loop = asyncio.get_running_loop()
        connect, has_begun, sockets = loop.sock_connect, asyncio.Event(), []

        async def note_and_connect(connected, address):
            sockets.append(connected)
            has_begun.set()
            await connect(connected, address)

        monkeypatch.setattr(loop, "sock_connect", note_and_connect)
        uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
        async with AsyncRetryClient(uri) as client:
            finding = asyncio.ensure_future(client.things.things.find_one())
            async with asyncio.timeout(30):
                await has_begun.wait()
            finding.cancel()
            await asyncio.wait([finding])
        assert [-1] == [one.fileno() for one in sockets]

    @pytest.mark.parametrize("whose", ["pool", "topology"])
    async def test_nor_one_that_is_connected(self, whose, replica_set, monkeypatch):
        """PyMongo waits for locks with a connection that nothing holds but a variable."""
        loop = asyncio.get_running_loop()
        connect, opened = loop.create_connection, []

        async def connect_and_hold(*args, **kwargs):
            made = await connect(*args, **kwargs)
            if asyncio.current_task() is opening:
                await lock.acquire()
                opened.append(made[0])
            return made

        async with AsyncRetryClient(replica_set.uri) as client:
            await client.admin.command("ping")
            topology = client._topology
            pool = topology._servers[await client.address].pool
            lock = pool.lock if whose == "pool" else topology._lock
            handler = SimpleNamespace(contribute_socket=lambda *_, **__: None, client=client)
            opening = asyncio.create_task(pool.connect(handler))
            monkeypatch.setattr(loop, "create_connection", connect_and_hold)
            async with asyncio.timeout(30):
                while not lock._waiters:
                    await asyncio.sleep(0)
            opening.cancel()
            lock.release()
            await asyncio.wait([opening])
            assert opening.cancelled()
        assert [True] == [one.is_closing() for one in opened]
