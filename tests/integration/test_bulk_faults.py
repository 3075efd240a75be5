"""Bulk operations on real servers, with real faults at any of their commands."""

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pymongo import (
    DeleteMany,
    DeleteOne,
    InsertOne,
    ReplaceOne,
    UpdateMany,
    UpdateOne,
    monitoring,
)
from pymongo.errors import AutoReconnect, BulkWriteError, DocumentTooLarge
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    attempts_of,
    deadline,
    outcome_of,
    partial_result_of,
)
from aioretry.testing import FakeMongoses, Ledger, Standalone, _wire

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
INCREMENT = {"$inc": {"n": 1}}
WRITES = ("insert", "update", "delete")
SEED = [{"_id": f"seed{number}", "kind": "seed"} for number in range(3)]

# insert, update, insert, delete, update if ordered; none of it can be done twice unseen.
REQUESTS = (
    InsertOne({"_id": 1, "n": 0}),
    InsertOne({"_id": 2, "n": 0}),
    UpdateOne({"_id": 1}, INCREMENT),
    UpdateOne({"_id": 4}, INCREMENT, upsert=True),
    InsertOne({"_id": 3, "n": 0}),
    DeleteOne({"kind": "seed"}, hint="_id_"),  # members may have them in different orders
    UpdateOne({"_id": 1}, INCREMENT),
    ReplaceOne({"_id": 2}, {"n": 7}),
    UpdateOne({"_id": 5}, INCREMENT, upsert=True),
)
# Which of them each command holds.
ORDERED = [(0, 1), (2, 3), (4,), (5,), (6, 7, 8)]
UNORDERED = [(0, 1, 4), (2, 3, 6, 7, 8), (5,)]

FAULTS = {
    "request lost": lambda faults, **only: faults.drop_request(*WRITES, **only),
    "reply lost": lambda faults, **only: faults.drop_reply(*WRITES, **only),
    "shutting down": lambda faults, **only: faults.error(91, *WRITES, **only),
    "no primary": lambda faults, **only: faults.error(10107, *WRITES, **only),
    "no primary, but applied": lambda faults, **only: faults.error(
        11602, *WRITES, applied=True, **only
    ),
    "concern": lambda faults, **only: faults.write_concern_error(91, *WRITES, **only),
}


class Commands(monitoring.CommandListener):
    """Remembers the write commands that a client sent."""

    def __init__(self):
        self.sent = []

    def started(self, event):
        if event.command_name in WRITES:
            self.sent.append(event.command)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass

    @property
    def numbers(self):
        return [command.get("txnNumber") for command in self.sent]

    @property
    def sessions(self):
        return {bytes(command["lsid"]["id"]) for command in self.sent}


@pytest.fixture
def commands():
    """What the client of the test sends."""
    return Commands()


@pytest.fixture
async def client(replica_set, commands):
    """A client whose commands are remembered."""
    async with RetryClient(replica_set.uri, event_listeners=[commands]) as client:
        yield client


@pytest.fixture
async def cluster(replica_set, monkeypatch):
    """Two mongoses that take two statements a command."""
    monkeypatch.setitem(_wire.LIMITS, "maxWriteBatchSize", 2)
    async with FakeMongoses(replica_set) as cluster:
        yield cluster


@pytest.fixture
async def routed(cluster, collection):
    """The test's collection, behind those mongoses."""
    async with RetryClient(cluster.uri, w="majority", journal=True) as client:
        await client.admin.command("ping")
        while len(client.nodes) < 2:
            await asyncio.sleep(0.001)
        yield client[collection.database.name][collection.name]


def told(result):
    """What a result says."""
    return getattr(result, "bulk_api_result", None) or result.inserted_ids


def found_in(stored):
    """The documents of a collection."""
    return sorted(stored.find(), key=lambda document: str(document["_id"]))


async def undisturbed(collection, stored, *, ordered):
    """What the requests give, and leave, where nothing goes wrong."""
    twin = collection.database[f"{collection.name}_twin"]
    await twin.insert_many(SEED)
    result = await twin.bulk_write(list(REQUESTS), ordered=ordered)
    left = found_in(stored.database[twin.name])
    await twin.drop()
    return told(result), left


