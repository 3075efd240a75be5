"""Proxies before a deployment of one's own."""

import socket
import threading

import pymongo
import pytest
from pymongo.errors import AutoReconnect

from aioretry.testing import BlackPipe, FaultNotFiredError, ReplicaSet, Standalone


def direct_uri(servers: ReplicaSet) -> str:
    addresses = ",".join(member.direct_address for member in servers.members)
    return f"mongodb://{addresses}/?replicaSet=rs0&retryWrites=false"


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_set(servers: ReplicaSet, seeds: int, eventually) -> None:
    """Every member gets a proxy, whatever hosts were named, and clients stay on the proxies."""
    addresses = ",".join(member.direct_address for member in servers.members[:seeds])
    with (
        BlackPipe(f"mongodb://{addresses}/?replicaSet=rs0&retryWrites=false") as pipe,
        pymongo.MongoClient(pipe.uri) as client,
    ):
        assert {m.direct_address for m in servers.members} == {
            m.direct_address for m in pipe.members
        }
        collection = client.pipe.get_collection(f"seeds{seeds}")
        with pipe.faults.drop_reply("insert"), pytest.raises(AutoReconnect):
            collection.insert_one({"_id": 1})
        assert 1 == collection.count_documents({})
        known = {f"{host}:{port}" for host, port in client.nodes}
        eventually(lambda: len(client.nodes) == 3)
        assert known <= {member.address for member in pipe.members}


async def test_faults_at_one_member(servers: ReplicaSet) -> None:
    """A member is named by what stands in the pipe."""
    async with BlackPipe(direct_uri(servers)) as pipe:
        primary = await servers.primary()
        [member] = [m for m in pipe.members if m.direct_address == primary.direct_address]
        with pymongo.MongoClient(pipe.uri) as client:
            with pipe.faults.drop_request("insert", member=member) as fault:
                with pytest.raises(AutoReconnect):
                    client.pipe.one.insert_one({})
                assert 1 == fault.fired


def test_a_standalone() -> None:
    """A server that is no member of a set works too; a dead host before it does no harm."""
    with Standalone() as server:
        address = server.member.address
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            dead = f"127.0.0.1:{taken.getsockname()[1]}"
            with BlackPipe(f"mongodb://{dead},{address}") as pipe:
                assert [dead, address] == [member.direct_address for member in pipe.members]
            with BlackPipe(f"mongodb://{address}") as pipe:
                with pymongo.MongoClient(pipe.uri) as client:
                    assert 1 == client.admin.command("ping")["ok"]
            with pytest.raises(OSError, match=f"none of the hosts answers: {dead}"):
                BlackPipe(f"mongodb://{dead}").start()


def test_a_direct_connection(servers: ReplicaSet) -> None:
    """Where the client is to know one host alone, so is the pipe."""
    [member, *_] = servers.members
    with BlackPipe(member.direct_uri) as pipe, pymongo.MongoClient(pipe.uri) as client:
        assert [member.direct_address] == [one.direct_address for one in pipe.members]
        assert pipe.members[0].address == client.admin.command("hello")["me"]


def test_a_host_that_speaks_something_else() -> None:
    """It counts as one that doesn't answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def talk() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example.net ESMTP ready\r\n")
                connection.recv(1000)

        talker = threading.Thread(target=talk)
        talker.start()
        with pytest.raises(OSError, match="none of the hosts answers"):
            BlackPipe(f"mongodb://127.0.0.1:{port}").start()
        talker.join()


def test_the_uri_keeps_what_it_says(servers: ReplicaSet) -> None:
    """User, database and options stay; the hosts are the proxies."""
    address = servers.members[0].direct_address
    with BlackPipe(f"mongodb://u:p%40@{address}/shop?authSource=admin") as pipe:
        addresses = ",".join(member.address for member in pipe.members)
        assert f"mongodb://u:p%40@{addresses}/shop?authSource=admin" == pipe.uri
        assert "p%40" not in repr(pipe)


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("localhost:27017", "no mongodb://"),
        ("mongodb:///", "no mongodb://"),
        ("mongodb://%2Ftmp%2Fmongodb.sock/", "no mongodb://"),
        ("mongodb://u:secret@db:x/", "'db:x' is no address"),
    ],
)
def test_other_uris(uri: str, why: str) -> None:
    """What can't work is refused at once, without the credentials in the message."""
    with pytest.raises(ValueError, match=why) as caught:
        BlackPipe(uri)
    assert "secret" not in str(caught.value)


def test_misuse(servers: ReplicaSet) -> None:
    """It starts once; before it says what to do; a fault that never struck is an error."""
    pipe = BlackPipe(direct_uri(servers))
    for name in ("uri", "faults"):
        with pytest.raises(RuntimeError, match="not started"):
            getattr(pipe, name)
    with pipe, pytest.raises(RuntimeError, match="once only"):
        pipe.start()


def test_a_fault_that_never_struck(servers: ReplicaSet) -> None:
    """It is an error at the end, unless the block ends with another one."""

    def use(error: Exception | None) -> None:
        with BlackPipe(direct_uri(servers)) as pipe:
            pipe.faults.drop_reply("insert")
            if error is not None:
                raise error

    with pytest.raises(FaultNotFiredError, match=r"DropReply\(insert\)"):
        use(None)
    with pytest.raises(KeyError):
        use(KeyError())
