"""Fake mongoses, as plain PyMongo sees them."""

import asyncio
import contextlib
import socket
import threading

import pymongo
import pytest
from bson import Int64
from pymongo import monitoring
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure, PyMongoError

from aioretry.testing import FakeMongoses, ReplicaSet


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
    """A deposed primary is an unreachable host to a mongos's client; then the new one is asked."""
    collection = client.mongos.c
    await asyncio.to_thread(collection.insert_one, {"_id": 1})
    old = await servers.step_down()
    await servers.wait_for_primary(other_than=old)

    with pytest.raises(OperationFailure) as caught:
        await asyncio.to_thread(collection.update_one, {"_id": 1}, {"$inc": {"n": 1}})
    assert 6 == caught.value.code
    await asyncio.to_thread(collection.update_one, {"_id": 1}, {"$inc": {"n": 1}})

    assert {"_id": 1, "n": 1} == await asyncio.to_thread(collection.find_one)
    assert "Sharded" == client.topology_description.topology_type_name


async def test_commands_wait_for_a_primary(servers: ReplicaSet, cluster, client) -> None:
    """While there is no primary commands wait, and go to the next one."""
    collection = client.mongos.c
    await asyncio.to_thread(collection.insert_one, {"_id": 1})
    await servers.kill(await servers.primary())

    await asyncio.to_thread(collection.insert_one, {"_id": 2})

    assert 2 == await asyncio.to_thread(collection.count_documents, {})


async def test_a_frozen_primary(servers: ReplicaSet, cluster, client) -> None:
    """Commands go to the new primary once there is one, though the old one never said a word."""
    collection = client.mongos.c
    await asyncio.to_thread(collection.insert_one, {"_id": 1})
    old = await servers.primary()
    await servers.freeze(old)
    await servers.wait_for_primary(other_than=old)

    async def count() -> int | None:
        """Ask with a time limit: a command may still go to the old one."""
        with pymongo.timeout(1), contextlib.suppress(PyMongoError):
            return await asyncio.to_thread(collection.count_documents, {})

    async with asyncio.timeout(30):
        while await count() != 1:
            pass


@pytest.mark.parametrize(
    ("number", "labels"),
    [({"txnNumber": Int64(1)}, ["RetryableWriteError"]), ({}, None)],
    ids=["numbered", "plain"],
)
async def test_a_lost_primary(servers: ReplicaSet, cluster, client, number, labels) -> None:
    """A primary that dies under a command is an unreachable host, labelled for numbered writes."""
    update = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}], **number}
    primary = await servers.primary()
    await asyncio.to_thread(client.admin.command, "ping")
    await servers.freeze(primary)
    with client.start_session() as session:
        async with cluster.faults.delay(0, "update") as passing:
            hung = asyncio.create_task(
                asyncio.to_thread(client.mongos.command, update, session=session)
            )
            await passing.wait_until_fired()
        await servers.kill(primary)
        with pytest.raises(OperationFailure) as caught:
            await hung
    assert 6 == caught.value.code
    assert labels == caught.value.details.get("errorLabels")


def test_faults_of_one(cluster, client) -> None:
    """A fault at one mongos spares the other; a lost answer is one of a write that was made."""
    one = cluster.mongoses[0]
    with cluster.faults.drop_reply("insert", member=one) as fault:
        outcomes = set()
        number = 0
        while len(outcomes) < 2:
            number += 1
            try:
                client.mongos.c.insert_one({"_id": number})
                outcomes.add("made")
            except AutoReconnect:
                outcomes.add("lost")
    assert 1 == fault.fired
    assert number == client.mongos.c.count_documents({})


async def test_kill(cluster, client) -> None:
    """A killed one closes its connections and its port; the other goes on."""
    one, other = cluster.mongoses
    await cluster.kill(one)
    await cluster.kill(one)

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((one.host, one.port), 5)
    for number in range(5):
        try:
            await asyncio.to_thread(client.mongos.c.insert_one, {"_id": number})
        except AutoReconnect:  # it had a connection to the killed one
            await asyncio.to_thread(client.mongos.c.insert_one, {"_id": number})
    assert {(other.host, other.port)} == client.nodes


async def test_misuse(servers: ReplicaSet) -> None:
    """What can't work is refused, and the message says why."""
    with pytest.raises(ValueError, match="count is 0"):
        FakeMongoses(servers, 0)
    with pytest.raises(RuntimeError, match="not started"):
        FakeMongoses(ReplicaSet()).start()
    cluster = FakeMongoses(servers)
    with pytest.raises(RuntimeError, match="were not started"):
        _ = cluster.uri
    with pytest.raises(RuntimeError, match="were not started"):
        _ = cluster.faults
    with cluster, pytest.raises(RuntimeError, match="once only"):
        cluster.start()
    assert "<FakeMongoses not running>" == repr(FakeMongoses(servers))
