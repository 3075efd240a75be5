"""The kit tests itself against plain PyMongo and Motor.

Every fault changes the data as it says: applied 0 or 1 is read directly from the server, past the
proxies.
"""

import asyncio
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pymongo
import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ProtocolError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)
from pymongo.monitoring import ConnectionPoolListener, ServerHeartbeatListener

from aioretry.testing import (
    FaultNotFiredError,
    Faults,
    Member,
    Proxy,
    ReplicaSet,
    Standalone,
)
from aioretry.testing._fault import FaultList
from aioretry.testing._wire import HEADER_SIZE, body_of, header_of, request_of

DATABASE = "faults"
PATIENCE = 30.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so on a server or in another thread."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.02)


async def until_seen(condition: Callable[[], object]) -> None:
    async def holds() -> bool:
        return bool(condition())

    await until(holds)


class Plain:
    """A plain client with a collection of its own; PyMongo's and Motor's are awaited alike."""

    def __init__(self, kind: str, servers: ReplicaSet, **options) -> None:
        self.servers = servers
        self.name = f"c{uuid.uuid4().hex[:12]}"
        options = {"retryWrites": False, "retryReads": False, "appname": "plain", **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            make = {"pymongo": pymongo.MongoClient, "motor": AsyncIOMotorClient}[kind]
            self.client = make(servers.uri, **options)
        self.is_motor = kind == "motor"

    @property
    def namespace(self) -> str:
        return f"{DATABASE}.{self.name}"

    async def call(self, method: str, *args, **options):
        call = getattr(self.client[DATABASE][self.name], method)
        if self.is_motor:
            return await call(*args, **options)
        return await asyncio.to_thread(call, *args, **options)

    async def write(self, command: str, _id: object = 1):
        if command == "insert":
            return await self.call("insert_one", {"_id": _id, "n": 1})
        return await self.call("update_one", {"_id": _id}, {"$inc": {"n": 1}}, upsert=True)

    async def applied(self) -> int:
        """How many writes are in the data, read past the proxies."""
        primary = await self.servers.wait_for_primary()
        reply = await primary.command({"find": self.name}, database=DATABASE)
        return sum(document["n"] for document in reply["cursor"]["firstBatch"])


@pytest.fixture
def make_plain(servers: ReplicaSet):
    """Make plain clients, which are closed after the test."""
    with ExitStack() as stack:

        def make(kind: str, **options) -> Plain:
            plain = Plain(kind, servers, **options)
            stack.callback(plain.client.close)
            return plain

        yield make
        servers.faults.clear()


@pytest.fixture(params=["pymongo", "motor"])
def plain(request: pytest.FixtureRequest, make_plain) -> Plain:
    return make_plain(request.param)


@pytest.fixture(params=["insert", "update"])
def command(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def primary(servers: ReplicaSet) -> Member:
    return await servers.primary()


# How it is armed, what the client gets, and how often the write is applied.
FAILURES = {
    "drop_request": (lambda f, name: f.drop_request(name), AutoReconnect, 0),
    "drop_reply": (lambda f, name: f.drop_reply(name), AutoReconnect, 1),
    "truncate_reply": (lambda f, name: f.truncate_reply(20, name), AutoReconnect, 1),
    "truncate_reply in the header": (lambda f, name: f.truncate_reply(3, name), AutoReconnect, 1),
    "truncate_reply to nothing": (lambda f, name: f.truncate_reply(0, name), AutoReconnect, 1),
    "corrupt_reply": (lambda f, name: f.corrupt_reply(name), ProtocolError, 1),
    "error": (lambda f, name: f.error(2, name), OperationFailure, 0),
    "error applied": (lambda f, name: f.error(2, name, applied=True), OperationFailure, 1),
    "write_concern_error": (lambda f, name: f.write_concern_error(64, name), WriteConcernError, 1),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_failures(servers: ReplicaSet, plain: Plain, command: str, case: str) -> None:
    """The client gets the error that is meant, and the write is applied as the fault says."""
    arm, error, applied = FAILURES[case]

    async with arm(servers.faults, command) as fault:
        with pytest.raises(error):
            await plain.write(command)
        assert applied == await plain.applied()
        assert (1, 1) == (fault.fired, fault.seen)
        await plain.write(command, 2)

    assert (1, 2) == (fault.fired, fault.seen)
    assert applied + 1 == await plain.applied()


@pytest.mark.parametrize("applied", [False, True])
async def test_errors(servers: ReplicaSet, plain: Plain, command: str, applied: bool) -> None:
    """An error has the code, the labels, the text and the further fields that were given."""
    async with servers.faults.error(
        462, command, labels=["A", "B"], message="too much", extra={"x": [1]}, applied=applied
    ):
        with pytest.raises(OperationFailure, match="too much") as caught:
            await plain.write(command)

    details = {"ok": 0.0, "errmsg": "too much", "code": 462, "errorLabels": ["A", "B"], "x": [1]}
    assert details == caught.value.details
    assert int(applied) == await plain.applied()


async def test_write_concern_errors(servers: ReplicaSet, plain: Plain, command: str) -> None:
    """A write concern error stands beside the result, with its labels and further fields."""
    async with servers.faults.write_concern_error(
        64, command, labels=["A"], message="alone", extra={"errInfo": {"wtimeout": True}}
    ):
        with pytest.raises(WriteConcernError, match="alone") as caught:
            await plain.write(command)

    assert {"code": 64, "errmsg": "alone", "errInfo": {"wtimeout": True}} == {
        key: caught.value.details[key] for key in ("code", "errmsg", "errInfo")
    }
    assert caught.value.has_error_label("A")
    assert 1 == await plain.applied()


@pytest.mark.parametrize("applied", [False, True])
async def test_delay(servers: ReplicaSet, plain: Plain, command: str, applied: bool) -> None:
    """A command that is delayed is late, and applied once."""
    start = time.monotonic()
    async with servers.faults.delay(0.2, command, applied=applied) as fault:
        await plain.write(command)

    assert time.monotonic() - start >= 0.2
    assert (1, 1) == (fault.fired, await plain.applied())


async def test_jitter(servers: ReplicaSet, plain: Plain, command: str) -> None:
    """Each command is late by another time, from the shortest to the longest."""
    took = []
    async with servers.faults.delay(0.02, command, jitter=0.1, times=None) as fault:
        for number in range(5):
            start = time.monotonic()
            await plain.write(command, number)
            took.append(time.monotonic() - start)

    assert 5 == fault.fired
    assert min(took) >= 0.02
    assert max(took) - min(took) > 0.005


async def test_slow(servers: ReplicaSet, plain: Plain, command: str) -> None:
    """Command and answer trickle, every time, and arrive whole."""
    async with servers.faults.slow(2000, command) as fault:
        start = time.monotonic()
        await plain.write(command)
        assert time.monotonic() - start >= 0.1  # the two have 200 bytes at least
        await plain.write(command, 2)

    assert (2, 2) == (fault.fired, await plain.applied())


@pytest.mark.parametrize("applied", [False, True])
async def test_hang(servers: ReplicaSet, plain: Plain, command: str, applied: bool) -> None:
    """A client that waits gets its answer when the fault is disarmed."""
    async with servers.faults.hang(command, applied=applied) as fault:
        writing = asyncio.create_task(plain.write(command))
        await fault.wait_until_fired()
        assert int(applied) == await plain.applied()
        assert not writing.done()

    await writing
    assert 1 == await plain.applied()


@pytest.mark.parametrize("kind", ["pymongo", "motor"])
async def test_late_arrival(servers: ReplicaSet, make_plain, kind: str, command: str) -> None:
    """A command that is held arrives even if its client has given up and is closed."""
    plain = make_plain(kind, socketTimeoutMS=1000)
    async with servers.faults.hang(command) as fault:
        with pytest.raises(NetworkTimeout):
            await plain.write(command)
        plain.client.close()
        assert 0 == await plain.applied()
        assert 1 == fault.fired

    async def has_arrived() -> bool:
        return 1 == await plain.applied()

    await until(has_arrived)


async def test_hanging_answer_of_a_client_that_is_gone(
    servers: ReplicaSet, make_plain, command: str
) -> None:
    """A held answer that nobody waits for any more harms nobody when it is let go."""
    plain = make_plain("pymongo", socketTimeoutMS=1000)
    async with servers.faults.hang(command, applied=True):
        with pytest.raises(NetworkTimeout):
            await plain.write(command)
        plain.client.close()

    assert 1 == await plain.applied()
    assert 1 == (await asyncio.to_thread(make_plain("pymongo").client.admin.command, "ping"))["ok"]


async def test_killed_while_a_command_is_held() -> None:
    """When the server dies, the client of a command that is held is told."""
    async with ReplicaSet(1, faults=True) as servers:
        plain = Plain("pymongo", servers)
        with plain.client:
            async with servers.faults.hang("insert") as fault:
                writing = asyncio.create_task(plain.write("insert"))
                await fault.wait_until_fired()

                await servers.kill(servers.members[0])

                with pytest.raises(AutoReconnect):
                    await writing
        await servers.heal()
        assert 0 == await plain.applied()


@pytest.mark.parametrize("kind", ["pymongo", "motor"])
async def test_refuse_connections(servers: ReplicaSet, make_plain, kind: str) -> None:
    """New connections are reset; those that are open stay, and later ones are accepted."""
    monitors = Monitors()
    old = make_plain(kind, event_listeners=[monitors])
    await old.write("insert")
    await until_seen(lambda: [3, []] == [len(monitors.heard), monitors.deaf()])

    async with servers.faults.refuse_connections() as fault:
        new = make_plain(kind, serverSelectionTimeoutMS=500)
        with pytest.raises(ServerSelectionTimeoutError):
            await new.write("insert")
        await old.write("insert", 2)

    assert fault.seen == fault.fired >= 1
    assert 0 == await new.applied()
    assert 2 == await old.applied()
    await make_plain(kind).write("insert")


def test_refuse_some_connections(servers: ReplicaSet) -> None:
    """Connections are counted; the second one at this member is refused."""
    proxy = servers.members[0].proxy
    assert proxy is not None
    host, port = servers.members[0].direct_address.split(":")
    hello = request_of(1, {"hello": 1, "$db": "admin"})
    with (
        Proxy(host, int(port)) as lonely,
        lonely.faults.refuse_connections(times=1, nth=2) as fault,
    ):
        answers = []
        for _ in range(3):
            try:  # the reset may come at any point
                with socket.create_connection((host, lonely.port), PATIENCE) as connection:
                    connection.sendall(hello)
                    answers.append(bool(connection.recv(1)))
            except OSError:
                answers.append(False)
    assert [True, False, True] == answers
    assert (1, 3) == (fault.fired, fault.seen)


class Monitors(ServerHeartbeatListener, ConnectionPoolListener):
    """What a client's monitors hear, member by member, and what becomes of its pools."""

    def __init__(self) -> None:
        self.heard: dict[tuple[str, int], list[str]] = {}
        self.cleared: list[tuple[str, int]] = []

    def deaf(self) -> list[tuple[str, int]]:
        """The members that have not been heard of."""
        return [address for address, heard in list(self.heard.items()) if not heard]

    def started(self, event) -> None:
        self.heard.setdefault(event.connection_id, [])

    def succeeded(self, event) -> None:
        self.heard[event.connection_id].append("awaited" if event.awaited else "polled")

    def failed(self, event) -> None:
        self.heard[event.connection_id].append("failed")

    def pool_cleared(self, event) -> None:
        self.cleared.append(event.address)

    def _nothing(self, event) -> None:
        """Nothing is done for the other events."""

    pool_created = pool_ready = pool_closed = _nothing
    connection_created = connection_ready = connection_closed = _nothing
    connection_check_out_started = connection_check_out_failed = _nothing
    connection_checked_out = connection_checked_in = _nothing


@pytest.mark.slow
async def test_healthy_monitors() -> None:
    """Through proxies without a fault monitors stream, none of them fails, no pool is cleared."""
    monitors = Monitors()
    options = {"heartbeatFrequencyMS": 500, "serverMonitoringMode": "stream"}
    async with ReplicaSet(faults=True) as servers:
        everyone = {(member.host, member.port) for member in servers.members}

        def have_streamed() -> bool:
            heard = list(monitors.heard.values())
            return len(heard) == 3 and all(one.count("awaited") >= 4 for one in heard)

        with Plain("pymongo", servers, event_listeners=[monitors], **options).client:
            await until_seen(have_streamed)
            assert everyone == set(monitors.heard)
            assert not [heard for heard in monitors.heard.values() if "failed" in heard]
            assert [] == monitors.cleared


@pytest.mark.parametrize(
    ("arm", "applied"),
    [
        (lambda f: f.error(10107, "update"), 0),
        (lambda f: f.error(91, "update"), 0),
        (lambda f: f.error(11600, "update"), 0),
        (lambda f: f.error(10107, "update", applied=True), 1),
        (lambda f: f.write_concern_error(91, "update"), 1),
    ],
    ids=["10107", "91", "11600", "10107 applied", "write concern error 91"],
)
@pytest.mark.parametrize("kind", ["pymongo", "motor"])
async def test_state_changes(servers: ReplicaSet, make_plain, kind: str, arm, applied: int) -> None:
    """After an error that tells of a state change a client looks again, and knows the primary."""
    monitors = Monitors()
    plain = make_plain(
        kind,
        heartbeatFrequencyMS=60_000,
        serverMonitoringMode="stream",
        serverSelectionTimeoutMS=10_000,
        event_listeners=[monitors],
    )
    await plain.write("update")
    primary = await servers.primary()
    where = (primary.host, primary.port)
    await until_seen(lambda: "polled" in monitors.heard[where])

    async with arm(servers.faults) as fault:
        with pytest.raises((NotPrimaryError, WriteConcernError)):
            await plain.write("update")

    assert 1 == fault.fired
    await until_seen(lambda: "failed" in monitors.heard[where])
    await plain.write("update")
    assert 2 + applied == await plain.applied()


def test_a_monitor_that_begins_to_wait_after_a_state_change(servers: ReplicaSet) -> None:
    """It has heard of the server before, and would wait for news that it has missed."""

    def say(connection: socket.socket, **fields: object) -> dict:
        connection.sendall(request_of(1, {**fields, "$db": "admin"}))
        head = connection.recv(HEADER_SIZE, socket.MSG_WAITALL)
        if not head:
            return {}
        return body_of(head + connection.recv(header_of(head).length - 16, socket.MSG_WAITALL))

    where = (servers.members[0].host, servers.members[0].port)
    with (
        socket.create_connection(where, PATIENCE) as monitor,
        socket.create_connection(where, PATIENCE) as writer,
        servers.faults.error(10107, "count", member=servers.members[0]),
    ):
        known = say(monitor, hello=1)["topologyVersion"]
        assert 10107 == say(writer, count="c")["code"]
        assert {} == say(monitor, hello=1, topologyVersion=known, maxAwaitTimeMS=10_000)
    with socket.create_connection(where, PATIENCE) as monitor:
        known = say(monitor, hello=1)["topologyVersion"]
        assert say(monitor, hello=1, topologyVersion=known, maxAwaitTimeMS=100)["ok"]


async def test_partition(servers: ReplicaSet, make_plain) -> None:
    """Nothing passes, monitors hear nothing, new connections hang; what was sent arrives after."""
    monitors = Monitors()
    plain = make_plain(
        "pymongo", heartbeatFrequencyMS=500, connectTimeoutMS=1500, event_listeners=[monitors]
    )
    await plain.write("insert")
    await until_seen(lambda: [3, []] == [len(monitors.heard), monitors.deaf()])

    async with servers.faults.partition() as fault:
        late = asyncio.create_task(plain.write("insert", 2))
        with socket.create_connection((servers.members[0].host, servers.members[0].port)) as new:
            new.sendall(request_of(1, {"hello": 1, "$db": "admin"}))
            for heard in monitors.heard.values():
                heard.clear()
            await until_seen(
                lambda: all("failed" in heard for heard in list(monitors.heard.values()))
            )
            for heard in monitors.heard.values():
                assert ["failed"] * len(heard[heard.index("failed") :]) == (
                    heard[heard.index("failed") :]
                )
            with pytest.raises(AutoReconnect):
                await late  # the client gave up, because its monitor did
            assert 1 == await plain.applied()
            new.setblocking(False)
            with pytest.raises(BlockingIOError):
                new.recv(1)
            fault.disarm()
            new.settimeout(PATIENCE)
            assert await asyncio.to_thread(new.recv, 1)

    async def has_arrived() -> bool:
        return 2 == await plain.applied()

    await until(has_arrived)
    assert fault.fired == fault.seen >= 5
    await plain.write("insert", 3)


async def test_partition_in_good_time(servers: ReplicaSet, plain: Plain, command: str) -> None:
    """A client that waits longer than a partition lasts never knows."""
    await plain.write(command)
    async with servers.faults.partition():
        writing = asyncio.create_task(plain.write(command, 2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(writing), 0.2)
        assert 1 == await plain.applied()

    await writing
    assert 2 == await plain.applied()


async def test_partition_of_one_member(servers: ReplicaSet, plain: Plain) -> None:
    """One member is out of its clients' reach; the set goes on, and so does the majority."""
    [lost, _] = await servers.secondaries()
    with pymongo.MongoClient(lost.address, directConnection=True, socketTimeoutMS=1000) as direct:
        direct.admin.command("ping")
        async with servers.faults.partition(lost):
            await plain.write("insert")
            with pytest.raises(AutoReconnect):
                await asyncio.to_thread(direct.admin.command, "ping")
        assert 1 == (await asyncio.to_thread(direct.admin.command, "ping"))["ok"]
    assert 1 == await plain.applied()


async def test_partition_stops_what_is_on_its_way(servers: ReplicaSet, plain: Plain) -> None:
    """What a fault held up before does not pass during a partition."""
    await plain.write("insert")
    async with servers.faults.hang("insert") as held:
        writing = asyncio.create_task(plain.write("insert", 2))
        await held.wait_until_fired()
        async with servers.faults.partition():
            held.disarm()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(writing), 0.2)
            assert 1 == await plain.applied()
    await writing
    assert 2 == await plain.applied()


async def test_overlapping_partitions(servers: ReplicaSet, plain: Plain) -> None:
    """Something passes again when the last of several partitions has ended."""
    await plain.write("insert")
    first, second = servers.faults.partition(), servers.faults.partition()
    writing = asyncio.create_task(plain.write("insert", 2))
    first.disarm()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(writing), 0.2)
    second.disarm()
    await writing
    assert first.fired == first.seen > 0
    assert second.fired == second.seen > 0


async def test_closed_while_things_hang(servers: ReplicaSet, primary: Member) -> None:
    """A proxy can be closed whatever it holds: its clients are told, and its thread ends."""
    host, port = primary.direct_address.split(":")
    hanging = []
    others = set(threading.enumerate())
    for arm in (
        lambda f: f.hang("insert"),
        lambda f: f.hang("insert", applied=True),
        lambda f: f.delay(3600, "insert"),
        lambda f: f.slow(1, "insert"),
        lambda f: f.throttle(1),
        lambda f: f.partition(),
    ):
        proxy = Proxy(host, int(port))
        with (
            proxy,
            pymongo.MongoClient(
                proxy.address,
                directConnection=True,
                retryWrites=False,
                serverSelectionTimeoutMS=5000,  # if the proxy is closed before the insert begins
            ) as client,
        ):
            collection = client[DATABASE].closed
            client.admin.command("ping")
            fault = arm(proxy.faults)
            writing = asyncio.create_task(asyncio.to_thread(collection.insert_one, {}))
            await fault.wait_until_fired()
            proxy.close()
            with pytest.raises(pymongo.errors.ConnectionFailure):
                await writing
        hanging.append(fault)
    assert "aioretry-proxy" not in {
        thread.name for thread in threading.enumerate() if thread not in others
    }
    for fault in hanging:
        fault.disarm()  # nobody is left to be told


# What narrows a fault down, and which of three inserts of {"_id": number, "n": 1} it strikes.
NARROWED = {
    "times": ({"times": 2}, [1, 2], 3),
    "always": ({"times": None}, [1, 2, 3], 3),
    "nth": ({"nth": 2}, [2], 3),
    "nth and times": ({"nth": 2, "times": None}, [2, 3], 3),
    "where": ({"where": lambda body: body["documents"][0]["_id"] == 3}, [3], 1),
    "app_name": ({"app_name": "plain"}, [1], 3),
    "other app_name": ({"app_name": "other"}, [], 0),
    "other namespace": ({"namespace": "faults.other"}, [], 0),
}


@pytest.mark.parametrize("case", NARROWED)
async def test_narrowed(servers: ReplicaSet, plain: Plain, case: str) -> None:
    """A fault strikes exactly those commands that it is for."""
    only, expected, seen = NARROWED[case]
    struck = []
    async with servers.faults.error(2, "insert", must_fire=False, **only) as fault:
        for number in (1, 2, 3):
            try:
                await plain.write("insert", number)
            except OperationFailure:
                struck.append(number)

    assert expected == struck
    assert (len(expected), seen) == (fault.fired, fault.seen)
    assert 3 - len(expected) == await plain.applied()


async def test_namespace(servers: ReplicaSet, plain: Plain, command: str) -> None:
    """A fault for one collection strikes the commands for it, with no command named."""
    async with servers.faults.drop_request(namespace=plain.namespace) as fault:
        with pytest.raises(AutoReconnect):
            await plain.write(command)
    assert (1, 0) == (fault.fired, await plain.applied())


async def test_member(servers: ReplicaSet, plain: Plain, primary: Member) -> None:
    """A fault at one member strikes there and nowhere else."""
    [secondary, _] = await servers.secondaries()
    async with servers.faults.error(2, "insert", member=secondary, must_fire=False) as spared:
        async with servers.faults.error(2, "insert", member=primary):
            with pytest.raises(OperationFailure):
                await plain.write("insert")
        await plain.write("insert")
    assert (0, 1) == (spared.seen, await plain.applied())


async def test_where_is_given_everything(servers: ReplicaSet, plain: Plain) -> None:
    """A predicate sees the documents and updates, which clients send apart from the command."""
    bodies: list[dict] = []

    def where(body) -> bool:
        bodies.append(dict(body))
        return False

    async with servers.faults.hang("insert", "update", where=where, must_fire=False):
        await plain.write("insert")
        await plain.write("update")

    assert [plain.name, plain.name] == [bodies[0]["insert"], bodies[1]["update"]]
    assert [[{"_id": 1, "n": 1}]] == [bodies[0]["documents"]]
    assert [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}, "multi": False, "upsert": True}] == (
        bodies[1]["updates"]
    )


