"""Connections that break while their server is well: what it costs the writes."""

import asyncio
import random
import re
import uuid
from collections import Counter

import pymongo
import pytest

from aioretry import DeadlineExceeded, attempts_of, deadline
from aioretry._faces import settled
from aioretry._retry import losses
from aioretry.events import AttemptEnded, every_event
from tests.integration.looping import all_given_back, pools
from tests.integration.test_on_loop_broken import both_ways

WARM = 30


async def warm_up(client, things, replica_set):
    """Have so many connections open and idle that have just been used."""
    async with replica_set.faults.hang(
        "update", times=WARM, namespace="aioretry_tests.breaks"
    ) as hang:
        writes = [update(things, number) for number in range(WARM)]
        await hang.wait_until_fired(WARM, timeout=60)
    await asyncio.gather(*writes)
    await all_given_back(client)


def update(things, number):
    return things.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True)


class TestIdleConnections:
    @both_ways
    async def test_that_broke_with_another_one(self, replica_set, relay, listeners, client_class):
        """Half of the connections are gone at once: no write finds one after the other."""
        broken = Counter()

        @every_event
        def count(event):
            if isinstance(event, AttemptEnded) and event.sent and event.error_class:
                broken[event.notes.setdefault("write", object())] += 1

        async with client_class(
            f"mongodb://{relay.address}/?directConnection=true",
            event_listeners=listeners,
            hooks=[count],
        ) as client:
            things = client.aioretry_tests.breaks
            await warm_up(client, things, replica_set)
            assert WARM // 2 == relay.cut(2)

            async def write(number):
                for _ in range(10):
                    await update(things, number)

            async with deadline(60):  # a busy machine answers too late, and is taken for lost
                await asyncio.gather(*(write(number) for number in range(20)))
            await all_given_back(client)
        assert {1} == set(broken.values())

    @both_ways
    async def test_that_are_well_are_kept(self, replica_set, relay, listeners, client_class):
        """The others are asked, and none is closed or opened for it."""
        async with client_class(
            f"mongodb://{relay.address}/?directConnection=true", event_listeners=listeners
        ) as client:
            things = client.aioretry_tests.breaks
            await warm_up(client, things, replica_set)
            (pool,) = pools(client)
            opened = pool.next_connection_id
            for _ in range(3):
                async with replica_set.faults.drop_reply("update"):
                    await update(things, 1)
            await warm_up_again(things)
            assert opened == pool.next_connection_id
            await all_given_back(client)
            assert WARM - 3 == len(pool.conns)


class TestConnectionsInUse:
    """Their answers may have been on the way when another one broke, and nothing after that."""

    @pytest.fixture
    async def things(self, relay, client_class):
        """A collection that is written to over the relay, without a deadline."""
        async with client_class(f"mongodb://{relay.address}/?directConnection=true") as client:
            yield client.aioretry_tests.get_collection(f"c{uuid.uuid4().hex[:12]}")

    async def test_that_answer_after_it(self, replica_set, relay, things):
        """They are asked before they are used again."""
        faults = replica_set.faults
        async with asyncio.timeout(60), faults.hang("update", times=1) as hang:
            broken = update(things, 1)
            await hang.wait_until_fired()
            async with faults.hang("delete", times=1) as answer:
                removal = things.delete_one({"_id": 2})
                await answer.wait_until_fired()
                await self.cut(relay, things)
            await removal
            await asyncio.gather(things.delete_one({"_id": 2}), broken)
        (carried,) = relay.carried("delete")
        assert [b"delete", b"ping", b"delete"] == re.findall(rb"delete(?=\0)|ping(?=\0)", carried)

    async def test_that_are_opened_meanwhile(self, replica_set, relay, things):
        """They are asked before they are used."""
        faults = replica_set.faults
        async with asyncio.timeout(60), faults.hang("update", times=1) as hang:
            broken = update(things, 1)
            await hang.wait_until_fired()
            async with faults.hang("isMaster", "ismaster", "hello") as opening:
                beside = things.insert_one({})
                await opening.wait_until_fired()
                await self.cut(relay, things)
            await asyncio.gather(broken, beside)
        (carried,) = relay.carried("insert")
        assert [b"ping", b"insert"] == re.findall(rb"insert(?=\0)|ping(?=\0)", carried)[:2]

    async def cut(self, relay, things):
        """Break the update's connection, and wait until that is known."""
        (pool,) = pools(things.database.client)
        relay.cut_the_one("update")
        while not pool.breaks:
            await asyncio.sleep(0)


