"""Closing a client, ending the interpreter and forking, while writes are under way."""

import asyncio
import contextlib
import os
import signal
import threading

import pytest
from pymongo.errors import InvalidOperation

from aioretry import Outcome, RetryClient, attempts_of, deadline, outcome_of, thread_counts

THREADS = 4
WRITES = 40
NOBODY = "mongodb://127.0.0.1:1/?replicaSet=none"


@pytest.fixture
def things(replica_set, collection):
    """The collection, of a client of few threads that the test closes."""
    client = RetryClient(replica_set.uri, max_concurrent_attempts=THREADS)
    yield client[collection.database.name][collection.name]
    client.close()


@contextlib.asynccontextmanager
async def leaving(client):
    """Leave the client's block at the end."""
    async with client:
        yield


@contextlib.asynccontextmanager
async def calling_close(client):
    """Call close() at the end."""
    yield
    client.close()


both_ways = pytest.mark.parametrize("closing", [leaving, calling_close])


async def threads_end(client):
    """Wait until the client has no thread of its own any more."""
    async with asyncio.timeout(60):
        while thread_counts(client).threads or client._driver._prober._thread is not None:
            await asyncio.sleep(0.01)


async def outcomes_of(writes):
    """How writes ended that were cut off by the closing; each says so."""
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*writes, return_exceptions=True)
    assert {InvalidOperation} == {type(error) for error in ended}
    assert all("close" in str(error) for error in ended)
    return [outcome_of(error) for error in ended]


@both_ways
@pytest.mark.parametrize("seconds", [None, 60])
async def test_while_writes_wait_for_a_server(closing, seconds):
    """They end at once, not applied, with nothing tried."""
    client = RetryClient(NOBODY)
    async with closing(client):
        async with deadline(seconds):
            writes = [client.db.things.insert_one({}) for _ in range(WRITES)]
        waits = client._write_path.coordinator().waits
        while f"waiting={WRITES}" not in repr(waits._selections[""]):
            await asyncio.sleep(0)
    assert [Outcome.NOT_APPLIED] * WRITES == await outcomes_of(writes)
    await threads_end(client)


@both_ways
@pytest.mark.parametrize("seconds", [None, 60])
async def test_while_writes_hang_and_queue(replica_set, things, closing, seconds):
    """Those that were sent are in doubt after two seconds, those in the queue are not applied."""
    client = things.database.client
    async with replica_set.faults.hang("insert", times=THREADS) as hang:
        async with closing(client):
            async with deadline(seconds):
                writes = [things.insert_one({"_id": n}) for n in range(WRITES)]
            await hang.wait_until_fired(THREADS, timeout=60)
        outcomes = await outcomes_of(writes)
        await threads_end(client)
    assert THREADS == outcomes.count(Outcome.UNKNOWN)
    assert WRITES - THREADS == outcomes.count(Outcome.NOT_APPLIED)


@pytest.mark.usefixtures("three_members")
async def test_at_a_frozen_primary(replica_set, things):
    """A server that stands still holds up neither the writes nor the threads."""
    client = things.database.client
    await things.insert_one({"_id": "before"})
    await replica_set.freeze(await replica_set.primary())
    write = things.insert_one({"_id": 1})
    while not write._pending._call.token.is_sending:
        await asyncio.sleep(0.001)
    client.close()
    with pytest.raises(InvalidOperation, match="closed before the server answered") as caught:
        await asyncio.wait_for(write, 60)
    (attempt,) = attempts_of(caught.value)
    assert (Outcome.UNKNOWN, True) == (outcome_of(caught.value), attempt.sent)
    await threads_end(client)


@both_ways
async def test_an_answer_after_close_counts(replica_set, things, stored, closing):
    """A write that was sent has time for its answer, and is applied."""
    async with replica_set.faults.hang("insert", applied=True) as hang:
        async with closing(things.database.client):
            write = things.insert_one({"_id": 1})
            await hang.wait_until_fired(timeout=60)
        assert not write.done()
    assert 1 == (await asyncio.wait_for(write, 60)).inserted_id
    assert [{"_id": 1}] == list(stored.find())
    await threads_end(things.database.client)


async def test_while_a_retry_is_due(replica_set, things):
    """An attempt that fails after close() is not made again, and the error tells what it was."""
    hang = replica_set.faults.hang("insert")
    lost = replica_set.faults.drop_reply("insert")
    async with deadline(60):
        write = things.insert_one({"_id": 1})
    await hang.wait_until_fired(timeout=60)
    things.database.client.close()
    hang.disarm()
    await lost.wait_until_fired(timeout=60)
    assert [Outcome.UNKNOWN] == await outcomes_of([write])
    replica_set.faults.verify()


async def test_after_a_cancellation(replica_set, things):
    """The thread of a write that was cancelled ends, too."""
    async with replica_set.faults.hang("insert") as hang:
        write = things.insert_one({"_id": 1})
        await hang.wait_until_fired(timeout=60)
        write.cancel()
        things.database.client.close()
        await threads_end(things.database.client)


