import asyncio
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure
from pymongo.topology_description import TOPOLOGY_TYPE
from pymongo.write_concern import WriteConcern

from aioretry.testing import ScriptedRequest, ScriptedServer, _wire

pytestmark = pytest.mark.filterwarnings("ignore:.*[Mm]otor.*:DeprecationWarning")


@pytest.fixture
async def server():
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[MongoClient]:
    with MongoClient(server.uri, retryWrites=False) as client:
        yield client


@contextmanager
def connected(server: ScriptedServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        yield connection


def read_message(connection: socket.socket) -> bytes:
    data = connection.recv(16, socket.MSG_WAITALL)
    return data + connection.recv(_wire.header_of(data).length - 16, socket.MSG_WAITALL)


def ask(connection: socket.socket, command: dict) -> dict:
    """Send a command with `$db`, and read its reply."""
    connection.sendall(_wire.request_of(7, command))
    reply = read_message(connection)
    assert 7 == _wire.header_of(reply).response_to
    return _wire.body_of(reply)


def op_query(command: dict) -> bytes:
    payload = struct.pack("<i", 4) + b"admin.$cmd\0" + struct.pack("<ii", 0, -1)
    payload += bson.encode(command)
    return struct.pack("<iiii", 16 + len(payload), 3, 0, _wire.OP_QUERY) + payload


def is_closed(connection: socket.socket) -> bool:
    """Wait for the other end to say something, or to close."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def topology_type(client: MongoClient) -> str:
    return client.topology_description.topology_type_name


class TestAnswering:
    async def test_reply(self, server: ScriptedServer) -> None:
        """A client gets the reply that a test gives; the whole command is there to be looked at."""
        with MongoClient(server.uri) as client:
            write = asyncio.create_task(asyncio.to_thread(client.db.c.insert_one, {"_id": 1}))
            request = await server.expect("insert")
            request.reply({"n": 1})

            assert 1 == (await write).inserted_id
        assert ("insert", "insert on db.c") == (request.name, str(request))
        assert [{"_id": 1}] == request.command["documents"]
        assert (1, "db") == (request.command["txnNumber"], request.command["$db"])
        assert request.is_answered
        assert (request,) == server.requests

    async def test_motor(self, server: ScriptedServer) -> None:
        """Motor's clients are served as well, and a large command arrives whole."""
        client = AsyncIOMotorClient(server.uri)
        documents = [{"_id": number, "x": b"x" * 1_000_000} for number in range(20)]
        write = client.db.c.insert_many(documents)
        request = await server.expect("insert")
        request.reply({"n": 20})
        assert 20 == len((await write).inserted_ids)
        assert documents == request.command["documents"]
        client.close()

    async def test_write_error(self, server: ScriptedServer, client: MongoClient) -> None:
        """A reply may hold write errors."""
        write = asyncio.create_task(asyncio.to_thread(client.db.c.insert_one, {"_id": 1}))
        error = {"index": 0, "code": 11000, "errmsg": "E11000 dup key"}
        (await server.expect("insert")).reply({"n": 0, "writeErrors": [error]})
        with pytest.raises(DuplicateKeyError):
            await write

    async def test_fail(self, server: ScriptedServer, client: MongoClient) -> None:
        """An error has its code, text, labels, and whatever else is given."""
        ping = asyncio.create_task(asyncio.to_thread(client.db.command, "count", "c"))
        (await server.expect("count")).fail(462, "busy", labels=["L"], baseBackoffMS=5)
        with pytest.raises(OperationFailure, match="busy") as caught:
            await ping
        assert (462, 5) == (caught.value.code, caught.value.details["baseBackoffMS"])
        assert caught.value.has_error_label("L")

    async def test_fail_without_labels(self, server: ScriptedServer) -> None:
        """An error without labels has no field for them."""
        with connected(server) as connection:
            reply = asyncio.create_task(asyncio.to_thread(ask, connection, {"x": 1}))
            (await server.expect("x")).fail(8)
            assert {"ok": 0.0, "errmsg": "scripted", "code": 8} == await reply

    async def test_hang_up(self, server: ScriptedServer) -> None:
        """The connection is closed instead of an answer; a retry comes in a new message."""
        with MongoClient(server.uri) as client:
            write = asyncio.create_task(asyncio.to_thread(client.db.c.insert_one, {"_id": 1}))
            first = await server.expect("insert")
            first.hang_up()
            second = await server.expect("insert")
            second.hang_up()
            with pytest.raises(AutoReconnect):
                await write
        assert first.command == second.command
        assert first.request_id != second.request_id

    async def test_only_once(self, server: ScriptedServer, client: MongoClient) -> None:
        """A second answer is refused; one that is no BSON is no answer."""
        reply = asyncio.create_task(asyncio.to_thread(client.db.command, "count", "c"))
        request = await server.expect("count")
        with pytest.raises(bson.errors.InvalidDocument):
            request.reply({"n": object()})
        assert not request.is_answered
        request.reply()
        for again in (request.reply, request.hang_up, lambda: request.fail(1)):
            with pytest.raises(RuntimeError, match=r"count on db\.c was answered before"):
                again()
        assert {"ok": 1.0} == await reply

    async def test_unacknowledged(self, server: ScriptedServer, client: MongoClient) -> None:
        """A command with w: 0 expects no reply, and gets none."""
        unacknowledged = client.db.get_collection("c", write_concern=WriteConcern(w=0))
        server.answer("delete", {"n": 1})
        await asyncio.to_thread(unacknowledged.insert_one, {"_id": 1})
        request = await server.expect("insert")
        assert not request.expects_reply
        with pytest.raises(RuntimeError, match="expects no reply"):
            request.reply()
        await asyncio.to_thread(unacknowledged.delete_one, {"_id": 1})
        reply = asyncio.create_task(asyncio.to_thread(client.db.command, "count", "c"))
        (await server.expect("count")).reply({"n": 3})
        assert 3 == (await reply)["n"]

    async def test_client_is_gone(self, server: ScriptedServer) -> None:
        """An answer to a client that has gone, or after the end, harms nobody."""
        with connected(server) as connection:
            connection.sendall(_wire.request_of(1, {"x": 1}) + _wire.request_of(2, {"y": 1}))
            first, second = await server.expect("x"), await server.expect("y")
        first.reply()
        server.close()
        second.reply()

    async def test_from_any_thread(self, server: ScriptedServer, client: MongoClient) -> None:
        """Another thread with another event loop may expect and answer."""

        async def serve() -> None:
            (await server.expect("count")).reply({"n": 2})

        serving = asyncio.to_thread(asyncio.run, serve())
        counting = asyncio.to_thread(client.db.command, "count", "c")
        _, reply = await asyncio.gather(serving, counting)
        assert 2 == reply["n"]


class TestHello:
    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("primary", TOPOLOGY_TYPE.ReplicaSetWithPrimary),
            ("mongos", TOPOLOGY_TYPE.Sharded),
            ("standalone", TOPOLOGY_TYPE.Single),
        ],
    )
    def test_kinds(self, kind, expected) -> None:
        """It passes for a primary, a mongos and a standalone server."""
        with ScriptedServer(kind=kind) as server, MongoClient(server.uri) as client:
            client.admin.command("ping")
            assert expected == client.topology_description.topology_type
            [address] = client.nodes
            assert server.address == "{}:{}".format(*address)

    def test_unknown_kind(self) -> None:
        """Another kind is refused."""
        with pytest.raises(ValueError, match="primary, mongos, standalone, not 'arbiter'"):
            ScriptedServer(kind="arbiter")

    def test_overrides(self) -> None:
        """What the hello reply says is merged over the default; None takes a field out."""
        hello = {"maxWireVersion": 21, "logicalSessionTimeoutMinutes": None, "setName": "rs7"}
        with ScriptedServer(hello=hello) as server, MongoClient(server.uri) as client:
            assert server.uri.endswith("?replicaSet=rs7")
            hello = client.admin.command("hello")
            assert (21, "rs7", [server.address]) == (
                hello["maxWireVersion"],
                hello["setName"],
                hello["hosts"],
            )
            assert "logicalSessionTimeoutMinutes" not in hello
        assert () == server.requests
        assert {"ismaster", "hello"} <= {request.name.lower() for request in server.traffic}

    def test_replaced(self) -> None:
        """A client that looks for a server finds the new hello."""
        with ScriptedServer(hello={"secondary": True, "isWritablePrimary": False}) as server:
            server.hello = {**server.hello, "ismaster": False}
            with MongoClient(server.uri) as client:
                pinged = []
                thread = threading.Thread(
                    target=lambda: pinged.append(client.admin.command("ping"))
                )
                thread.start()
                while not server.traffic:
                    time.sleep(0.001)
                server.hello = {}
                thread.join(10)
                assert [{"ok": 1.0}] == pinged

    async def test_awaited(self) -> None:
        """With a topologyVersion a client is told of a new hello at once, though it is idle."""
        version = {"processId": bson.ObjectId(), "counter": bson.Int64(1)}
        async with ScriptedServer(hello={"topologyVersion": version}) as server:
            with MongoClient(server.uri, heartbeatFrequencyMS=60_000) as client:
                await asyncio.to_thread(client.admin.command, "ping")
                async with asyncio.timeout(10):
                    while not any("topologyVersion" in sent.command for sent in server.traffic):
                        await asyncio.sleep(0.001)
                    before = len(server.traffic)
                    version = {**version, "counter": bson.Int64(2)}
                    server.hello = {"topologyVersion": version, "maxWireVersion": 21}
                    while (
                        21
                        != next(
                            iter(client.topology_description.server_descriptions().values())
                        ).max_wire_version
                    ):
                        await asyncio.sleep(0.001)
        assert len(server.traffic) < before + 5

    def test_awaited_in_vain(self) -> None:
        """An awaited hello that doesn't change is answered when the client's time is over."""
        version = {"processId": bson.ObjectId(), "counter": bson.Int64(1)}
        hello = {"hello": 1, "$db": "admin", "topologyVersion": version, "maxAwaitTimeMS": 20}
        with ScriptedServer(hello={"topologyVersion": version}) as server:
            with connected(server) as connection:
                assert version == ask(connection, hello)["topologyVersion"]

    def test_legacy(self, server: ScriptedServer) -> None:
        """The handshake of old drivers is answered in its own kind."""
        with connected(server) as connection:
            connection.sendall(op_query({"isMaster": 1}))
            reply = read_message(connection)
            assert _wire.OP_REPLY == _wire.header_of(reply).opcode
            assert _wire.body_of(reply)["ismaster"]

    async def test_failing(self) -> None:
        """A hello may be an error."""
        async with ScriptedServer(hello={"ok": 0, "code": 91, "errmsg": "x"}) as server:
            with connected(server) as connection:
                assert 91 == ask(connection, {"hello": 1, "$db": "admin"})["code"]