class TestExactlyOnce:
    """A fault at any command of a bulk operation."""

    @pytest.mark.parametrize("limit", [None, 60])
    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize("fault", FAULTS)
    async def test_bulk_write(
        self, fault, ordered, limit, replica_set, collection, stored, commands
    ):
        """Every request is done exactly once, and the result is that of an undisturbed one."""
        expected = await undisturbed(collection, stored, ordered=ordered)
        count = len(ORDERED if ordered else UNORDERED)
        for nth in range(1, count + 1):
            stored.drop()
            await collection.insert_many(SEED)
            commands.sent.clear()
            arm = FAULTS[fault]
            async with arm(replica_set.faults, nth=nth, namespace=collection.full_name) as armed:
                async with deadline(limit):
                    result = await collection.bulk_write(list(REQUESTS), ordered=ordered)
            assert 1 == armed.fired
            assert expected == (told(result), found_in(stored))
            numbers = commands.numbers
            assert numbers[nth - 1] == numbers[nth]
            del numbers[nth]
            assert list(range(numbers[0], numbers[0] + count)) == numbers
            assert 1 == len(commands.sessions)

    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize("fault", ["request lost", "reply lost", "concern"])
    async def test_every_command_once(self, fault, ordered, replica_set, collection, stored):
        """So it is if each of them meets the fault."""
        expected = await undisturbed(collection, stored, ordered=ordered)
        await collection.insert_many(SEED)
        struck = set()

        def is_first(command):
            number = command["txnNumber"]
            return number not in struck and not struck.add(number)

        only = {"times": None, "where": is_first, "namespace": collection.full_name}
        async with FAULTS[fault](replica_set.faults, **only) as armed:
            result = await collection.bulk_write(list(REQUESTS), ordered=ordered)
        assert len(ORDERED if ordered else UNORDERED) == armed.fired
        assert expected == (told(result), found_in(stored))

    @pytest.mark.usefixtures("three_members")
    @pytest.mark.parametrize("nth", [1, 3, 5])
    async def test_a_step_down(self, nth, replica_set, collection, stored):
        """A command that meets a server which is no primary any more is sent to the new one."""
        expected = await undisturbed(collection, stored, ordered=True)
        await collection.insert_many(SEED)
        only = {"nth": nth, "namespace": collection.full_name}
        async with replica_set.faults.hang(*WRITES, **only) as held, deadline(60):
            write = collection.bulk_write(list(REQUESTS))
            await held.wait_until_fired()
            old = await replica_set.step_down()
            await replica_set.wait_for_primary(other_than=old)
            held.disarm()
            result = await write
        assert expected == (told(result), found_in(stored))

    @pytest.mark.parametrize("limit", [None, 60])
    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize("fault", ["request lost", "reply lost", "mongos"])
    async def test_insert_many_through_mongoses(
        self, fault, ordered, limit, cluster, routed, stored
    ):
        """Five commands of an insert_many through two mongoses: every document exactly once."""
        arms = {**FAULTS, "mongos": lambda faults, **only: faults.error(6, "insert", **only)}
        for nth in range(1, 6):
            stored.drop()
            given = [{"_id": number} for number in range(10)]
            async with arms[fault](cluster.faults, nth=nth) as armed, deadline(limit):
                result = await routed.insert_many(given, ordered=ordered)
            assert 1 == armed.fired
            assert list(range(10)) == result.inserted_ids
            assert given == found_in(stored)

    async def test_write_errors_beside_a_lost_reply(self, replica_set, collection, stored):
        """Refused requests keep their indexes, and the others are done once."""
        await collection.insert_many([{"_id": 3}, {"_id": 7}])
        given = [{"_id": number, "new": True} for number in range(10)]
        only = {"namespace": collection.full_name}
        async with replica_set.faults.drop_reply("insert", **only):
            with pytest.raises(BulkWriteError) as caught:
                await collection.insert_many(given, ordered=False)
        details = caught.value.details
        assert [3, 7] == [error["index"] for error in details["writeErrors"]]
        assert {11000} == {error["code"] for error in details["writeErrors"]}
        assert 8 == details["nInserted"]
        assert 8 == stored.count_documents({"new": True})
        outcomes = partial_result_of(caught.value).outcomes
        assert {3, 7} == {index for index, one in enumerate(outcomes) if one is not APPLIED}

    @pytest.mark.slow
    @pytest.mark.usefixtures("three_members")
    async def test_many_at_once_through_a_failover(self, replica_set, collection, stored):
        """Of many bulk operations through a kill -9 and a step-down, none loses or doubles
        anything."""
        inserts, counters = Ledger(), Ledger()
        numbers = itertools.count()
        counted = collection.database[f"{collection.name}_counters"].with_options(
            write_concern=collection.write_concern
        )
        stopped = asyncio.Event()
        turns = 0

        async def write(me):
            nonlocal turns
            while not stopped.is_set():
                ids = [next(numbers) for _ in range(5)]
                requests = [UpdateOne({"_id": me}, INCREMENT, upsert=True)] * 2
                requests += [DeleteOne({"_id": "nobody"}), UpdateOne({"_id": me}, INCREMENT)]
                async with deadline(60):
                    await collection.insert_many([{"_id": number} for number in ids])
                    await counted.bulk_write(requests, ordered=me % 2 == 0)
                for number in ids:
                    inserts.record(number, APPLIED)
                for _ in range(3):
                    counters.record(me, APPLIED)
                turns += 1

        async def get_on():
            target = turns + 40
            while turns < target:
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            for me in range(20):
                group.create_task(write(me))
            await get_on()
            old = await replica_set.primary()
            await replica_set.kill(old)
            await get_on()
            await replica_set.restart(old)
            await replica_set.wait_for_primary()
            await replica_set.step_down()
            await get_on()
            stopped.set()
        await inserts.check_marks(collection)
        await counters.check_counters(counted, "n")
        assert len(inserts.entries) == stored.count_documents({})
        await counted.drop()


