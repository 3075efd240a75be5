"""Entries are handed on at least once, those of a key in order, by one relay at a time."""

import asyncio
import contextlib

import anyio
import pytest
from bson import ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from prometheus_client import CollectorRegistry
from pymongo.errors import OperationFailure

from aioretry import ClientDraining, DeadlineExceeded, deadline, drain, run_transaction
from aioretry.outbox import Outbox, Relay, Undeliverable
from aioretry.outbox._relay import pause_after
from aioretry.telemetry.prometheus import PrometheusHook
from tests.outbox.conftest import QUICK, Receiver, emptied, until


async def test_in_order(client, outbox, relay, receiver, add, at_work):
    """Those of one key, also when more come meanwhile; each once, with its lease's number."""
    await add("a1", "b1", "a2")
    at_work(relay)
    await add("a3", "b2")
    await emptied(outbox)
    assert [what for what in receiver.what() if what[0] == "a"] == ["a1", "a2", "a3"]
    assert sorted(receiver.what()) == ["a1", "a2", "a3", "b1", "b2"]
    assert {entry.fence for entry in receiver.got} == {1}
    assert relay.deliveries == {("tell", "delivered"): 5}
    first = receiver.got[0]
    assert (first.kind, first.key, first.attempts, first.error) == ("tell", "a", 0, None)
    assert first.added.tzinfo is not None


async def test_without_keys(client, outbox, at_work):
    """They have no order, and hold nobody up."""
    inside, all_there = [], asyncio.Event()

    async def deliver(entry):
        assert entry.key is None
        inside.append(entry)
        if len(inside) == 5:
            all_there.set()
        await all_there.wait()

    async def add(session):
        for _ in range(5):
            await outbox.add(session, "tell", {})

    await run_transaction(client, add)
    at_work(Relay(outbox, deliver, at_once=5, **QUICK))
    await emptied(outbox)


@pytest.mark.slow
async def test_not_more_at_once(outbox, add, at_work):
    """Than were asked for; others wait their turn."""
    inside, most = 0, 0

    async def deliver(entry):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.lowlevel.checkpoint()
        inside -= 1

    await add(*(f"{letter}{n}" for letter in "abcde" for n in range(2)))  # one page
    # When one ends the next one begins, and does not wait for a look at the outbox.
    at_work(Relay(outbox, deliver, at_once=2, **{**QUICK, "poll_seconds": 60.0}))
    await emptied(outbox)
    assert most == 2


async def test_after_a_failure(outbox, relay, receiver, add, at_work):
    """It is tried again, with the same id; what comes after it waits, and other keys don't."""
    receiver.wrong["a1"] = 3
    await add("a1", "a2", "b1")
    at_work(relay)
    await emptied(outbox)
    assert [what for what in receiver.what() if what[0] == "a"] == ["a1"] * 4 + ["a2"]
    assert len({entry.id for entry in receiver.got}) == 3
    tries = [entry for entry in receiver.got if entry.payload["what"] == "a1"]
    assert [entry.attempts for entry in tries] == [0, 1, 2, 3]
    assert [entry.error for entry in tries] == [None] + ["ValueError: no"] * 3
    assert relay.deliveries["tell", "failed"] == 3


class UnspeakableError(Exception):
    """Its text can't be had."""

    def __str__(self):
        raise UnicodeError


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        TimeoutError(),
        ExceptionGroup("", [OSError()]),
        ValueError("caf\udce9"),  # as `surrogateescape` makes it
        UnspeakableError(),
    ],
    ids=ascii,
)
async def test_whatever_is_raised(outbox, relay, receiver, add, at_work, error):
    """Is a failure; also a cancellation that is none of the relay, and what can't be stored."""
    receiver.wrong["a1"], receiver.error = 1, error
    await add("a1")
    at_work(relay)
    await emptied(outbox)
    assert receiver.what() == ["a1", "a1"]
    assert relay.deliveries["tell", "failed"] == 1


