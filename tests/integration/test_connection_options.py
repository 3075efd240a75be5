"""Connections that log in, that compress, and those of another event loop: writes survive there."""

import asyncio
import sys

import pytest
from pymongo.errors import OperationFailure

from aioretry import DeadlineExceeded, Outcome, deadline, outcome_of
from tests.integration.doubting import INCREMENT

PASSWORD = "a p@ss"


async def write(client, collection):
    """Twenty increments at once and a bulk of them, which leave 21."""
    things = client[collection.database.name][collection.name]
    async with deadline(20):
        await things.insert_many([{"_id": n, "n": 1} for n in range(20)])
        await asyncio.gather(*(things.update_one({"_id": 1}, INCREMENT) for _ in range(20)))
    return (await things.find_one({"_id": 1}))["n"]


@pytest.fixture
def user(plain):
    """The name of a user, who may do everything."""
    plain.admin.command("createUser", "writer", pwd=PASSWORD, roles=["root"])
    yield "writer"
    plain.admin.command("dropUser", "writer")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256"])
async def test_logging_in(mechanism, user, client_class, replica_set, collection):
    """PyMongo logs in when it opens a connection, also after breaks; the loop writes over it."""
    login = {"username": user, "password": PASSWORD, "authMechanism": mechanism}
    async with client_class(replica_set.uri, **login) as client:
        async with replica_set.faults.drop_reply("update", times=3):
            assert 21 == await write(client, collection)
        status = await client.admin.command("connectionStatus")
        assert [user] == [one["user"] for one in status["authInfo"]["authenticatedUsers"]]
        assert not client._driver._dispatch._connections.are_unusable


async def test_a_wrong_password(user, client_class, replica_set, collection, stored):
    """It is the server's error, and nothing was written."""
    async with client_class(replica_set.uri, username=user, password="another") as client:
        things = client[collection.database.name][collection.name]
        with pytest.raises(OperationFailure) as refused:
            await things.insert_one({})
    assert (18, Outcome.NOT_APPLIED) == (refused.value.code, outcome_of(refused.value))
    assert 0 == stored.count_documents({})


@pytest.mark.parametrize("compressor", ["zlib", "zstd"])
async def test_compressing(compressor, client_class, replica_set, collection):
    """What the loop can't send, PyMongo does, on a thread or in a task."""
    address = (await replica_set.primary()).direct_address  # a proxy takes no compression
    uri = f"mongodb://{address}/?directConnection=true&compressors={compressor}"
    async with client_class(uri) as client:
        before = await compressed(client, compressor)
        assert 21 == await write(client, collection)
        assert before < await compressed(client, compressor)
        assert client._driver._dispatch._connections.are_unusable


async def compressed(client, compressor):
    status = await client.admin.command("serverStatus")
    return status["network"]["compression"][compressor]["decompressor"]["bytesIn"]


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")
def test_deadlines_on_uvloop(client_class):
    """Its timers are early by up to a millisecond; who waits in vain is told of the deadline."""
    import uvloop

    async def insert(things, seconds):
        async with deadline(seconds):
            await things.insert_one({})

    async def main():
        async with client_class("mongodb://127.0.0.1:1") as client:
            waits = (insert(client.db.things, 0.05 + n / 5000) for n in range(20))
            return await asyncio.gather(*waits, return_exceptions=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert {DeadlineExceeded} == set(map(type, runner.run(main())))


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")
def test_on_uvloop(client_class, replica_set, collection):
    """Its sockets and transports do as well, and are used by the loop."""
    import uvloop

    async def main():
        async with client_class(replica_set.uri) as client:
            async with replica_set.faults.drop_reply("update", times=3):
                result = await write(client, collection)
            return result, client._driver._dispatch._connections.are_unusable

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert (21, False) == runner.run(main())
