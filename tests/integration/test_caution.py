"""The warning of writes that can't be retried, on real servers and on one that looks like one."""

import asyncio
import logging
import uuid

import pytest
from pymongo import InsertOne, UpdateMany, WriteConcern
from pymongo.errors import AutoReconnect, OperationFailure

from aioretry import Outcome, outcome_of
from aioretry._faces import settled
from aioretry.testing import FakeMongoses, ScriptedServer, Standalone

SECRET = "hush"


@pytest.fixture
def told(caplog):
    """What was told of it so far."""
    caplog.set_level(logging.WARNING, "aioretry")
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.name == "aioretry" and "can't be retried" in record.msg
    ]


@pytest.fixture(scope="module")
def standalone(server_version):
    """A server that is no member of a set."""
    with Standalone(version=server_version) as server:
        yield server


def things_of(client):
    """A collection of the test's own."""
    return client.aioretry_tests[f"c{uuid.uuid4().hex[:12]}"]


async def write_at_once(things):
    """Write fifty documents at the same time, by each method in turn."""
    document = {"secret": SECRET}
    writes = []
    for number in range(10):
        writes += [
            things.insert_one(document | {"_id": number}),
            things.update_one({"_id": SECRET}, {"$set": document}),
            things.insert_many([document | {"_id": f"m{number}"}]),
            things.bulk_write([InsertOne(document | {"_id": f"b{number}"})]),
            things.find_one_and_update({"_id": SECRET}, {"$set": document}),
        ]
    await asyncio.gather(*writes)


class TestOfRealServers:
    async def test_a_standalone_server(self, standalone, client_class, told):
        """Once per client, also of fifty writes at once, and nothing of what is written."""
        for known in range(2):
            async with client_class(standalone.uri) as client:
                things = things_of(client)
                assert known == len(told())
                await write_at_once(things)
                assert known + 1 == len(told())
                await things.insert_one({})
                await things.coalesced().insert_one({})
                assert known + 1 == len(told())
        assert " is a standalone server; each is sent once" in told()[0]
        assert not [text for text in told() if SECRET in text]

    async def test_without_retry_writes(self, replica_set, client_class, told):
        """It is the option that is named."""
        async with client_class(replica_set.uri, retryWrites=False) as client:
            await write_at_once(things_of(client))
        [text] = told()
        assert "the client has retryWrites=false" in text
        assert SECRET not in text

    async def test_a_replica_set(self, replica_set, client_class, told):
        """Nothing is said; nor behind routers."""
        async with client_class(replica_set.uri) as client:
            await write_at_once(things_of(client))
        async with FakeMongoses(replica_set) as cluster, client_class(cluster.uri) as client:
            await write_at_once(things_of(client))
        assert [] == told()

    async def test_what_is_never_retried(self, standalone, replica_set, client_class, told):
        """Reads, and writes that no server could retry, say nothing."""
        uris = {standalone.uri: True, replica_set.uri: False}
        for uri, retry_writes in uris.items():
            async with client_class(uri, retryWrites=retry_writes) as client:
                things = things_of(client)
                await things.find_one({})
                await things.update_many({}, {"$set": {"a": 1}})
                await things.delete_many({"a": 2})
                await things.bulk_write([UpdateMany({}, {"$set": {"a": 1}})])
                await things.with_options(write_concern=WriteConcern(w=0)).insert_one({})
                await things.count_documents({})
        assert [] == told()

    async def test_transactions(self, replica_set, client_class, told):
        """Their writes are retried with the transaction, whatever the option says."""
        async with client_class(replica_set.uri, retryWrites=False) as client:
            things = things_of(client)

            async def work(session):
                await things.insert_one({}, session=session)

            async with await settled(client.start_session()) as session:
                await session.with_transaction(work)
        assert [] == told()


class TestOfALookAlike:
    async def test_it_refuses(self, client_class, told):
        """It is known by the hosts of its set, through a tunnel; the refusal is the caller's."""
        hello = {"hosts": ["shop.docdb.amazonaws.com:27017"], "maxWireVersion": 13}
        async with ScriptedServer(hello=hello) as server:
            uri = f"mongodb://{server.address}/?directConnection=true"
            async with client_class(uri) as client:
                for number in range(2):
                    write = asyncio.ensure_future(client.db.c.insert_one({"_id": number}))
                    request = await server.expect("insert")
                    assert "txnNumber" in request.command
                    request.fail(301, "Retryable writes are not supported")
                    with pytest.raises(OperationFailure) as caught:
                        await write
                    assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        [text] = told()
        assert f"{server.address} is Amazon DocumentDB; writes with a transaction id" in text
        assert "Have retryWrites=false" in text

    async def test_as_it_should_be_used(self, client_class, told):
        """A write is sent once, without transaction id, and what is lost stays unknown."""
        hello = {"hosts": ["shop.docdb.amazonaws.com:27017"], "maxWireVersion": 13}
        async with ScriptedServer(hello=hello) as server:
            uri = f"mongodb://{server.address}/?directConnection=true&retryWrites=false"
            async with client_class(uri) as client:
                write = asyncio.ensure_future(client.db.c.insert_one({"_id": 1}))
                request = await server.expect("insert")
                assert "txnNumber" not in request.command
                request.hang_up()
                with pytest.raises(AutoReconnect) as caught:
                    await write
                assert Outcome.UNKNOWN is outcome_of(caught.value)
        [text] = told()
        assert "the client has retryWrites=false" in text
        assert "Leave the option out" not in text