async def test_what_takes_too_long(outbox, add, at_work):
    """It is cancelled, and has failed."""
    calls = []

    async def deliver(entry):
        calls.append(entry)
        if len(calls) == 1:
            await asyncio.Event().wait()

    await add("a1")
    at_work(Relay(outbox, deliver, timeout=0.05, **QUICK))
    await emptied(outbox)
    assert calls[1].error.startswith("TimeoutError")


async def test_what_can_never_be_delivered(outbox, relay, receiver, add, at_work, caplog):
    """It is given up at once, and those after it go on; no log has what was in it."""
    receiver.wrong["a1"], receiver.error = 1, Undeliverable("no such address: secret")
    (dead, _) = await add("a1", "a2")
    at_work(relay)
    await emptied(outbox)
    assert receiver.what() == ["a1", "a2"]
    assert [(entry.id, entry.attempts) for entry in await outbox.dead()] == [(dead, 1)]
    assert relay.deliveries["tell", "dead"] == 1
    assert f"entry {dead} (tell) is given up at attempt 1: Undeliverable" in caplog.messages
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "stranger",
    [
        {"payload": {"until": DatetimeMS(10**15)}},  # no datetime of Python's
        {"key": {}},
        {"key": 7},
        {"kind": None},
        {"at": "now"},
        {"attempts": None},
        {"payload": 7},
        {"_id": ObjectId()},
    ],
    ids=lambda stranger: next(iter(stranger)),
)
async def test_what_nobody_can_read(outbox, relay, receiver, add, at_work, stored, stranger):
    """It is given up, with the reason; and it holds nobody up."""
    name = str(stranger.get("_id", "x"))
    entry = {"state": "pending", "at": Timestamp(1, 0), "kind": "tell", "payload": {}}
    stored.insert_one({"_id": "x", "key": "a", "attempts": 0, **entry, **stranger})
    await outbox.status()
    await add("a1", "b1")
    at_work(relay)
    await emptied(outbox)
    assert sorted(receiver.what()) == ["a1", "b1"]
    (dead,) = await outbox.dead()
    assert (dead.id, dead.payload) == (name, {})
    assert dead.error.startswith("it can't be read: ")
    stored.update_one({"state": "dead"}, {"$set": {"state": "pending"}, "$unset": {"at": 1}})
    assert (await outbox.status()).oldest_seconds == 0.0


async def test_no_async_function(outbox, add):
    """It has done its work when that is seen, and would do it at each attempt."""
    called = []
    await add("a1")
    with pytest.raises(TypeError, match="deliver must be an async function, not <built-in method"):
        await Relay(outbox, called.append, **QUICK).run()
    assert len(called) == 1


async def test_given_up_in_the_end(outbox, receiver, add, at_work):
    """After so many attempts."""
    receiver.wrong["a1"] = 9
    await add("a1", "a2")
    at_work(Relay(outbox, receiver, max_attempts=3, **QUICK))
    await emptied(outbox)
    assert receiver.what() == ["a1"] * 3 + ["a2"]


async def test_cancelled_at_any_moment(outbox, add):
    """It ends: PyMongo's asyncio client forgets some cancellations, before Python 3.12."""
    await outbox.prepare()
    for n in range(30):
        receiver = Receiver()
        await add("a1", "a2", "a3")
        task = asyncio.create_task(Relay(outbox, receiver, **QUICK).run())
        await until(lambda got=receiver.got: len(got) == 3)
        for _ in range(n):
            await anyio.lowlevel.checkpoint()
        task.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait([task])
        await outbox.status()


async def test_a_cancellation_that_is_forgotten(outbox, relay, monkeypatch):
    """By whatever it waits for: it comes again."""
    waits = asyncio.Event()

    async def forget():
        with contextlib.suppress(asyncio.CancelledError):
            waits.set()
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    monkeypatch.setattr(outbox, "prepare", forget)
    task = asyncio.create_task(relay.run())
    await waits.wait()
    task.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait([task])
    assert task.cancelled()


