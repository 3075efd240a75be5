"""insert_one calls that travel together: each has its own result, error, deadline and end."""

import asyncio
import datetime as dt

import anyio
import pytest
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from pymongo import monitoring
from pymongo.errors import (
    AutoReconnect,
    DocumentTooLarge,
    DuplicateKeyError,
    InvalidOperation,
    WriteConcernError,
    WriteError,
)

from aioretry import (
    DeadlineExceeded,
    Outcome,
    attempts_of,
    deadline,
    outcome_of,
    resolve,
)


class Inserts(monitoring.CommandListener):
    """The insert commands that a client sent."""

    def __init__(self):
        self.sent = []

    def started(self, event):
        if event.command_name == "insert":
            self.sent.append(event.command)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


@pytest.fixture
def inserts():
    """What was sent."""
    return Inserts()


@pytest.fixture
async def client(replica_set, inserts, client_class):
    """A client that tells what it sends."""
    async with client_class(replica_set.uri, event_listeners=[inserts]) as client:
        yield client


@pytest.fixture
def together(collection):
    """The collection, with inserts that travel together."""
    return collection.coalesced()


def ids_of(command):
    """The ids of the documents of a command, in their order."""
    return [document["_id"] for document in command["documents"]]


async def insert(collection, number):
    """Insert a document of that id."""
    return await collection.insert_one({"_id": number})


async def flying(replica_set, together, *ids):
    """A first insert that hangs at the server, and others that wait for it."""
    held = replica_set.faults.hang("insert", applied=True)
    first = together.insert_one({"_id": "first"})
    await held.wait_until_fired()
    return held, first, [together.insert_one({"_id": each}) for each in ids]


class TestTogether:
    async def test_calls_of_one_moment(self, together, inserts, stored):
        """They are one command, in the order of the calls, and each has its own result."""
        results = await asyncio.gather(*(together.insert_one({"_id": n}) for n in range(100)))
        assert list(range(100)) == [result.inserted_id for result in results]
        assert all(result.acknowledged for result in results)
        (command,) = inserts.sent
        assert (list(range(100)), False) == (ids_of(command), command["ordered"])
        assert 100 == stored.count_documents({})

    async def test_calls_during_another(self, replica_set, together, inserts, stored):
        """While one command is under way the next one collects."""
        held, first, others = await flying(replica_set, together, 1, 2)
        others.append(together.insert_one({"_id": 3}))
        assert 1 == len(inserts.sent)
        held.disarm()
        await asyncio.gather(first, *others)
        assert [["first"], [1, 2, 3]] == [ids_of(command) for command in inserts.sent]
        assert 4 == stored.count_documents({})

    async def test_one_alone(self, together, inserts):
        """Nothing waits for company."""
        document = {}
        result = await together.insert_one(document)
        assert document["_id"] == result.inserted_id
        assert [[result.inserted_id]] == [ids_of(command) for command in inserts.sent]

    async def test_that_nobody_awaits(self, together, stored):
        """It happens all the same."""
        together.insert_one({"_id": 1})
        async with asyncio.timeout(30):
            while not stored.count_documents({}):
                await asyncio.sleep(0.01)

    async def test_views_share_a_queue(self, collection, inserts):
        """Of the same options; others have their own."""
        views = [
            collection.coalesced(),
            collection.coalesced(),
            collection.coalesced().with_options(),
        ]
        other = collection.coalesced(max_documents=7)
        await asyncio.gather(*(view.insert_one({}) for view in [*views, other]))
        assert [1, 3] == sorted(len(command["documents"]) for command in inserts.sent)

    async def test_limits(self, collection, inserts):
        """No more documents, and no more bytes, than are asked for."""
        few = collection.coalesced(max_documents=3)
        await asyncio.gather(*(few.insert_one({"_id": n}) for n in range(8)))
        assert [[0, 1, 2], [3, 4, 5], [6, 7]] == [ids_of(command) for command in inserts.sent]
        inserts.sent.clear()
        small = collection.coalesced(max_bytes=250)
        texts = ["x" * 100, "x" * 50, "x" * 100, "x" * 400, "x"]
        await asyncio.gather(*(small.insert_one({"_id": text}) for text in dict.fromkeys(texts)))
        assert [2, 1, 1] == [len(command["documents"]) for command in inserts.sent]

    async def test_a_full_queue(self, collection, inserts, stored):
        """What does not fit waits as it is, and is sent in its turn."""
        small = collection.coalesced(max_bytes=1000)
        await asyncio.gather(*(small.insert_one({"_id": n, "x": "x" * 300}) for n in range(50)))
        assert list(range(50)) == [each for command in inserts.sent for each in ids_of(command)]
        assert 50 == stored.count_documents({})

    @pytest.mark.parametrize("options", [{"comment": "x"}, {"bypass_document_validation": False}])
    async def test_with_options_of_its_own(self, options, together, inserts):
        """Such a call is sent alone."""
        writes = [together.insert_one({}, **options), together.insert_one({})]
        await asyncio.gather(*writes, return_exceptions=True)  # servers before 4.4 know no comment
        assert [1, 1] == [len(command["documents"]) for command in inserts.sent]

    async def test_with_a_session(self, client, together, inserts):
        """So is one over the user's session, with its id."""
        async with await client.start_session() as session:
            await asyncio.gather(together.insert_one({}, session=session), together.insert_one({}))
            own = [command for command in inserts.sent if command["lsid"] == session.session_id]
        assert [1] == [len(command["documents"]) for command in own]

    @pytest.mark.parametrize("name", ["max_documents", "max_bytes"])
    @pytest.mark.parametrize(
        ("given", "error"),
        [(0, ValueError), (10**9, ValueError), ("1", TypeError), (True, TypeError)],
    )
    def test_bad_limits(self, name, given, error, collection):
        """They are refused by name."""
        with pytest.raises(error, match=f"{name} must be"):
            collection.coalesced(**{name: given})


