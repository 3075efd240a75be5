"""The pools of an asynchronous client."""

import ast
import asyncio
import inspect
import socket
from types import SimpleNamespace

import anyio
import pytest
from pymongo.asynchronous import pool as pool_module
from pymongo.lock import Lock

from aioretry import deadlines
from aioretry._drivers.engine import private_names
from aioretry._drivers.pymongo_async.connections import TransportConnections
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


RESTORES = hasattr(pool_module.Pool, "_restore_counters")


async def pool_of(client):
    """The pool of a client's only server."""
    await client.admin.command("ping")
    return client._topology._servers[await client.address].pool


def held(pool):
    """What a pool counts as in use; of who has failed, older versions of PyMongo count too much."""
    operations = pool.operation_count if RESTORES else pool.requests
    return pool.requests, pool.active_sockets, operations


def locks(block):
    """Tell whether a block has the lock of a pool."""
    names = {"lock", "size_cond", "_max_connecting_cond"}
    entered = {item.context_expr for item in block.items}
    return any(isinstance(each, ast.Attribute) and each.attr in names for each in entered)


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

    async def test_nor_one_that_is_connected(self, replica_set, monkeypatch):
        """PyMongo waits for the topology with a connection that nothing holds but a variable."""
        loop = asyncio.get_running_loop()
        connect, opened = loop.create_connection, []

        async def connect_and_hold(*args, **kwargs):
            made = await connect(*args, **kwargs)
            if asyncio.current_task() is opening:
                await lock.acquire()
                opened.append(made[0])
            return made

        async with AsyncRetryClient(replica_set.uri) as client:
            pool, lock = await pool_of(client), client._topology._lock
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
            assert not pool.active_contexts
        assert [True] == [one.is_closing() for one in opened]


class TestLock:
    async def test_nobody_leaves_it_locked(self, replica_set):
        """Nor is anything left in use: a wait that ends twice, at the same time.

        Until Python 3.12, that left PyMongo's own lock to a task that did not give it back.
        """
        uri = f"{replica_set.uri}&maxPoolSize=1"
        async with AsyncRetryClient(uri) as client, asyncio.timeout(30):
            pool = await pool_of(client)

            async def wait_in_vain():
                with deadlines.fresh_timeout(0.02):
                    async with pool.checkout():
                        pass

            async with pool.checkout(), pool.lock:
                waiting = [asyncio.create_task(wait_in_vain()) for _ in range(3)]
                while len(pool.size_cond._waiters) < len(waiting):
                    await asyncio.sleep(0)
                while pool.size_cond._waiters:
                    await asyncio.sleep(0)
                for one in waiting:
                    one.cancel()
            await asyncio.wait(waiting)
            async with pool.checkout():
                assert (1, 1, 1) == held(pool)
            assert (0, 0, 0) == held(pool)

    @pytest.mark.parametrize("when", ["it is used", "it is opened"])
    async def test_no_place_is_lost_by_many_cancellations(self, when, replica_set):
        """A scope of anyio's cancels in every turn of the event loop."""
        async with AsyncRetryClient(replica_set.uri) as client, asyncio.timeout(30):
            pool = await pool_of(client)
            scope, is_used = anyio.CancelScope(), asyncio.Event()

            async def use():
                with scope:
                    async with pool.checkout():
                        is_used.set()
                        await anyio.sleep_forever()

            hanging = replica_set.faults.hang("hello", "isMaster", "ismaster", must_fire=False)
            if when == "it is opened":
                await pool.reset_without_pause()
                hanging.__enter__()
            using = asyncio.create_task(use())
            while not (is_used.is_set() or pool._pending):
                await asyncio.sleep(0)
            async with pool.lock:
                scope.cancel()
                for _ in range(20):
                    await asyncio.sleep(0)
            await using
            hanging.disarm()
            while any((*held(pool), pool._pending, *pool.active_contexts)):
                await asyncio.sleep(0)

    async def test_it_is_pymongos_where_that_has_other_names(self, replica_set, monkeypatch):
        monkeypatch.setattr(private_names, "OF_WAITING_POOL", ("lock", "gone"))
        async with AsyncRetryClient(replica_set.uri) as client:
            pool = await pool_of(client)
            assert isinstance(pool.lock, Lock)
            await client.things.things.insert_one({})

    def test_nothing_is_awaited_under_it(self):
        """It keeps nobody from what PyMongo does between two turns of the event loop."""
        awaited = set()
        for block in ast.walk(ast.parse(inspect.getsource(pool_module))):
            if isinstance(block, ast.AsyncWith) and locks(block):
                inside = (each for each in ast.walk(block) if isinstance(each, ast.Await))
                awaited |= set(map(ast.unparse, inside))
        assert awaited
        assert all(each.startswith("await _async_cond_wait(") for each in awaited), awaited


class TestHolding:
    async def test_one_that_can_not_be_held(self, replica_set, monkeypatch):
        """The write for which it was opened does not wait for ever."""
        over, calls = TransportConnections._over, []

        def fail_at_first(self, pool, connection):
            calls.append(connection)
            if len(calls) == 1:
                raise RuntimeError("the transport is closing")
            return over(self, pool, connection)

        monkeypatch.setattr(TransportConnections, "_over", fail_at_first)
        async with AsyncRetryClient(replica_set.uri) as client, asyncio.timeout(30):
            await client.things.things.insert_one({})
            assert calls[0].closed
            pool = await pool_of(client)
            while any(held(pool)):
                await asyncio.sleep(0.001)

    @pytest.mark.parametrize("is_closed", [False, True])
    async def test_what_was_checked_out(self, is_closed, replica_set):
        """The next attempt has it; after the end it is given back at once."""
        async with AsyncRetryClient(replica_set.uri) as client, asyncio.timeout(30):
            pool = await pool_of(client)
            await client.things.things.insert_one({})
            while any(held(pool)):  # nothing is kept for the next one
                await asyncio.sleep(0.001)
            connections = client._driver._dispatch._connections
            connection = await pool._get_conn(0.0)
            if is_closed:
                connections.close()
            connections.hold(pool, connection)
            assert ((0, 0, 0) if is_closed else (1, 1, 1)) == held(pool)
            if not is_closed:
                taken = connections.take(pool)
                assert connection is taken.connection
                taken.give_back()
            assert (0, 0, 0) == held(pool)
