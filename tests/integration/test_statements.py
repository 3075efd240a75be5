"""Statements of transactions: one attempt each, and the whole is repeated."""

import asyncio

import pytest
from pymongo.errors import AutoReconnect, InvalidDocument, OperationFailure

from aioretry import Outcome, attempts_of, deadline, outcome_of, run_transaction
from tests.integration.doubting import INCREMENT

TRANSIENT = "TransientTransactionError"


@pytest.fixture
async def session(client):
    """A session of the client."""
    session = client.start_session()
    session = await session if asyncio.iscoroutine(session) else session
    async with session:
        yield session


async def begin(session):
    """Start a transaction."""
    started = session.start_transaction()
    if asyncio.iscoroutine(started):
        await started


STATEMENTS = {
    "insert": lambda c, s: c.insert_one({"_id": 2}, session=s),
    "update": lambda c, s: c.update_one({"_id": 1}, INCREMENT, session=s),
    "delete": lambda c, s: c.delete_one({"_id": 1}, session=s),
    "findAndModify": lambda c, s: c.find_one_and_update({"_id": 1}, INCREMENT, session=s),
    "find": lambda c, s: c.find_one({"_id": 1}, session=s),
    "aggregate": lambda c, s: c.count_documents({}, session=s),
    "distinct": lambda c, s: c.distinct("n", session=s),
}


@pytest.mark.parametrize("command", STATEMENTS)
async def test_a_lost_answer_is_not_asked_for_again(replica_set, seeded, session, command):
    await begin(session)
    async with replica_set.faults.drop_reply(command):
        with pytest.raises(AutoReconnect) as caught:
            await STATEMENTS[command](seeded, session)
    assert caught.value.has_error_label(TRANSIENT)
    assert not caught.value.has_error_label("RetryableWriteError")
    assert 1 == len(attempts_of(caught.value))
    assert outcome_of(caught.value) is None
    await session.abort_transaction()


@pytest.mark.parametrize("command", STATEMENTS)
async def test_the_transaction_runs_again(replica_set, seeded, session, command):
    runs = []

    async def work(given):
        runs.append(1)
        await STATEMENTS[command](seeded, given)

    async with replica_set.faults.drop_reply(command), deadline(30):
        await session.with_transaction(work)
    assert 2 == len(runs)


async def test_it_is_one_transaction(seeded, session, stored):
    await begin(session)
    for send in STATEMENTS.values():
        await send(seeded, session)
    assert {"_id": 1, "n": 0} == stored.find_one({"_id": 1})
    assert stored.find_one({"_id": 2}) is None
    await session.commit_transaction()
    assert stored.find_one({"_id": 1}) is None
    assert {"_id": 2} == stored.find_one({"_id": 2})


async def test_what_was_not_sent_does_not_begin_it(seeded, session, stored):
    await begin(session)
    with pytest.raises(InvalidDocument):
        await seeded.insert_one({"n": object()}, session=session)
    await seeded.insert_one({"_id": 3}, session=session)
    await session.commit_transaction()
    assert {"_id": 3} == stored.find_one({"_id": 3})


async def test_an_overloaded_server_is_asked_again(replica_set, seeded, session, stored):
    """Its first command begins the transaction still."""
    error = replica_set.faults.error(
        462,
        "update",
        labels=["SystemOverloadedError", "RetryableError"],
        extra={"baseBackoffMS": 1},
        times=2,
    )
    await begin(session)
    async with error:
        await seeded.update_one({"_id": 1}, INCREMENT, session=session)
    await session.commit_transaction()
    assert 1 == stored.find_one({"_id": 1})["n"]


async def test_what_an_overloaded_server_refuses_does_not_begin_it_again(
    replica_set, seeded, session, stored
):
    """Another command has begun it, and one is under way."""
    labels = ["SystemOverloadedError", "RetryableError"]
    faults = replica_set.faults
    error = faults.error(462, "insert", labels=labels, extra={"baseBackoffMS": 1})
    await begin(session)
    await seeded.update_one({"_id": 1}, INCREMENT, session=session)
    async with faults.hang("update", applied=True) as hung, error:
        update = asyncio.ensure_future(seeded.update_one({"_id": 1}, INCREMENT, session=session))
        await hung.wait_until_fired()
        await seeded.insert_one({"_id": 2}, session=session)
    await update
    await session.commit_transaction()
    assert (2, {"_id": 2}) == (stored.find_one({"_id": 1})["n"], stored.find_one({"_id": 2}))


@pytest.mark.usefixtures("three_members")
async def test_a_server_that_was_deposed_frees_it(replica_set, seeded, session, stored):
    """As it frees other writes, and the transaction goes to the next one."""
    runs = []

    async def work(given):
        runs.append(1)
        await seeded.update_one({"_id": 1}, INCREMENT, session=given)
        if len(runs) == 1:
            await replica_set.freeze(await replica_set.primary())
        await seeded.update_one({"_id": 1}, INCREMENT, session=given)

    async with asyncio.timeout(60), deadline(55):
        await session.with_transaction(work)
    assert 2 == len(runs)
    await replica_set.heal()
    assert 2 == stored.find_one({"_id": 1})["n"]


async def test_an_error_of_the_server(seeded, session):
    await begin(session)
    with pytest.raises(OperationFailure) as caught:
        await seeded.insert_one({"_id": 1}, session=session)
    assert 11000 == caught.value.code
    assert 1 == len(attempts_of(caught.value))
    await session.abort_transaction()


async def test_a_server_that_is_silent_frees_it(replica_set, seeded, session):
    """Without another one, too."""
    await begin(session)
    await seeded.update_one({"_id": 1}, INCREMENT, session=session)
    await replica_set.freeze(await replica_set.primary())
    with pytest.raises(AutoReconnect) as caught:
        async with asyncio.timeout(25):
            await seeded.update_one({"_id": 1}, INCREMENT, session=session)
    assert caught.value.has_error_label(TRANSIENT)
    await replica_set.heal()
    await session.abort_transaction()


async def cancelled_as_it_is_answered(call):
    """What whoever awaits a call is told that is cancelled in that moment."""

    async def work():
        answered = call()
        answered.add_done_callback(lambda _: task.cancel())
        await answered

    task = asyncio.ensure_future(work())
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    return outcome_of(caught.value)


@pytest.mark.motor
async def test_an_answer_to_a_read_is_no_outcome(seeded):
    assert await cancelled_as_it_is_answered(seeded.find_one) is None


@pytest.mark.parametrize("beside", [False, True])
async def test_an_answer_is_not_the_transactions(client, seeded, stored, beside):
    """Neither that to a statement nor that to a write beside it says how the transaction ends."""

    async def work(session):
        await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
        own = {} if beside else {"session": session}
        answered = seeded.insert_one({"_id": 2}, **own)
        answered.add_done_callback(lambda _: task.cancel())
        await answered

    task = asyncio.ensure_future(run_transaction(client, work))
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert Outcome.NOT_APPLIED is outcome_of(caught.value)
    assert [(1, 0), *([(2, None)] if beside else [])] == [
        (one["_id"], one.get("n")) for one in stored.find().sort("_id")
    ]


@pytest.mark.motor
async def test_an_answer_to_a_commit_is_told(session, seeded, stored):
    session.start_transaction()
    await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
    assert Outcome.APPLIED is await cancelled_as_it_is_answered(session.commit_transaction)
    assert 1 == stored.find_one()["n"]
