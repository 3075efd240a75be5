"""Large messages, and messages in pieces, over connections that the event loop uses itself."""

import asyncio
import contextlib
import struct

import bson
import pytest
from pymongo import ReturnDocument

from aioretry import DeadlineExceeded, Outcome, RetryClient, deadline, outcome_of
from aioretry.testing import ScriptedServer
from tests.integration.looping import all_given_back, increment, seed

LARGE = 12 * 1024 * 1024


async def test_large_documents(client, collection):
    """A document of 12 MB goes and comes back while small writes go on."""
    await seed(collection)
    done = asyncio.Event()

    async def count():
        written = 0
        while not done.is_set():
            await increment(collection)
            written += 1
        return written

    counting = asyncio.create_task(count())
    await collection.insert_one({"_id": 2, "data": bytes(LARGE)})
    found = await collection.find_one_and_update(
        {"_id": 2}, {"$set": {"data": b"x" * LARGE}}, return_document=ReturnDocument.AFTER
    )
    done.set()
    assert b"x" * LARGE == found["data"]
    assert await counting == (await collection.find_one({"_id": 1}))["n"]
    await all_given_back(client)


async def test_trickling(replica_set, client, collection):
    """Replies that come in pieces are put together."""
    await seed(collection)
    async with replica_set.faults.slow(4000, "findAndModify", namespace=collection.full_name):
        writes = [increment(collection) for _ in range(3)]
        async with asyncio.timeout(60):
            found = await asyncio.gather(*writes)
    assert {1, 2, 3} == {document["n"] for document in found}


@pytest.mark.parametrize("size", [250_000, LARGE])
async def test_stuck_in_sending(replica_set, collection, stored, size):
    """A write that a narrow line holds up is in doubt; it arrives once its client got rid of it."""
    await seed(collection)
    async with replica_set.faults.throttle(100_000):
        with pytest.raises(DeadlineExceeded) as caught:
            async with deadline(1.0):
                await collection.insert_one({"_id": 2, "data": bytes(size)})
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        assert 0 == stored.count_documents({"_id": 2})
    if size < LARGE:
        async with asyncio.timeout(60):
            while not stored.count_documents({"_id": 2}):
                await asyncio.sleep(0.02)
    await increment(collection)


class Hasty:
    """A relay that answers a large message before it has read it to its end.

    Args:
        port: Where the server listens.
    """

    def __init__(self, port):
        self._port = port
        self._links = []
        self._server = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc_info):
        """Wait until its clients have gone."""
        self._server.close()
        await asyncio.gather(*self._links)

    @property
    def uri(self):
        host, port = self._server.sockets[0].getsockname()
        return f"mongodb://{host}:{port}"

    def _accept(self, reader, writer):
        self._links.append(asyncio.create_task(self._relay(reader, writer)))

    async def _relay(self, reader, writer):
        upstream, server = await asyncio.open_connection("127.0.0.1", self._port)
        replies = asyncio.create_task(pump(upstream, writer))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header = await reader.readexactly(16)
                length, request_id = struct.unpack_from("<ii", header)
                if length > LARGE:
                    writer.write(reply(request_id))
                server.write(header + await reader.readexactly(length - 16))
        for end in (server, writer):
            end.close()
            with contextlib.suppress(ConnectionError):
                await end.wait_closed()
        await replies


async def pump(source, target):
    """Pass on what comes."""
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65536):
            target.write(data)


def reply(request_id):
    """Build the reply to an insert."""
    document = bson.encode({"ok": 1.0, "n": 1})
    return struct.pack("<iiiiIB", 21 + len(document), 1, request_id, 2013, 0, 0) + document


async def test_an_answer_that_comes_too_soon():
    """A connection that holds half a message is not used for the next one."""
    async with ScriptedServer(kind="mongos") as server, Hasty(server.port) as relay:
        server.answer("insert", {"n": 1})
        async with RetryClient(relay.uri) as client:
            for _ in range(3):
                await client.db.things.insert_one({"_id": 1})
                await client.db.things.insert_one({"_id": 2, "data": bytes(LARGE)})
            await all_given_back(client)
    assert [1, 1, 1] == [request.command["documents"][0]["_id"] for request in server.requests]