class TestFailedRetry:
    """Two lost replies without a deadline."""

    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize("fault", ["request lost", "reply lost"])
    async def test_what_is_known(self, fault, ordered, replica_set, collection, stored, commands):
        """It ends the operation; each outcome agrees with the data."""
        split = ORDERED if ordered else UNORDERED
        for nth, unknown in enumerate(split, 1):
            stored.drop()
            await collection.insert_many(SEED)
            commands.sent.clear()
            only = {"nth": nth, "times": 2, "namespace": collection.full_name}
            async with FAULTS[fault](replica_set.faults, **only) as armed:
                with pytest.raises(AutoReconnect) as caught:
                    await collection.bulk_write(list(REQUESTS), ordered=ordered)
            assert (2, nth + 1) == (armed.fired, len(commands.sent))
            assert UNKNOWN is outcome_of(caught.value)
            before = list(itertools.chain(*split[: nth - 1]))
            outcomes = partial_result_of(caught.value).outcomes
            assert [
                APPLIED if i in before else UNKNOWN if i in unknown else NOT_APPLIED
                for i in range(9)
            ] == list(outcomes)
            done = before + (list(unknown) if fault == "reply lost" else [])
            assert left_by(done) == found_in(stored)
            assert nth + 1 == len(attempts_of(caught.value))
            assert "aioretry: bulk_write on" in caught.value.__notes__[0]
            pool = collection.database.client.delegate._topology._session_pool
            assert not commands.sessions & {bytes(one.session_id["id"]) for one in pool}

    async def test_through_mongoses(self, cluster, routed, stored):
        """So it is with an insert_many through two mongoses."""
        for nth in range(1, 6):
            stored.drop()
            async with cluster.faults.drop_reply("insert", nth=nth, times=2):
                with pytest.raises(AutoReconnect) as caught:
                    await routed.insert_many([{"_id": n} for n in range(10)], ordered=False)
            outcomes = partial_result_of(caught.value).outcomes
            known = 2 * (nth - 1)
            expected = [APPLIED] * known + [UNKNOWN] * 2 + [NOT_APPLIED] * (8 - known)
            assert expected == list(outcomes)
            assert list(range(known + 2)) == [document["_id"] for document in found_in(stored)]

    async def test_the_deadline(self, replica_set, collection, stored):
        """Under a deadline a command is sent until time is over, and not in vain."""
        await collection.insert_many(SEED)
        only = {"nth": 3, "times": None, "namespace": collection.full_name}
        async with replica_set.faults.drop_reply(*WRITES, **only):
            async with deadline(1.5):
                with pytest.raises(DeadlineExceeded) as caught:
                    await collection.bulk_write(list(REQUESTS))
        assert caught.value.timeout
        expected = (APPLIED,) * 4 + (UNKNOWN,) + (NOT_APPLIED,) * 4
        assert expected == partial_result_of(caught.value).outcomes
        assert left_by([0, 1, 2, 3, 4]) == found_in(stored)


