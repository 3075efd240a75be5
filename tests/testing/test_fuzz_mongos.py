"""Whatever a client says to a fake mongos: a clean close, no crash, and nothing is left."""

import asyncio
import gc
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_fuzz import FUZZ, INSERT, PATIENCE, REQUESTS, exchange, framed, message, talk

from aioretry.testing import FakeMongos, FakeMongoses, ScriptedServer
from aioretry.testing._wire import (
    EXHAUST_ALLOWED,
    HEADER_SIZE,
    MORE_TO_COME,
    OP_MSG,
    body_of,
    flags_of,
    header_of,
)

ODD = ["x", -5, 0, None, True, 1.5, {"a": 1}, [1], b"\0", 2**62]
GREETINGS = [
    message({"hello": 1, "maxAwaitTimeMS": odd, "$db": "admin"}, flags)
    for odd in ODD
    for flags in (0, MORE_TO_COME, EXHAUST_ALLOWED, EXHAUST_ALLOWED | MORE_TO_COME)
]
ANSWERS = [
    {},
    {"ok": 0.0},
    {"ok": "x", "code": [91], "errmsg": 7},
    {"ok": 0.0, "code": 91, "errorLabels": 7},
    {"ok": 1.0, "topologyVersion": 7},
    {"cursor": 7},
]


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    server.start()
    yield server
    server.close()  # without a look at what nobody expected


@pytest.fixture(scope="module")
def mongos(server: ScriptedServer) -> Iterator[FakeMongos]:
    others = set(threading.enumerate())
    members = [SimpleNamespace(direct_address=server.address)]
    with FakeMongoses(SimpleNamespace(members=members), 1) as cluster:
        yield cluster.mongoses[0]
    assert "aioretry-mongos" not in {thread.name for thread in set(threading.enumerate()) - others}


@pytest.fixture
def clean(mongos: FakeMongos, caplog: pytest.LogCaptureFixture, eventually) -> Iterator[Callable]:
    """A check that nothing is left at the mongos and nothing was logged; made at the end too."""
    caplog.set_level(logging.WARNING, "asyncio")

    def check() -> None:
        loop, _ = mongos._thread._started.result()
        # Two tasks are its own: the thread's, and the one that watches the server.
        eventually(lambda: not mongos._links._links and 2 == len(asyncio.all_tasks(loop)))
        assert [] == caplog.records

    yield check
    gc.collect()
    check()


def receive(connection: socket.socket) -> bytes:
    head = connection.recv(HEADER_SIZE, socket.MSG_WAITALL)
    return head + connection.recv(header_of(head).length - HEADER_SIZE, socket.MSG_WAITALL)


def serves(mongos: FakeMongos, server: ScriptedServer) -> bool:
    """Whether a good client is greeted, and gets its answer."""
    server.answer("insert", {"n": 7})
    with socket.create_connection(("127.0.0.1", mongos.port), PATIENCE) as connection:
        connection.sendall(message({"hello": 1, "$db": "admin"}))
        greeting = body_of(receive(connection))
        connection.sendall(message(INSERT))
        answer = body_of(receive(connection))
    return ("isdbgrid", 7) == (greeting["msg"], answer["n"])


@FUZZ
@given(data=talk(REQUESTS + GREETINGS), answer=st.sampled_from(ANSWERS))
def test_clients(
    mongos: FakeMongos, server: ScriptedServer, clean, data: bytes, answer: dict
) -> None:
    """Whatever a client sends, its connection is closed, and others are served."""
    server.answer("insert", answer)
    server.answer("getMore", answer)
    exchange(mongos, data, ends=True)

    assert serves(mongos, server)
    clean()


@FUZZ
@given(data=talk(REQUESTS + GREETINGS), answer=st.sampled_from(ANSWERS), end=st.binary(min_size=1))
def test_answered_clients(
    mongos: FakeMongos, server: ScriptedServer, clean, data: bytes, answer: dict, end: bytes
) -> None:
    """The same where a client reads before it goes, and resets its connection."""
    server.answer("insert", answer)
    server.answer("getMore", answer)
    with socket.create_connection(("127.0.0.1", mongos.port), PATIENCE) as connection:
        connection.sendall(data)
        connection.settimeout(0.01)
        try:
            connection.recv(65536)
            connection.sendall(end)
        except (ConnectionError, TimeoutError):
            pass  # it was closed, or said nothing
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    assert serves(mongos, server)
    clean()


@pytest.mark.parametrize("flags", [0, EXHAUST_ALLOWED])
@pytest.mark.parametrize("odd", ODD[:-1], ids=repr)
def test_odd_patience(mongos: FakeMongos, server: ScriptedServer, clean, odd, flags: int) -> None:
    """A hello with no sensible time to wait is answered at once, and once."""
    server.answer("insert", {"n": 7})
    with socket.create_connection(("127.0.0.1", mongos.port), PATIENCE) as connection:
        connection.sendall(message({"hello": 1, "maxAwaitTimeMS": odd, "$db": "admin"}, flags))
        greeting = receive(connection)
        connection.sendall(message(INSERT))
        assert 7 == body_of(receive(connection))["n"]
    assert "isdbgrid" == body_of(greeting)["msg"]
    assert not flags_of(header_of(greeting), greeting) & MORE_TO_COME


def test_oversized(mongos: FakeMongos, server: ScriptedServer, clean) -> None:
    """A message that is cut short, or larger than any may be, ends its connection."""
    for length in (48_000_000 + 16_384, 48_000_000 + 16_385):
        head = struct.pack("<iiii", length, 1, 0, OP_MSG) + message(INSERT)[16:]
        exchange(mongos, head + b"\0" * 5_000_000, ends=True)
        assert serves(mongos, server)
    clean()


@pytest.mark.parametrize("opcode", [0, 1, 2004, 2012, 2013, -1])
def test_empty(mongos: FakeMongos, server: ScriptedServer, clean, opcode: int) -> None:
    """A message with nothing in it ends its connection."""
    assert b"" == exchange(mongos, framed(opcode, b""), ends=False)
    assert serves(mongos, server)