async def test_one_at_a_time(outbox, add, at_work):
    """Of two relays one is at work; when it ends, the other one goes on at once."""
    receivers = Receiver(), Receiver()
    relays = [Relay(outbox, each, **{**QUICK, "lease_seconds": 30.0}) for each in receivers]
    first = at_work(relays[0])
    await add("a1")
    await emptied(outbox)
    at_work(relays[1])
    await add("a2")
    await emptied(outbox)
    assert receivers[0].what() == ["a1", "a2"]
    assert relays[1].status is None
    first.cancel()
    await asyncio.wait([first])
    await add("a3")
    await emptied(outbox)
    assert receivers[1].what() == ["a3"]
    assert [entry.fence for entry in receivers[1].got] == [2]


async def test_a_lease_that_is_lost(outbox, relay, add, at_work, plain, collection):
    """Whoever has lost it hands nothing more on, and what it was at is cancelled."""
    began, was_cancelled = asyncio.Event(), []

    async def deliver(entry):
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.append(entry.payload["what"])
            raise

    await add("a1", "a2")
    at_work(Relay(outbox, deliver, **{**QUICK, "lease_seconds": 2.0}))
    await began.wait()
    leases = plain[collection.database.name]["aioretry.leases"]
    taken = leases.update_one(
        {"_id.aggregator": f"outbox {collection.name}"},
        [{"$set": {"owner": "me", "fence": {"$add": ["$fence", 1]}}}],
    )
    assert taken.modified_count == 1
    await until(lambda: was_cancelled)
    assert was_cancelled == ["a1"]


async def test_a_drain(client, outbox, add, at_work):
    """What is being delivered is waited for; what comes after it is left to others, at once."""
    began, go_on, got = asyncio.Event(), asyncio.Event(), []

    async def deliver(entry):
        got.append(entry.payload["what"])
        began.set()
        await go_on.wait()

    await add("a1", "a2")
    task = at_work(Relay(outbox, deliver, **{**QUICK, "lease_seconds": 30.0}))
    await began.wait()
    draining = asyncio.create_task(drain(client, 20.0))
    await asyncio.wait([task], timeout=0.05)
    assert not draining.done()
    go_on.set()
    assert (await draining).is_complete
    with pytest.raises(ClientDraining):
        await task
    assert got == ["a1"]


async def test_after_a_drain(replica_set, collection, client_class, add, at_work, outbox, receiver):
    """Another one goes on, and does not wait for the lease to end."""
    quick = {**QUICK, "lease_seconds": 60.0}
    await add("a1")
    async with client_class(replica_set.uri) as other:
        its = Outbox(other[collection.database.name][collection.name])
        task = at_work(Relay(its, receiver, **quick))
        await emptied(outbox)
        assert (await drain(other, 20.0)).is_complete
        with pytest.raises(ClientDraining):
            await task
    await add("a2")
    at_work(Relay(outbox, receiver, **quick))
    await emptied(outbox)
    assert receiver.what() == ["a1", "a2"]


async def test_a_deadline_ends_it(relay):
    """The surrounding one; a task that is to last starts without one."""
    async with deadline(0.3):
        with pytest.raises(DeadlineExceeded):
            await relay.run()


async def test_an_error_that_stays(outbox, relay, replica_set, collection):
    """It is raised, as it is: nobody waits for what never comes."""
    denied = replica_set.faults.error(13, "find", namespace=outbox.collection.full_name, times=None)
    with denied, pytest.raises(OperationFailure) as caught:
        await relay.run()
    assert caught.value.code == 13


async def test_many_receivers_are_ill(outbox, receiver, add, at_work, monkeypatch):
    """Then no new keys are tried: whatever is asked for, the answer would be the same."""
    monkeypatch.setattr("aioretry.outbox._relay._MOST_DELAYED", 2)
    receiver.wrong = dict.fromkeys([f"{letter}1" for letter in "abcdef"], 1)
    await add(*receiver.wrong)
    slow = {**QUICK, "first_pause": 0.4, "longest_pause": 0.4}
    at_work(Relay(outbox, receiver, at_once=1, **slow))  # so it reads five keys at once
    await emptied(outbox)
    assert sorted(receiver.what()) == sorted([*receiver.wrong] * 2)
    assert receiver.what().index("f1") >= 5 + 4


