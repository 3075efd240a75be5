"""Sessions of keys are ended when nobody waits any more, whatever the callers' deadlines were."""

import asyncio
import contextvars
import gc
import secrets
import threading

import pytest
from pymongo.monitoring import CommandListener

from aioretry import deadline
from aioretry.idempotent import Keys, _keys
from tests.idempotent.keyed import NAMESPACE, SECRET, keyed_collection

_REQUEST = contextvars.ContextVar("_REQUEST", default=None)
_DEADLINE = 6.0


class Ended(CommandListener):
    """Counts the sessions that are ended, and notes for which request it was done."""

    def __init__(self):
        self.number = 0
        self.requests = set()

    def started(self, event):
        if event.command_name == "endSessions":
            self.number += len(event.command["endSessions"])
            self.requests.add(_REQUEST.get())

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


@pytest.fixture
def ended():
    return Ended()


@pytest.fixture
async def listened(replica_set, ended, client_class):
    """A client whose commands are listened to."""
    async with client_class(replica_set.uri, event_listeners=[ended]) as client:
        yield client


async def write(collection, key, seconds):
    """Serve a request that has a deadline."""
    _REQUEST.set(key)
    async with deadline(seconds), collection.operation(key=key) as op:
        await op.insert_one({})


async def write_all(collection, keys, number):
    """Serve so many requests, each in a task of its own."""
    requests = [keys(f"key {collection.name} {n}") for n in range(number)]
    await asyncio.gather(*(write(collection, key, _DEADLINE) for key in requests))


async def test_after_the_deadline(listened, collection, ended, monkeypatch):
    """They are ended after a while although the request that began the while is over."""
    monkeypatch.setattr(_keys, "_SECONDS_BEFORE_A_BATCH", _DEADLINE + 0.1)
    keys = Keys(SECRET, NAMESPACE)
    await write_all(keyed_collection(listened, collection.name), keys, 30)
    assert 0 == ended.number
    async with asyncio.timeout(30.0):
        while ended.number < 30:
            await asyncio.sleep(0.02)
    assert (30, {None}) == (ended.number, ended.requests)


async def test_at_the_end(listened, collection, ended):
    """They are ended when the keys are closed, whatever deadline is over by then."""
    keys = Keys(SECRET, NAMESPACE)
    await write_all(keyed_collection(listened, collection.name), keys, 5)
    async with deadline(0.0):
        await keys.close()
    assert 5 == ended.number


@pytest.mark.parametrize("batch", [5, 1], ids=["one that waits", "those under way"])
async def test_at_the_end_without_an_answer(listened, collection, ended, replica_set, batch):
    """A process that ends is not held up by a server that does not answer, or is not there."""
    keys = Keys(SECRET, NAMESPACE, batch=batch)
    with replica_set.faults.hang("endSessions", times=None) as fault:
        await write_all(keyed_collection(listened, collection.name), keys, 4)
        async with asyncio.timeout(5.0):  # half of what a batch may take
            await keys.close()
        await fault.wait_until_fired(timeout=60)
    assert ended.number == 4


async def test_a_full_batch(listened, collection, ended):
    """The request that fills a batch does not lend it its deadline."""
    keys = Keys(SECRET, NAMESPACE, batch=5)
    await write_all(keyed_collection(listened, collection.name), keys, 5)
    await keys.close()
    assert (5, {None}) == (ended.number, ended.requests)


@pytest.mark.parametrize("runs", [True, False], ids=["running", "ended"])
def test_of_another_loop(replica_set, ended, runs, client_class):
    """Keys that are closed on one event loop end no session with the client of another's."""
    keys, name = Keys(SECRET, NAMESPACE), f"c{secrets.token_hex(6)}"
    written, is_over = threading.Event(), threading.Event()
    errors, before_it_is_closed = [], []

    async def serve():
        async with client_class(replica_set.uri, event_listeners=[ended]) as client:
            await write_all(keyed_collection(client, name), keys, 5)
            written.set()
            while runs and not (ended.number and is_over.is_set()):
                await asyncio.sleep(0.01)
            before_it_is_closed.append(ended.number)

    async def close():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, about: errors.append(about))
        await keys.close()
        for _ in range(10):
            await asyncio.sleep(0)
        gc.collect()

    serving = threading.Thread(target=asyncio.run, args=(serve(),))
    serving.start()
    assert written.wait(60)
    if not runs:
        serving.join(60)
    asyncio.run(close())
    is_over.set()
    serving.join(60)
    assert not serving.is_alive()
    assert ([], [5 if runs else 0]) == (errors, before_it_is_closed)
