"""update_one, replace_one and delete_one calls that travel together: each is told its own."""

import asyncio
import random
import uuid
from datetime import UTC, datetime

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import monitoring
from pymongo.errors import AutoReconnect, OperationFailure, WriteError

from aioretry import DeadlineExceeded, Outcome, attempts_of, deadline, outcome_of, resolve
from aioretry.testing import Standalone
from tests.lengths import in_full

INCREMENT = {"$inc": {"n": 1}}
DAMAGED = RawBSONDocument(bson.encode({"a": {"b": "text"}}).replace(b"text\0", b"text!"))


class Commands(monitoring.CommandListener):
    """The updates and deletes that a client sent."""

    def __init__(self):
        self.sent = []

    def started(self, event):
        if event.command_name in {"update", "delete"}:
            self.sent.append(event.command)

    def succeeded(self, event):
        pass

    failed = succeeded

    @property
    def sizes(self):
        """How many statements each had."""
        return [len(each.get("updates", each.get("deletes"))) for each in self.sent]

    @property
    def asked(self):
        """The numbers of the statements that were asked for alone."""
        return [each["stmtIds"] for each in self.sent if "stmtIds" in each]


@pytest.fixture
def commands():
    """What was sent."""
    return Commands()


@pytest.fixture
async def client(replica_set, commands, client_class):
    """A client that tells what it sends."""
    async with client_class(replica_set.uri, event_listeners=[commands]) as client:
        yield client


@pytest.fixture
async def together(collection, commands):
    """The collection, with writes that travel together, and three counters and a text."""
    await collection.insert_many([*({"_id": n, "n": 0} for n in (1, 2, 3)), {"_id": 4, "n": "x"}])
    commands.sent.clear()
    return collection.coalesced()


def told(result):
    """What an update or a replacement was told."""
    return result.matched_count, result.modified_count, result.upserted_id


CHANGED, NOT_THERE, THE_SAME = (1, 1, None), (0, 0, None), (1, 0, None)


class TestTogether:
    async def test_counters(self, together, commands, stored):
        """Calls of one moment are one command; those for one document count one by one."""
        writes = [together.update_one({"_id": n % 3 + 1}, INCREMENT) for n in range(90)]
        assert {CHANGED} == set(map(told, await asyncio.gather(*writes)))
        assert [90] == commands.sizes
        assert (False, "txnNumber" in commands.sent[0]) == (commands.sent[0]["ordered"], True)
        assert [30, 30, 30] == [each["n"] for each in stored.find({"_id": {"$lt": 4}})]

    async def test_ids_of_any_kind(self, collection, commands, stored):
        """Whatever they are, those that differ travel together."""
        ids = ["a", "b", 1, 2.5, uuid.uuid4().bytes, {"x": 1}, {"x": 2}, None, True]
        together = collection.coalesced()
        await together.find_one()  # before that, nobody knows the server
        writes = [together.replace_one({"_id": each}, {"n": 1}, upsert=True) for each in ids]
        await asyncio.gather(*writes)
        assert [len(ids)] == commands.sizes
        assert len(ids) == stored.count_documents({})

    async def test_each_is_told_its_own(self, together, commands, stored):
        """Where the sums do not say, each is asked for by its number."""
        results = await asyncio.gather(
            together.update_one({"_id": 1}, INCREMENT),
            together.update_one({"_id": "none"}, INCREMENT),
            together.update_one({"_id": 2}, {"$set": {"n": 0}}),
            together.update_one({"_id": 4}, INCREMENT),
            together.update_one({"_id": "new"}, INCREMENT, upsert=True),
            together.replace_one({"_id": 3}, {"n": 7}),
            return_exceptions=True,
        )
        error = results.pop(3)
        assert [CHANGED, NOT_THERE, THE_SAME, (0, 0, "new"), CHANGED] == list(map(told, results))
        assert isinstance(error, WriteError)
        assert (14, Outcome.NOT_APPLIED) == (error.code, outcome_of(error))
        assert 6 == commands.sizes[0]
        assert [[0], [1], [2], [5]] == sorted(commands.asked)
        assert {1: 1, 2: 0, 3: 7, 4: "x", "new": 1} == {e["_id"]: e["n"] for e in stored.find()}

    async def test_deletes(self, together, commands, stored):
        """They are a command of their own."""
        writes = [together.delete_one({"_id": n}) for n in (1, 2)]
        writes.append(together.update_one({"_id": 3}, INCREMENT))
        first, second, _ = await asyncio.gather(*writes)
        assert [1, 1] == [first.deleted_count, second.deleted_count]
        assert [1, 2] == sorted(commands.sizes)
        writes = [together.delete_one({"_id": n}) for n in (3, 1, 4)]
        assert [1, 0, 1] == [each.deleted_count for each in await asyncio.gather(*writes)]
        assert 0 == stored.count_documents({})

    async def test_two_upserts_of_one_id(self, together, stored):
        """One inserts, the other one updates what it has inserted."""
        writes = [together.update_one({"_id": 9}, INCREMENT, upsert=True) for _ in range(2)]
        assert {(0, 0, 9), CHANGED} == set(map(told, await asyncio.gather(*writes)))
        assert 2 == stored.find_one({"_id": 9})["n"]

    async def test_array_filters(self, together, commands, stored):
        """They are the statement's own."""
        stored.insert_one({"_id": 5, "a": [1, 2]})
        arrays = together.update_one(
            {"_id": 5}, {"$inc": {"a.$[x]": 10}}, array_filters=[{"x": {"$gt": 1}}]
        )
        await asyncio.gather(arrays, together.update_one({"_id": 1}, INCREMENT))
        assert [2] == commands.sizes
        assert [1, 12] == stored.find_one({"_id": 5})["a"]