def left_by(done):
    """The documents that some of the requests leave, in the order of the call."""
    documents = {document["_id"]: dict(document) for document in SEED}
    for index in done:
        match index:
            case 0 | 1 | 4:
                number = {0: 1, 1: 2, 4: 3}[index]
                documents[number] = {"_id": number, "n": 0}
            case 2 | 6:
                documents[1]["n"] += 1
            case 3 | 8:
                number = {3: 4, 8: 5}[index]
                documents[number] = {"_id": number, "n": 1}
            case 5:
                del documents["seed0"]
            case _:
                documents[2] = {"_id": 2, "n": 7}
    return sorted(documents.values(), key=lambda document: str(document["_id"]))


class TestMulti:
    """Multi statements on real servers."""

    async def test_a_lost_reply(self, replica_set, collection, stored, commands):
        """A multi command is not sent again; it may have been done, and nothing after it is."""
        await collection.insert_many([{"_id": number} for number in range(3)])
        commands.sent.clear()
        requests = [InsertOne({"_id": 3}), UpdateMany({}, INCREMENT), DeleteMany({})]
        only = {"namespace": collection.full_name}
        async with replica_set.faults.drop_reply("update", **only), deadline(20):
            with pytest.raises(AutoReconnect) as caught:
                await collection.bulk_write(requests)
        assert (APPLIED, UNKNOWN, NOT_APPLIED) == partial_result_of(caught.value).outcomes
        assert 2 == len(commands.sent)
        assert [{"_id": number, "n": 1} for number in range(4)] == found_in(stored)

    async def test_the_others_are_retried(self, replica_set, collection, stored, commands):
        """Commands without one are retried in the same bulk_write."""
        await collection.insert_one({"_id": 0})
        commands.sent.clear()
        requests = [
            InsertOne({"_id": 1}),
            UpdateMany({}, INCREMENT),
            InsertOne({"_id": 2}),
            DeleteMany({"_id": 0}),
        ]
        only = {"times": 2, "namespace": collection.full_name}
        turns = itertools.cycle([True, False])
        async with replica_set.faults.drop_reply("insert", where=lambda _: next(turns), **only):
            result = await collection.bulk_write(requests)
        assert (2, 2, 1) == (result.inserted_count, result.modified_count, result.deleted_count)
        assert [{"_id": 1, "n": 1}, {"_id": 2}] == found_in(stored)
        first, again, none, second, once_more, no_more = commands.numbers
        assert (first, first + 1, None, None) == (again, second, none, no_more)
        assert second == once_more

    @pytest.mark.parametrize("many", ["update_many", "delete_many"])
    async def test_alone(self, many, replica_set, collection, stored, commands):
        """update_many and delete_many after an overload error, and after a lost reply."""
        await collection.insert_many([{"_id": number, "n": 0} for number in range(3)])
        commands.sent.clear()

        def write():
            if many == "update_many":
                return collection.update_many({}, INCREMENT)
            return collection.delete_many({})

        name = many.removesuffix("_many")
        labels = ["RetryableError", "SystemOverloadedError"]
        only = {"namespace": collection.full_name}
        async with replica_set.faults.error(462, name, labels=labels, times=2, **only):
            await write()
        assert [None] * 3 == commands.numbers
        expected = [{"_id": n, "n": 1} for n in range(3)] if many == "update_many" else []
        assert expected == found_in(stored)
        async with replica_set.faults.drop_reply(name, **only), deadline(20):
            with pytest.raises(AutoReconnect) as caught:
                await write()
        assert UNKNOWN is outcome_of(caught.value)
        assert [None] * 4 == commands.numbers


