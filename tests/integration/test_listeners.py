"""Command listeners: when, where and in which context they are called; and those that block."""

import asyncio
import contextvars
import logging
import threading

import pytest
from pymongo.errors import AutoReconnect, DuplicateKeyError
from pymongo.monitoring import CommandListener

from aioretry import RetryClient, deadline
from aioretry.pymongo import AsyncRetryClient
from tests.integration.looping import none_under_way

WHOSE = contextvars.ContextVar("WHOSE", default="nobody's")
FACES = {"motor": RetryClient, "asyncio": AsyncRetryClient}


class Heard(CommandListener):
    """Remembers what it was told of some commands, and where."""

    def __init__(self, *names):
        self.names = names
        self.events = []
        self.places = set()
        self.call = lambda _: None

    def started(self, event):
        self.hear("started", event)

    def succeeded(self, event):
        self.hear("succeeded", event)

    def failed(self, event):
        self.hear("failed", event)

    def hear(self, kind, event):
        """Be told of one."""
        if event.command_name in self.names:
            self.events.append((kind, event))
            self.places.add((threading.get_ident(), WHOSE.get()))
            self.call(kind)

    @property
    def kinds(self):
        """What has happened, in its order."""
        return [kind for kind, _ in self.events]


@pytest.fixture
def listener():
    """A listener that hears of updates and reads."""
    return Heard("update", "find")


@pytest.fixture(params=FACES)
async def client(request, replica_set, listener):
    """A client with that listener."""
    async with FACES[request.param](replica_set.uri, event_listeners=[listener]) as client:
        yield client


@pytest.fixture
async def things(client, collection):
    """A collection with a document, and a connection that is idle."""
    things = client[collection.database.name][collection.name]
    await things.insert_one({"_id": 1, "n": 0})
    return things


def increment(things):
    """Write, in a way that can be asked for again."""
    return things.update_one({"_id": 1}, {"$inc": {"n": 1}})


async def test_on_the_loop_in_the_callers_context(things, listener):
    """Each is called where the command is sent, and finds what surrounds its own call."""

    async def call(whose):
        WHOSE.set(whose)
        await increment(things)
        assert 1 == (await things.find_one({}))["_id"]

    await asyncio.gather(*(call(f"caller {number}'s") for number in range(3)))
    here = threading.get_ident()
    assert {(here, f"caller {number}'s") for number in range(3)} == listener.places
    assert 6 == listener.kinds.count("started") == listener.kinds.count("succeeded")


async def test_what_they_are_told(things, listener):
    """An answer of the server, whose connection, and how long it took."""
    await increment(things)
    (_, started), (_, succeeded) = listener.events
    assert {"$inc": {"n": 1}} == started.command["updates"][0]["u"]
    assert things.database.name == started.command["$db"] == started.database_name
    assert things.database.name == succeeded.database_name
    assert 1 == succeeded.reply["nModified"]
    assert succeeded.duration_micros > 0
    same = ("request_id", "operation_id", "connection_id", "server_connection_id", "service_id")
    for name in same:
        assert getattr(started, name) == getattr(succeeded, name), name


async def test_each_attempt_has_its_end(replica_set, things, listener):
    """A lost answer is told as a failure, and the retry as another command."""
    async with replica_set.faults.drop_reply("update"):
        await increment(things)
    assert ["started", "failed", "started", "succeeded"] == listener.kinds
    failed = listener.events[1][1]
    assert "AutoReconnect" == failed.failure["errtype"]
    assert failed.request_id == listener.events[0][1].request_id
    assert listener.events[0][1].operation_id == listener.events[2][1].operation_id


async def test_a_refusal_is_told_as_it_came(replica_set, things, listener):
    """What the server says is what they are told."""
    async with replica_set.faults.error(11000, "update"):
        with pytest.raises(DuplicateKeyError):
            await increment(things)
    assert ["started", "failed"] == listener.kinds
    assert 11000 == listener.events[1][1].failure["code"]