class TestOrder:
    async def test_of_what_changes_nothing(self, together, stored, commands):
        """It may be executed again, and never after what comes behind it."""
        for _ in range(5):
            writes = [together.update_one({"_id": 1}, {"$set": {"n": n}}) for n in (0, 7)]
            writes.append(together.update_one({"_id": "none"}, INCREMENT))
            await asyncio.gather(*writes)
            assert 7 == stored.find_one({"_id": 1})["n"]
            await together.update_one({"_id": 1}, {"$set": {"n": 0}})
        commands.sent.clear()
        mixed = [together.update_one({"_id": 1.0}, INCREMENT) for _ in range(3)]
        mixed.append(together.replace_one({"_id": 1}, {"n": 7}))
        mixed += [together.update_one({"_id": Int64(1)}, INCREMENT) for _ in range(2)]
        await asyncio.gather(*mixed)
        assert [3, 1, 2] == commands.sizes
        assert 9 == stored.find_one({"_id": 1})["n"]

    async def test_of_ids_that_become_the_same(self, together, stored, commands):
        """Those of times have milliseconds only, and a UUID is one as a Binary, too."""
        number, time = uuid.uuid4(), datetime(2026, 1, 1, tzinfo=UTC)
        numbers = Binary.from_uuid(number), Binary(number.bytes, 4)
        pairs = [(time, time.replace(microsecond=9)), numbers]
        for one, same in pairs:
            stored.insert_one({"_id": one, "n": 0})
            commands.sent.clear()
            writes = [together.update_one({"_id": one}, {"$set": {"n": 0}})]
            writes.append(together.update_one({"_id": same}, {"$set": {"n": 7}}))
            assert [THE_SAME, CHANGED] == list(map(told, await asyncio.gather(*writes)))
            assert [1, 1] == commands.sizes
            assert 7 == stored.find_one({"_id": one})["n"]

    async def test_what_is_asked_for_comes_first(self, replica_set, together, stored):
        """What is sent next waits for it."""
        asks = {"where": lambda command: "stmtIds" in command}
        with replica_set.faults.hang("update", times=None, **asks) as held:
            writes = [together.update_one({"_id": 1}, {"$set": {"n": 0}})]
            writes.append(together.update_one({"_id": 2}, INCREMENT))
            await held.wait_until_fired()
            writes.append(together.update_one({"_id": 1}, {"$set": {"n": 7}}))
            for _ in range(10):  # in the time of which it could overtake
                await together.insert_one({})
            assert not writes[-1].done()
        assert [THE_SAME, CHANGED, CHANGED] == list(map(told, await asyncio.gather(*writes)))
        assert 7 == stored.find_one({"_id": 1})["n"]


def nest(levels):
    """A document of so many levels."""
    document = {}
    for _ in range(levels):
        document = {"a": document}
    return document