class TestSessions:
    """Explicit sessions, transactions, and what stays Motor's."""

    async def test_an_explicit_session(self, replica_set, client, collection, stored, commands):
        """Its lsid and its counter are used; the numbers go on from one operation to the next."""
        async with await client.start_session() as session:
            only = {"nth": 2, "namespace": collection.full_name}
            async with replica_set.faults.drop_reply(*WRITES, **only):
                await collection.bulk_write(list(REQUESTS), session=session)
            await collection.insert_many([{"_id": "a"}, {"_id": "b"}], session=session)
            await collection.update_many({"_id": "a"}, INCREMENT, session=session)
            await collection.insert_one({"_id": "c"}, session=session)
            assert {bytes(session.session_id["id"])} == commands.sessions
            assert session.operation_time is not None
        numbers = commands.numbers
        first = numbers[0]
        expected = [first, first + 1, *range(first + 1, first + 6), None, first + 6]
        assert expected == numbers

    async def test_another_clients_session(self, replica_set, collection, stored):
        """It is refused, and nothing is sent."""
        async with RetryClient(replica_set.uri) as other, await other.start_session() as session:
            for write in (
                collection.insert_many([{"_id": 1}], session=session),
                collection.bulk_write([InsertOne({"_id": 2})], session=session),
                collection.update_many({}, INCREMENT, session=session),
            ):
                with pytest.raises(Exception, match="MongoClient that started it"):
                    await write
        assert [] == found_in(stored)

    async def test_in_a_transaction(self, client, collection, stored, commands):
        """There they are Motor's: all or nothing."""
        await collection.insert_one({"_id": 0, "n": 0})
        commands.sent.clear()
        async with await client.start_session() as session:
            session.start_transaction()
            await write_all(collection, session)
            await session.abort_transaction()
            assert [{"_id": 0, "n": 0}] == found_in(stored)
            async with session.start_transaction():
                await write_all(collection, session)
        assert [{"_id": 0, "n": 2}, {"_id": 1}] == found_in(stored)
        assert all(command["autocommit"] is False for command in commands.sent)

    async def test_unacknowledged(self, collection, stored):
        """With w: 0 they are Motor's."""
        blind = collection.with_options(write_concern=WriteConcern(w=0))
        result = await blind.insert_many([{"_id": 1}, {"_id": 2}])
        assert not result.acknowledged
        assert not (await blind.bulk_write([InsertOne({"_id": 3})])).acknowledged
        assert not (await blind.update_many({}, INCREMENT)).acknowledged
        while stored.count_documents({}, maxTimeMS=20_000) < 3:
            await asyncio.sleep(0.01)

    async def test_a_standalone_server(self, commands):
        """It gets no numbers, and nothing is sent twice."""
        async with (
            Standalone(faults=True) as server,
            RetryClient(server.uri, event_listeners=[commands]) as client,
        ):
            things = client.db.things
            await things.bulk_write(list(REQUESTS))
            assert [None] * 5 == commands.numbers
            commands.sent.clear()
            async with server.faults.drop_reply("insert"), deadline(20):
                with pytest.raises(AutoReconnect) as caught:
                    await things.insert_many([{"_id": "x"}])
            assert (UNKNOWN,) == partial_result_of(caught.value).outcomes
            assert [None] == commands.numbers


async def write_all(collection, session):
    """One of each, in a session."""
    await collection.insert_many([{"_id": 1}, {"_id": 2}], session=session)
    await collection.bulk_write([UpdateOne({"_id": 0}, INCREMENT)], session=session)
    await collection.update_many({"_id": 0}, INCREMENT, session=session)
    await collection.delete_many({"_id": 2}, session=session)


