"""Writes over encrypted connections, which the event loop makes itself as well."""

import asyncio
import contextvars
import gc
import threading
import weakref

import pytest
from bson.codec_options import TypeDecoder, TypeRegistry

from aioretry import RetryClient, connection_counts
from aioretry.testing import ReplicaSet, find_mongod
from tests.encrypted import certificates, with_tls

LARGE = "x" * 12_000_000


class Noting(TypeDecoder):
    """Notes which thread decodes."""

    bson_type = str

    def __init__(self):
        self.threads = set()

    def transform_bson(self, value):
        self.threads.add(threading.get_ident())
        return value


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A folder with an authority's certificate, and a server's that it has signed."""
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def encrypted(authority):
    """A replica set that takes encrypted connections."""
    mongod = with_tls(find_mongod(), authority, "--tlsAllowConnectionsWithoutCertificates")
    with ReplicaSet(members=1, mongod=mongod) as replica_set:
        yield replica_set


@pytest.fixture
async def client(encrypted, authority, client_class):
    """A client that encrypts."""
    certificate = str(authority / "ca.pem")
    async with client_class(encrypted.uri, tls=True, tlsCAFile=certificate) as client:
        await client.drop_database("tls")
        yield client


async def test_no_thread_is_needed(client):
    """The event loop's thread decodes the answers."""
    decoder = Noting()
    options = client.tls.plain.codec_options.with_options(type_registry=TypeRegistry([decoder]))
    plain = client.tls.plain.with_options(codec_options=options)
    await plain.insert_one({"_id": 1, "text": "a"})
    decoder.threads.clear()

    await plain.find_one_and_update({"_id": 1}, {"$set": {"text": "b"}})
    assert {threading.get_ident()} == decoder.threads


async def test_large_messages(client):
    """A document of 12 MB goes and comes, while others do too."""
    large = client.tls.large
    await asyncio.gather(
        large.insert_one({"_id": "large", "text": LARGE}),
        *(large.insert_one({"_id": n}) for n in range(50)),
    )
    found, *_ = await asyncio.gather(
        large.find_one_and_update({"_id": "large"}, {"$set": {"n": 1}}),
        *(large.update_one({"_id": n}, {"$inc": {"n": 1}}) for n in range(50)),
    )
    assert LARGE == found["text"]
    assert 50 == await large.count_documents({"n": 1, "_id": {"$type": "int"}})


async def test_a_connection_keeps_nobodys_context(client):
    """What the request was that had it opened is forgotten, however long it is used."""

    class Request:
        """What a service has in a context variable."""

    async def serve():
        request = Request()
        of_request.set(request)
        await asyncio.gather(*(client.tls.served.insert_one({}) for _ in range(10)))
        return weakref.ref(request)

    of_request = contextvars.ContextVar("request")
    await client.tls.served.insert_one({})
    known = await asyncio.create_task(serve())
    assert sum(counts.idle + counts.used for counts in connection_counts(client).values()) > 1
    async with asyncio.timeout(20):
        while known() is not None:
            await asyncio.sleep(0.05)
            gc.collect()


async def test_the_connection_is_motors_too(encrypted, authority):
    """A connection that the loop has used can be read over by a thread, and used again."""
    certificate = str(authority / "ca.pem")
    async with RetryClient(encrypted.uri, tls=True, tlsCAFile=certificate, maxPoolSize=1) as client:
        shared = client.tls.shared
        for n in range(20):
            await shared.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
            assert n + 1 == (await shared.find_one({"_id": 1}))["n"]


async def test_broken_connections(encrypted, client):
    """Writes go on after the server was killed and started again."""
    broken = client.tls.broken
    await asyncio.gather(*(broken.insert_one({"_id": n}) for n in range(20)))
    member = await encrypted.primary()
    await encrypted.kill(member)
    await encrypted.restart(member)
    await asyncio.gather(*(broken.update_one({"_id": n}, {"$inc": {"n": 1}}) for n in range(20)))
    assert 20 == await broken.count_documents({"n": 1})