class TestStrangers:
    @pytest.mark.parametrize(
        ("name", "arguments", "options"),
        [
            ("update_one", ({"_id": 3}, {"$set": {"n": 1}}), {"array_filters": [1]}),
            ("update_one", ({"_id": 3}, [{"$foo": 1}]), {}),
            ("update_one", ({"_id": 3}, [1]), {}),
            ("update_one", ({"_id": 3}, {"$set": {"n": nest(250)}}), {}),
            ("replace_one", ({"_id": 3}, nest(250)), {}),
            ("delete_one", ({"_id": nest(250)},), {}),
            ("insert_one", ({"_id": "new", "a": nest(250)},), {}),
            ("replace_one", ({"_id": 3}, DAMAGED), {}),
            ("update_one", ({"_id": DAMAGED["a"]}, INCREMENT), {}),
            ("delete_one", ({"_id": DAMAGED["a"]},), {}),
        ],
        ids=repr,
    )
    async def test_mistakes(self, collection, together, stored, name, arguments, options):
        """Each gets the error that it would get alone, and the others get none."""
        bad = getattr(together, name)(*arguments, **options)
        good = [together.update_one({"_id": 1}, INCREMENT), together.delete_one({"_id": 2})]
        good.append(together.insert_one({"_id": 5}))
        error, *results = await asyncio.gather(bad, *good, return_exceptions=True)
        assert (CHANGED, 1, 5) == (
            told(results[0]),
            results[1].deleted_count,
            results[2].inserted_id,
        )
        with pytest.raises(OperationFailure) as alone:
            await getattr(collection, name)(*arguments, **options)
        assert (type(alone.value), alone.value.code) == (type(error), error.code)
        assert outcome_of(alone.value) is outcome_of(error)
        assert {1, 3, 4, 5} == {document["_id"] for document in stored.find()}


class TestAlone:
    @pytest.mark.parametrize(
        ("given", "options"),
        [
            ({"n": 0}, {}),
            ({}, {}),
            ({"_id": 1, "n": 0}, {}),
            ({"_id": {"$gt": 0}}, {}),
            ({"_id": 1}, {"comment": "why"}),
            ({"_id": 1}, {"hint": "_id_"}),
            ({"_id": 1}, {"collation": {"locale": "en"}}),
        ],
        ids=repr,
    )
    async def test_others(self, together, commands, given, options):
        """What is not for one document by its id, or has options, is sent as ever."""
        writes = [together.update_one(given, INCREMENT, **options) for _ in range(3)]
        await asyncio.gather(*writes)
        assert [1, 1, 1] == commands.sizes
        assert all(command["ordered"] for command in commands.sent)

    async def test_with_a_session(self, client, together, commands):
        """Over which the user says what is in it."""
        async with await client.start_session() as session:
            await together.update_one({"_id": 1}, INCREMENT, session=session)
            await together.delete_one({"_id": 1}, session=session)
        assert all(command["ordered"] for command in commands.sent)

    async def test_without_retryable_writes(self, replica_set, collection, client_class, commands):
        """A server that keeps no record could not be asked."""
        options = {"retryWrites": False, "event_listeners": [commands]}
        async with client_class(replica_set.uri, **options) as client:
            await self.two_unlike(client[collection.database.name][collection.name])
        assert [1, 1, 1] == commands.sizes[-3:]

    async def test_on_a_standalone_server(self, server_version, client_class, commands):
        """Nor does this one, also if it is not known yet what it is."""
        with Standalone(version=server_version) as server:
            async with client_class(server.uri, event_listeners=[commands]) as client:
                await self.two_unlike(client.aioretry_tests.alone)
        assert {1} == set(commands.sizes)

    async def two_unlike(self, collection):
        together = collection.coalesced()
        writes = [together.update_one({"_id": n}, INCREMENT, upsert=n == 1) for n in (1, 2)]
        writes.append(together.delete_one({"_id": 7}))
        first, second, third = await asyncio.gather(*writes)
        assert [(0, 0, 1), NOT_THERE] == [told(first), told(second)]
        assert 0 == third.deleted_count

    async def test_bad_input(self, together, commands):
        """The errors are those of any update; nothing is sent."""
        for write, error in [
            (together.update_one({"_id": 1}, {"n": 1}), ValueError),
            (together.replace_one({"_id": 1}, INCREMENT), ValueError),
            (together.update_one({"_id": 1}, INCREMENT, upsert=1), TypeError),
            (together.update_one({"_id": 1}, {"$set": {"x": object()}}), Exception),
        ]:
            with pytest.raises(error):
                await write
        assert [] == commands.sent


