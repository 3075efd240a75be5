import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

import pymongo
import pytest
from pymongo.errors import AutoReconnect

from aioretry.testing import Proxy, ReplicaSet


@pytest.fixture
def client(servers: ReplicaSet):
    with pymongo.MongoClient(
        servers.uri,
        retryWrites=False,
        retryReads=False,
        appname="tester",
        compressors="zlib",
        heartbeatFrequencyMS=500,
    ) as client:
        yield client


@pytest.fixture
def collection(client):
    return client.proxy.get_collection("c")


def addresses(servers: ReplicaSet) -> set[tuple[str, int]]:
    return {(member.host, member.port) for member in servers.members}


def is_closed(connection: socket.socket) -> bool:
    """Wait for the other end to say something, or to close."""
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


async def test_client_stays_on_the_proxies(
    servers: ReplicaSet, client, eventually: Callable[..., None]
) -> None:
    """A client that discovers the set knows the proxies' addresses only, elections included."""
    old = await servers.primary()
    assert (old.host, old.port) == client._get_topology().select_server(
        pymongo.server_selectors.writable_server_selector, "test"
    ).description.address

    await servers.step_down()
    new = await servers.wait_for_primary(other_than=old)

    eventually(lambda: client.primary == (new.host, new.port))
    eventually(lambda: addresses(servers) == client.nodes)  # those that it knows the state of
    hello = client.admin.command("hello")
    assert {member.address for member in servers.members} == set(hello["hosts"])
    assert (new.address, new.address) == (hello["me"], hello["primary"])
    assert "compression" not in hello


def test_drop_reply(servers: ReplicaSet, collection) -> None:
    """A write whose reply is lost is applied once, and the client is told of a lost connection."""
    with servers.faults.drop_reply("update") as fault:
        with pytest.raises(AutoReconnect):
            collection.update_one({"_id": "reply"}, {"$inc": {"n": 1}}, upsert=True)
        assert (1, 1) == (fault.fired, fault.seen)

        collection.update_one({"_id": "reply"}, {"$inc": {"n": 1}})

        assert (1, 2) == (fault.fired, fault.seen)
    assert {"_id": "reply", "n": 2} == collection.find_one({"_id": "reply"})


def test_drop_request(servers: ReplicaSet, collection) -> None:
    """A request that is lost is not applied."""
    with servers.faults.drop_request("update") as fault:
        with pytest.raises(AutoReconnect):
            collection.update_one({"_id": "request"}, {"$inc": {"n": 1}}, upsert=True)
        assert (1, 1) == (fault.fired, fault.seen)

    assert collection.find_one({"_id": "request"}) is None


def test_reply_is_lost_after_the_write(servers: ReplicaSet, collection) -> None:
    """Even a write to many documents is applied when its reply is lost."""
    collection.insert_many([{"many": 0} for _ in range(10)])

    with servers.faults.drop_reply("update"), pytest.raises(AutoReconnect):
        collection.update_many({"many": 0}, {"$inc": {"many": 1}})

    assert 10 == collection.count_documents({"many": 1})


def test_retryable_write(servers: ReplicaSet) -> None:
    """A client that retries once survives one loss and not two; the write is applied once."""
    with pymongo.MongoClient(servers.uri) as client:
        collection = client.proxy.get_collection("retried")
        with servers.faults.drop_reply("insert") as fault:
            collection.insert_one({"_id": 1})
            assert (1, 2) == (fault.fired, fault.seen)
        with servers.faults.drop_reply("insert", times=2), pytest.raises(AutoReconnect):
            collection.insert_one({"_id": 2})

        assert [1, 2] == sorted(collection.distinct("_id"))


async def test_filters(servers: ReplicaSet, collection) -> None:
    """Another collection, another application and another member are spared."""
    [secondary, _] = await servers.secondaries()
    faults = [
        servers.faults.drop_reply("insert", namespace="proxy.other", must_fire=False),
        servers.faults.drop_reply("insert", app_name="other", must_fire=False),
        servers.faults.drop_reply("insert", member=secondary, must_fire=False),
        servers.faults.drop_reply("delete", must_fire=False),
    ]
    with servers.faults.drop_reply("INSERT", namespace="proxy.c", app_name="tester") as fault:
        with pytest.raises(AutoReconnect):
            collection.insert_one({})
        collection.insert_one({})

    assert (1, 2) == (fault.fired, fault.seen)
    assert [(0, 0)] * 4 == [(other.fired, other.seen) for other in faults]
    for other in faults:
        other.disarm()


async def test_wait_until_fired(servers: ReplicaSet, collection) -> None:
    """A test can wait for a fault to strike, and is told when it doesn't."""
    async with servers.faults.drop_reply("insert") as fault:
        with pytest.raises(TimeoutError, match="did not strike 1 times"):
            await fault.wait_until_fired(timeout=0.05)
        waiting = asyncio.create_task(fault.wait_until_fired())
        with pytest.raises(AutoReconnect):
            await asyncio.to_thread(collection.insert_one, {})
        await waiting


def test_many_clients_at_once(servers: ReplicaSet) -> None:
    """Among writers at once exactly as many replies are lost as was said, and none is doubled."""
    lost: list[int] = []
    with (
        pymongo.MongoClient(servers.uri, retryWrites=False, w=1) as client,
        servers.faults.drop_reply("insert", times=7) as fault,
    ):
        collection = client.proxy.get_collection("writers")

        def write(number: int) -> None:
            for step in range(20):
                try:
                    collection.insert_one({"_id": number * 100 + step})
                except AutoReconnect:
                    lost.append(number)

        writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        # Some are refused by the client itself, which has just lost a connection.
        assert len(lost) - 7 == 160 - fault.seen
        assert 7 == fault.fired
        assert fault.seen == collection.count_documents({})