class TestExpecting:
    async def test_order(self, server: ScriptedServer) -> None:
        """Commands wait to be expected, in the order of arrival, and can be picked by name."""
        with connected(server) as connection:
            for number, name in enumerate(["a", "b", "c", "B"]):
                connection.sendall(_wire.request_of(number, {name: 1}))
            assert 1 == (await server.expect("b")).request_id
            assert 0 == (await server.expect()).request_id
            assert 3 == (await server.expect("b", "d")).request_id
            assert 2 == (await server.expect("d", "C")).request_id
        assert [0, 1, 2, 3] == [request.request_id for request in server.requests]

    async def test_driver_s_own(self, server: ScriptedServer) -> None:
        """What is answered by itself can be expected by name, and only so."""
        server.answer("hello", None)
        with connected(server) as connection:
            expecting = asyncio.create_task(server.expect("ping"))
            anything = asyncio.create_task(server.expect())
            await asyncio.sleep(0)
            reply = asyncio.create_task(asyncio.to_thread(ask, connection, {"ping": 1}))
            (await expecting).fail(1)
            assert 1 == (await reply)["code"]
            assert 1.0 == (await asyncio.to_thread(ask, connection, {"ping": 1}))["ok"]
            connection.sendall(_wire.request_of(1, {"isMaster": 1}))
            assert "isMaster" == (await anything).name
        assert ["ping", "isMaster"] == [request.name for request in server.requests]
        assert ["ping", "ping", "isMaster"] == [request.name for request in server.traffic]

    async def test_in_vain(self, server: ScriptedServer) -> None:
        """The error says what was expected and what came instead."""
        with connected(server) as connection:
            for number in range(12):
                connection.sendall(_wire.request_of(number, {"x": "c", "$db": "db"}))
            last = "..." + ", x on db.c" * 10
            with pytest.raises(TimeoutError, match=r"no insert or update came within 0\.05 s") as c:
                await server.expect("insert", "update", timeout=0.05)
            assert f"waiting to be expected: {last}; all that came: {last}" in str(c.value)
            for _ in range(12):
                await server.expect("x")
        with pytest.raises(TimeoutError, match=r"no command came .* expected: nothing;"):
            await server.expect(timeout=0.001)

    async def test_cancelled(self, server: ScriptedServer) -> None:
        """A cancelled expectation takes no command, not even one that comes at that moment."""
        cancelled = asyncio.create_task(server.expect("x"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with connected(server) as connection:
            connection.sendall(_wire.request_of(1, {"x": 1}))
            assert 1 == (await server.expect("x")).request_id

            late = asyncio.create_task(server.expect("x"))
            await asyncio.sleep(0)
            connection.sendall(_wire.request_of(2, {"x": 1}) + _wire.request_of(3, {"x": 1}))
            while len(server.requests) < 3:
                time.sleep(0.001)  # blocks the event loop, so that the task hears nothing
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
            assert 2 == (await server.expect("x")).request_id
            assert 3 == (await server.expect("x")).request_id

    async def test_cancelled_for_another(self, server: ScriptedServer) -> None:
        """What a cancelled expectation has got already goes to the next one that waits."""
        first, second = (asyncio.create_task(server.expect("x")) for _ in range(2))
        await asyncio.sleep(0)
        with connected(server) as connection:
            connection.sendall(_wire.request_of(1, {"x": 1}))
            while not server.requests:
                time.sleep(0.001)
            first.cancel()
            assert 1 == (await second).request_id

    async def test_whichever_comes_first(self) -> None:
        """A test can wait at several servers for what comes first, and lose nothing at the rest."""
        async with ScriptedServer() as one, ScriptedServer() as other:
            for number in range(20):
                target = (one, other)[number % 2]
                tasks = [asyncio.create_task(server.expect("x")) for server in (one, other)]
                with connected(target) as connection:
                    connection.sendall(_wire.request_of(number, {"x": 1}))
                    done, pending = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
                    for task in pending:
                        task.cancel()
                    [task] = done
                    assert number == task.result().request_id
        assert (10, 10) == (len(one.requests), len(other.requests))

    async def test_closed(self) -> None:
        """Who expects something of a server that is closed, or gets closed, is told."""
        async with ScriptedServer() as server:
            waiting = asyncio.create_task(server.expect("x"))
            await asyncio.sleep(0)
        for expecting in (waiting, server.expect("x")):
            with pytest.raises(RuntimeError, match="was closed"):
                await expecting


class TestStandingAnswers:
    async def test_mapping(self, server: ScriptedServer, client: MongoClient) -> None:
        """A command with a standing answer needs no script, and is logged."""
        server.answer("find", {"cursor": {"id": 0, "ns": "db.c", "firstBatch": [{"_id": 1}]}})
        for _ in range(2):
            assert [{"_id": 1}] == await asyncio.to_thread(client.db.c.find().to_list)
        assert ["find", "find"] == [request.name for request in server.requests]

    async def test_function(self, server: ScriptedServer, client: MongoClient) -> None:
        """A function sees the request; it may answer by itself."""

        def answer(request):
            if request.command["count"] == "bad":
                request.fail(8)
                return None
            return {"n": len(request.command["count"])}

        server.answer("count", answer)
        assert 4 == (await asyncio.to_thread(client.db.command, "count", "good"))["n"]
        with pytest.raises(OperationFailure):
            await asyncio.to_thread(client.db.command, "count", "bad")

    async def test_for_those_that_wait(self, server: ScriptedServer, client: MongoClient) -> None:
        """A standing answer is for commands too that have come already."""
        reply = asyncio.create_task(asyncio.to_thread(client.db.command, "count", "c"))
        while not server.requests:
            await asyncio.sleep(0.001)
        server.answer("COUNT", {"n": 1})
        assert 1 == (await reply)["n"]

    async def test_expected_all_the_same(self, server: ScriptedServer, client: MongoClient) -> None:
        """An expectation by name comes before a standing answer."""
        server.answer("count", {"n": 1})
        expecting = asyncio.create_task(server.expect("count"))
        await asyncio.sleep(0)
        reply = asyncio.create_task(asyncio.to_thread(client.db.command, "count", "c"))
        (await expecting).reply({"n": 2})
        assert 2 == (await reply)["n"]
        assert 1 == (await asyncio.to_thread(client.db.command, "count", "c"))["n"]

    async def test_taken_back(self, server: ScriptedServer) -> None:
        """Without its answer even ping has to be expected."""
        server.answer("ping", None)
        with connected(server) as connection:
            connection.sendall(_wire.request_of(1, {"ping": 1}))
            assert "ping" == (await server.expect()).name

    @pytest.mark.parametrize("answers", [False, True])
    def test_that_fails(self, answers: bool) -> None:
        """What a function raises ends the connection, and is raised at the end of the block."""

        def answer(request):
            if answers:
                request.reply()
            raise ZeroDivisionError

        server = ScriptedServer()
        server.answer("x", answer)

        def run() -> None:
            with server, connected(server) as connection:
                connection.sendall(_wire.request_of(1, {"x": 1}))
                assert answers is not is_closed(connection)

        with pytest.raises(ZeroDivisionError):
            run()


class TestEnding:
    def test_unexpected(self) -> None:
        """A command that nobody expected is an error at the end, which names it."""
        expected = pytest.raises(AssertionError, match=r"nobody expected x on db\.c")
        with expected, ScriptedServer() as server, connected(server) as connection:
            connection.sendall(_wire.request_of(1, {"x": "c", "$db": "db"}))

    def test_unexpected_at_the_last_moment(self) -> None:
        """A command that has reached the host by then is not overlooked, though nobody read it."""
        expected = pytest.raises(AssertionError, match="nobody expected x on admin")
        napping = threading.Event()

        def nap(request):
            napping.set()
            time.sleep(0.05)

        with expected, ScriptedServer() as server, connected(server) as first:
            server.answer("nap", nap)
            first.sendall(_wire.request_of(1, {"nap": 1}))
            napping.wait(10)
            with connected(server) as second:  # all of it is found at once
                second.sendall(_wire.request_of(1, {"x": b"x" * 300_000}))

    async def test_unexpected_in_an_async_block(self) -> None:
        """So it is at the end of an async block."""
        server = ScriptedServer()
        await server.__aenter__()
        with connected(server) as connection:
            connection.sendall(_wire.request_of(1, {"x": 1}))
        with pytest.raises(AssertionError, match="nobody expected x on admin"):
            await server.__aexit__(None, None, None)

    def test_another_error_comes_first(self) -> None:
        """An error of the block itself is not hidden."""

        def run() -> None:
            with ScriptedServer() as server, connected(server) as connection:
                connection.sendall(_wire.request_of(1, {"x": 1}))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run()

    async def test_expected_and_not_answered(self) -> None:
        """The connection of a command that was expected, and never answered, is closed."""
        async with ScriptedServer() as server:
            connection = socket.create_connection(("127.0.0.1", server.port), 10)
            connection.sendall(_wire.request_of(1, {"x": 1}))
            await server.expect("x")
        with connection:
            assert is_closed(connection)

    def test_nothing_is_left(self) -> None:
        """Closing ends the thread and the port; it can be repeated, and nothing starts again."""
        server = ScriptedServer()
        assert "<ScriptedServer not running: primary>" == repr(server)
        with server:
            assert f"<ScriptedServer {server.address}: primary>" == repr(server)
        server.close()
        assert "aioretry-scripted" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), 10)
        with pytest.raises(RuntimeError, match="once only"):
            server.start()

    async def test_cancelled_while_it_starts(self) -> None:
        """A block that is cancelled while it is entered leaves no thread."""
        for steps in range(4):
            starting = asyncio.create_task(ScriptedServer().__aenter__())
            for _ in range(steps):
                await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert "aioretry-scripted" not in {thread.name for thread in threading.enumerate()}