class TestFaults:
    async def test_lost_replies(self, replica_set, together, stored):
        """Each is done once, and told what it did the first time."""
        with replica_set.faults.drop_reply("update", times=2):
            async with deadline(60):
                writes = [together.update_one({"_id": n % 3 + 1}, INCREMENT) for n in range(30)]
                writes.append(together.update_one({"_id": "none"}, INCREMENT))
                *counted, none = map(told, await asyncio.gather(*writes))
        assert ({CHANGED}, NOT_THERE) == (set(counted), none)
        assert [10, 10, 10] == [each["n"] for each in stored.find({"_id": {"$lt": 4}})]

    async def test_what_asks_is_lost_too(self, replica_set, together, stored):
        """Nobody knows then whether it has changed something, or will; resolve() finds it out."""
        faults = replica_set.faults
        alone = faults.drop_reply("update", times=4, where=lambda command: "stmtIds" in command)
        with alone:
            writes = [together.update_one({"_id": key}, INCREMENT) for key in (1, "none")]
            errors = await asyncio.gather(*writes, return_exceptions=True)
        assert all(isinstance(each, AutoReconnect) for each in errors)
        assert [Outcome.UNKNOWN] * 2 == list(map(outcome_of, errors))
        assert [CHANGED, NOT_THERE] == [told(await resolve(each)) for each in errors]
        assert 1 == stored.find_one({"_id": 1})["n"]

    async def test_all_replies_lost(self, replica_set, together, stored):
        """Each can be resolved, and gets its own result."""
        with replica_set.faults.drop_reply("update", times=2):
            writes = [together.update_one({"_id": key}, INCREMENT) for key in (1, "none", 4)]
            errors = await asyncio.gather(*writes, return_exceptions=True)
        assert [Outcome.UNKNOWN] * 3 == list(map(outcome_of, errors))
        assert [CHANGED, NOT_THERE] == [told(await resolve(each)) for each in errors[:2]]
        with pytest.raises(WriteError) as caught:
            await resolve(errors[2])
        assert Outcome.UNKNOWN is outcome_of(caught.value)  # it may lie at the server still
        assert 1 == stored.find_one({"_id": 1})["n"]

    async def test_a_write_concern_error(self, replica_set, together):
        """Each is told, with what it may mean."""
        with replica_set.faults.write_concern_error(64, "update"):
            writes = [together.update_one({"_id": n}, INCREMENT) for n in (1, 2)]
            errors = await asyncio.gather(*writes, return_exceptions=True)
        assert [64, 64] == [each.code for each in errors]
        assert [Outcome.UNKNOWN] * 2 == list(map(outcome_of, errors))
        assert all(isinstance(each, OperationFailure) for each in errors)

    async def test_elections(self, replica_set, together, stored):
        """What is under way goes on at the next primary."""
        stop, counts = asyncio.Event(), [0, 0, 0]

        async def count(place):
            while not stop.is_set():
                async with deadline(60):
                    assert CHANGED == told(await together.update_one({"_id": place + 1}, INCREMENT))
                counts[place] += 1

        async with asyncio.TaskGroup() as tasks:
            for place in range(3):
                for _ in range(5):
                    tasks.create_task(count(place))
            await replica_set.step_down()
            await replica_set.wait_for_primary()
            before = sum(counts)
            async with asyncio.timeout(60):
                while sum(counts) < before + 30:
                    await asyncio.sleep(0.01)
            stop.set()
        assert counts == [each["n"] for each in stored.find({"_id": {"$lt": 4}})]

    @pytest.mark.parametrize("seed", range(in_full(20, otherwise=4)))
    async def test_of_any_kind(self, replica_set, together, stored, seed):
        """Whatever is mixed, and lost on its way: each is told what became of its own document."""
        rng = random.Random(seed)
        kinds = [rng.choice(["inc", "same", "none", "new", "text", "replace"]) for _ in range(40)]
        stored.delete_many({})
        for key, kind in enumerate(kinds):
            if kind not in {"none", "new"}:
                stored.insert_one({"_id": key, "n": "x" if kind == "text" else 0})
        lose = rng.choice([replica_set.faults.drop_reply, replica_set.faults.drop_request])
        with lose("update", times=rng.randint(1, 3)):
            async with deadline(60):
                writes = [self.write(together, key, kind) for key, kind in enumerate(kinds)]
                ends = await asyncio.gather(*writes, return_exceptions=True)
        for key, (kind, end) in enumerate(zip(kinds, ends, strict=True)):
            expected = {
                "inc": CHANGED,
                "same": THE_SAME,
                "none": NOT_THERE,
                "new": (0, 0, key),
                "replace": CHANGED,
            }
            if kind == "text":
                assert isinstance(end, WriteError)
            else:
                assert expected[kind] == told(end), kind
            document = stored.find_one({"_id": key})
            numbers = {"inc": 1, "same": 0, "new": 1, "text": "x", "replace": 7}
            assert (document and document["n"]) == numbers.get(kind)

    def write(self, together, key, kind):
        if kind == "replace":
            return together.replace_one({"_id": key}, {"n": 7})
        change = {"$set": {"n": 0}} if kind == "same" else INCREMENT
        return together.update_one({"_id": key}, change, upsert=kind == "new")