async def test_where_that_raises(servers: ReplicaSet, plain: Plain) -> None:
    """A predicate that raises strikes nothing, and the test is told at the end of the block."""
    arm = servers.faults.hang
    with pytest.raises(RuntimeError, match=r"the `where` of <Fault Hang\(insert, where") as caught:
        async with arm("insert", where=lambda body: body["nothing"], must_fire=False):
            await plain.write("insert")

    assert isinstance(caught.value.__cause__, KeyError)
    assert 1 == await plain.applied()


async def test_where_that_fails_the_test(servers: ReplicaSet, plain: Plain) -> None:
    """The same goes for a failure of the test in it, which is no Exception."""
    with pytest.raises(RuntimeError) as caught:
        async with servers.faults.hang("insert", where=lambda body: pytest.fail("bad")):
            await plain.write("insert")

    assert "bad" == str(caught.value.__cause__)
    assert 1 == await plain.applied()


async def test_several_faults_in_order(servers: ReplicaSet, plain: Plain, command: str) -> None:
    """Faults for one command act in the order in which they were armed."""
    faults = servers.faults
    start = time.monotonic()
    async with (
        faults.delay(0.1, command) as delay,
        faults.error(1, command, applied=True, nth=2) as late,
        faults.write_concern_error(64, command, nth=2) as concern,
        faults.error(2, command) as error,
        faults.drop_request(command) as drop,
        faults.drop_reply(command, must_fire=False) as never,
    ):
        with pytest.raises(OperationFailure) as caught:
            await plain.write(command)
        assert (2, 0) == (caught.value.code, await plain.applied())
        assert time.monotonic() - start >= 0.1
        with pytest.raises(AutoReconnect):
            await plain.write(command)
        assert [1, 0, 0, 1, 1, 0] == [
            fault.fired for fault in (delay, late, concern, error, drop, never)
        ]
        never.disarm()
        with pytest.raises(OperationFailure) as caught:
            await plain.write(command)
        assert 1 == caught.value.code

    assert 1 == concern.fired == late.fired
    assert 1 == await plain.applied()


