"""How transactions end whose commit got lost, by real servers: what is told, and resolved."""

import asyncio
import contextlib
import gc
import logging

import anyio
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from doubting import doubt
from pymongo.errors import AutoReconnect, InvalidOperation, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    ResolveError,
    RetryClient,
    attempts_of,
    deadline,
    outcome_of,
    resolve,
    run_transaction,
    transaction,
)
from aioretry.errors import report_of

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
COMMIT = "commitTransaction"


@pytest.fixture
def told():
    """What a hook is told."""
    return []


@pytest.fixture
async def client(replica_set, commands, client_class, told):
    """A client whose commands are remembered, and whose retries are told."""
    options = {"event_listeners": [commands], "hooks": [told.append]}
    async with client_class(replica_set.uri, **options) as client:
        yield client


def counter(stored):
    """The counter as the majority has it."""
    return stored.find_one({"_id": 1})["n"]


@contextlib.contextmanager
def over(plain, lsid):
    """A session of PyMongo's with another one's id."""
    with plain.start_session() as session:
        assert session.session_id
        session._server_session.session_id = lsid
        session._server_session.mark_dirty()
        yield session


async def committed(session, increment):
    """Increment in a transaction, and commit it."""
    session.start_transaction()
    await increment(session)
    await session.commit_transaction()


@pytest.fixture
def lost(replica_set, session, increment):
    """What a commit ends with of which both answers, or both requests, are lost."""

    async def lose(drop="drop_reply"):
        fault = getattr(replica_set.faults, drop)(COMMIT, times=2)
        return await doubt(fault, lambda: committed(session, increment))

    return lose


class TestResolve:
    @pytest.mark.parametrize("drop", ["drop_reply", "drop_request"])
    async def test_lost(self, drop, lost, stored, commands):
        """A transaction that is committed, or still open, is committed then; with a majority."""
        exc = await lost(drop)
        assert (2, [True] * 2) == (len(attempts_of(exc)), [a.sent for a in attempts_of(exc)])
        assert await resolve(exc) is None
        assert ["update", *[COMMIT] * 3] == commands.names
        assert (1, 1) == (len(set(commands.numbers)), len(commands.sessions))
        assert "majority" == commands.sent[-1]["writeConcern"]["w"]
        assert 1 == counter(stored)
        assert await resolve(exc) is None
        assert 4 == len(commands.sent)

    async def test_more_often_than_a_retry_helps(self, replica_set, lost, stored):
        """With a timeout it is sent as often as time allows."""
        exc = await lost()
        async with replica_set.faults.drop_reply(COMMIT, times=4):
            assert await resolve(exc, 30.0) is None
        assert 1 == counter(stored)

    async def test_in_doubt_again(self, replica_set, lost, stored):
        """What it ends with can be resolved in its turn."""
        exc = await lost()
        again = await doubt(replica_set.faults.drop_reply(COMMIT, times=2), lambda: resolve(exc))
        assert 4 == len(attempts_of(again))
        await resolve(again)
        assert 1 == counter(stored)

    async def test_time_is_over_at_once(self, lost, stored):
        """What is in doubt is not aborted because there is no time."""
        exc = await lost("drop_request")
        with pytest.raises(PyMongoError) as caught:
            await resolve(exc, 0)
        assert UNKNOWN is outcome_of(caught.value)
        await resolve(caught.value, 30.0)
        assert 1 == counter(stored)

    async def test_aborted(self, lost, session, plain, stored, commands):
        """If the server has given it up, that is told."""
        exc = await lost("drop_request")
        sent = commands.sent[0]
        with over(plain, sent["lsid"]) as same:
            options = {"txnNumber": sent["txnNumber"], "autocommit": False}
            plain.admin.command("abortTransaction", session=same, **options)
        with pytest.raises(OperationFailure) as caught:
            await resolve(exc)
        assert (251, NOT_APPLIED) == (caught.value.code, outcome_of(caught.value))
        assert 0 == counter(stored)
        with pytest.raises(ResolveError, match="the outcome is known: not applied"):
            await resolve(caught.value)

    async def test_forgotten(self, lost, plain, stored, commands, monkeypatch):
        """A server that has forgotten says what it says of what was aborted: it is not asked."""
        exc = await lost()
        record = {"_id.id": Binary(bytes(commands.sent[0]["lsid"]["id"]), 4)}
        records = plain.config.get_collection("transactions", read_concern=ReadConcern("local"))
        assert records.find_one(record)
        # Without a session, and so without an acknowledgement.
        records.with_options(write_concern=WriteConcern(0)).delete_many(record)
        with anyio.fail_after(20):
            while records.find_one(record):
                await anyio.sleep(0.01)
        doubt_of = report_of(exc).doubt
        latest = doubt_of._commit._latest
        monkeypatch.setattr(latest, "began", latest.began - 25 * 60)
        with pytest.raises(ResolveError, match="may have forgotten it"):
            await resolve(exc)
        with pytest.raises(OperationFailure) as caught:
            await doubt_of.resolve(None)  # as if it had become too old just now
        assert 251 == caught.value.code
        assert caught.value.has_error_label("TransientTransactionError")
        assert UNKNOWN is outcome_of(caught.value)
        assert 1 == counter(stored)

    async def test_a_later_number(self, lost, plain, stored, commands):
        """Whoever used the session for something later keeps it from being known."""
        exc = await lost()
        sent = commands.sent[0]
        with over(plain, sent["lsid"]) as same:
            options = {"documents": [{"_id": 3}], "txnNumber": Int64(sent["txnNumber"] + 1)}
            plain[stored.database.name].command("insert", stored.name, session=same, **options)
        with pytest.raises(OperationFailure) as caught:
            await resolve(exc)
        assert (225, UNKNOWN) == (caught.value.code, outcome_of(caught.value))

    async def test_on_another_loop(self, lost):
        """It is resolved where its client is."""
        exc = await lost()

        def elsewhere():
            with pytest.raises(ResolveError, match="another event loop"):
                asyncio.run(resolve(exc))

        await asyncio.to_thread(elsewhere)
        await resolve(exc)