class TestErrors:
    async def test_duplicates(self, collection, together, stored):
        """Whoever has one gets the error that it would have got alone; the others their results."""
        await collection.insert_one({"_id": 2})
        with pytest.raises(DuplicateKeyError) as alone:
            await collection.insert_one({"_id": 2})
        writes = [together.insert_one({"_id": n}) for n in (1, 2, 3, 3)]
        one, two, three, again = await asyncio.gather(*writes, return_exceptions=True)
        assert [1, 3] == [one.inserted_id, three.inserted_id]
        for error in two, again:
            assert isinstance(error, DuplicateKeyError)
            assert Outcome.NOT_APPLIED is outcome_of(error)
            assert 1 == len(attempts_of(error))
        assert (alone.value.details, alone.value.code) == (two.details, two.code)
        assert [1, 2, 3] == sorted(stored.distinct("_id"))

    async def test_of_validation(self, client, collection, together):
        """A document that the collection refuses fails alone."""
        await client[collection.database.name].create_collection(
            collection.name, validator={"n": {"$type": "int"}}
        )
        good, bad = await asyncio.gather(
            together.insert_one({"n": 1}), together.insert_one({"n": "x"}), return_exceptions=True
        )
        assert good.acknowledged
        assert (WriteError, 121) == (type(bad), bad.code)

    @pytest.mark.parametrize(
        ("document", "error"),
        [({"x": object()}, InvalidDocument), (7, TypeError), ({"x": dt.time()}, InvalidDocument)],
    )
    async def test_what_can_not_be_encoded(self, document, error, together, stored):
        """It fails alone, and nothing of it is sent."""
        good, bad = await asyncio.gather(
            together.insert_one({"_id": 1}), together.insert_one(document), return_exceptions=True
        )
        assert 1 == good.inserted_id
        assert isinstance(bad, error)
        assert Outcome.NOT_APPLIED is outcome_of(bad)
        assert 1 == stored.count_documents({})

    @pytest.mark.parametrize("count", [1, 3])
    async def test_what_is_too_large(self, count, together, stored):
        """It fails alone, whether or not others travel with it."""
        large = together.insert_one({"x": "x" * (2**24 + 2**15)})
        others = [together.insert_one({"_id": n}) for n in range(count - 1)]
        with pytest.raises(DocumentTooLarge) as caught:
            await large
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        await asyncio.gather(*others)
        assert count - 1 == stored.count_documents({})

    async def test_raw_documents(self, together, stored):
        """They are sent as they are, and have no id that is known."""
        raw = RawBSONDocument(b"\x0e\x00\x00\x00\x10_id\x00\x07\x00\x00\x00\x00")
        results = await asyncio.gather(together.insert_one(raw), together.insert_one({"_id": 8}))
        assert [None, 8] == [result.inserted_id for result in results]
        assert [7, 8] == sorted(stored.distinct("_id"))