async def test_a_block_that_never_struck(servers: ReplicaSet, plain: Plain) -> None:
    """The error names the fault and what passed; must_fire=False switches it off."""
    fault = servers.faults.drop_reply("delete", namespace="a.b")
    await plain.write("insert")
    await plain.write("insert", 2)
    with pytest.raises(FaultNotFiredError) as caught:
        fault.__exit__(None, None, None)

    text = str(caught.value)
    assert "<Fault DropReply(delete, namespace=a.b) fired=0/1 seen=0> never struck" in text
    assert "insert 2" in text
    assert "must_fire=False" in text
    async with servers.faults.drop_reply("delete", must_fire=False):
        pass
    servers.faults.verify()


async def test_other_errors_come_first(servers: ReplicaSet) -> None:
    """An exception under way is not hidden by a fault that never struck."""
    with pytest.raises(ZeroDivisionError):
        async with servers.faults.drop_reply("delete"):
            raise ZeroDivisionError
    servers.faults.verify()


async def test_end_of_a_deployment() -> None:
    """Leaving raises for what never struck outside of a block, unless something else is raised."""

    async def use(error: Exception | None) -> None:
        async with Standalone(faults=True) as servers:
            servers.faults.hang("insert")
            servers.faults.hang("update", must_fire=False)
            if error is not None:
                raise error

    with pytest.raises(FaultNotFiredError, match=r"Hang\(insert\)"):
        await use(None)
    with pytest.raises(ZeroDivisionError):
        await use(ZeroDivisionError())


