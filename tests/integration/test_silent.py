"""Reads, cursors and commands at a server that has fallen silent, and at one that has not."""

import asyncio
import logging

import pytest
from pymongo import ReadPreference
from pymongo.errors import AutoReconnect, PyMongoError
from pymongo.write_concern import WriteConcern

from aioretry import deadline
from tests.clients import close

GUARD = 25  # seconds: without aioretry, whoever waits for a frozen server does so for 29 or more
SOME = {"n": {"$lt": 10}}


@pytest.fixture
async def client(replica_set, client_class):
    """A client that is closed when every server is well: PyMongo leaves sockets open otherwise."""
    async with client_class(replica_set.uri) as client:
        yield client
        await replica_set.heal()


@pytest.fixture
async def documents(collection):
    """A collection of documents that fill several batches."""
    await collection.insert_many([{"_id": n, "n": n} for n in range(300)])
    return collection


async def find_one(documents):
    return (await documents.find_one({"_id": 1}))["n"]


async def count(documents):
    return await documents.count_documents(SOME)


async def estimate(documents):
    return await documents.estimated_document_count()


async def distinct(documents):
    return len(await documents.distinct("n", SOME))


async def first_batch(documents):
    return len(await documents.find(SOME).to_list(None))


async def aggregate(documents):
    cursor = documents.aggregate([{"$match": SOME}])
    cursor = await cursor if asyncio.iscoroutine(cursor) else cursor
    return len([one async for one in cursor])


READS = {find_one: 1, count: 10, estimate: 300, distinct: 10, first_batch: 10, aggregate: 10}


async def read_through(documents, freeze):
    """Read in all ways until a member is frozen, and once more; return what was read last."""
    is_frozen = asyncio.Event()
    begun = {read: asyncio.Event() for read in READS}

    async def again(read):
        while not is_frozen.is_set():
            await read(documents)
            begun[read].set()
        return await read(documents)

    async with asyncio.timeout(GUARD), asyncio.TaskGroup() as group:
        tasks = {read: group.create_task(again(read)) for read in READS for _ in range(3)}
        for each in begun.values():
            await each.wait()
        await freeze
        is_frozen.set()
    return {read: task.result() for read, task in tasks.items()}


@pytest.mark.usefixtures("three_members")
@pytest.mark.parametrize("who", ["primary", "secondary"])
async def test_reads_go_on_elsewhere(replica_set, documents, who, caplog):
    if who == "primary":
        member = await replica_set.primary()
    else:
        documents = documents.with_options(read_preference=ReadPreference.SECONDARY_PREFERRED)
        member = (await replica_set.secondaries())[0]
        everywhere = documents.with_options(write_concern=WriteConcern(w=3))
        await everywhere.update_one({"_id": 1}, {"$set": {"is_everywhere": True}})
    with caplog.at_level(logging.WARNING, "aioretry"):
        assert READS == await read_through(documents, replica_set.freeze(member))


async def test_a_cursor_that_dies_between_batches_says_so(replica_set, documents):
    cursor = documents.find(batch_size=10)
    await anext(cursor)
    await replica_set.freeze(await replica_set.primary())
    with pytest.raises(AutoReconnect) as caught:
        async with asyncio.timeout(GUARD):
            await cursor.to_list(None)
    assert "between two batches" in caught.value.__notes__[0]


async def test_a_command_that_is_not_repeated_is_freed(replica_set, client):
    await client.admin.command("ping")
    await replica_set.freeze(await replica_set.primary())
    with pytest.raises(AutoReconnect, match="connection closed"):
        async with asyncio.timeout(GUARD):
            await client.admin.command("ping")


@pytest.mark.usefixtures("three_members")
async def test_who_connects_to_a_silent_server_is_freed(replica_set, client):
    await client.admin.command("ping")
    await replica_set.freeze(await replica_set.primary())
    async with asyncio.timeout(GUARD):
        came = await asyncio.gather(
            *(client.admin.command("ping") for _ in range(20)), return_exceptions=True
        )
    assert {AutoReconnect} <= {type(one) for one in came} <= {AutoReconnect, dict}


async def sleep_there(client, milliseconds):
    body = f"function() {{ sleep({milliseconds}); return 1; }}"
    asleep = {"$project": {"_id": 0, "n": {"$function": {"body": body, "args": [], "lang": "js"}}}}
    database = client.aioretry_tests
    await database.asleep.replace_one({"_id": 1}, {}, upsert=True)
    reply = await database.command("aggregate", "asleep", pipeline=[asleep], cursor={})
    return reply["cursor"]["firstBatch"]


async def test_a_slow_command_is_not_taken_for_silence(replica_set, client_class, caplog):
    async with client_class(replica_set.uri, doubt_after=0.5) as client:
        with caplog.at_level(logging.WARNING, "aioretry"):
            assert [{"n": 1}] == await sleep_there(client, 4000)
    assert not caplog.records


async def test_a_short_time_to_connect_hides_no_silence(replica_set, client_class, caplog):
    """PyMongo takes it for the time that its own questions have, too."""
    async with client_class(replica_set.uri, connectTimeoutMS=1500) as client:
        await client.admin.command("ping")
        await replica_set.freeze(await replica_set.primary())
        with caplog.at_level(logging.WARNING, "aioretry"), pytest.raises(AutoReconnect):
            async with asyncio.timeout(GUARD):
                await client.admin.command("ping")
    assert "the server is silent" in caplog.text


async def test_a_client_that_is_closed_asks_nobody(replica_set, client_class):
    client = client_class(replica_set.uri)
    await sleep_there(client, 1000)
    pools = [*client._driver._watch._pools.values()]
    await close(client)
    assert [0] == [len(pool.conns) for pool in pools]


async def test_reads_do_not_wait_behind_others_when_their_deadline_is_over(
    replica_set, documents, client
):
    """Motor has few threads for the whole process."""
    await replica_set.freeze(await replica_set.primary())
    others = [asyncio.ensure_future(first_batch(documents)) for _ in range(60)]
    loop = asyncio.get_running_loop()
    try:
        for read in READS:
            began = loop.time()
            with pytest.raises(PyMongoError) as caught:
                async with deadline(0.3):
                    await read(documents)
            assert loop.time() - began < 1.5
            assert caught.value.timeout
    finally:
        await replica_set.heal()
        await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.parametrize("seconds", [0, -1, "3", None, float("nan")])
def test_the_limit_must_be_a_time(client_class, seconds):
    with pytest.raises((TypeError, ValueError), match="doubt_after"):
        client_class("mongodb://localhost", doubt_after=seconds)
