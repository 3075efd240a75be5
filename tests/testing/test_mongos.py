"""Fake mongoses, as plain PyMongo sees them."""

import asyncio
import itertools
import socket
import threading
from types import SimpleNamespace

import pymongo
import pytest
from bson import Int64, ObjectId
from pymongo import monitoring
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure

from aioretry.testing import FakeMongoses, ReplicaSet, ScriptedServer
from aioretry.testing._wire import request_of

SECONDARY = {"ismaster": False, "isWritablePrimary": False}


class Heartbeats(monitoring.ServerHeartbeatListener):
    """Counts what the monitors of a client hear."""

    def __init__(self):
        self.failed = []
        self.awaited = threading.Event()

    def started(self, event):
        pass

    def succeeded(self, event):
        if event.awaited:
            self.awaited.set()

    def failed(self, event):
        self.failed.append(event)


@pytest.fixture
async def cluster(servers: ReplicaSet):
    async with FakeMongoses(servers) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: FakeMongoses):
    with pymongo.MongoClient(cluster.uri, retryWrites=False, retryReads=False) as client:
        client.mongos.drop_collection("c")
        yield client


def before(*servers: ScriptedServer, count: int = 2) -> FakeMongoses:
    """Fake mongoses before servers that say what a test tells them to."""
    members = [SimpleNamespace(direct_address=server.address) for server in servers]
    return FakeMongoses(SimpleNamespace(members=members), count)


def plain_client(*mongoses) -> pymongo.MongoClient:
    """A client that tries nothing twice."""
    addresses = [mongos.address for mongos in mongoses]
    return pymongo.MongoClient(addresses, retryWrites=False, retryReads=False)


def test_a_driver_takes_them_for_a_sharded_cluster(cluster, client, eventually) -> None:
    """Both are known as routers, and everything works through them."""
    collection = client.mongos.c
    collection.insert_many([{"_id": number} for number in range(250)])

    assert 250 == len(list(collection.find(batch_size=100)))
    with pytest.raises(DuplicateKeyError):
        collection.insert_one({"_id": 7})
    with client.start_session() as session, session.start_transaction():
        collection.update_one({"_id": 7}, {"$set": {"in": "transaction"}}, session=session)
    assert {"_id": 7, "in": "transaction"} == collection.find_one({"_id": 7})
    eventually(lambda: len(client.nodes) == 2)
    assert "Sharded" == client.topology_description.topology_type_name
    assert {"Mongos"} == {
        server.server_type_name
        for server in client.topology_description.server_descriptions().values()
    }
    assert "isdbgrid" == client.admin.command("hello")["msg"]


def test_unacknowledged_writes(cluster, client, eventually) -> None:
    """A write without an answer is routed too, and the next answer is the next command's."""
    collection = client.mongos.get_collection("c", write_concern=pymongo.WriteConcern(w=0))
    collection.insert_one({"_id": 1})
    assert 1 == client.admin.command("ping")["ok"]
    eventually(lambda: client.mongos.c.find_one({"_id": 1}) is not None)


def test_monitors_are_streamed_to(cluster, eventually) -> None:
    """Monitors wait for changes, hear from both in time, and lose no connection."""
    heartbeats = Heartbeats()
    with pymongo.MongoClient(
        cluster.uri, event_listeners=[heartbeats], heartbeatFrequencyMS=500
    ) as client:
        client.admin.command("ping")
        for _ in range(3):
            heartbeats.awaited.clear()
            assert heartbeats.awaited.wait(20)
    assert [] == heartbeats.failed


async def test_an_election_behind_them(servers: ReplicaSet, cluster, client) -> None:
    """After an election there is one error at most, that of an unreachable host."""
    collection = client.mongos.c
    await asyncio.to_thread(collection.insert_one, {"_id": 1})
    old = await servers.step_down()
    await servers.wait_for_primary(other_than=old)

    errors = []

    async def once(call, *args):
        try:
            return await asyncio.to_thread(call, *args)
        except OperationFailure as exc:  # whichever of them is the first to meet the old one
            errors.append(exc.code)

    if await once(collection.update_one, {"_id": 1}, {"$set": {"n": 1}}) is None:
        await once(collection.update_one, {"_id": 1}, {"$set": {"n": 1}})
    found = await once(collection.find_one) or await once(collection.find_one)
    assert errors in ([], [6])
    assert {"_id": 1, "n": 1} == found
    assert "Sharded" == client.topology_description.topology_type_name


async def test_a_deposed_primary() -> None:
    """It is an unreachable host to a client; then no mongos asks it, but the next one alone."""
    async with (
        ScriptedServer() as old,
        ScriptedServer(hello=SECONDARY) as new,
        before(old, new) as cluster,
    ):
        one, other = cluster.mongoses
        with plain_client(one) as client, plain_client(other) as other_client:
            for each in (client, other_client):
                await asyncio.to_thread(each.admin.command, "ping")  # its mongos knows the old one
            write = asyncio.create_task(asyncio.to_thread(client.mongos.c.insert_one, {}))
            request = await old.expect("insert")
            old.hello = SECONDARY
            request.fail(10107)
            with pytest.raises(OperationFailure) as caught:
                await write
            assert 6 == caught.value.code

            again = asyncio.create_task(asyncio.to_thread(other_client.mongos.c.insert_one, {}))
            new.hello = {}
            (await new.expect("insert")).reply({"n": 1})
            await again
    assert (request,) == old.requests