@pytest.mark.usefixtures("three_members")
class TestFailovers:
    @pytest.mark.parametrize("drop", ["drop_reply", "drop_request"])
    async def test_step_down(self, drop, replica_set, lost, stored):
        """What was committed is answered by the new primary; what was open is gone with the old."""
        exc = await lost(drop)
        await replica_set.step_down()
        if drop == "drop_reply":
            await resolve(exc, 30.0)
        else:
            with pytest.raises(OperationFailure) as caught:
                await resolve(exc, 30.0)
            assert NOT_APPLIED is outcome_of(caught.value)
        assert (drop == "drop_reply") == counter(stored)

    @pytest.mark.sample(4)
    @pytest.mark.parametrize("applied", [True, False])
    async def test_kill_in_the_commit(self, applied, replica_set, session, increment, stored):
        """The primary dies while it has the commit: whatever is told then is so."""
        async with replica_set.faults.hang(COMMIT, applied=applied, times=None) as hang:
            session.start_transaction()
            await increment(session)
            commit = asyncio.ensure_future(session.commit_transaction())
            await hang.wait_until_fired()
            primary = await replica_set.primary()
            await replica_set.kill(primary)
            hang.disarm()
        try:
            await commit
            outcome = APPLIED
        except PyMongoError as exc:
            outcome, error = outcome_of(exc), exc
        if outcome is UNKNOWN:
            outcome = await outcome_by_resolving(error)
        await replica_set.restart(primary)
        await replica_set.wait_for_primary()
        assert outcome in {APPLIED, NOT_APPLIED}
        assert counter(stored) == (outcome is APPLIED)

    @pytest.fixture
    async def forgotten(self, replica_set, client, increment):
        """A callback whose first transaction is gone, and nobody answers for a majority then."""
        others = [each for each in replica_set.members if each is not await replica_set.primary()]

        async def callback(session):
            await increment(session)
            if increment.runs == 1:
                for member in others:
                    await replica_set.freeze(member)
                await client.admin.command("killAllSessions", [])

        yield callback
        await replica_set.heal()

    async def test_a_majority_in_the_end(
        self, replica_set, session, forgotten, increment, stored, commands
    ):
        """It is asked for until a majority does not know it; then all of it is run again."""
        concern = WriteConcern("majority", wtimeout=200)
        async with replica_set.faults.drop_request(COMMIT):
            call = asyncio.ensure_future(session.with_transaction(forgotten, write_concern=concern))
            with anyio.fail_after(60):
                while commands.names.count(COMMIT) < 4 and not call.done():
                    await anyio.sleep(0.01)
            await replica_set.heal()
            await call
        assert 2 == increment.runs
        assert 1 == counter(stored)


