"""Client-side field level encryption: what a driver does with it, ours does too."""

import asyncio
import os

import pytest
from bson.binary import Binary
from bson.codec_options import CodecOptions
from doubting import INCREMENT, doubt
from motor.motor_asyncio import AsyncIOMotorClientEncryption
from pymongo import InsertOne, ReturnDocument, UpdateOne, monitoring
from pymongo.asynchronous.encryption import AsyncClientEncryption
from pymongo.encryption import Algorithm
from pymongo.encryption_options import AutoEncryptionOpts
from pymongo.errors import EncryptionError, InvalidOperation

from aioretry import DeadlineExceeded, RetryClient, deadline, resolve
from aioretry._faces import settled

ONLY_DECRYPTS, ENCRYPTS = "bypass_auto_encryption", "bypass_query_analysis"
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


@pytest.fixture(params=[ONLY_DECRYPTS, ENCRYPTS])
async def encrypting(request, replica_set, collection, providers, sent, client_class):
    """A collection of a client that decrypts, and in the second case encrypts; both without
    analysing queries, which takes a server of MongoDB Enterprise."""
    options = AutoEncryptionOpts(
        providers, f"{collection.database.name}.keys", **{request.param: True}
    )
    uri = replica_set.uri
    async with client_class(uri, auto_encryption_opts=options, event_listeners=[sent]) as client:
        yield client[collection.database.name][collection.name]


@pytest.fixture
async def keys(client, collection, providers):
    """What encrypts and decrypts explicitly, by keys that a client of ours keeps."""
    is_motors = isinstance(client, RetryClient)
    kind = AsyncIOMotorClientEncryption if is_motors else AsyncClientEncryption
    vault = f"{collection.database.name}.keys"
    async with kind(providers, vault, client, CodecOptions()) as keys:
        yield keys


@pytest.fixture
async def secret(keys):
    """A value, encrypted."""
    return await keys.encrypt("secret", DETERMINISTIC, key_id=await keys.create_data_key("local"))


def encrypts(request):
    """Tell whether the test's client encrypts by itself."""
    return ENCRYPTS in request.node.name


def find_and_increment(collection):
    """A write that can't be done twice unseen, and whose answer has to be decrypted."""
    return collection.find_one_and_update({"_id": 1}, INCREMENT)


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
    assert (3 if encrypts(request) else 1) == len(sent.commands)
    assert 3 == await encrypting.count_documents({})


async def test_inserts_that_would_travel_together(encrypting, sent, secret, stored, request):
    """Those of a client that encrypts by itself travel alone."""
    view = encrypting.coalesced()
    await asyncio.gather(*(view.insert_one({"_id": n, "s": secret}) for n in range(3)))
    assert (3 if encrypts(request) else 1) == len(sent.commands)
    assert [Binary(bytes(secret), 6)] * 3 == [each["s"] for each in stored.find()]


async def test_a_key_that_is_made(replica_set, collection, keys, plain):
    """The key vault's client is ours: a key is made once, though its answer is lost."""
    vault = plain[collection.database.name].keys
    before = vault.count_documents({})
    lost = replica_set.faults.drop_reply("insert", namespace=f"{vault.database.name}.keys")
    async with lost:
        key = await keys.create_data_key("local", key_alt_names=[collection.name])
    assert before + 1 == vault.count_documents({})
    secret = await keys.encrypt("secret", DETERMINISTIC, key_alt_name=collection.name)
    assert ("secret", key) == (await keys.decrypt(secret), (await keys.get_key(key))["_id"])


@pytest.fixture
async def seeded(collection, encrypting, secret):
    """The collection with a document, whose key has not been asked for."""
    await collection.insert_one({"_id": 1, "s": secret, "n": 0})
    return encrypting


STAGES = {
    "encrypting": ("listCollections", {}),
    "sent": ("findAndModify", {}),
    "answered": ("findAndModify", {"applied": True}),
    "decrypting": ("find", {"namespace": "aioretry_tests.keys"}),
}


def at(cases):
    """Test with each of these kinds of clients and stages."""
    return pytest.mark.parametrize(("encrypting", "stage"), cases, indirect=["encrypting"])


LEFT = [(ENCRYPTS, stage) for stage in STAGES] + [(ONLY_DECRYPTS, "decrypting")]


@at(LEFT)
@pytest.mark.parametrize("way", ["cancelled", "too late"])
async def test_a_write_that_is_left(way, stage, replica_set, seeded, stored):
    """Wherever it is just then, its outcome is unknown, and can be found out."""
    command, where = STAGES[stage]
    held = replica_set.faults.hang(command, times=None, **where)

    async def cancel():
        write = asyncio.ensure_future(find_and_increment(seeded))
        await held.wait_until_fired()
        write.cancel()
        await write

    async def be_late():
        async with deadline(0.5):
            await find_and_increment(seeded)

    if way == "cancelled":
        exc = await doubt(held, cancel, asyncio.CancelledError)
    else:
        exc = await doubt(held, be_late, DeadlineExceeded)
    assert {"_id": 1, "s": "secret", "n": 0} == await resolve(exc, 60)
    assert 1 == stored.find_one()["n"]


@at([(ENCRYPTS, "encrypting"), (ENCRYPTS, "decrypting"), (ONLY_DECRYPTS, "decrypting")])
async def test_what_is_needed_for_it_fails(stage, replica_set, seeded, stored):
    """No error of the collections' options or of the key vault is taken for the write's own."""
    command, where = STAGES[stage]
    fault = replica_set.faults.error(13, command, times=None, **where)
    exc = await doubt(fault, lambda: find_and_increment(seeded), EncryptionError)
    assert {"_id": 1, "s": "secret", "n": 0} == await resolve(exc, 60)
    assert 1 == stored.find_one()["n"]


async def test_resolved_anew(replica_set, seeded, stored):
    """Resolving a write encrypts it anew, and decrypts what it is answered."""
    lost = replica_set.faults.drop_reply("findAndModify", times=2)
    exc = await doubt(lost, lambda: find_and_increment(seeded))
    assert {"_id": 1, "s": "secret", "n": 0} == await resolve(exc, 60)
    assert 1 == stored.find_one()["n"]


async def test_closed_before_the_answer(replica_set, seeded, stored):
    """What refuses to decrypt an answer says nothing of the write."""
    held = replica_set.faults.hang("findAndModify", applied=True)

    async def close():
        write = asyncio.ensure_future(find_and_increment(seeded))
        await held.wait_until_fired()
        await settled(seeded.database.client.delegate._encrypter.close())
        held.disarm()
        await write

    await doubt(held, close, InvalidOperation)
    assert 1 == stored.find_one()["n"]