async def test_who_does_not_wait_any_more(replica_set, things, listener):
    """A call that is cancelled, or whose time is over, has its end too."""
    async with replica_set.faults.delay(2.0, "update", times=None) as slow:
        writing = asyncio.ensure_future(increment(things))
        await slow.wait_until_fired(timeout=10.0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        with pytest.raises(AutoReconnect):
            async with deadline(0.2):
                await increment(things)
    async with asyncio.timeout(10):
        while listener.kinds.count("started") > len(listener.kinds) / 2:
            await asyncio.sleep(0.01)
    assert 2 == listener.kinds.count("started")


@pytest.mark.parametrize("kind", ["started", "succeeded"])
async def test_a_listener_that_closes_the_client(client, things, listener, kind):
    """It is in the midst of an attempt, which ends all the same."""

    def close_at(now):
        if now == kind:
            listener.call = lambda _: None
            client._write_path.close(0.1)

    listener.call = close_at
    async with asyncio.timeout(20):
        await asyncio.gather(increment(things), increment(things), return_exceptions=True)
    assert listener.kinds.count("started") == len(listener.kinds) / 2


@pytest.mark.parametrize("call", ["find", "update"])
async def test_a_listener_that_cancels_the_call(replica_set, client, things, listener, call):
    """At its end, however that comes, its place is there for others, and nothing is in trouble."""
    troubles, coordinator = [], client._write_path.coordinator()
    asyncio.get_running_loop().set_exception_handler(lambda _, told: troubles.append(told))

    def begin():
        return asyncio.ensure_future(increment(things) if call == "update" else things.find_one())

    listener.call = lambda kind: kind != "started" and calling.cancel()
    calling = begin()
    await asyncio.wait({calling})
    async with replica_set.faults.drop_reply(call):
        calling = begin()
        await asyncio.wait({calling})
    async with replica_set.faults.hang(call) as hung:
        calling = begin()
        await hung.wait_until_fired(timeout=10.0)
        places = [coordinator.pending, *coordinator.reading.values()]
        (attempt,) = [one for each in places for one in each._under_way if not one.is_over]
        attempt.lose_server()
        await asyncio.wait({calling})
    listener.call = lambda _: None
    await begin()
    await none_under_way(client)
    assert [] == troubles


async def test_what_a_listener_sets(things, listener):
    """It finds it again when the same command ends, and the caller is not concerned."""
    tokens = []
    listener.call = lambda kind: (
        tokens.append(WHOSE.set("the command's"))
        if kind == "started"
        else WHOSE.reset(tokens.pop())
    )
    await increment(things)
    assert ([], "nobody's") == (tokens, WHOSE.get())
    assert {"nobody's", "the command's"} == {whose for _, whose in listener.places}


async def test_time_that_runs_out_in_a_listener(things, listener):
    """Nothing is sent, and what is told is an error of PyMongo's."""
    listener.call = lambda kind: kind == "started" and threading.Event().wait(0.3)
    with pytest.raises(AutoReconnect):
        async with deadline(0.2):
            await increment(things)
    assert ["started", "failed"] == listener.kinds
    assert "AutoReconnect" == listener.events[1][1].failure["errtype"]


def no_thread(_):
    """Start none."""
    raise RuntimeError("can't start new thread")


def warnings_of_listeners(caplog):
    """What the log says of listeners."""
    told = "command listeners (Heard) have kept the event loop"
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if message.startswith(told)]


class TestBlocking:
    async def test_on_threads(self, replica_set, collection):
        """Whoever has a listener that blocks says so, and it is called on threads."""
        listener = Heard("update")
        async with RetryClient(
            replica_set.uri, event_listeners=[listener], listeners_may_block=True
        ) as client:
            await increment(client[collection.database.name][collection.name])
        assert ["started", "succeeded"] == listener.kinds
        assert threading.get_ident() not in {thread for thread, _ in listener.places}

    async def test_one_that_never_returns(self, client, things, listener, caplog):
        """It is told where it is while it is there, by its name; and not each time."""
        told = threading.Event()

        class Hearing(logging.Handler):
            def emit(self, record):
                if "Heard" in record.getMessage():
                    told.set()

        hearing = Hearing()
        logging.getLogger("aioretry").addHandler(hearing)
        listener.call = lambda _: told.wait(60)
        try:
            await increment(things)
        finally:
            logging.getLogger("aioretry").removeHandler(hearing)
        assert told.is_set()
        while_it_is_there, afterwards = warnings_of_listeners(caplog)
        assert "listener.call = lambda _: told.wait(60)" in while_it_is_there
        assert "told.wait" not in afterwards

    async def test_no_thread(self, things, listener, monkeypatch):
        """Without one nobody looks, and the call is made."""
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            await increment(things)
        assert ["started", "succeeded"] == listener.kinds

    async def test_a_slow_one(self, client, things, listener, caplog):
        """What takes longer than 50 ms is told of."""
        listener.call = lambda _: threading.Event().wait(0.06)
        await increment(things)
        (message,) = warnings_of_listeners(caplog)
        assert "listeners_may_block=True" in message