class TestSessions:
    async def test_goes_on_with_another_one(self, lost, session, increment, stored, commands):
        """What the user does later takes nothing from the answer."""
        exc = await lost()
        await committed(session, increment)
        await increment.collection.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
        old = commands.sent[0]["lsid"]
        assert all(old != command["lsid"] for command in commands.sent[3:])
        await resolve(exc)
        assert old == commands.sent[-1]["lsid"]
        assert 3 == counter(stored)

    @pytest.mark.parametrize("makes_jobs", [False, True])
    async def test_keeps_its_number(self, makes_jobs, lost, stored, commands, caplog):
        """Whoever has taken another one of the session meanwhile, his transaction is not ended."""
        if makes_jobs:  # then PyMongo sends it, by its own command
            caplog.set_level(logging.DEBUG, "pymongo.command")
        exc = await lost()
        ending = report_of(exc).doubt._commit.lease.session
        ending._session._server_session.inc_transaction_id()
        await resolve(exc)
        assert 1 == len(set(commands.numbers))
        assert 1 == counter(stored)

    async def test_reads_go_on_with_another_one(self, lost, session, seeded, commands):
        """So it is if the user reads next."""
        exc = await lost()
        assert {"_id": 1, "n": 1} == await seeded.find_one({}, session=session)
        assert commands.sent[0]["lsid"] != commands.sent[-1]["lsid"]
        await resolve(exc)

    async def test_a_write_in_doubt_before(self, replica_set, lost, session, seeded, stored):
        """A write over the session before is not asked for by the number of a later one."""
        only = {"times": 2, "namespace": seeded.full_name}
        write = await doubt(
            replica_set.faults.drop_reply("update", **only),
            lambda: seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session),
        )
        commit = await lost()
        for _ in range(5):
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
            with pytest.raises(ResolveError, match="used for another write since"):
                await resolve(write)
        await resolve(commit)
        assert 7 == counter(stored)

    async def test_committed_again_by_the_user(self, lost, session, stored, commands):
        """As the specification has it, the user can repeat the commit, in the same session."""
        exc = await lost()
        await session.commit_transaction()
        assert (1, 1) == (len(set(commands.numbers)), len(commands.sessions))
        assert await resolve(exc) is None
        assert (4, 1) == (len(commands.sent), counter(stored))

    async def test_is_leased_to_nobody(self, lost, client, session, increment, commands):
        """A session that is ended meanwhile is nobody else's, and can be asked still."""
        exc = await lost()
        old = commands.sent[0]["lsid"]
        await session.end_session()
        commands.sent.clear()
        for _ in range(3):
            async with await client.start_session() as other:
                await committed(other, increment)
        assert all(old != command["lsid"] for command in commands.sent)
        await resolve(exc)

    async def test_is_ended_at_last(self, replica_set, client, increment):
        """When nobody can ask any more, the servers are told."""

        async def lose():
            async with (
                replica_set.faults.drop_reply(COMMIT, times=2),
                await client.start_session() as session,
            ):
                try:
                    await committed(session, increment)
                except PyMongoError as exc:
                    return exc

        async with replica_set.faults.watch("endSessions") as ended:
            exc = await lose()
            gc.collect()
            assert 0 == ended.seen
            await resolve(exc)
            del exc
            with anyio.fail_after(30):
                while not ended.seen:  # PyMongo has it, too, until it has heard from the server
                    gc.collect()
                    await anyio.sleep(0.01)

    async def test_a_late_answer(self, replica_set, client, session, increment, stored, commands):
        """A cancelled commit that is answered after all is not sent again; its session goes on."""
        async with replica_set.faults.hang(COMMIT, applied=True) as hang:
            task = asyncio.ensure_future(committed(session, increment))
            await hang.wait_until_fired()
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert UNKNOWN is outcome_of(caught.value)
            hang.disarm()
        with anyio.fail_after(20):
            while session._commit.outcome is UNKNOWN:
                await anyio.sleep(0.01)
        assert await resolve(caught.value) is None
        assert ["update", COMMIT] == commands.names
        await committed(session, increment)
        assert 1 == len(commands.sessions)
        assert 2 == counter(stored)

    async def test_cancelled_before_it_was_sent(
        self, replica_set, client_class, plain, collection, stored, open_transactions
    ):
        """It is aborted; the session goes on, and its next transaction is not ended by that."""
        fresh = stored.insert_one({"_id": 1, "n": 0}).inserted_id
        async with client_class(replica_set.uri, maxPoolSize=1) as client:
            things = client[collection.database.name][collection.name]
            session = await client.start_session()
            async with session:
                session.start_transaction()
                await things.update_one({"_id": fresh}, {"$inc": {"n": 1}}, session=session)
                async with replica_set.faults.hang("ping", times=1) as hang:
                    ping = asyncio.ensure_future(client.admin.command("ping"))
                    await hang.wait_until_fired()
                    commit = asyncio.ensure_future(session.commit_transaction())
                    await asyncio.sleep(0)
                    commit.cancel()
                    with pytest.raises(asyncio.CancelledError) as caught:
                        await commit
                    assert NOT_APPLIED is outcome_of(caught.value)
                    session.start_transaction()
                    hang.disarm()
                await ping
                await things.insert_one({"_id": 2}, session=session)
                with anyio.fail_after(20):
                    while 1 != len(await asyncio.to_thread(open_transactions)):
                        await anyio.sleep(0.01)
                assert session.in_transaction
                await session.commit_transaction()
        assert [{"_id": 1, "n": 0}, {"_id": 2}] == list(stored.find().sort("_id"))

    async def test_cancelled_and_lost(self, replica_set, session, increment, stored):
        """A cancelled commit that is not answered can be resolved while it is under way."""
        async with replica_set.faults.hang(COMMIT, times=1) as hang:
            task = asyncio.ensure_future(session.with_transaction(increment))
            await hang.wait_until_fired()
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            await resolve(caught.value, 30.0)
            hang.disarm()
        assert 1 == counter(stored)