def test_large_messages(servers: ReplicaSet, collection) -> None:
    """Many megabytes go through in both directions unharmed, watched or not."""
    documents = [
        {"_id": f"large {number}", "x": bytes([number]) * 1_000_000} for number in range(20)
    ]
    collection.insert_many(documents[:10])
    with servers.faults.drop_reply(
        "insert", "find", "getMore", namespace="proxy.other", must_fire=False
    ):
        collection.insert_many(documents[10:])

        assert documents == list(collection.find({"_id": {"$regex": "large"}}).sort("x"))


async def test_member_is_killed_and_restarted(
    servers: ReplicaSet, collection, eventually: Callable[..., None]
) -> None:
    """A client survives the death and the return of a member behind its proxy."""
    old = await servers.primary()
    collection.insert_one({})
    await servers.kill(old)
    with contextlib.suppress(AutoReconnect):
        collection.insert_one({})  # fails unless the client has noticed already, and waits

    await servers.wait_for_primary(other_than=old)
    await servers.restart(old)

    collection.insert_one({})
    eventually(lambda: addresses(servers) == collection.database.client.nodes)
    with pymongo.MongoClient(old.host, old.port, directConnection=True) as direct:
        assert old.address == direct.admin.command("hello")["me"]


async def test_dead_member(servers: ReplicaSet) -> None:
    """Behind the proxy of a dead member a connection is closed at once."""
    [member, _] = await servers.secondaries()
    await servers.kill(member)

    assert is_closed(socket.create_connection((member.host, member.port), 5))


async def test_frozen_member(servers: ReplicaSet) -> None:
    """Behind the proxy of a frozen member commands get no answer, until it is thawed."""
    [member, _] = await servers.secondaries()
    with pymongo.MongoClient(
        member.host, member.port, directConnection=True, socketTimeoutMS=300, retryReads=False
    ) as client:
        client.admin.command("ping")
        await servers.freeze(member)
        with pytest.raises(AutoReconnect, match="timed out"):
            client.admin.command("ping")
        await servers.thaw(member)
        assert 1 == client.admin.command("ping")["ok"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        (2**31 - 1).to_bytes(4, "little") + b"\0" * 12,
        b"\0" * 16,
        (40).to_bytes(4, "little") + b"\0" * 8 + (2012).to_bytes(4, "little") + b"\0" * 24,
    ],
    ids=["http", "oversized", "zeros", "compressed"],
)
def test_garbage(servers: ReplicaSet, collection, garbage: bytes) -> None:
    """Garbage gets its connection closed, and harms no other one."""
    member = servers.members[0]

    connection = socket.create_connection((member.host, member.port), 5)
    connection.sendall(garbage)
    assert is_closed(connection)

    assert 1 == collection.database.command("ping")["ok"]


async def test_disconnects_are_passed_on(
    servers: ReplicaSet, eventually: Callable[..., None]
) -> None:
    """When a client goes away, the server's end of its connection goes too."""
    member = await servers.primary()

    async def named() -> int:
        pipeline = [{"$currentOp": {"idleConnections": True}}, {"$match": {"appName": "gone"}}]
        found = await member.command({"aggregate": 1, "pipeline": pipeline, "cursor": {}})
        return len(found["cursor"]["firstBatch"])

    with pymongo.MongoClient(servers.uri, appname="gone") as client:
        client.admin.command("ping")
        assert await named() > 0
    async with asyncio.timeout(10):
        while await named():
            await asyncio.sleep(0.02)


async def test_proxy_alone(servers: ReplicaSet) -> None:
    """A proxy works in front of any server; closing it closes its clients and ends its thread."""
    member = await servers.primary()
    host, port = member.direct_address.split(":")
    proxy = Proxy(host, int(port))
    assert f"<Proxy not running to {member.direct_address}>" == repr(proxy)
    with proxy:
        with pymongo.MongoClient(proxy.address, directConnection=True) as client:
            assert proxy.address == client.admin.command("hello")["me"]
        with (
            proxy.faults.drop_request("ping"),
            pymongo.MongoClient(proxy.address, directConnection=True, retryReads=False) as client,
            pytest.raises(AutoReconnect),
        ):
            client.admin.command("ping")
        connection = socket.create_connection(("127.0.0.1", proxy.port), 5)
        threads = {thread.name for thread in threading.enumerate()}
        assert "aioretry-proxy" in threads
    assert is_closed(connection)
    proxy.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), 5)
    with pytest.raises(RuntimeError, match="once only"):
        proxy.start()


async def test_without_proxies() -> None:
    """Losing messages needs proxies, and the message says so."""
    with pytest.raises(RuntimeError, match="faults=True"):
        _ = ReplicaSet().faults


def test_closed_while_a_client_connects(servers: ReplicaSet) -> None:
    """A connection that comes while a proxy is closed is closed too."""
    host, port = servers.members[0].direct_address.split(":")
    for _ in range(50):
        with Proxy(host, int(port)) as proxy:
            connection = socket.create_connection(("127.0.0.1", proxy.port), 5)
        assert is_closed(connection)


@pytest.mark.filterwarnings("ignore:'asyncio.*' is deprecated:DeprecationWarning")
def test_a_program_with_loops_of_its_own(free_port: int) -> None:
    """A proxy's loop is asyncio's own, whatever makes the loops of the program around it."""

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self):
            raise AssertionError("a loop of the program's")

    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(Policy())
    try:
        with Proxy("127.0.0.1", free_port) as proxy:
            assert is_closed(socket.create_connection(("127.0.0.1", proxy.port), 10))
    finally:
        asyncio.set_event_loop_policy(before)