class TestLeaving:
    async def test_whoever_has_left_is_not_asked_for(self, replica_set, together, commands, stored):
        """It may have changed nothing, and asking would do it now."""
        held = replica_set.faults.hang("update", applied=True)
        left, other = (together.update_one({"_id": key}, INCREMENT) for key in ("none", 1))
        await held.wait_until_fired()
        left.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await left
        held.disarm()
        assert CHANGED == told(await other)
        assert [[1]] == commands.asked  # it would have been the first
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        stored.insert_one({"_id": "none", "n": 0})
        assert CHANGED == told(await resolve(caught.value))
        assert 1 == stored.find_one({"_id": "none"})["n"]

    async def test_whoever_has_left_and_is_counted(self, replica_set, together, commands):
        """Where the sums say it, the exception does."""
        held = replica_set.faults.hang("update", applied=True)
        writes = [together.update_one({"_id": key}, INCREMENT) for key in (1, 2)]
        await held.wait_until_fired()
        writes[1].cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await writes[1]
        held.disarm()
        assert CHANGED == told(await writes[0])
        assert Outcome.APPLIED is outcome_of(caught.value)
        assert attempts_of(caught.value)
        assert [2] == commands.sizes

    async def test_sessions_are_used_again(self, together, commands):
        """Once each was answered that was asked for, nothing over a session is in doubt."""
        for _ in range(10):
            writes = [together.update_one({"_id": key}, INCREMENT) for key in (1, "none")]
            await asyncio.gather(*writes)
        assert 20 == len(commands.asked)
        assert 1 == len({command["lsid"]["id"] for command in commands.sent})

    async def test_a_deadline_while_it_is_asked(self, replica_set, together):
        """It is over for its own caller, and for nobody else."""
        faults, asks = replica_set.faults, {"where": lambda command: "stmtIds" in command}
        with faults.hang("update", times=None, **asks) as held:
            async with deadline(60):
                patient = together.update_one({"_id": 1}, INCREMENT)
            async with deadline(0.5):
                hasty = together.update_one({"_id": "none"}, INCREMENT)
            with pytest.raises(DeadlineExceeded) as caught:
                async with asyncio.timeout(30):
                    await hasty
            assert Outcome.UNKNOWN is outcome_of(caught.value)
            held.disarm()
        assert CHANGED == told(await patient)

    async def test_one_whose_turn_to_be_asked_for_has_not_come(
        self, replica_set, client_class, together, commands
    ):
        """Who leaves before that is not asked for any more."""
        options = {"maxPoolSize": 1, "event_listeners": [commands]}
        asks = {"where": lambda command: "stmtIds" in command}
        async with client_class(replica_set.uri, **options) as client:
            narrow = client[together.database.name][together.name].coalesced()
            await narrow.find_one()
            with replica_set.faults.hang("update", **asks) as held:
                first, left = (narrow.update_one({"_id": key}, INCREMENT) for key in (1, "none"))
                await held.wait_until_fired()
                left.cancel()
                with pytest.raises(asyncio.CancelledError) as caught:
                    await left
                held.disarm()
            assert CHANGED == told(await first)
            await narrow.update_one({"_id": 2}, INCREMENT)
        assert [[0]] == commands.asked
        assert Outcome.UNKNOWN is outcome_of(caught.value)
