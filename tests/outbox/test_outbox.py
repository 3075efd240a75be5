"""What an outbox keeps, and for whom."""

import asyncio
import functools
import secrets

import pytest
from bson import Timestamp
from pymongo.errors import InvalidOperation, OperationFailure
from pymongo.write_concern import WriteConcern

from aioretry import Outcome, outcome_of, transaction
from aioretry.idempotent import Keys
from aioretry.outbox import Outbox, OutboxStatus, Relay
from aioretry.testing import ReplicaSet
from tests.outbox.conftest import QUICK, emptied, until


async def test_only_in_a_transaction(client, outbox, stored):
    """Elsewhere an entry could be stored without what it belongs to."""
    async with await client.start_session() as session:
        for other in None, session, "session":
            with pytest.raises(InvalidOperation, match="in a transaction") as caught:
                await outbox.add(other, "tell", {})
            assert outcome_of(caught.value) is Outcome.NOT_APPLIED
    assert stored.count_documents({}) == 0


async def test_with_the_transaction(client, outbox, stored):
    """It is there if that is committed, and not if not."""
    async with transaction(client) as session:
        await outbox.add(session, "tell", {"what": "a"})
        await session.abort_transaction()
    async with transaction(client) as session:
        entry_id = await outbox.add(session, "tell", {"what": "b"}, key="k")
        assert (await outbox.status()).pending == 0
    (found,) = stored.find()
    assert found["_id"] == entry_id
    assert found["at"] > Timestamp(0, 0)
    assert await outbox.status() == OutboxStatus(1, 0, pytest.approx(0, abs=60))


async def test_in_work_that_is_done_once(client, outbox, stored):
    """It belongs to the answer: without one there is none, and who gets it again adds nothing."""
    fails = [True, False]

    async def work(session):
        entry = {"_id": await outbox.add(session, "tell", {"what": "a"}, key="a")}
        if fails.pop(0):
            raise ValueError("no")
        return entry

    async with Keys(secrets.token_bytes(), "outbox") as keys:
        once = functools.partial(keys.once, "k", work, database=client.shop)
        with pytest.raises(ValueError, match="no"):
            await once()
        assert 0 == stored.count_documents({})
        first, again = await once(), await once()
    (found,) = stored.find({}, {"_id": 1})
    assert (found, False) == (first.value, first.replayed)
    assert (found, True) == (again.value, again.replayed)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("", {}), ValueError, "must not be empty"),
        ((7, {}), TypeError, "kind must be a str, not 7"),
        (("tell", ["a"]), TypeError, "payload must be a mapping, not list"),
        (("tell", {}, ""), ValueError, "must not be empty"),
        (("tell", {}, 7), TypeError, "key must be a str, not 7"),
    ],
)
async def test_what_is_no_entry(client, outbox, stored, arguments, error, words):
    """It is refused by its name, and the transaction goes on without it."""
    kind, payload, *key = arguments
    async with transaction(client) as session:
        with pytest.raises(error, match=words):
            await outbox.add(session, kind, payload, key=key[0] if key else None)
    assert stored.count_documents({}) == 0


async def test_misuse(plain, collection):
    """So is what is no outbox."""
    with pytest.raises(TypeError, match="of a RetryClient or of an AsyncRetryClient"):
        Outbox(plain.db.c)
    with pytest.raises(ValueError, match="keep_seconds must be at least"):
        Outbox(collection, keep_seconds=0)


async def test_the_servers_order(client, outbox, stored):
    """Entries have the server's time, each a later one, whatever the clients' clocks say."""
    for n in range(3):
        async with transaction(client) as session:
            for m in range(3):
                await outbox.add(session, "tell", {"what": 3 * n + m}, key="k")
    assert [found["payload"]["what"] for found in stored.find().sort("at")] == [*range(9)]
    assert len(stored.distinct("at")) == 9


async def test_the_oldest_first(outbox, stored):
    """Whatever order the server finds them in, with its index or without."""
    entry = {"state": "pending", "key": "k", "kind": "tell", "payload": {}, "attempts": 0}
    stored.insert_many([{**entry, "_id": str(n), "at": Timestamp(n, 0)} for n in (2, 3, 1)])
    assert [one.id for one in (await outbox.pending([], 10))["k"]] == ["1", "2", "3"]


