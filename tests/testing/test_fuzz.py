"""Whatever bytes come from either side: a clean close, no crash, and nothing is left."""

import asyncio
import gc
import itertools
import logging
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator

import bson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioretry.testing import Faults, Proxy
from aioretry.testing._conversation import Conversation
from aioretry.testing._fault import FaultList
from aioretry.testing._wire import OP_MSG, OP_QUERY, OP_REPLY, WireError

PATIENCE = 30.0


def framed(opcode: int, payload: bytes) -> bytes:
    return struct.pack("<iiii", 16 + len(payload), 1, 0, opcode) + payload


def message(document: dict, flags: int = 0, sequence: bytes = b"") -> bytes:
    return framed(OP_MSG, struct.pack("<I", flags) + b"\0" + bson.encode(document) + sequence)


SEQUENCE = b"\x01" + struct.pack("<i", 4 + 10 + 5) + b"documents\0" + bson.encode({})
INSERT = {"insert": "c", "$db": "d"}
CLIENT = {"application": {"name": "app"}}
REQUESTS = [
    message({"hello": 1, "client": CLIENT, "compression": ["zlib"], "$db": "admin"}),
    message({"hello": 1, "maxAwaitTimeMS": 10, "$db": "admin"}, flags=1 << 16),
    framed(
        OP_QUERY, struct.pack("<i", 4) + b"admin.$cmd\0" + b"\0" * 8 + bson.encode({"ismaster": 1})
    ),
    message(INSERT | {"documents": [{"x": "y" * 100}]}),
    message(INSERT, sequence=SEQUENCE),
    message(INSERT, flags=2, sequence=SEQUENCE),
    message({"getMore": 7, "collection": "c", "$db": "d"}),
]
HELLO_REPLY = {"hosts": ["a:1"], "me": "a:1", "primary": "a:1"}
REPLIES = [
    message(HELLO_REPLY),
    message(HELLO_REPLY, flags=2),
    message({"hosts": 1, "me": {"x": 1}, "primary": [1]}),
    framed(OP_REPLY, struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(HELLO_REPLY)),
    message({"ok": 1.0, "errorLabels": ["A"]}),
    message({"ok": 1.0, "errorLabels": 7}),
    framed(OP_MSG, b"\0" * 4 + b"\x01"),
]


@st.composite
def mutated(draw: st.DrawFn, messages: list[bytes]) -> bytes:
    """A message that is right, but for a few bytes, its length, or its end."""
    data = bytearray(draw(st.sampled_from(messages)))
    for position, byte in draw(
        st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3)
    ):
        data[position % len(data)] = byte
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    if len(data) >= 4 and draw(st.booleans()):
        lengths = st.sampled_from([-1, 0, 15, 16, 17, 20, 21, 48_000_000, 2**31 - 1, len(data)])
        struct.pack_into("<i", data, 0, draw(lengths))
    return bytes(data)


def talk(messages: list[bytes]) -> st.SearchStrategy[bytes]:
    one = st.one_of(st.sampled_from(messages), mutated(messages), st.binary(max_size=60))
    return st.lists(one, max_size=5).map(b"".join)


def everything(faults: Faults) -> list[Callable[[], object]]:
    """Ways to arm each kind of fault."""
    spared = {"times": None, "must_fire": False}
    return [
        lambda: faults.drop_request("getMore", **spared),
        lambda: faults.drop_reply("insert", nth=2, **spared),
        lambda: faults.hang(where=lambda body: body["documents"][0], **spared),
        lambda: faults.hang("hello", applied=True, **spared),
        lambda: faults.delay(0, **spared),
        lambda: faults.delay(0, applied=True, **spared),
        lambda: faults.truncate_reply(18, **spared),
        lambda: faults.corrupt_reply(**spared),
        lambda: faults.corrupt_reply("hello", **spared),
        lambda: faults.error(91, "hello", "insert", labels=["A"], **spared),
        lambda: faults.error(91, "hello", "insert", applied=True, **spared),
        lambda: faults.write_concern_error(91, labels=["A"], **spared),
        lambda: faults.write_concern_error(64, "hello", labels=["A"], **spared),
        lambda: faults.slow(1e6, namespace="d.c", **spared),
        lambda: faults.refuse_connections(must_fire=False),
        lambda: faults.partition(must_fire=False),
    ]


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(
    talk(REQUESTS),
    talk(REPLIES),
    st.lists(st.integers(0), max_size=6),
    st.lists(st.integers(0, 15), unique=True, max_size=5),
)
def test_conversation(requests: bytes, replies: bytes, cuts: list[int], armed: list[int]) -> None:
    """However the bytes are cut, and whatever faults are armed: steps, or a WireError."""
    faults = FaultList()
    ways = everything(Faults({"a:1": faults}))
    for number in armed:
        ways[number]()
    conversation = Conversation(faults, {"a:1": "b:2"})
    for take, data in ((conversation.from_client, requests), (conversation.from_server, replies)):
        bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        for start, end in itertools.pairwise(bounds):
            try:
                take(data[start:end])
            except WireError:
                break


