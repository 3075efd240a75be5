"""The lives of a proxy's connections, where chance alone would seldom bring a test."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import bson
import pytest

from aioretry.testing import Faults, Proxy
from aioretry.testing._conversation import Conversation
from aioretry.testing._fault import FaultList
from aioretry.testing._link import Link, Links
from aioretry.testing._listening_thread import ListeningThread
from aioretry.testing._wire import OP_MSG, request_of

PATIENCE = 30.0
INSERT = request_of(1, {"insert": "c", "$db": "d"})


def large(size: int) -> bytes:
    payload = struct.pack("<I", 0) + b"\0" + bson.encode({"insert": "c", "x": bytes(size)})
    return struct.pack("<iiii", 16 + len(payload), 1, 0, OP_MSG) + payload


@asynccontextmanager
async def serving(serve) -> AsyncIterator[int]:
    """A server on the test's own loop; its port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def linked(faults: FaultList) -> AsyncIterator[tuple[Links, Link]]:
    """A link with both of its connections open, on the test's own loop."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read()

    async with serving(swallow) as port:
        loop = asyncio.get_running_loop()

        async def connect(upstream: asyncio.Protocol) -> None:
            await loop.create_connection(lambda: upstream, "127.0.0.1", port)

        links = Links(faults, lambda: Conversation(faults, {}), connect)
        server = await loop.create_server(links.accept, "127.0.0.1", 0)
        async with server:
            with socket.create_connection(server.sockets[0].getsockname(), PATIENCE):
                await until(lambda: links._links)
                [link] = links._links
                await until(lambda: link._upstream.is_open)
                yield links, link
                async with asyncio.timeout(PATIENCE):
                    await links.close()


async def test_closed_before_the_first_step() -> None:
    """A proxy that is closed in the very moment that a fault begins to hold something closes."""
    faults = FaultList()
    with Faults({"a:1": faults}).hang("insert"):
        async with linked(faults) as (links, link):
            link.client.data_received(INSERT)
            assert link.client.is_busy
            async with asyncio.timeout(PATIENCE):
                await links.close()
            assert not link.client.is_busy
            assert not links._links


async def test_disarmed_after_the_loop_is_closed() -> None:
    """A fault can be disarmed when the loop that it held something on is closed."""
    faults = FaultList()
    fault = Faults({"a:1": faults}).hang("insert")

    async def hold() -> None:
        async with linked(faults) as (_, link):
            link.client.data_received(INSERT)
            await until(lambda: fault._on_disarm)

    await asyncio.to_thread(asyncio.run, hold())

    fault.disarm()


async def test_cut_before_the_first_step() -> None:
    """A step that waited for the end of a partition is done, also if that ends at once."""
    faults = FaultList()
    declared = Faults({"a:1": faults})
    with declared.hang("insert") as held:
        async with linked(faults) as (_, link):
            sent: list[bytes] = []
            link.send = lambda source, data: sent.append(data)  # type: ignore[method-assign]
            link.client.data_received(INSERT)
            await until(lambda: held._on_disarm)
            link.cut(is_cut=True)
            held.disarm()
            await asyncio.sleep(0)
            link.client.data_received(INSERT)
            link.cut(is_cut=False)
            link.cut(is_cut=True)
            await asyncio.sleep(0)
            link.cut(is_cut=False)
            await until(lambda: not link.client.is_busy)
            assert [INSERT, INSERT] == sent


async def test_early_client() -> None:
    """What a client sends before the server is reached is kept for it, by the system."""
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            got.set_result(await reader.readexactly(len(INSERT)))

    async with serving(serve) as port:
        loop = asyncio.get_running_loop()

        async def connect(upstream: asyncio.Protocol) -> None:
            await go.wait()
            await loop.create_connection(lambda: upstream, "127.0.0.1", port)

        faults = FaultList()
        links = Links(faults, lambda: Conversation(faults, {}), connect)
        async with await loop.create_server(links.accept, "127.0.0.1", 0) as server:
            with socket.create_connection(server.sockets[0].getsockname(), PATIENCE) as client:
                client.sendall(INSERT)
                await until(lambda: links._links)
                for _ in range(5):
                    await asyncio.sleep(0)  # time to read it, if that were what it does
                go.set()
                async with asyncio.timeout(PATIENCE):
                    assert INSERT == await got
                    await links.close()


async def test_slow_server_and_partition() -> None:
    """Of what a server does not take, little is kept, also after a partition; all arrives."""
    message = large(40_000_000)
    go, got = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await go.wait()
            assert message == await reader.readexactly(len(message))
            got.set()

    async with serving(serve) as port:
        with Proxy("127.0.0.1", port) as proxy:
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(message)
            links = proxy._links

            def kept() -> int:
                transports = [link._upstream._transport for link in tuple(links._links)]
                return sum(one.get_write_buffer_size() for one in transports if one is not None)

            await until(kept)
            for _ in range(2):
                async with proxy.faults.partition():
                    assert kept() < 2_000_000
                assert kept() < 2_000_000
            assert writer.transport.get_write_buffer_size() > 0
            go.set()
            async with asyncio.timeout(PATIENCE):
                await got.wait()
            writer.close()


async def test_throttle() -> None:
    """Whoever sends more than the line takes has to wait, on either side; small things pass."""
    message = large(40_000_000)
    writers: list[asyncio.StreamWriter] = []
    arrived: list[int] = []
    ended: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            assert INSERT == await reader.readexactly(len(INSERT))
            writer.write(message)
            while piece := await reader.read(1_000_000):
                arrived.append(len(piece))
        ended.append(writer)

    async with serving(serve) as port:
        with Proxy("127.0.0.1", port) as proxy:
            narrow = proxy.faults.throttle(1_000_000)
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(INSERT + message)
            await until(lambda: arrived)
            before = sum(arrived)
            # Of another connection, what is small comes and goes meanwhile.
            other, small = await asyncio.open_connection("127.0.0.1", proxy.port)
            small.write(INSERT)
            async with asyncio.timeout(PATIENCE):
                assert message[:100] == await other.readexactly(100)
            await until(lambda: sum(arrived) > before + 500_000)
            assert 2 == narrow.fired
            assert sum(arrived) < len(message)
            assert writer.transport.get_write_buffer_size() > 0
            assert writers[0].transport.get_write_buffer_size() > 0

            narrow.disarm()
            async with asyncio.timeout(PATIENCE):
                assert message == await reader.readexactly(len(message))
            await until(lambda: sum(arrived) == len(message))
            assert 0 == writer.transport.get_write_buffer_size()
            for one in (writer, small):
                one.close()
            await until(lambda: 2 == len(ended))


async def test_one_line_for_all() -> None:
    """Connections share what the line takes, in each direction by itself, and all get on."""
    size, count = 100_000, 4
    message = large(size)
    ends: list[float] = []
    gone: list[asyncio.StreamWriter] = []
    now = asyncio.get_running_loop().time

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            assert message == await reader.readexactly(len(message))
            ends.append(now())
            await reader.read()
        gone.append(writer)

    async with serving(serve) as port:
        with Proxy("127.0.0.1", port) as proxy:
            where = ("127.0.0.1", proxy.port)
            writers = [(await asyncio.open_connection(*where))[1] for _ in range(count)]
            with proxy.faults.throttle(count * size) as narrow:
                begin = now()
                for writer in writers:
                    writer.write(message)
                await until(lambda: count == len(ends))
                assert count == narrow.fired
            # One after the other the first would be there after a quarter of the second.
            assert min(ends) - begin > 0.6
            assert max(ends) - begin > 0.95
            for writer in writers:
                writer.close()
            await until(lambda: count == len(gone))


async def test_partition_before_a_dead_server(free_port: int) -> None:
    """During a partition a client does not learn that the server is dead."""
    with Proxy("127.0.0.1", free_port) as proxy:
        async with proxy.faults.partition() as fault:
            connection = socket.create_connection(("127.0.0.1", proxy.port), 0.2)
            await fault.wait_until_fired()
            with pytest.raises(TimeoutError):
                connection.recv(1)
        with connection:
            connection.settimeout(PATIENCE)
            assert b"" == await asyncio.to_thread(connection.recv, 1)


def test_service_that_can_not_be_made() -> None:
    """A thread whose service fails says so to whoever starts it, and ends."""

    def fail() -> Links:
        raise ZeroDivisionError

    thread = ListeningThread("fails", fail)
    with pytest.raises(ZeroDivisionError):
        thread.start()
    assert "fails" not in {thread.name for thread in threading.enumerate()}


async def test_waiting_for_a_fault_that_is_over() -> None:
    """Who waits for more strikes than there can be is told at once."""
    faults = Faults({"proxy": FaultList()})
    fault = faults.drop_reply("insert", times=1)
    waiting = asyncio.create_task(fault.wait_until_fired(timeout=3600))
    fault.disarm()
    with pytest.raises(TimeoutError, match="can't any more"):
        await waiting
    used_up = faults.drop_reply("insert", times=1)
    used_up.strike()
    with pytest.raises(TimeoutError, match="can't any more"):
        await used_up.wait_until_fired(2, timeout=3600)


def test_armed_and_cleared_at_once() -> None:
    """A fault that was disarmed before it got to its proxy stays away from it."""
    at_proxy = FaultList()
    faults = Faults({"proxy": at_proxy})
    fault = faults.partition(must_fire=False)
    fault.disarm()
    at_proxy.add(fault)
    assert [] == at_proxy.partitions


def test_a_failed_block_is_told_of_idle_faults() -> None:
    """What is wrong with a fault is noted on the error that the block ends with."""
    faults = Faults({"proxy": FaultList()})
    with pytest.raises(KeyError) as caught, faults.drop_reply("insert"):
        raise KeyError
    assert ["DropReply(insert)" in note for note in caught.value.__notes__] == [True]