class TestSharded:
    """Two mongoses before a real set."""

    async def test_a_failed_mongos_is_avoided_to_the_end(self, cluster, routed, stored):
        """Of a bulk operation one command at most goes to a mongos that fails."""
        bad, good = cluster.mongoses
        expected = 0
        error = cluster.faults.error(
            6, "insert", labels=["RetryableWriteError"], member=bad, times=None
        )
        seen = cluster.faults.watch("insert", member=good)
        async with error:
            for number in range(1000):
                await routed.insert_many([{"_id": f"{number}/{n}"} for n in range(10)])
                expected += 10
                assert error.fired <= number + 1
                if error.fired >= 5:
                    break
        assert error.fired == 5
        assert expected // 2 == seen.fired
        assert expected == stored.count_documents({})


class TestTooLarge:
    """Documents that no server takes."""

    async def test_earlier_commands_are_there(self, collection, stored, commands):
        """Nothing of its own command is sent; commands before it were."""
        huge = {"_id": "huge", "fill": b"\0" * (17 * 2**20)}
        requests = [
            InsertOne({"_id": 1}),
            UpdateOne({"_id": 1}, INCREMENT),
            InsertOne({"_id": 2}),
            InsertOne(huge),
        ]
        with pytest.raises(DocumentTooLarge, match=r"statement 3 \(insert\)") as caught:
            await collection.bulk_write(requests)
        assert (APPLIED, APPLIED, NOT_APPLIED, NOT_APPLIED) == (
            partial_result_of(caught.value).outcomes
        )
        assert ["insert", "update"] == [next(iter(command)) for command in commands.sent]
        assert [{"_id": 1, "n": 1}] == found_in(stored)

    async def test_large_messages(self, replica_set, collection, stored, commands):
        """A command holds what a message may hold, though no document may be so large; a lost
        reply loses nothing."""
        fill = b"\0" * (14 * 2**20)
        only = {"namespace": collection.full_name}
        async with replica_set.faults.drop_reply("insert", **only):
            result = await collection.insert_many({"_id": n, "fill": fill} for n in range(4))
        assert list(range(4)) == result.inserted_ids
        assert [3, 3, 1] == [len(command["documents"]) for command in commands.sent]
        assert 4 == stored.count_documents({})
        stored.drop()


MEASURE = """
import asyncio, resource, sys
from aioretry import RetryClient

async def main(uri, name, count):
    async with RetryClient(uri) as client:
        collection = client.aioretry_tests[name]
        result = await collection.insert_many({"_id": n} for n in range(count))
        assert len(result.inserted_ids) == count
        await collection.drop()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def peak_memory(uri, name, count):
    """Insert so many documents from a generator, in a process of its own; return its KiB."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-Wignore",
        "-c",
        MEASURE,
        uri,
        name,
        str(count),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return int(out)


class TestWhoLooks:
    """Listeners and logs show the statements that a server gets, one by one."""

    async def test_a_listener(self, collection, commands):
        """It finds each document of a command."""
        await collection.insert_many([{"_id": number, "n": [number]} for number in range(150)])
        (command,) = commands.sent
        assert [(n, [n]) for n in range(150)] == [
            (document["_id"], document["n"]) for document in command["documents"]
        ]

    async def test_a_log(self, replica_set, collection, stored, caplog):
        """PyMongo's own log of commands, where somebody switches it on."""
        async with RetryClient(replica_set.uri) as client:
            unwatched = client[collection.database.name][collection.name]
            await unwatched.insert_many([{"_id": number} for number in range(5)])
            with caplog.at_level("DEBUG", "pymongo.command"):
                await unwatched.bulk_write([UpdateOne({"_id": n}, INCREMENT) for n in range(5)])
        messages = [record.getMessage() for record in caplog.records]
        (started,) = (message for message in messages if "Command started" in message)
        assert 5 == started.count("$inc")
        assert [{"_id": number, "n": 1} for number in range(5)] == found_in(stored)


@pytest.mark.slow
async def test_memory_is_bounded_by_the_batch(replica_set, collection):
    """300,000 documents of a generator need hardly more memory than 100,000, one command's."""
    one = await peak_memory(replica_set.uri, collection.name, 100_000)
    three = await peak_memory(replica_set.uri, collection.name, 300_000)
    ids = 200_000 * 48 // 1024  # an int and its place in a list that grows
    assert three - one < ids + 25_000