class Upstream(socketserver.ThreadingTCPServer):
    """A server that answers whatever comes with the bytes that it was given."""

    daemon_threads = True
    block_on_close = True
    request_queue_size = 64
    answer = b""
    hangs_up = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)


class Answering(socketserver.BaseRequestHandler):
    server: Upstream

    def handle(self) -> None:
        try:
            while self.request.recv(65536):
                self.request.sendall(self.server.answer)
                if self.server.hangs_up:
                    return
        except OSError:
            pass  # the other end is gone


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def proxy(upstream: Upstream) -> Iterator[Proxy]:
    others = set(threading.enumerate())
    host, port = upstream.server_address
    with Proxy(host, port) as proxy:
        yield proxy
    assert "aioretry-proxy" not in {thread.name for thread in set(threading.enumerate()) - others}


@pytest.fixture
def clean(proxy: Proxy, caplog: pytest.LogCaptureFixture, eventually) -> Iterator[Callable]:
    """A check that nothing is left at the proxy and nothing was logged; made at the end too."""
    caplog.set_level(logging.WARNING, "asyncio")

    def check() -> None:
        links = proxy._links
        loop, _ = proxy._thread._started.result()
        eventually(lambda: not links._links and 1 == len(asyncio.all_tasks(loop)))
        assert [] == caplog.records

    yield check
    gc.collect()
    check()


def exchange(proxy: Proxy, data: bytes, *, ends: bool) -> bytes:
    """Send something, and read until the proxy closes the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection:
        try:
            connection.sendall(data)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionError:
            pass  # reset, as bytes of the client were not read
    return answer


def serves(proxy: Proxy, upstream: Upstream) -> bool:
    """Whether a good client gets its answer."""
    upstream.answer, upstream.hangs_up = message({"ok": 1.0}), True
    return upstream.answer == exchange(proxy, message(INSERT), ends=False)


FUZZ = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZ
@given(data=talk(REQUESTS), answer=st.sampled_from(REPLIES))
def test_clients(proxy: Proxy, upstream: Upstream, clean, data: bytes, answer: bytes) -> None:
    """Whatever a client sends, its connection is closed, and others are served."""
    upstream.answer, upstream.hangs_up = answer, False
    exchange(proxy, data, ends=True)

    assert serves(proxy, upstream)
    clean()


@FUZZ
@given(data=st.lists(st.sampled_from(REQUESTS), min_size=1).map(b"".join), answer=talk(REPLIES))
def test_servers(proxy: Proxy, upstream: Upstream, clean, data: bytes, answer: bytes) -> None:
    """Whatever a server answers, the connection is closed after it, and others are served."""
    upstream.answer, upstream.hangs_up = answer, True
    exchange(proxy, data, ends=False)

    assert serves(proxy, upstream)
    clean()


@FUZZ
@given(
    data=talk(REQUESTS),
    answer=talk(REPLIES),
    ends=st.booleans(),
    armed=st.lists(st.sampled_from([0, 1, *range(4, 14)]), unique=True, max_size=4),
)
def test_with_faults(
    proxy: Proxy,
    upstream: Upstream,
    clean,
    data: bytes,
    answer: bytes,
    ends: bool,
    armed: list[int],
) -> None:
    """The same while faults strike."""
    ways = everything(proxy.faults)
    for number in armed:
        ways[number]()
    upstream.answer, upstream.hangs_up = answer, True
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection:
        connection.sendall(data)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.01)
        try:
            while connection.recv(65536):
                pass
        except (ConnectionError, TimeoutError):
            pass  # with some faults nobody closes it
    proxy.faults.clear()

    assert serves(proxy, upstream)
    clean()


def test_oversized(proxy: Proxy, upstream: Upstream, clean) -> None:
    """The largest message passes in pieces; one that is larger ends its connection at once."""
    upstream.answer, upstream.hangs_up = b"", False
    for length in (48_000_000 + 16_384, 48_000_000 + 16_385):
        head = struct.pack("<iiii", length, 1, 0, OP_MSG) + message(INSERT)[16:]
        exchange(proxy, head + b"\0" * 5_000_000, ends=True)
        assert serves(proxy, upstream)
    clean()


def test_aborts_in_the_midst(proxy: Proxy, upstream: Upstream, clean) -> None:
    """Clients that reset their connections while faults hold things up leave nothing behind."""
    with (
        proxy.faults.delay(0.01, "insert", times=None),
        proxy.faults.hang("getMore", times=None) as hang,
        proxy.faults.slow(10_000, "insert"),
    ):
        upstream.answer, upstream.hangs_up = message({"ok": 1.0}), False
        for number in range(60):
            with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection:
                connection.sendall(REQUESTS[3] if number % 2 else REQUESTS[6])
                if number % 3:
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        asyncio.run(hang.wait_until_fired())
        assert serves(proxy, upstream)  # of those that were reset, no insert may have got so far
    assert serves(proxy, upstream)
    clean()