async def outcome_by_resolving(exc):
    """How a transaction has ended, when that is known."""
    while UNKNOWN is outcome_of(exc):
        try:
            await resolve(exc, 30.0)
        except PyMongoError as error:
            exc = error
        else:
            return APPLIED
    return outcome_of(exc)


async def failing(session, increment, error):
    """A callback that fails after its write."""
    await increment(session)
    raise error


@pytest.mark.parametrize("way", ["with_transaction", "run_transaction", "transaction"])
class TestWays:
    @pytest.fixture
    def run(self, way, client, session):
        """Run a callback in a transaction."""

        async def block(callback, timeout=None):
            async with transaction(client, timeout) as own:
                return await callback(own)

        async def of_its_own(callback, timeout=None):
            return await run_transaction(client, callback, timeout=timeout)

        ways = {
            "with_transaction": session.with_transaction,
            "run_transaction": of_its_own,
            "transaction": block,
        }
        return ways[way]

    async def test_done(self, run, increment, stored):
        """Without trouble it is committed, once."""
        assert 1 == await run(increment)
        assert 1 == counter(stored)

    @pytest.mark.parametrize("drop", ["drop_reply", "drop_request"])
    async def test_lost(self, drop, run, replica_set, increment, stored):
        """When its time is over the commit is in doubt, and can be resolved."""
        fault = getattr(replica_set.faults, drop)(COMMIT, times=None)
        exc = await doubt(fault, lambda: run(increment, timeout=1.0), PyMongoError)
        assert 1 == increment.runs
        await resolve(exc, 30.0)
        assert 1 == counter(stored)

    async def test_a_plain_error(self, run, increment, stored):
        """What the work raises aborts it, and says so."""
        error = LookupError("the user's own")
        with pytest.raises(LookupError) as caught:
            await run(lambda session: failing(session, increment, error))
        assert caught.value is error
        assert (NOT_APPLIED, 0) == (outcome_of(error), counter(stored))

    async def test_an_abort_that_is_lost(self, run, replica_set, increment, stored):
        """Nothing was committed, whether or not the server knows it yet."""
        async with replica_set.faults.drop_request("abortTransaction", times=2):
            with pytest.raises(LookupError) as caught:
                await run(lambda session: failing(session, increment, LookupError()))
        assert (NOT_APPLIED, 0) == (outcome_of(caught.value), counter(stored))

    async def test_cancelled(self, run, increment, stored):
        """A cancellation aborts it, too."""
        with pytest.raises(asyncio.CancelledError) as caught:
            await run(lambda session: failing(session, increment, asyncio.CancelledError()))
        assert (NOT_APPLIED, 0) == (outcome_of(caught.value), counter(stored))

    async def test_that_has_committed_itself(self, run, increment, stored):
        """What is raised after that does not undo it."""

        async def work(session):
            await increment(session)
            await session.commit_transaction()
            raise LookupError

        with pytest.raises(LookupError) as caught:
            await run(work)
        assert (APPLIED, 1) == (outcome_of(caught.value), counter(stored))

    async def test_no_time(self, run, increment, stored, commands):
        """If time is over before the commit, it is aborted."""

        async def work(session):
            await increment(session)
            async with deadline(None) as limit:
                await anyio.sleep(limit.remaining())

        with pytest.raises(DeadlineExceeded) as caught:
            await run(work, timeout=0.3)
        assert (NOT_APPLIED, 0) == (outcome_of(caught.value), counter(stored))
        assert COMMIT not in commands.names

    async def test_what_is_no_time(self, run, increment):
        """It is a number of seconds, or None."""
        with pytest.raises(ValueError, match="timeout must be"):
            await run(increment, timeout=-1)
        with pytest.raises(TypeError, match="timeout must be"):
            await run(increment, timeout="1")
        assert 0 == increment.runs

    async def test_hooks(self, way, run, replica_set, increment, told):
        """They are told of a commit that is repeated, and of a transaction that is run again."""
        async with replica_set.faults.drop_reply(COMMIT, times=1):
            await run(increment)
        assert [("commit_transaction", "admin", "AutoReconnect", 1)] == [
            (event.operation, event.namespace, event.error_class, event.attempt) for event in told
        ]
        assert told[0].address is not None
        told.clear()
        if way == "transaction":
            return
        async with replica_set.fail_command(COMMIT, mode={"times": 2}, error_code=251):
            await run(increment)
        assert [("with_transaction", 251, n) for n in (1, 2)] == [
            (event.operation, event.error_code, event.attempt) for event in told
        ]