@pytest.fixture
def faults() -> Faults:
    """The faults of two proxies that nobody talks to."""
    return Faults({"a:1": FaultList(), "b:2": FaultList()})


def test_verify(faults: Faults) -> None:
    """All that never struck are named in one error, disarmed and forgotten; blocks are settled."""
    one, two = faults.hang("insert"), faults.drop_reply("update")
    faults.slow(1, must_fire=False)
    with pytest.raises(ZeroDivisionError), faults.hang("delete") as settled:
        raise ZeroDivisionError
    assert settled not in faults.declared

    with pytest.raises(FaultNotFiredError, match=r"(?s)Hang\(insert\).*\n.*DropReply\(update\)"):
        faults.verify()

    assert (False, False, ()) == (one.armed, two.armed, faults.declared)
    faults.verify()
    assert "<Faults none>" == repr(faults)


def test_armed_from_many_threads(faults: Faults) -> None:
    """No fault is forgotten that was armed at the same time as others."""
    together = threading.Barrier(8)

    def arm() -> None:
        together.wait(PATIENCE)
        for _ in range(50):
            faults.hang("insert")

    threads = [threading.Thread(target=arm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 400 == len(faults.declared)
    faults.clear()


def test_blocks_are_forgotten(faults: Faults) -> None:
    """Blocks that ended leave nothing behind."""
    for _ in range(100):
        with faults.hang("insert", must_fire=False):
            pass

    assert 1 >= len(faults._declared)
    assert [()] * 2 == [fault_list.naming("insert") for fault_list in faults._lists.values()]


NAN = float("nan")
BAD = {
    "jitter": (lambda f: f.delay(1, jitter=-1), ValueError, "jitter is -1: a finite number from"),
    "seconds text": (lambda f: f.delay("1", "insert"), TypeError, "seconds is '1'"),
    "seconds bool": (lambda f: f.delay(True), TypeError, "seconds is True"),
    "seconds negative": (lambda f: f.delay(-1), ValueError, "seconds is -1: a finite number from"),
    "seconds nan": (lambda f: f.delay(NAN), ValueError, "seconds is nan"),
    "seconds infinite": (lambda f: f.delay(float("inf")), ValueError, "seconds is inf"),
    "size negative": (
        lambda f: f.truncate_reply(-1),
        ValueError,
        "size is -1: a whole number from 0",
    ),
    "size text": (lambda f: f.truncate_reply("insert"), TypeError, "size is 'insert'"),
    "speed zero": (lambda f: f.slow(0), ValueError, "bytes_per_second is 0: a finite number above"),
    "throttle zero": (
        lambda f: f.throttle(0),
        ValueError,
        "bytes_per_second is 0: a finite number",
    ),
    "speed none": (lambda f: f.slow(None), TypeError, "bytes_per_second is None"),
    "code text": (lambda f: f.error("insert"), TypeError, "code is 'insert': a whole number"),
    "code float": (lambda f: f.write_concern_error(91.0), TypeError, "code is 91.0"),
    "code bool": (lambda f: f.error(True), TypeError, "code is True"),
    "code large": (lambda f: f.error(2**31), ValueError, "code is 2147483648"),
    "labels text": (lambda f: f.error(1, labels="A"), TypeError, "labels is 'A': a list of texts"),
    "labels numbers": (lambda f: f.error(1, labels=[1]), TypeError, r"labels is \[1\]"),
    "message": (lambda f: f.error(1, message=1), TypeError, "message is 1: a text or None"),
    "extra list": (lambda f: f.error(1, extra=[1]), TypeError, r"extra is \[1\]: a mapping"),
    "extra object": (lambda f: f.error(1, extra={"x": object()}), TypeError, "extra is .* BSON"),
    "extra key": (lambda f: f.write_concern_error(1, extra={1: 1}), TypeError, "extra is .* BSON"),
    "command empty": (lambda f: f.hang(""), ValueError, r"commands is \(''.*names of commands"),
    "command list": (lambda f: f.hang(["insert"]), TypeError, "commands is .*names of commands"),
    "times zero": (lambda f: f.hang(times=0), ValueError, "times is 0: a whole number from 1 on"),
    "times float": (lambda f: f.hang(times=1.5), TypeError, "times is 1.5"),
    "times bool": (lambda f: f.hang(times=True), TypeError, "times is True"),
    "times text": (lambda f: f.refuse_connections(times="1"), TypeError, "times is '1'"),
    "nth zero": (lambda f: f.hang(nth=0), ValueError, "nth is 0: a whole number from 1 on"),
    "nth none": (lambda f: f.hang(nth=None), TypeError, "nth is None"),
    "namespace": (lambda f: f.hang(namespace=1), TypeError, "namespace is 1: a collection, as"),
    "app_name": (lambda f: f.hang(app_name=b"x"), TypeError, "app_name is b'x'"),
    "where": (lambda f: f.hang(where={"x": 1}), TypeError, "where is {'x': 1}: a function"),
    "member text": (lambda f: f.partition("a:1"), TypeError, "member is 'a:1': one of.* a:1, b:2"),
    "unknown": (lambda f: f.hang(time=1), TypeError, "time"),
    "isolate": (lambda f: f.isolate("a:1"), RuntimeError, "ReplicaSet with member_proxies=True"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(faults: Faults, case: str) -> None:
    """What can't be meant is refused at once: the argument, what was given, what is accepted."""
    arm, error, text = BAD[case]

    with pytest.raises(error, match=text):
        arm(faults)

    assert () == faults.declared
    assert [()] * 2 == [fault_list._faults for fault_list in faults._lists.values()]


def test_faults_of_a_proxy_that_is_closed(servers: ReplicaSet) -> None:
    """At a proxy that is closed faults can be armed and disarmed; they never strike."""
    proxy = Proxy("127.0.0.1", servers.members[0].port)
    with pytest.raises(RuntimeError, match="was not started"):
        _ = proxy.faults
    with proxy:
        armed = proxy.faults.partition(must_fire=False)
    armed.disarm()
    with pytest.raises(FaultNotFiredError), proxy.faults.partition():
        pass
    with pytest.raises(FaultNotFiredError), proxy.faults.hang():
        pass
