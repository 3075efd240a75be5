"""How old a key is does not depend on one clock."""

import asyncio
import time

import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from aioretry.idempotent import KeyExpiredError, Keys
from aioretry.testing import ReplicaSet
from tests.idempotent.keyed import NAMESPACE, SECRET, keyed_collection


async def insert(collection, keys):
    """Insert a document under a key; tell whether it was replayed."""
    async with collection.operation(key=keys("key")) as op:
        await op.insert_one({"_id": 1, "n": 1}, comment="any")
    return op.replayed


async def forget(uri):
    """Have a server forget which writes it has executed; without a session, or it refuses."""
    with MongoClient(uri) as plain:
        known = plain.config.transactions
        async with asyncio.timeout(30.0):
            while known.count_documents({}):
                known.with_options(write_concern=WriteConcern(0)).delete_many({})
                await asyncio.sleep(0.02)


async def test_a_clock_that_was_ahead_and_was_set_back(server_version, client_class):
    """A primary whose clock was ahead has forgotten the write, and the next one's clock is right.

    Its time stays in the cluster time, which never goes back.
    """
    with ReplicaSet(1, server_version) as servers:
        async with client_class(servers.uri) as client, Keys(SECRET, NAMESPACE) as keys:
            collection = keyed_collection(client, "c")
            assert await insert(collection, keys) is not True
            ahead = Timestamp(int(time.time()) + 40 * 60, 1)
            signature = {"hash": bytes(20), "keyId": Int64(0)}
            async with await client.start_session() as session:
                session.advance_cluster_time({"clusterTime": ahead, "signature": signature})
                await client.admin.command("ping", session=session)
            await forget(servers.uri)
            await collection.delete_many({})
            with pytest.raises(KeyExpiredError, match="was first used 24"):
                await insert(collection, keys)
            assert 0 == await collection.count_documents({})