async def test_a_write_beside_the_transaction_keeps_its_own_outcome(
    replica_set, client, session, seeded, stored
):
    """It may be applied, although the transaction is not."""

    async def work(given):
        await seeded.insert_one({"_id": "inside"}, session=given)
        async with replica_set.faults.drop_reply("update", times=2):
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})

    with pytest.raises(AutoReconnect) as caught:
        await session.with_transaction(work)
    assert Outcome.UNKNOWN is outcome_of(caught.value)
    await resolve(caught.value, 20)
    assert {"_id": 1, "n": 1} == stored.find_one({"_id": 1})
    assert stored.find_one({"_id": "inside"}) is None


class TestTransaction:
    async def test_a_transient_error(self, client, replica_set, increment, stored, commands):
        """It is one operation: nothing of the block is repeated."""
        async with replica_set.fail_command(COMMIT, mode={"times": 1}, error_code=251):
            with pytest.raises(OperationFailure) as caught:
                async with transaction(client) as session:
                    await increment(session)
        assert (NOT_APPLIED, 1, 0) == (outcome_of(caught.value), increment.runs, counter(stored))
        assert ["update", COMMIT] == commands.names

    async def ending(self, client, increment):
        async with transaction(client) as session:
            await increment(session)
            await session.end_session()

    async def test_that_ends_its_session(self, client, increment, stored):
        """Such a block has aborted its transaction, which passes not for a success."""
        with pytest.raises(InvalidOperation, match="aborted by that") as caught:
            await self.ending(client, increment)
        assert (NOT_APPLIED, 0) == (outcome_of(caught.value), counter(stored))

    async def test_that_aborts(self, client, increment, stored):
        """A block that aborts has nothing more to do."""
        async with transaction(client) as session:
            await increment(session)
            await session.abort_transaction()
        assert 0 == counter(stored)

    async def test_what_is_left_running(self, client, increment, stored):
        """It is refused."""
        left = asyncio.Event()

        async def later(session):
            await left.wait()
            await increment(session)

        async with transaction(client) as session:
            await increment(session)
            task = asyncio.create_task(later(session))
        left.set()
        with pytest.raises(InvalidOperation):
            await task
        assert 1 == counter(stored)

    async def test_bound(self, client, seeded, stored):
        """A session that is bound to the block is committed after it."""
        if isinstance(client, RetryClient):
            pytest.skip("Motor's sessions can't be bound")
        # PyMongo leaves a concern of the collection's own out only where a session is passed.
        own = seeded.with_options(write_concern=WriteConcern())
        async with transaction(client) as session, session.bind():
            await own.update_one({"_id": 1}, {"$inc": {"n": 1}})
            assert 1 == (await own.find_one({}))["n"]
            assert 0 == counter(stored)
        assert session.has_ended
        assert 1 == counter(stored)

    async def test_cancelled_in_the_commit(self, client, replica_set, increment, stored):
        """It goes on, and can be resolved."""

        async def block():
            async with transaction(client) as session:
                await increment(session)

        async with replica_set.faults.hang(COMMIT) as hang:
            task = asyncio.create_task(block())
            await hang.wait_until_fired()
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            await resolve(caught.value, 30.0)
            hang.disarm()
        assert 1 == counter(stored)

    async def test_of_another_client(self, motor, increment):
        """It is refused before anything is begun."""
        with pytest.raises(TypeError, match="must be a RetryClient"):
            async with transaction(motor) as session:
                await increment(session)
        assert 0 == increment.runs