class TestFaults:
    async def test_a_lost_reply(self, replica_set, together, inserts, stored):
        """The whole is sent again with its transaction id, and is there once."""
        with replica_set.faults.drop_reply("insert"):
            results = await asyncio.gather(*(together.insert_one({"_id": n}) for n in range(20)))
        assert list(range(20)) == [result.inserted_id for result in results]
        one, two = inserts.sent
        assert (one["lsid"], one["txnNumber"]) == (two["lsid"], two["txnNumber"])
        assert 20 == stored.count_documents({})

    async def test_a_lost_reply_with_a_duplicate(self, replica_set, together, stored):
        """Whose it is, is found out also of servers before 5.0, which do not say so again."""
        stored.insert_one({"_id": 1})
        with replica_set.faults.drop_reply("insert"):
            writes = [together.insert_one({"_id": n}) for n in range(4)]
            ended = await asyncio.gather(*writes, return_exceptions=True)
        assert isinstance(ended.pop(1), DuplicateKeyError)
        assert [0, 2, 3] == [result.inserted_id for result in ended]

    async def test_all_replies_lost(self, replica_set, together, stored):
        """Each is told of its doubt by an error of its own, and can be resolved."""
        with replica_set.faults.drop_reply("insert", times=2):
            writes = [together.insert_one({"_id": n}) for n in range(3)]
            errors = await asyncio.gather(*writes, return_exceptions=True)
        assert 3 == len(set(map(id, errors)))
        for number, error in enumerate(errors):
            assert isinstance(error, AutoReconnect)
            assert (Outcome.UNKNOWN, 2) == (outcome_of(error), len(attempts_of(error)))
            assert number == (await resolve(error)).inserted_id
        assert 3 == stored.count_documents({})

    async def test_a_resolution_that_finds_a_duplicate(self, replica_set, together, stored):
        """Each gets what it would have got, also if that is an error."""
        stored.insert_one({"_id": 1})
        with replica_set.faults.drop_reply("insert", times=2):
            writes = [together.insert_one({"_id": n}) for n in range(2)]
            errors = await asyncio.gather(*writes, return_exceptions=True)
        assert 0 == (await resolve(errors[0])).inserted_id
        with pytest.raises(DuplicateKeyError):
            await resolve(errors[1])

    async def test_a_write_concern_error(self, replica_set, together, stored):
        """It reaches everybody whose document was written, and nobody else."""
        stored.insert_one({"_id": 1})
        with replica_set.faults.write_concern_error(64, "insert"):
            writes = [together.insert_one({"_id": n}) for n in range(3)]
            errors = await asyncio.gather(*writes, return_exceptions=True)
        assert [WriteConcernError, DuplicateKeyError, WriteConcernError] == list(map(type, errors))
        assert errors[0] is not errors[2]
        assert [Outcome.UNKNOWN, Outcome.NOT_APPLIED, Outcome.UNKNOWN] == list(
            map(outcome_of, errors)
        )
        assert 3 == stored.count_documents({})

    @pytest.mark.usefixtures("three_members")
    async def test_elections(self, replica_set, together, stored):
        """Under a deadline a failover is a pause."""
        async with deadline(60):
            writes = [together.insert_one({"_id": n}) for n in range(50)]
            await replica_set.step_down()
            writes += [together.insert_one({"_id": n}) for n in range(50, 100)]
            await replica_set.kill(await replica_set.wait_for_primary())
            writes += [together.insert_one({"_id": n}) for n in range(100, 150)]
            await asyncio.gather(*writes)
        await replica_set.heal()
        assert 150 == stored.count_documents({})


