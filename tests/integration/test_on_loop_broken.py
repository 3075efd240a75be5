"""Connections that break or talk nonsense, under attempts that the event loop makes itself."""

import asyncio
import struct
import threading
from collections import Counter, deque

import pytest
from bson.errors import InvalidBSON
from pymongo import monitoring
from pymongo.errors import AutoReconnect, NetworkTimeout, OperationFailure, ProtocolError

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    attempts_of,
    deadline,
    outcome_of,
)
from aioretry._drivers.engine import checkup
from aioretry._drivers.motor import asking
from aioretry._drivers.threads import Job
from aioretry.testing import ScriptedServer
from aioretry.testing._wire import reply_of
from tests.integration.looping import (
    Silent,
    all_given_back,
    increment,
    none_under_way,
    pools,
    seed,
    under_way,
)


class Descriptions(monitoring.ServerListener):
    """Remembers which servers PyMongo took for lost."""

    def __init__(self):
        self.lost = set()

    def opened(self, event):
        pass

    def closed(self, event):
        pass

    def description_changed(self, event):
        if event.new_description.server_type_name == "Unknown":
            self.lost.add(event.server_address)


both_ways = pytest.mark.parametrize("listeners", [[], [Silent()]], ids=["loop", "thread"])


class Script:
    """Answers updates: as it is told to, once for each, and well after that."""

    def __init__(self):
        self.steps = deque()
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        step = self.steps.popleft() if self.steps else answer
        step(request)

    @property
    def numbers(self):
        """The transaction numbers of the updates."""
        return [request.command.get("txnNumber") for request in self.requests]


def reply_to(request):
    return bytearray(reply_of(request._message, {"ok": 1.0, "n": 1, "nModified": 1}))


def answer(request):
    request._answer(bytes(reply_to(request)))


def hang_up(request):
    request.hang_up()


def answer_and_hang_up(request):
    answer(request)
    request._send(None)


def ignore(request):
    """Leave it without an answer."""


def break_off(request):
    request._answer(bytes(reply_to(request)[:20]))
    request._send(None)


def tampering(offset, value):
    """Answer with another number in the header."""

    def answer_wrong(request):
        message = reply_to(request)
        struct.pack_into("<i", message, offset, value)
        request._answer(bytes(message))

    return answer_wrong


def answer_with_more(request):
    request._answer(bytes(reply_to(request)) + b"more")


@pytest.fixture
def script():
    return Script()


@pytest.fixture
async def scripted(script):
    """A server that answers updates as the script says."""
    async with ScriptedServer() as server:
        server.answer("update", script)
        yield server


def update(client):
    return client.db.things.update_one({"_id": 1}, {"$inc": {"n": 1}})


