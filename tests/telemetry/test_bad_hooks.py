"""Hooks that raise what no hook should: every write ends all the same, and is told once."""

import asyncio
import gc
import uuid

import pytest
from bson.codec_options import CodecOptions, TypeRegistry

from aioretry import (
    AttemptEnded,
    OperationBegan,
    OperationEnded,
    Outcome,
    RetryScheduled,
    every_event,
)
from aioretry._faces import settled

INSERTS = 10


class Outburst(BaseException):
    """Neither an Exception nor a cancellation, like what ends a test."""


def inserts(collection, start):
    """Inserts that travel together, and one that travels alone."""
    view = collection.coalesced()
    together = [view.insert_one({"_id": n}) for n in range(start, start + INSERTS)]
    return [*together, collection.insert_one({"_id": start + INSERTS})]


@pytest.mark.parametrize("kind", [OperationBegan, AttemptEnded, OperationEnded])
async def test_any_exception_is_survived(
    kind, replica_set, collection, events, caplog, client_class
):
    """It is logged, whatever it is, and each write has its result."""

    def bad(event):
        if isinstance(event, kind):
            raise Outburst

    hooks = [every_event(bad), every_event(events.append)]
    async with client_class(replica_set.uri, hooks=hooks) as client:
        mine = client[collection.database.name][collection.name]
        results = await asyncio.gather(*inserts(mine, 0))
    assert list(range(INSERTS + 1)) == [result.inserted_id for result in results]
    assert INSERTS + 1 == sum(isinstance(event, OperationEnded) for event in events)
    assert "Outburst" in caplog.text


async def test_of_retries_too(replica_set, collection, client_class):
    """A plain hook can fail no write either."""

    def bad(event):
        raise Outburst

    async with client_class(replica_set.uri, hooks=[bad]) as client:
        mine = client[collection.database.name][collection.name]
        with replica_set.faults.drop_reply("insert", namespace=mine.full_name):
            result = await mine.insert_one({"_id": 1})
    assert 1 == result.inserted_id


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("kind", [AttemptEnded, OperationEnded])
def test_what_ends_the_process(kind, error, shared_set, client_class):
    """It ends the event loop; who runs it again finds that each write has ended."""
    raised, writes, clients = [], [], []
    # Has the task that waits for it, of which the loop alone knows else, and weakly.
    forever = asyncio.Event()

    def bad(event):
        if isinstance(event, kind) and not raised:
            raised.append(event)
            raise error

    async def begin():
        clients.append(client_class(shared_set.uri, hooks=[every_event(bad)]))
        writes.extend(inserts(clients[0].bad_hooks[uuid.uuid4().hex], 0))
        await asyncio.wait(writes)
        await forever.wait()  # until the loop ends

    async def go_on():
        results = await asyncio.gather(*writes)
        await clients[0].drop_database("bad_hooks")
        gc.collect()
        await settled(clients[0].close())
        return results

    with asyncio.Runner() as runner:
        with pytest.raises(error):
            runner.run(begin())
        assert INSERTS + 1 == len(runner.run(go_on()))


async def test_the_same_hook_twice(replica_set, collection, client_class):
    """It is told once."""
    told = []
    hook = told.append
    async with client_class(replica_set.uri, hooks=[hook, hook]) as client:
        mine = client[collection.database.name][collection.name]
        with replica_set.faults.drop_reply("insert", namespace=mine.full_name):
            await mine.insert_one({"_id": 1})
    assert [RetryScheduled] == [type(event) for event in told]


@pytest.mark.parametrize("name", ["insert_one", "coalesced"])
async def test_an_encoder_that_stops(name, free_port, events, client_class):
    """A StopIteration, which no future can hold, ends a write for hooks, too."""

    def encode(_):
        return next(iter(()))

    options = CodecOptions(type_registry=TypeRegistry(fallback_encoder=encode))
    hook = every_event(events.append)
    async with client_class("127.0.0.1", free_port, hooks=[hook]) as client:
        mine = client.db.get_collection("c", options)
        document = {"a": object()}
        calls = {
            "insert_one": lambda: mine.insert_one(document),
            "coalesced": lambda: mine.coalesced().insert_one(document),
        }

        async def call():
            await calls[name]()

        # A coroutine can't raise a StopIteration, and so it is another error here.
        with pytest.raises(RuntimeError, match="StopIteration"):
            await call()
    assert [OperationBegan, OperationEnded] == [type(event) for event in events]
    assert Outcome.NOT_APPLIED is events[-1].outcome


async def test_an_encoder_that_stops_in_a_queue(replica_set, collection, events, client_class):
    """An insert that is encoded later ends with another error, and so do the others."""

    def encode(_):
        return next(iter(()))

    options = CodecOptions(type_registry=TypeRegistry(fallback_encoder=encode))
    hook = every_event(events.append)
    async with client_class(replica_set.uri, hooks=[hook]) as client:
        mine = client[collection.database.name].get_collection(collection.name, options)
        view = mine.coalesced(max_bytes=1)
        good = [view.insert_one({"_id": n}) for n in range(4)]
        bad = view.insert_one({"_id": 4, "a": object()})
        after = view.insert_one({"_id": 5})
        results = await asyncio.gather(*good, bad, after, return_exceptions=True)
    assert RuntimeError is type(results[4])
    assert [0, 1, 2, 3, 5] == [r.inserted_id for r in [*results[:4], results[5]]]
    assert 6 == sum(isinstance(event, OperationEnded) for event in events)
