"""What the tests of attempts on the event loop share: who decodes a reply, and PyMongo's pools."""

import asyncio
import contextvars
import threading

import pymongo
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.int64 import Int64
from pymongo import ReturnDocument, monitoring

PYMONGO = tuple(int(part) for part in pymongo.version.split(".")[:2])
TENANT = contextvars.ContextVar("TENANT")


class Silent(monitoring.CommandListener, monitoring.ConnectionPoolListener):
    """A listener that does nothing; threads make the attempts, as those of pools may block."""

    def started(self, event):
        pass

    succeeded = failed = started
    pool_created = pool_ready = pool_cleared = pool_closed = started
    connection_created = connection_ready = connection_closed = started
    connection_check_out_started = connection_check_out_failed = started
    connection_checked_out = connection_checked_in = started


class Noting(TypeDecoder):
    """A user's decoder, which notes the threads and the contexts that it is called in."""

    bson_type = Int64

    def __init__(self):
        self.threads = set()
        self.tenants = []
        self.error = None

    def transform_bson(self, value):
        self.threads.add(threading.get_ident())
        self.tenants.append(TENANT.get(None))
        if self.error is not None:
            raise self.error
        return int(value)

    def decode(self, collection):
        """The collection, decoded by this."""
        registry = TypeRegistry([self])
        return collection.with_options(codec_options=CodecOptions(type_registry=registry))


def increment(collection, **options):
    """A write whose reply holds a 64-bit integer, once the document does."""
    return collection.find_one_and_update(
        {"_id": 1}, {"$inc": {"n": 1}}, return_document=ReturnDocument.AFTER, **options
    )


async def seed(collection):
    """Insert what is incremented, and leave an idle connection."""
    await collection.update_one({"_id": 1}, {"$set": {"n": Int64(0)}}, upsert=True)


async def is_made_by_the_loop(collection):
    """Tell whether the event loop makes a write's attempt itself."""
    noting = Noting()
    await increment(noting.decode(collection))
    (thread,) = noting.threads
    return thread == threading.get_ident()


def pools(client):
    """PyMongo's pools of connections."""
    return [server.pool for server in client.delegate._topology._servers.values()]


def held(pool):
    """What a pool counts as in use; it goes back to zero."""
    # PyMongo before 4.20 does not take back what it has counted for a connection that it could not
    # open.
    contexts = [one for one in pool.active_contexts if not getattr(one, "cancelled", False)]
    operations = pool.operation_count if PYMONGO >= (4, 20) else 0
    return pool.requests, pool.active_sockets, operations, len(contexts)


async def all_given_back(client):
    """Wait until no connection is in use or kept for the next write."""
    async with asyncio.timeout(60):
        while any(any(held(pool)) for pool in pools(client)):
            await asyncio.sleep(0.005)


def under_way(client):
    """How many attempts are under way."""
    return len(client._write_path.coordinator().pending._under_way)


async def none_under_way(client):
    """Wait until no attempt is under way."""
    async with asyncio.timeout(60):
        while under_way(client):
            await asyncio.sleep(0.005)