class TestNonsense:
    @both_ways
    @pytest.mark.parametrize(
        ("nonsense", "text"),
        [
            (tampering(8, 1), "Got response id 1 but expected"),
            (tampering(12, 2004), "opcode 2004 but expected"),
            (tampering(0, 48_000_001), "Message length .48000001."),
            (tampering(0, 16), "Message length .16."),
        ],
        ids=["id", "opcode", "too long", "too short"],
    )
    async def test_a_wrong_header(self, scripted, script, listeners, nonsense, text):
        """It is an error that is not retried, and the connection is used no more."""
        async with RetryClient(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            script.steps.append(nonsense)
            with pytest.raises(ProtocolError, match=text) as caught:
                await update(client)
            (attempt,) = attempts_of(caught.value)
            assert (True, Outcome.UNKNOWN) == (attempt.sent, outcome_of(caught.value))
            await all_given_back(client)
            assert 1 == (await update(client)).modified_count
            assert 3 == len(script.requests)
            await all_given_back(client)

    @both_ways
    @pytest.mark.parametrize(
        ("nonsense", "error", "text"),
        [
            (tampering(16, 1), ProtocolError, "flag checksumPresent"),
            (tampering(21, 1000), ProtocolError, "section"),
            (tampering(24, 0x19191900), InvalidBSON, "unknown BSON type"),
        ],
        ids=["flag", "size", "type"],
    )
    async def test_a_wrong_body(self, scripted, script, listeners, nonsense, error, text):
        """So it is with a reply that comes whole and can't be read, as PyMongo does it."""
        async with RetryClient(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            await all_given_back(client)
            (pool,) = pools(client)
            (connection,) = pool.conns
            script.steps.append(nonsense)
            with pytest.raises(error, match=text) as caught:
                await update(client)
            (attempt,) = attempts_of(caught.value)
            assert (True, Outcome.UNKNOWN) == (attempt.sent, outcome_of(caught.value))
            await all_given_back(client)
            assert connection.closed
            assert 1 == (await update(client)).modified_count
            assert 3 == len(script.requests)
            await all_given_back(client)

    @both_ways
    async def test_an_answer_of_an_error(self, scripted, script, listeners):
        """It makes sense, and the connection is kept."""
        async with RetryClient(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            await all_given_back(client)
            (pool,) = pools(client)
            (connection,) = pool.conns
            script.steps.append(lambda request: request.fail(8000))
            with pytest.raises(OperationFailure, match="scripted"):
                await update(client)
            await all_given_back(client)
            assert not connection.closed

    async def test_more_than_a_reply(self, scripted, script):
        """What nobody asked for is no reply."""
        async with RetryClient(scripted.uri) as client:
            await update(client)
            script.steps.append(answer_with_more)
            with pytest.raises(ProtocolError, match="less than what came"):
                await update(client)
            await all_given_back(client)


class TestBreaks:
    @both_ways
    @pytest.mark.parametrize("end", [hang_up, break_off])
    async def test_once(self, scripted, script, listeners, end):
        """The same command is sent again, over another connection."""
        async with RetryClient(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            script.steps.append(end)
            assert 1 == (await update(client)).modified_count
            first, lost, again = script.numbers
            assert first < lost == again
            await all_given_back(client)

    @both_ways
    async def test_twice(self, scripted, script, listeners):
        """Without a deadline there is one retry."""
        async with RetryClient(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            script.steps.extend([hang_up, break_off])
            with pytest.raises(AutoReconnect, match="connection closed") as caught:
                await update(client)
            assert Outcome.UNKNOWN is outcome_of(caught.value)
            assert [True, True] == [attempt.sent for attempt in attempts_of(caught.value)]
            await all_given_back(client)
            assert 1 == (await update(client)).modified_count
            assert 4 == len(script.requests)

    async def test_while_it_is_kept(self, scripted, script):
        """A connection that ends between two writes is not used for the next one."""
        async with RetryClient(scripted.uri) as client:
            script.steps.extend([answer_and_hang_up] * 5)
            for _ in range(10):
                await update(client)
            assert 10 == len(script.requests)
            await all_given_back(client)

    async def test_while_it_is_idle(self, scripted, script):
        """All connections end while nobody looks; no write is lost, and none is done twice."""
        async with RetryClient(scripted.uri) as client:
            await asyncio.gather(*(update(client) for _ in range(20)))
            await all_given_back(client)
            last = {request._send: request for request in script.requests}
            assert [] != [request._send(None) for request in last.values()]
            async with asyncio.timeout(60):
                await asyncio.gather(*(update(client) for _ in range(20)))
            assert 40 == len(script.requests)
            assert 40 == len(
                {(r.command["lsid"]["id"], r.command["txnNumber"]) for r in script.requests}
            )
            await all_given_back(client)

    async def test_under_many_writes_at_once(self, replica_set, client, collection):
        """Many connections break together; each write is made exactly once."""
        await seed(collection)
        await asyncio.gather(*(increment(collection) for _ in range(32)))
        fault = replica_set.faults.drop_reply(
            "findAndModify", times=16, namespace=collection.full_name
        )
        async with fault, asyncio.timeout(60):
            found = await asyncio.gather(*(increment(collection) for _ in range(32)))
        assert set(range(33, 65)) == {document["n"] for document in found}
        await all_given_back(client)


async def awaited(future):
    """Await something that is no coroutine."""
    return await future


class TestCheckup:
    async def test_a_server_that_is_well_stays_known(self, replica_set, collection):
        """One broken connection costs one connection: PyMongo hears nothing of it."""
        heard = Descriptions()
        async with RetryClient(replica_set.uri, event_listeners=[heard]) as client:
            things = client[collection.database.name][collection.name]
            await seed(things)
            async with replica_set.faults.hang("findAndModify", times=8) as hang:
                warming = [increment(things) for _ in range(8)]
                await hang.wait_until_fired(8, timeout=60)
            await asyncio.gather(*warming)
            heard.lost.clear()
            opened = [pool.next_connection_id for pool in pools(client)]
            generations = [pool.gen.get_overall() for pool in pools(client)]
            for number in range(3):
                async with replica_set.faults.drop_reply("findAndModify"):
                    assert 9 + number == (await increment(things))["n"]
            assert opened == [pool.next_connection_id for pool in pools(client)]
            assert generations == [pool.gen.get_overall() for pool in pools(client)]
            assert set() == heard.lost
            await all_given_back(client)

    async def test_other_writes_show_it(self, replica_set, client, collection, monkeypatch):
        """A server that goes on answering others is asked nothing."""

        def ask(*_):
            raise AssertionError("the server was asked")

        monkeypatch.setattr(asking, "is_well", ask)
        monkeypatch.setattr(checkup, "_WAIT", 3600)
        await seed(collection)
        is_over = False

        written = Counter()

        async def write_on(number):
            while not is_over:
                await collection.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True)
                written[number] += 1

        async with (
            asyncio.timeout(60),
            # Where no connection is in use, as between two writes, nobody is waited for.
            replica_set.faults.hang("find", namespace=collection.full_name) as hang,
            asyncio.TaskGroup() as others,
        ):
            others.create_task(awaited(collection.find_one()))
            await hang.wait_until_fired()
            for number in range(2, 10):
                others.create_task(write_on(number))
            while len(written) < 8 or min(written.values()) < 5:  # over connections of their own
                await asyncio.sleep(0.01)
            for number in range(1, 6):
                async with replica_set.faults.drop_reply("findAndModify"):
                    assert number == (await increment(collection))["n"]
            is_over = True
            hang.disarm()
        await all_given_back(client)

    @pytest.mark.motor
    async def test_nobody_is_waited_for(self, replica_set, client, collection, monkeypatch):
        """A server is asked also while all threads of the attempts wait for their answers."""
        monkeypatch.setattr(checkup, "_WAIT", 0)
        await seed(collection)
        waits, is_over = threading.Semaphore(0), threading.Event()

        def wait():
            waits.release()
            is_over.wait()

        threads = client._driver._threads
        try:
            for _ in range(threads._size):
                threads.submit(Job(wait))
            for _ in range(threads._size):
                await asyncio.to_thread(waits.acquire)
            async with asyncio.timeout(30), replica_set.faults.drop_reply("findAndModify"):
                assert 1 == (await increment(collection))["n"]
        finally:
            is_over.set()
        await all_given_back(client)

    @pytest.mark.parametrize("is_well", [True, False])
    @pytest.mark.motor
    async def test_a_deadline_that_is_over_first(
        self, replica_set, client, collection, monkeypatch, is_well
    ):
        """The write ends, and PyMongo learns of the server what comes of the question."""
        is_answered = threading.Event()

        def ask(*_):
            is_answered.wait()
            return is_well

        monkeypatch.setattr(asking, "is_well", ask)
        await seed(collection)
        await all_given_back(client)
        generations = [pool.gen.get_overall() for pool in pools(client)]
        try:
            async with deadline(0.5), replica_set.faults.drop_reply("findAndModify"):
                with pytest.raises(DeadlineExceeded, match="connection closed") as caught:
                    await increment(collection)
            assert Outcome.UNKNOWN is outcome_of(caught.value)
            await none_under_way(client)
            assert generations == [pool.gen.get_overall() for pool in pools(client)]
        finally:
            is_answered.set()
        async with asyncio.timeout(60):
            while client._driver._dispatch._checkups.cases:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0)
        assert is_well is (generations == [pool.gen.get_overall() for pool in pools(client)])
        assert 2 == (await increment(collection))["n"]
        await all_given_back(client)

    @pytest.mark.usefixtures("three_members")
    @pytest.mark.parametrize("seconds", [None, 60])
    async def test_a_killed_primary_is_told(self, replica_set, collection, seconds):
        """PyMongo learns of it, and the write is made on the next primary."""
        heard = Descriptions()
        async with RetryClient(replica_set.uri, event_listeners=[heard]) as client:
            things = client[collection.database.name].get_collection(
                collection.name, write_concern=collection.write_concern
            )
            await seed(things)
            await asyncio.gather(*(increment(things) for _ in range(8)))
            primary = await replica_set.primary()
            heard.lost.clear()
            hang = replica_set.faults.hang("findAndModify", namespace=things.full_name)
            async with deadline(seconds):
                write = asyncio.ensure_future(increment(things))
            await hang.wait_until_fired(timeout=60)
            await replica_set.kill(primary)
            hang.disarm()
            async with asyncio.timeout(60):
                assert 9 == (await write)["n"]
            assert (primary.host, primary.port) in heard.lost
            await all_given_back(client)


class TestTimeouts:
    @both_ways
    async def test_of_the_socket(self, scripted, script, listeners):
        """``socketTimeoutMS`` ends an attempt, which is repeated."""
        async with RetryClient(
            scripted.uri, event_listeners=listeners, socketTimeoutMS=400
        ) as client:
            await update(client)
            script.steps.append(ignore)
            assert 1 == (await update(client)).modified_count
            script.steps.extend([ignore, ignore])
            with pytest.raises(NetworkTimeout, match=r"timed out .*socketTimeoutMS") as caught:
                await update(client)
            assert Outcome.UNKNOWN is outcome_of(caught.value)
            assert 2 == len(attempts_of(caught.value))
            await all_given_back(client)

    @both_ways
    async def test_of_the_deadline(self, scripted, script, listeners):
        """The caller is told that it is not known what became of the write."""
        async with RetryClient(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            script.steps.append(ignore)
            async with deadline(0.5):
                with pytest.raises(DeadlineExceeded, match="timed out") as caught:
                    await update(client)
            assert Outcome.UNKNOWN is outcome_of(caught.value)
            (attempt,) = attempts_of(caught.value)
            assert isinstance(attempt.error, NetworkTimeout)
            await none_under_way(client)
            await all_given_back(client)

    @both_ways
    async def test_of_the_deadline_after_a_cancellation(self, scripted, script, listeners):
        """A write that nobody waits for any more holds up nothing for longer than it may take."""
        async with RetryClient(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            script.steps.append(ignore)
            async with deadline(1):
                write = update(client)
            while len(script.requests) < 2:
                await asyncio.sleep(0.005)
            write.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
            assert Outcome.UNKNOWN is outcome_of(caught.value)
            await none_under_way(client)
            await all_given_back(client)

    async def test_a_cancelled_write_leaves_its_connection_fit(self, scripted, script):
        """The late answer is taken, and the next write goes over the same connection."""
        async with RetryClient(scripted.uri) as client:
            await update(client)
            script.steps.append(ignore)
            write = update(client)
            while len(script.requests) < 2:
                await asyncio.sleep(0.005)
            write.cancel()
            assert 1 == under_way(client)
            answer(script.requests[-1])
            await none_under_way(client)
            opened = [pool.next_connection_id for pool in pools(client)]
            assert 1 == (await update(client)).modified_count
            assert opened == [pool.next_connection_id for pool in pools(client)]

    @both_ways
    @pytest.mark.parametrize("kind", ["standalone", "primary"])
    async def test_of_the_monitor(self, script, listeners, kind):
        """A write that can't be repeated ends when PyMongo's monitor hears nothing any more."""
        async with (
            ScriptedServer(kind=kind) as server,
            RetryClient(
                server.uri,
                event_listeners=listeners,
                connectTimeoutMS=500,
                heartbeatFrequencyMS=500,
                serverSelectionTimeoutMS=1000,
            ) as client,
        ):
            server.answer("update", script)
            await update(client)
            script.steps.append(ignore)
            write = client.db.things.update_many({}, {"$inc": {"n": 1}})
            while len(script.requests) < 2:
                await asyncio.sleep(0.005)
            server.answer("hello", ignore)
            async with asyncio.timeout(60):
                with pytest.raises(AutoReconnect, match="operation cancelled") as caught:
                    await write
            assert Outcome.UNKNOWN is outcome_of(caught.value)
            await all_given_back(client)
