"""Client-side field level encryption: what Motor does with it, ours does too."""

import asyncio
import os

import pytest
from bson.binary import Binary
from bson.codec_options import CodecOptions
from motor.motor_asyncio import AsyncIOMotorClientEncryption
from pymongo import InsertOne, ReturnDocument, UpdateOne, monitoring
from pymongo.encryption import Algorithm
from pymongo.encryption_options import AutoEncryptionOpts

from aioretry import RetryClient, deadline

DETERMINISTIC = Algorithm.AEAD_AES_256_CBC_HMAC_SHA_512_Deterministic


class Sent(monitoring.CommandListener):
    """Remembers the inserts and updates that a client sent."""

    def __init__(self):
        self.commands = []

    def started(self, event):
        if event.command_name in {"insert", "update"}:
            self.commands.append(event.command)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


@pytest.fixture
def providers():
    """A key of the test's own."""
    return {"local": {"key": os.urandom(96)}}


@pytest.fixture
def sent():
    return Sent()


@pytest.fixture(params=["bypass_auto_encryption", "bypass_query_analysis"])
async def encrypting(request, replica_set, collection, providers, sent):
    """A collection of a client that decrypts, and in the second case encrypts; both without
    analysing queries, which takes a server of MongoDB Enterprise."""
    options = AutoEncryptionOpts(
        providers, f"{collection.database.name}.keys", **{request.param: True}
    )
    uri = replica_set.uri
    async with RetryClient(uri, auto_encryption_opts=options, event_listeners=[sent]) as client:
        yield client[collection.database.name][collection.name]


@pytest.fixture
async def secret(client, collection, providers):
    """A value, encrypted."""
    vault = f"{collection.database.name}.keys"
    async with AsyncIOMotorClientEncryption(providers, vault, client, CodecOptions()) as keys:
        key = await keys.create_data_key("local")
        yield await keys.encrypt("secret", DETERMINISTIC, key_id=key)


WRITES = {
    "insert_one": lambda c, secret: c.insert_one({"_id": 1, "s": secret}),
    "insert_many": lambda c, secret: c.insert_many([{"_id": 1, "s": secret}, {"_id": 2}]),
    "bulk_write": lambda c, secret: c.bulk_write(
        [InsertOne({"_id": 1}), UpdateOne({"_id": 1}, {"$set": {"s": secret}})]
    ),
    "update_one": lambda c, secret: c.update_one({"_id": 1}, {"$set": {"s": secret}}, upsert=True),
    "replace_one": lambda c, secret: c.replace_one({"_id": 1}, {"s": secret}, upsert=True),
    "update_many": lambda c, secret: c.update_many({"_id": 1}, {"$set": {"s": secret}}, True),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.motor
async def test_writes(name, encrypting, secret, stored, replica_set):
    """What is encrypted is stored so, and read in clear, through a lost answer too."""
    command = "insert" if name.startswith(("insert", "bulk")) else "update"
    if name == "update_many":
        await WRITES[name](encrypting, secret)
    else:
        async with replica_set.faults.drop_reply(command, namespace=encrypting.full_name):
            async with deadline(20):
                await WRITES[name](encrypting, secret)
    assert Binary(bytes(secret), 6) == stored.find_one({"_id": 1})["s"]
    assert "secret" == (await encrypting.find_one({"_id": 1}))["s"]


@pytest.mark.motor
async def test_what_is_returned(encrypting, secret):
    """A document that a write returns is decrypted."""
    await encrypting.insert_one({"_id": 1, "s": secret, "n": 0})
    document = await encrypting.find_one_and_update(
        {"_id": 1}, {"$inc": {"n": 1}}, return_document=ReturnDocument.AFTER
    )
    assert {"_id": 1, "s": "secret", "n": 1} == document
    assert "secret" == (await encrypting.find_one_and_delete({"_id": 1}))["s"]


async def test_large_batches(encrypting, sent, request):
    """A client that encrypts splits its batches at 2 MiB (Client Side Encryption, "Size limits for
    Write Commands")."""
    await encrypting.insert_many([{"_id": n, "text": "x" * 2**20} for n in range(3)])
    encrypts = "bypass_query_analysis" in request.node.name
    assert (3 if encrypts else 1) == len(sent.commands)
    assert 3 == await encrypting.count_documents({})


@pytest.mark.motor
async def test_inserts_that_would_travel_together(encrypting, sent, secret, stored, request):
    """Those of a client that encrypts by itself travel alone."""
    view = encrypting.coalesced()
    await asyncio.gather(*(view.insert_one({"_id": n, "s": secret}) for n in range(3)))
    encrypts = "bypass_query_analysis" in request.node.name
    assert (3 if encrypts else 1) == len(sent.commands)
    assert [Binary(bytes(secret), 6)] * 3 == [each["s"] for each in stored.find()]