async def test_two_say_that_they_are_the_primary(eventually) -> None:
    """The one that was elected later is asked, and the other one is not asked again."""
    first, second = (ObjectId(f"7fffffff{number:016x}") for number in (1, 2))
    async with (
        ScriptedServer(hello={"electionId": first}) as old,
        ScriptedServer(hello=SECONDARY) as new,
        before(old, new, count=1) as cluster,
    ):
        old.answer("count", {"n": 1})
        new.answer("count", {"n": 2})
        with plain_client(*cluster.mongoses) as client:

            def is_answered_by_the_new_one() -> bool:
                try:
                    return client.mongos.command({"count": "c"})["n"] == 2
                except OperationFailure as exc:
                    if exc.code != 6:  # the old one was replaced under it
                        raise
                    return False

            assert not is_answered_by_the_new_one()
            new.hello = {"electionId": second}
            eventually(is_answered_by_the_new_one)
            looks = len(old.traffic)
            eventually(lambda: len(old.traffic) >= looks + 3)
            assert is_answered_by_the_new_one()


async def test_a_client_that_goes_leaves_nothing(eventually) -> None:
    """Where a command was not answered, the end of its client is the end of its connections."""
    async with ScriptedServer() as server, before(server, count=1) as cluster:
        [mongos] = cluster.mongoses
        with socket.create_connection((mongos.host, mongos.port), 5) as connection:
            connection.sendall(request_of(1, {"insert": "c", "$db": "mongos"}))
            await server.expect("insert")
        loop, _ = mongos._thread._started.result()
        eventually(lambda: not mongos._links._links and 2 == len(asyncio.all_tasks(loop)))


async def test_commands_wait_for_a_primary(servers: ReplicaSet, cluster, client) -> None:
    """While there is no primary commands wait, and go to the next one."""
    collection = client.mongos.c
    await asyncio.to_thread(collection.insert_one, {"_id": 1})
    await servers.kill(await servers.primary())

    await asyncio.to_thread(collection.insert_one, {"_id": 2})

    assert 2 == await asyncio.to_thread(collection.count_documents, {})


async def test_a_frozen_primary(servers: ReplicaSet, cluster, client) -> None:
    """A command that waits for it fails when there is a new one, which gets all later ones."""
    collection = client.mongos.c
    await asyncio.to_thread(collection.insert_one, {"_id": 1})
    old = await servers.primary()
    await servers.freeze(old)

    held = asyncio.create_task(asyncio.to_thread(collection.insert_one, {"_id": 2}))
    await servers.wait_for_primary(other_than=old)
    [result] = await asyncio.gather(held, return_exceptions=True)

    assert 6 == getattr(result, "code", 6)  # the new one may have got it, on a slow machine
    in_time = asyncio.create_task(asyncio.to_thread(collection.insert_one, {"_id": 3}))
    await asyncio.gather(in_time, return_exceptions=True)  # the other mongos may have been late
    await asyncio.to_thread(collection.insert_one, {"_id": 4})
    assert 1 == await asyncio.to_thread(collection.count_documents, {"_id": 4})


@pytest.mark.parametrize(
    ("number", "labels"),
    [({"txnNumber": Int64(1)}, ["RetryableWriteError"]), ({}, None)],
    ids=["numbered", "plain"],
)
async def test_a_lost_primary(number, labels) -> None:
    """A primary that dies under a command is an unreachable host, labelled for numbered writes."""
    update = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}], **number}
    async with ScriptedServer() as server, before(server) as cluster:
        with plain_client(*cluster.mongoses) as client, client.start_session() as session:
            write = asyncio.create_task(
                asyncio.to_thread(client.mongos.command, update, session=session)
            )
            (await server.expect("update")).hang_up()
            with pytest.raises(OperationFailure) as caught:
                await write
    assert 6 == caught.value.code
    assert labels == caught.value.details.get("errorLabels")


def test_faults_of_one(cluster, client, eventually) -> None:
    """A fault at one mongos spares the other; a lost answer is one of a write that was made."""
    one = cluster.mongoses[0]
    eventually(lambda: len(client.nodes) == 2)
    with cluster.faults.drop_reply("insert", member=one) as fault:
        outcomes = set()
        numbers = itertools.count(1)
        while len(outcomes) < 2:
            number = next(numbers)
            try:
                client.mongos.c.insert_one({"_id": number})
                outcomes.add("made")
            except AutoReconnect:
                outcomes.add("lost")
    assert 1 == fault.fired
    assert number == client.mongos.c.count_documents({})


async def test_kill(cluster, client, eventually) -> None:
    """A killed one closes its connections and its port; the other goes on."""
    one, other = cluster.mongoses
    await cluster.kill(one)
    await cluster.kill(one)

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((one.host, one.port), 5)
    eventually(lambda: client.nodes == {(other.host, other.port)})
    for number in range(5):
        await asyncio.to_thread(client.mongos.c.insert_one, {"_id": number})


async def test_misuse(servers: ReplicaSet) -> None:
    """What can't work is refused, and the message says why."""
    with pytest.raises(ValueError, match="count is 0"):
        FakeMongoses(servers, 0)
    with pytest.raises(TypeError, match="count is '2': a whole number from 1 on is needed"):
        FakeMongoses(servers, "2")
    with pytest.raises(RuntimeError, match="not started"):
        FakeMongoses(ReplicaSet()).start()
    cluster = FakeMongoses(servers)
    with pytest.raises(RuntimeError, match="were not started"):
        _ = cluster.uri
    with pytest.raises(RuntimeError, match="were not started"):
        _ = cluster.faults
    with cluster, pytest.raises(RuntimeError, match="once only"):
        cluster.start()
    with FakeMongoses(servers) as others, FakeMongoses(servers) as cluster:
        with pytest.raises(ValueError, match=r"mongos is <FakeMongos 0 .*>: one of .* is needed"):
            await cluster.kill(others.mongoses[0])
    assert "<FakeMongoses not running>" == repr(FakeMongoses(servers))