@pytest.mark.usefixtures("three_members")
async def test_bank(replica_set, client, collection, stored):
    """Transfers whose commits get lost, through a step-down: each is there once, or not at all."""
    await collection.insert_many([{"_id": n, "money": 100} for n in range(12)])
    done = resolved = 0
    stopped = False

    async def transfer(me):
        async with transaction(client) as session:
            for who, money in ((2 * me, -1), (2 * me + 1, 1)):
                change = {"$inc": {"money": money}}
                await collection.update_one({"_id": who}, change, session=session)
            await collection.insert_one({"from": me}, session=session)

    async def trade(me):
        nonlocal done, resolved
        while not stopped:
            try:
                await transfer(me)
            except PyMongoError as exc:
                outcome = outcome_of(exc)
                if outcome is UNKNOWN:
                    resolved += 1
                    outcome = await outcome_by_resolving(exc)
                assert outcome in {APPLIED, NOT_APPLIED}
            else:
                outcome = APPLIED
            done += outcome is APPLIED

    async def until(condition):
        while not condition():
            await anyio.sleep(0.01)

    with anyio.fail_after(90):
        async with asyncio.TaskGroup() as group:
            for me in range(6):
                group.create_task(trade(me))
            await until(lambda: done >= 20)
            for drop in ("drop_reply", "drop_request"):
                async with getattr(replica_set.faults, drop)(COMMIT, times=12) as fault:
                    await fault.wait_until_fired(12, timeout=60.0)
            await replica_set.step_down()
            seen = done
            await until(lambda: done >= seen + 20)
            stopped = True
    assert resolved
    transfers = list(stored.find({"from": {"$exists": True}}))
    expected = dict.fromkeys(range(12), 100)
    for made in transfers:
        expected[2 * made["from"]] -= 1
        expected[2 * made["from"] + 1] += 1
    assert (done, expected) == (
        len(transfers),
        {d["_id"]: d["money"] for d in stored.find({"money": {"$exists": True}})},
    )