async def test_from_another_thread(replica_set, things):
    """close() may be called from any thread."""
    async with replica_set.faults.hang("insert") as hang:
        write = things.insert_one({"_id": 1})
        await hang.wait_until_fired(timeout=60)
        closing = threading.Thread(target=things.database.client.close)
        closing.start()
        await asyncio.to_thread(closing.join)
        assert [Outcome.UNKNOWN] == await outcomes_of([write])


ENDING = """
import asyncio, os, signal, sys, time
from aioretry import RetryClient, thread_counts

way, uri, name, pid = sys.argv[1:]

async def main():
    global client
    client = RetryClient(uri, max_concurrent_attempts=4)
    things = client.aioretry_tests[name]
    async with asyncio.timeout(60):
        await things.insert_one({})
    os.kill(int(pid), signal.SIGSTOP)
    writes = [things.insert_one({}) for _ in range(20)]
    for write in writes:  # nobody awaits some, and they may end before the loop does
        write.add_done_callback(lambda write: write.cancelled() or write.exception())
    while not all(write._pending._call.token.is_sending for write in writes[:1]):
        await asyncio.sleep(0)
    if way == "closed":
        client.close()
    elif way == "closed and awaited":
        client.close()
        await asyncio.gather(*writes, return_exceptions=True)

asyncio.run(main())
print(time.monotonic())
"""


@pytest.mark.parametrize("way", ["closed", "closed and awaited", "not closed"])
async def test_the_interpreter_ends(replica_set, collection, run_script, way):
    """With a write in the air at a frozen primary, the interpreter does not hang."""
    await collection.insert_one({})
    primary = await replica_set.primary()
    arguments = (way, replica_set.uri, collection.name, str(primary.pid))
    try:
        # PyMongo, too, warns of a client that was not closed.
        await asyncio.to_thread(run_script, ENDING, *arguments, ignoring=["Unclosed"])
    finally:
        os.kill(primary.pid, signal.SIGCONT)


FORKING = """
import asyncio, faulthandler, os, signal, sys
from pymongo.errors import InvalidOperation
from aioretry import Outcome, RetryClient, outcome_of, thread_counts

uri, name = sys.argv[1:]

def in_a_child(function):
    child = os.fork()
    if not child:
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(60)
        try:
            function()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return child

def ended_well(child):
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def insert(client, number):
    async with asyncio.timeout(60):
        await client.aioretry_tests[name].insert_one({"_id": number})
"""

BEFORE_ITS_USE = (
    FORKING
    + """
client = RetryClient(uri)

def use(number):
    asyncio.run(insert(client, number))
    client.close()

child = in_a_child(lambda: use(1))
use(2)
ended_well(child)
"""
)

MEANWHILE = (
    FORKING
    + """
def own():
    async def main():
        async with RetryClient(uri) as client:
            assert 0 == thread_counts(client).threads
            await insert(client, 1)
    asyncio.run(main())

def inherited():
    async def main():
        try:
            await insert(client, 2)
        except InvalidOperation as exc:
            assert "another event loop" in str(exc), exc
            assert "one client for each event loop" in str(exc), exc
        else:
            raise AssertionError("it went through")
    asyncio.run(main())
    client.close()

async def main():
    global client
    async with RetryClient(uri, max_concurrent_attempts=4) as client:
        stopped = False

        async def count(number):
            done = 0
            while not stopped:
                async with asyncio.timeout(60):
                    await client.aioretry_tests[name].update_one(
                        {"_id": f"counter {number}"}, {"$inc": {"n": 1}}, upsert=True
                    )
                done += 1
            return done

        writers = [asyncio.create_task(count(number)) for number in range(8)]
        while not thread_counts(client).queued:
            await asyncio.sleep(0)
        children = [in_a_child(function) for function in (own, *[inherited] * 5)]
        await asyncio.gather(*(asyncio.to_thread(ended_well, child) for child in children))
        stopped = True
        counted = await asyncio.gather(*writers)
        async for found in client.aioretry_tests[name].find({"_id": {"$ne": 1}}):
            assert found["n"] == counted[int(found["_id"].split()[1])], (found, counted)

asyncio.run(main())
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
class TestForking:
    IGNORING = ("This process:DeprecationWarning",)  # is multi-threaded, says Python from 3.12 on

    async def test_before_its_first_use(self, replica_set, collection, stored, run_script):
        """A client that was made before a fork works in the child and in the parent."""
        await asyncio.to_thread(
            run_script, BEFORE_ITS_USE, replica_set.uri, collection.name, ignoring=self.IGNORING
        )
        assert {1, 2} == {document["_id"] for document in stored.find()}

    async def test_while_writes_are_under_way(self, replica_set, collection, stored, run_script):
        """A child shares nothing of its parent's client, and the parent's writes are exact."""
        await asyncio.to_thread(
            run_script, MEANWHILE, replica_set.uri, collection.name, ignoring=self.IGNORING
        )
        assert 1 == stored.count_documents({"_id": 1})