async def test_what_is_kept(outbox, collection, plain):
    """The server removes what was delivered, after a time that may be changed."""
    for seconds in 60, 3600:
        outbox = Outbox(collection, keep_seconds=seconds)
        await outbox.prepare()
        await outbox.prepare()
        indexes = plain[collection.database.name][collection.name].index_information()
        (index,) = [each for each in indexes.values() if each["key"] == [("delivered", 1)]]
        assert index["expireAfterSeconds"] == seconds


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("state_1_at_1_key_1", {"sparse": True}),
        ("mine", {"partialFilterExpression": {"state": "pending"}}),
    ],
)
async def test_another_index_is_in_the_way(outbox, stored, name, options):
    """The error says which, and what to do; that helps."""
    stored.create_index([("state", 1), ("at", 1), ("key", 1)], name=name, **options)
    with pytest.raises(OperationFailure) as caught:
        await outbox.prepare()
    (note,) = caught.value.__notes__
    which = f"the existing index of {outbox.full_name} on state, at, key"
    assert note == f"drop {which}: this makes its own"
    stored.drop_index(name)
    await outbox.prepare()


async def test_what_is_read(outbox, stored):
    """The oldest are found by an index, and not among all that was delivered."""
    await outbox.prepare()
    for which in {"state": "pending", "key": {"$nin": ["a"]}}, {"state": "dead"}:
        plan = str(stored.find(which).sort("at", 1).limit(10).explain()["queryPlanner"])
        assert "IXSCAN" in plan
        assert "'SORT'" not in plan


@pytest.mark.slow
async def test_what_is_removed(server_version, client_class, receiver, at_work):
    """What was delivered, when its time is over; what is dead stays."""
    receiver.wrong["a"] = 1
    with ReplicaSet(1, server_version, parameters={"ttlMonitorSleepSecs": "1"}) as servers:
        async with client_class(servers.uri) as client:
            outbox = Outbox(client.shop.outbox, keep_seconds=1)
            await outbox.prepare()
            async with transaction(client) as session:
                dead, _ = [await outbox.add(session, "tell", {"what": what}) for what in "ab"]
            task = at_work(Relay(outbox, receiver, max_attempts=1, **QUICK))
            await until(lambda: len(receiver.got) == 2)
            while await outbox.collection.count_documents({}) > 1:
                await asyncio.sleep(0.01)
            assert [dead] == [entry.id for entry in await outbox.dead()]
            task.cancel()
            await asyncio.wait([task])


async def test_what_is_dead(outbox, relay, receiver, add, at_work, stored):
    """It is retried or discarded by its id; what is not dead is left alone."""
    receiver.wrong = {"a1": 20, "b1": 20, "a2": 0}
    one, two, other = await add("a1", "b1", "a2")
    at_work(relay)
    await emptied(outbox)
    assert {one, two} == {entry.id for entry in await outbox.dead()}
    assert {"ValueError: no"} == {entry.error for entry in await outbox.dead()}
    assert await outbox.dead(limit=1) == (await outbox.dead())[:1]
    for what in outbox.retry, outbox.discard:
        assert not await what(other)
        assert not await what("nothing")
    assert await outbox.discard(two)
    assert await outbox.retry(one)
    await until(lambda: relay.deliveries["tell", "delivered"] == 2)
    assert await outbox.status() == OutboxStatus(0, 0, 0.0)
    # The server removes by the date, and nothing that has none.
    ended = {"state": "delivered", "delivered": {"$type": "date"}}
    assert 2 == stored.count_documents(ended)


async def test_what_another_has_done_stays(outbox, add):
    """A failure that is told late changes nothing: somebody else has been at work since."""
    await add("a1")
    (entry,) = (await outbox.pending([], 10))["a"]
    await outbox.fail(entry, "first", is_dead=False)
    await outbox.fail(entry, "late", is_dead=True)
    (again,) = (await outbox.pending([], 10))["a"]
    assert (again.attempts, again.error) == (1, "first")
    await outbox.end(entry)
    await outbox.fail(again, "late", is_dead=True)
    assert await outbox.status() == OutboxStatus(0, 0, 0.0)


async def test_what_no_majority_has(three_members, outbox, client):
    """It is not handed on: it may be rolled back, and a mail that was sent is sent."""
    secondaries = await three_members.secondaries()
    await outbox.prepare()
    for member in secondaries:
        await three_members.freeze(member)
    async with transaction(client, write_concern=WriteConcern(w=1)) as session:
        await outbox.add(session, "tell", {"what": "a1"}, key="a")
    assert await outbox.pending([], 10) == {}
    for member in secondaries:
        await three_members.thaw(member)
    while not await outbox.pending([], 10):
        await asyncio.sleep(0.01)