async def warm_up_again(things):
    """Use several connections once."""
    await asyncio.gather(*(update(things, number) for number in range(WARM // 2)))


@pytest.fixture
def longest_pauses(monkeypatch):
    """No luck: each pause is as long as it can be."""
    monkeypatch.setattr(random, "random", lambda: 1.0)


class TestHotBreaks:
    async def test_a_command_that_breaks_every_connection(
        self, replica_set, client, collection, longest_pauses
    ):
        """It is sent some times and not some thousand times, and told of in some words."""
        await update(collection, 1)
        await all_given_back(client)
        (pool,) = (pool for pool in pools(client) if pool.conns)
        opened = pool.next_connection_id
        async with (
            replica_set.faults.drop_request("update", times=None, namespace=collection.full_name),
            deadline(2),
        ):
            with pytest.raises(DeadlineExceeded) as caught:
                await update(collection, 1)
        attempts = attempts_of(caught.value)
        assert 5 <= len(attempts) <= 25
        assert pool.next_connection_id - opened <= 3 * len(attempts)
        (note,) = caught.value.__notes__
        assert f"{len(attempts) - 6} more" in note
        assert len(note) < 600

    async def test_a_command_of_many_inserts(self, replica_set, client, collection, longest_pauses):
        """Those who wait for one command share what was tried for it."""
        view = collection.coalesced()
        await view.insert_one({})
        async with (
            replica_set.faults.drop_request("insert", times=None, namespace=collection.full_name),
            deadline(3),
        ):
            errors = await asyncio.gather(
                *(view.insert_one({}) for _ in range(1000)), return_exceptions=True
            )
        assert {DeadlineExceeded} == {type(error) for error in errors}
        histories = {id(attempts_of(error)) for error in errors}
        assert 1 == len(histories)


class TestNobodyListens:
    @pytest.mark.skipif(
        pymongo.version_tuple < (4, 18), reason="PyMongo 4.17 does not take it for overload itself"
    )
    async def test_it_is_not_taken_for_overload(self, relay, client_class):
        """A server that is known and refuses connections is tried as long as there is time."""
        told = []
        async with client_class(
            f"mongodb://{relay.address}/?directConnection=true", hooks=[told.append]
        ) as client:
            topology = await settled(client.delegate._get_topology())
            async with asyncio.timeout(60):
                while not topology.description.has_writable_server():
                    await asyncio.sleep(0.005)
            relay.stop_listening()
            async with deadline(60):
                write = update(client.aioretry_tests.breaks, 1)
            async with asyncio.timeout(60):
                while len(told) < 6:
                    assert not write.done()
                    await asyncio.sleep(0.005)
            await relay.listen(relay.port)
            await write
        assert {"AutoReconnect"} == {event.error_class for event in told}


class TestLog:
    async def test_one_line_for_the_loss_of_a_server(
        self, replica_set, collection, caplog, monkeypatch, client_class
    ):
        """However many writes meet it, it is told of once, with their number."""
        monkeypatch.setattr(losses, "_GATHER_FOR", 3600)  # until the client is closed
        async with client_class(replica_set.uri) as client:
            things = client[collection.database.name][collection.name]
            await update(things, 0)
            met = set()

            def is_first(command):
                number = command["updates"][0]["q"]["_id"]
                return number not in met and not met.add(number)

            fault = replica_set.faults.drop_reply(
                "update", times=20, namespace=things.full_name, where=is_first
            )
            async with fault, deadline(60):
                await asyncio.gather(*(update(things, number) for number in range(20)))
        (line,) = [r.getMessage() for r in caplog.records if r.name == "aioretry"]
        assert line.startswith("retrying 20 operations after failures on 127.0.0.1:")
        told = re.search(r"\(AutoReconnect: (\d+)\), first update_one on (\S+)$", line)
        assert 20 <= int(told[1]) < 40  # a machine that is busy may cost a retry its connection
        assert things.full_name == told[2]