class Complaints(logging.Handler):
    """What asyncio complains of: exceptions that nobody retrieved, tasks that were destroyed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


MESSAGES = [
    _wire.request_of(1, {"insert": "c", "$db": "db", "documents": [{"_id": 1}]}),
    _wire.request_of(1, {"hello": 1, "$db": "admin", "maxAwaitTimeMS": "x"}),
    op_query({"ismaster": 1}),
]
CUT = st.tuples(st.sampled_from(MESSAGES), st.integers(0, 80)).map(lambda x: x[0][: x[1]])
CHANGED = st.tuples(
    st.sampled_from(MESSAGES), st.integers(0, 1000), st.binary(min_size=1, max_size=4)
).map(lambda x: x[0][: x[1] % len(x[0])] + x[2] + x[0][x[1] % len(x[0]) + len(x[2]) :])
FRAMED = st.tuples(st.binary(max_size=100), st.sampled_from([1, 2004, 2012, 2013, 7])).map(
    lambda x: struct.pack("<iiii", 16 + len(x[0]), 0, 0, x[1]) + x[0]
)
OVERSIZED = st.integers(_wire.MAX_MESSAGE_SIZE + 1, 2**31 - 1).map(
    lambda length: struct.pack("<iiii", length, 0, 0, _wire.OP_MSG) + b"x" * 1000
)
INPUTS = st.one_of(st.binary(max_size=200), CUT, CHANGED, FRAMED, OVERSIZED)


def feed(server: ScriptedServer, pieces: list[bytes]) -> None:
    """Send something, and wait until the server has closed the connection too."""
    with connected(server) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass  # it was quicker
        except OSError as exc:
            assert "not connected" in str(exc)  # noqa: PT017 - macOS says so of the same


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(INPUTS, max_size=3), min_size=1, max_size=3))
def test_garbage(connections: list[list[bytes]]) -> None:
    """Whatever is sent, its connection is closed, the next is served, and nothing is left."""
    complaints = Complaints()
    logging.getLogger("asyncio").addHandler(complaints)
    opened = open_files()
    server = ScriptedServer()
    server.start()
    try:
        for pieces in connections:
            feed(server, pieces)
            with connected(server) as connection:
                assert ask(connection, {"hello": 1, "$db": "admin"})["isWritablePrimary"]
        with connected(server) as connection:
            connection.sendall(connections[0][0] if connections[0] else b"")
            server.close()
            while not is_closed(connection):
                pass
    finally:
        server.close()
        logging.getLogger("asyncio").removeHandler(complaints)
    assert ([], []) == (complaints.records, server._failures)
    ends = time.monotonic() + 10
    while opened < open_files():  # others of this process come and go
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert "aioretry-scripted" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack("<iiii", 2**31 - 1, 0, 0, _wire.OP_MSG),
        struct.pack("<iiii", 0, 0, 0, _wire.OP_MSG),
        struct.pack("<iiii", 40, 0, 0, 2012) + b"\0" * 24,
        _wire.request_of(1, {}),
    ],
    ids=["http", "oversized", "zeros", "compressed", "empty"],
)
def test_no_message(server: ScriptedServer, message: bytes) -> None:
    """What is no request gets its connection closed at once."""
    with connected(server) as connection:
        connection.sendall(message)
        assert is_closed(connection)


async def test_a_failure_is_noted_on_the_error_of_the_block() -> None:
    """A test that fails because an answer could not be made is told why."""

    def answer(_request: ScriptedRequest) -> dict:
        raise KeyError("the cause")

    async def count() -> None:
        async with ScriptedServer() as server:
            server.answer("count", answer)
            with MongoClient(server.uri, retryReads=False) as client:
                await asyncio.to_thread(client.db.command, "count", "c")

    with pytest.raises(AutoReconnect) as caught:
        await count()
    [note] = caught.value.__notes__
    assert "KeyError" in note
    assert "the cause" in note