class TestLeaving:
    async def test_a_deadline_that_is_nearer(self, replica_set, together, stored):
        """Whoever has less time leaves; when the others are done it is told how it ended."""
        held = replica_set.faults.hang("insert", applied=True)
        async with deadline(60):
            patient = together.insert_one({"_id": 1})
        async with deadline(1):
            hasty = together.insert_one({"_id": 2})
        with pytest.raises(DeadlineExceeded) as caught:
            await hasty
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        assert [True] == [attempt.sent for attempt in attempts_of(caught.value)]
        held.disarm()
        await patient
        assert Outcome.APPLIED is outcome_of(caught.value)
        assert [1, 2] == sorted(stored.distinct("_id"))

    async def test_a_deadline_in_the_queue(self, replica_set, together, inserts, stored):
        """What was not sent yet is not sent any more."""
        held, first, _ = await flying(replica_set, together)
        async with deadline(0.2):
            late = together.insert_one({"_id": 1})
        with pytest.raises(DeadlineExceeded, match="nothing was sent") as caught:
            await late
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        held.disarm()
        await first
        await together.insert_one({"_id": 2})
        assert ["first", 2] == [each for command in inserts.sent for each in ids_of(command)]

    async def test_cancelled_in_the_queue(self, replica_set, together, inserts):
        """It is taken out."""
        held, first, (one, two) = await flying(replica_set, together, 1, 2)
        one.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await one
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        held.disarm()
        await asyncio.gather(first, two)
        assert [["first"], [2]] == [ids_of(command) for command in inserts.sent]

    async def test_cancelled_on_its_way(self, replica_set, together, stored):
        """It is unknown as long as the others are under way, and known after."""
        held = replica_set.faults.hang("insert", applied=True)
        one, two = together.insert_one({"_id": 1}), together.insert_one({"_id": 2})
        await held.wait_until_fired()
        one.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await one
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        (under_way,) = attempts_of(caught.value)
        assert (True, None, None) == (under_way.sent, under_way.error, under_way.reply)
        held.disarm()
        await two
        assert Outcome.APPLIED is outcome_of(caught.value)
        assert 2 == stored.count_documents({})

    async def test_all_of_them(self, replica_set, together, inserts, stored):
        """Then nothing more is sent, and the next ones go."""
        held = replica_set.faults.hang("insert", applied=True)
        with anyio.move_on_after(30) as scope:
            async with anyio.create_task_group() as group:
                for number in range(2):
                    group.start_soon(insert, together, number)
                await held.wait_until_fired()
                scope.cancel()
        held.disarm()
        await together.insert_one({"_id": 2})
        assert [2, 1] == [len(command["documents"]) for command in inserts.sent]

    @pytest.mark.usefixtures("three_members")
    async def test_while_there_is_no_server(self, replica_set, together, inserts):
        """A document of a command that waits for a server is not sent, and is taken out, too."""
        for member in await replica_set.secondaries():
            await replica_set.kill(member)
        client = together.database.client
        async with asyncio.timeout(60):
            while client.delegate.topology_description.has_writable_server():
                await asyncio.sleep(0.01)
        async with deadline(120):
            one, two = together.insert_one({"_id": 1}), together.insert_one({"_id": 2})
        await asyncio.sleep(0)  # they begin to wait
        one.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await one
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        await replica_set.heal()
        await two
        assert {2} == {each for command in inserts.sent for each in ids_of(command)}


class TestClosing:
    async def test_ends_all(self, replica_set, collection, client_class):
        """Those under way and those that wait end with an error and the right outcome."""
        async with client_class(replica_set.uri) as client:
            own = client[collection.database.name][collection.name].coalesced()
            held, first, (waiting,) = await flying(replica_set, own, 1)
        errors = await asyncio.gather(first, waiting, return_exceptions=True)
        held.disarm()
        assert [InvalidOperation] * 2 == list(map(type, errors))
        assert [Outcome.UNKNOWN, Outcome.NOT_APPLIED] == list(map(outcome_of, errors))
