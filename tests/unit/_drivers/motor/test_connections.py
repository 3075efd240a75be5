"""Connections that an event loop watches, over pairs of sockets."""

import asyncio
import socket
import struct
import threading
from types import SimpleNamespace

import pytest

from aioretry._drivers.engine import connections
from aioretry._drivers.engine.connections import Connections
from aioretry._drivers.motor.calls import BlockingCalls
from aioretry._drivers.motor.connections import SocketConnection, SocketConnections

OP_MSG = 2013


CALLS = BlockingCalls(None)


def reply(request_id, text=b"reply"):
    """A message that answers a request."""
    return struct.pack("<iiii", 16 + len(text), 7, request_id, OP_MSG) + text


class Pool:
    """A pool of PyMongo's that has one connection, as far as it is asked."""

    def __init__(self):
        self.lock = threading.Lock()
        self.active_contexts = set()
        self.conns = []
        self.requests, self.operation_count, self.max_pool_size = 1, 1, 1
        self.given_back = []

    def stale_generation(self, *_):
        return False

    def checkin(self, connection):
        self.given_back.append(connection)


class Connection:
    """A connection of PyMongo's."""

    def __init__(self, own):
        self.conn = own
        self.closed = False
        self.generation = self.service_id = None
        self.max_message_size = 48_000_000
        self.opts = SimpleNamespace(socket_timeout=None)

    def set_conn_timeout(self, seconds):
        self.conn.settimeout(seconds)

    def close_conn(self, _):
        self.closed = True
        self.conn.close()


class Receiver:
    """Waits for a reply."""

    def __init__(self):
        self.came = asyncio.get_running_loop().create_future()

    def answer(self, data):
        self.came.set_result(data[16:])

    def fail(self, error):
        self.came.set_exception(error)


@pytest.fixture
async def ends():
    """The two ends of a connection."""
    own, peer = socket.socketpair()
    yield own, peer
    own.close()
    peer.close()


async def test_a_reply_in_pieces_leaves_nothing_for_the_next(ends):
    """What is asked before a write may be answered so; the write gets its own answer."""
    own, peer = ends
    held = SocketConnection(asyncio.get_running_loop(), CALLS, Pool(), Connection(own))
    first, second = Receiver(), Receiver()
    held.send(1, [b"ping"], first)
    whole = reply(1)
    heard = held.heard
    for part in (whole[:10], whole[10:17], whole[17:]):  # of its header, and behind it
        peer.send(part)
        while held.heard == heard:
            await asyncio.sleep(0)
        heard = held.heard
    assert b"reply" == await first.came
    held.send(2, [b"write"], second)
    peer.send(reply(2, b"another"))
    assert b"another" == await second.came
    held.give_back()


async def test_a_large_message_goes_in_pieces(ends):
    """Each part of it behind the other, however little room there is; so does its answer come."""
    own, peer = ends
    loop = asyncio.get_running_loop()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    peer.setblocking(False)
    held, receiver = SocketConnection(loop, CALLS, Pool(), Connection(own)), Receiver()
    parts = [b"a" * 100_000, b"b" * 3_000_000, b"c" * 10]
    held.send(1, parts, receiver)
    assert held._is_writing()
    came = bytearray()
    while len(came) < sum(map(len, parts)):
        came += await loop.sock_recv(peer, 70_000)
    assert b"".join(parts) == came
    while held._is_writing():
        await asyncio.sleep(0)
    text = bytes(range(256)) * 10_000
    await loop.sock_sendall(peer, reply(1, text))
    assert text == bytes(await receiver.came)
    held.give_back()


@pytest.mark.parametrize("kind", ["reader", "writer", "both"])
async def test_a_number_that_somebody_else_watches(ends, kind):
    """A socket that was closed and not forgotten had the same number; its replies come all the
    same."""
    own, peer = ends
    loop = asyncio.get_running_loop()
    other, end = socket.socketpair()
    number = other.fileno()
    if kind != "writer":
        loop.add_reader(number, pytest.fail, "somebody else's")
    if kind != "reader":
        loop.add_writer(number, lambda: None)
    other.close()
    end.close()
    moved = socket.socket(fileno=own.detach())
    while moved.fileno() != number:  # the lowest that is free is the next one
        copy = moved.dup()
        if copy.fileno() == number:
            moved.close()
            moved = copy
        else:
            pytest.skip(f"number {number} is taken")
    receiver = Receiver()
    held = SocketConnection(loop, CALLS, Pool(), Connection(moved))
    held.send(1, [b"write"], receiver)
    peer.send(reply(1))
    assert b"reply" == await receiver.came
    held.give_back()
    moved.close()


async def test_one_that_can_not_be_watched_goes_back(ends, monkeypatch):
    """Its place in the pool is not lost."""
    own, _ = ends
    pool, connection = Pool(), Connection(own)
    monkeypatch.setattr(connections, "take_idle", lambda *_: connection)
    monkeypatch.setattr(Connections, "_has_names", lambda *_: True)
    connection.compression_context = None

    def failing(*_):
        raise FileNotFoundError

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "add_reader", failing)
    with pytest.raises(FileNotFoundError):
        SocketConnections(loop, CALLS).take(pool)
    assert ([connection], True) == (pool.given_back, connection.closed)


def test_the_end_of_a_loop(monkeypatch):
    """What was under way never ends; its place is given back when another loop takes over."""
    own, peer = socket.socketpair()
    pool, connection = Pool(), Connection(own)
    monkeypatch.setattr(connections, "take_idle", lambda *_: connection)
    monkeypatch.setattr(Connections, "_has_names", lambda *_: True)
    connection.compression_context = None
    loop = asyncio.new_event_loop()
    all_of_them = SocketConnections(loop, CALLS)
    taken = all_of_them.take(pool)
    assert taken is not None
    loop.close()
    assert [] == pool.given_back
    all_of_them.close()
    assert ([connection], True) == (pool.given_back, connection.closed)
    peer.close()


async def test_one_that_is_used_when_all_is_closed(ends, monkeypatch):
    """It goes back as soon as it is not used any more: a moment later the loop may be gone."""
    own, _ = ends
    pool, connection = Pool(), Connection(own)
    pool.max_pool_size = 2
    monkeypatch.setattr(connections, "take_idle", lambda *_: connection)
    monkeypatch.setattr(Connections, "_has_names", lambda *_: True)
    connection.compression_context = None
    all_of_them = SocketConnections(asyncio.get_running_loop(), CALLS)
    taken = all_of_them.take(pool)
    assert taken is not None
    all_of_them.close()
    all_of_them.put(taken)
    assert [connection] == pool.given_back