async def test_no_retry_without_a_pause(outbox, receiver, add, at_work):
    """What has failed is not tried again meanwhile, however much there is to do."""
    receiver.wrong["a1"] = 1
    await add("a1")
    at_work(Relay(outbox, receiver, **{**QUICK, "first_pause": 60.0, "longest_pause": 60.0}))
    for n in range(5):
        await add(f"b{n}")
        await until(lambda n=n: receiver.what()[-1:] == [f"b{n}"])
    assert receiver.what().count("a1") == 1


def test_pauses():
    """They double, up to the longest; half of each is left to chance."""
    for tries, seconds in (1, 1.0), (2, 2.0), (5, 16.0), (9, 100.0), (5000, 100.0):
        pauses = [pause_after(tries, 1.0, 100.0) for _ in range(50)]
        assert seconds / 2 <= min(pauses) < max(pauses) <= seconds


async def test_what_does_not_obey(outbox, add, at_work):
    """It is cancelled until it does: PyMongo's asyncio client forgets a cancellation."""
    calls = []

    async def deliver(entry):
        calls.append(entry)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if len(calls) == 1:
            await asyncio.Event().wait()

    await add("a1")
    at_work(Relay(outbox, deliver, timeout=0.05, max_attempts=2, **QUICK))
    await emptied(outbox)
    assert [entry.attempts for entry in calls] == [0, 1]


async def test_a_lease_that_was_long_in_coming(outbox, relay, receiver, add, at_work, monkeypatch):
    """It is renewed before anything is handed on: it may be over, if taking it was retried."""
    renewals, renew = [], relay._settings.leases.renew

    async def noted(lease):
        renewals.append(receiver.what())
        return await renew(lease)

    monkeypatch.setattr(relay._settings.leases, "renew", noted)
    await add("a1")
    at_work(relay)
    await emptied(outbox)
    assert renewals[0] == []


async def test_delivered_though_given_up(outbox, add):
    """Whoever was away while others gave it up has delivered it all the same."""
    await add("a1")
    (entry,) = (await outbox.pending([], 10))["a"]
    await outbox.fail(entry, "no", is_dead=True)
    await outbox.end(entry)
    assert (await outbox.status()).dead == 0


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"outbox": 7}, TypeError, "outbox must be an Outbox, not 7"),
        ({"deliver": 7}, TypeError, "deliver must be an async function, not 7"),
        ({"at_once": 0}, ValueError, "at_once must be at least 1, not 0"),
        ({"max_attempts": 1.5}, TypeError, "max_attempts must be an int"),
        ({"timeout": 0}, ValueError, "timeout must be at least"),
        ({"lease_seconds": "1"}, TypeError, "lease_seconds must be a number of seconds"),
    ],
)
async def test_misuse(outbox, receiver, given, error, words):
    """It is refused by its name."""
    with pytest.raises(error, match=words):
        Relay(**{"outbox": outbox, "deliver": receiver, **given})


async def test_metrics(outbox, relay, receiver, add, at_work):
    """What it has done, and how the outbox is while it is at work."""
    registry = CollectorRegistry()
    hook = PrometheusHook(registry)
    hook.observe_relay(relay)
    with pytest.raises(TypeError, match="relay must be a Relay"):
        hook.observe_relay(outbox)
    receiver.wrong["a1"], receiver.error = 1, Undeliverable("no")
    await add("a1", "a2")
    task = at_work(relay)
    await emptied(outbox)
    await until(lambda: relay.status is not None)
    name = {"outbox": outbox.full_name}

    def sample(metric, **labels):
        return registry.get_sample_value(f"aioretry_outbox_{metric}", name | labels)

    for result in "dead", "delivered":
        assert sample("deliveries_total", kind="tell", result=result) == 1
    assert sample("entries", state="pending") == relay.status.pending
    assert sample("oldest_seconds") == relay.status.oldest_seconds
    task.cancel()
    await asyncio.wait([task])
    assert sample("entries", state="pending") is None
