"""Deadlines that leave next to no time, and such as no server can count."""

import contextlib
import time

import pytest
from pymongo import message
from pymongo.errors import AutoReconnect

from aioretry import DeadlineExceeded, Outcome, deadline, outcome_of, resolve
from aioretry._drivers.engine.attempt import LoopAttempt
from aioretry._drivers.motor import on_thread
from aioretry._drivers.pymongo_async import jobs
from aioretry.testing import ScriptedServer
from tests.integration.looping import Silent
from tests.integration.test_on_loop_broken import both_ways

YEARS = 100_000_000.0
MOST = 2**31 - 1  # milliseconds, for a server


@pytest.fixture
async def scripted():
    """A server that answers updates."""
    async with ScriptedServer() as server:
        server.answer("update", {"n": 1, "nModified": 1})
        yield server


def update(client):
    return client.db.things.update_one({"_id": 1}, {"$inc": {"n": 1}})


class TestTiny:
    @both_ways
    async def test_no_limit_is_never_sent(self, scripted, listeners, client_class):
        """Less than a millisecond is too late: 0 would mean that the server may take for ever."""
        async with client_class(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            for number in range(400):
                async with deadline(number / 100_000):
                    write = update(client)
                with contextlib.suppress(DeadlineExceeded):
                    await write
        limits = [request.command.get("maxTimeMS") for request in scripted.requests][1:]
        assert [] == [limit for limit in limits if not limit]

    async def test_a_thread_that_waits_until_it_is_nearly_too_late(
        self, scripted, monkeypatch, client_class
    ):
        """Between its look at the clock and PyMongo's, a thread may have to wait for its turn."""
        looked = []

        def look_late(deadline, server):
            while deadline.remaining() - server.description.min_round_trip_time > 0.0009:
                pass
            looked.append(True)
            return True

        listeners = [Silent()]
        async with client_class(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            for way in (on_thread, jobs):
                monkeypatch.setattr(way, "has_time", look_late)
            limits = []
            while not limits:  # it was too late for PyMongo, too
                with contextlib.suppress(DeadlineExceeded):
                    async with deadline(0.05):
                        await update(client)
                limits = [request.command["maxTimeMS"] for request in scripted.requests[1:]]
        assert looked
        assert {1} == set(limits)

    async def test_a_message_that_takes_too_long_to_be_built(
        self, scripted, monkeypatch, client_class
    ):
        """Nothing is sent once the deadline is over."""
        encode = LoopAttempt._encode

        def encode_slowly(self, *args):
            time.sleep(0.2)
            return encode(self, *args)

        async with client_class(scripted.uri) as client:
            await update(client)
            monkeypatch.setattr(LoopAttempt, "_encode", encode_slowly)
            async with deadline(0.1):
                with pytest.raises(DeadlineExceeded, match="nothing was sent") as caught:
                    await update(client)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert 1 == len(scripted.requests)

    async def test_a_message_that_a_thread_builds(self, scripted, monkeypatch, client_class):
        """So it is where PyMongo builds it."""
        build = message._op_msg

        def build_slowly(flags, command, *args, **options):
            if "maxTimeMS" in command:
                time.sleep(0.2)
            return build(flags, command, *args, **options)

        async with client_class(scripted.uri, event_listeners=[Silent()]) as client:
            await update(client)
            monkeypatch.setattr(message, "_op_msg", build_slowly)
            async with deadline(0.1):
                with pytest.raises(DeadlineExceeded, match="nothing was sent") as caught:
                    await update(client)
                with pytest.raises(DeadlineExceeded) as bulk:
                    await client.db.things.insert_many([{}])
            assert [Outcome.NOT_APPLIED] * 2 == [outcome_of(e.value) for e in (caught, bulk)]
            assert 1 == len(scripted.requests)
            monkeypatch.undo()
            async with deadline(30):
                await update(client)


class TestHuge:
    @both_ways
    async def test_writes_and_reads(self, replica_set, collection, listeners, client_class):
        """More milliseconds than a server takes are as many as it takes."""
        async with client_class(replica_set.uri, event_listeners=listeners) as client:
            things = client[collection.database.name][collection.name]
            async with deadline(YEARS):
                await things.insert_one({"_id": 1})
                await things.insert_many([{"_id": 2}, {"_id": 3}])
                assert 3 == await things.count_documents({})
            async with things.operation(timeout=YEARS) as operation:
                await operation.delete_one({"_id": 1})
            assert 2 == len(await things.find().to_list(None))

    @both_ways
    async def test_what_is_sent(self, scripted, listeners, client_class):
        """A server is told the most that it takes."""
        async with client_class(scripted.uri, event_listeners=listeners) as client:
            await update(client)
            async with deadline(YEARS):
                await update(client)
        *_, request = scripted.requests
        assert MOST - 60_000 <= request.command["maxTimeMS"] <= MOST

    async def test_resolving(self, replica_set, client, collection):
        """So it is with the time for finding out how a write ended."""
        await collection.insert_one({"_id": 1, "n": 0})
        fault = replica_set.faults.drop_reply("update", times=2, namespace=collection.full_name)
        async with fault:
            with pytest.raises(AutoReconnect) as caught:
                await collection.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert 1 == (await resolve(caught.value, timeout=YEARS)).modified_count
