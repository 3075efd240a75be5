"""Writes of one document whose outcome is unknown, resolved on a real set with real faults."""

import asyncio
import copy
import pickle
from contextlib import AsyncExitStack

import pytest
from doubting import INCREMENT, doubt, increment, lost_increment
from pymongo.errors import (
    BulkWriteError,
    DuplicateKeyError,
    OperationFailure,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    ResolveError,
    RetryClient,
    attempts_of,
    deadline,
    outcome_of,
    partial_result_of,
    resolve,
)
from aioretry.errors import report_of
from aioretry.testing import FakeMongoses

NOT_APPLIED, UNKNOWN = Outcome.NOT_APPLIED, Outcome.UNKNOWN

WRITES = {
    "insert_one": ("insert", lambda c: c.insert_one({"_id": 2, "n": 1})),
    "update_one": ("update", lambda c: c.update_one({"_id": 1}, INCREMENT)),
    "upsert": ("update", lambda c: c.update_one({"_id": 2}, INCREMENT, upsert=True)),
    "replace_one": ("update", lambda c: c.replace_one({"_id": 1}, {"n": 2})),
    "delete_one": ("delete", lambda c: c.delete_one({"_id": 1})),
    "find_one_and_delete": ("findAndModify", lambda c: c.find_one_and_delete({"_id": 1})),
    "find_one_and_replace": (
        "findAndModify",
        lambda c: c.find_one_and_replace({"_id": 1}, {"n": 2}, return_document=True),
    ),
    "find_one_and_update": (
        "findAndModify",
        lambda c: c.find_one_and_update({"_id": 1}, INCREMENT, return_document=True),
    ),
}


@pytest.fixture
async def client(watched_client):
    """The client of these tests tells what it sends."""
    return watched_client


@pytest.fixture(params=["drop_reply", "drop_request"])
def lose(request, replica_set):
    """A fault by which a write is applied, and one by which it is not; nobody is told either."""
    return getattr(replica_set.faults, request.param)


def visible(result):
    """What a caller sees of a result."""
    raw = getattr(result, "raw_result", None)
    if raw is not None:
        return type(result), {key: raw.get(key) for key in ("n", "nModified", "upserted")}
    return type(result), getattr(result, "inserted_id", result)


async def give_up(by, hang, collection):
    """Make a write, and stop waiting for it when a fault holds it."""
    async with asyncio.timeout(None) as limit:
        write = increment(collection)
        await hang.wait_until_fired()
        if by == "cancel":
            write.cancel()
        else:
            limit.reschedule(0)
        await write


async def test_on_another_event_loop(replica_set, seeded, stored):
    """It is refused before anything is sent, and can still be resolved where its client is."""
    exc = await lost_increment(replica_set, seeded)

    def elsewhere():
        with pytest.raises(ResolveError, match="another event loop"):
            asyncio.run(resolve(exc))

    await asyncio.to_thread(elsewhere)
    assert UNKNOWN is outcome_of(exc)
    assert 1 == (await resolve(exc)).modified_count
    assert 1 == stored.find_one({"_id": 1})["n"]


class TestCopies:
    @pytest.mark.parametrize(
        "write",
        [
            lambda c: c.insert_one({"_id": 2}),
            lambda c: c.coalesced().insert_one({"_id": 2}),
            lambda c: c.insert_many([{"_id": 2}, {"_id": 3}]),
        ],
        ids=["insert_one", "coalesced", "insert_many"],
    )
    async def test_pickled(self, write, replica_set, seeded):
        """An exception may go to another process: it tells all it knows, and can't be resolved."""
        fault = replica_set.faults.drop_reply("insert", times=2, namespace=seeded.full_name)
        exc = await doubt(fault, lambda: write(seeded))
        copied = pickle.loads(pickle.dumps(exc))
        assert (type(exc), str(exc)) == (type(copied), str(copied))
        assert UNKNOWN is outcome_of(copied)
        assert [(a.address, a.sent, a.started) for a in attempts_of(exc)] == [
            (a.address, a.sent, a.started) for a in attempts_of(copied)
        ]
        if (told := partial_result_of(exc)) is not None:
            assert told.outcomes == partial_result_of(copied).outcomes
            assert told.result.bulk_api_result == partial_result_of(copied).result.bulk_api_result
        with pytest.raises(ResolveError, match="a copy of its exception"):
            await resolve(copied)
        await resolve(exc)

    async def test_pickled_bulk_error(self, replica_set, seeded):
        """PyMongo's own one forgets what is recorded on it."""
        async with replica_set.faults.write_concern_error(91, "insert", times=2):
            with pytest.raises(BulkWriteError) as caught:
                await seeded.insert_many([{"_id": 2}, {"_id": 3}])
        for copied in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
            assert UNKNOWN is outcome_of(copied)
            assert caught.value.details == copied.details
            assert len(attempts_of(caught.value)) == len(attempts_of(copied))
            told = partial_result_of(copied)
            assert partial_result_of(caught.value).outcomes == told.outcomes

    async def test_pickled_of_a_known_outcome(self, replica_set, seeded):
        """What became known after all is known to the copy as well."""
        async with replica_set.faults.hang("insert", namespace=seeded.full_name) as hang:
            write, other = (seeded.coalesced().insert_one({"_id": n}) for n in (2, 3))
            await hang.wait_until_fired()
            write.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
            hang.disarm()
            await other
        copied = pickle.loads(pickle.dumps(caught.value))
        assert Outcome.APPLIED is outcome_of(copied)
        with pytest.raises(ResolveError, match="the outcome is known: applied"):
            await resolve(copied)


class TestAnswersLost:
    @pytest.mark.parametrize("write", WRITES)
    async def test_the_result_is_that_of_the_write(self, write, lose, seeded, stored, commands):
        """Applied or not, each write is then applied once, and answers as if nothing had been."""
        name, call = WRITES[write]
        twin = seeded.database[f"{seeded.name}_twin"]
        await twin.insert_one({"_id": 1, "n": 0})
        expected = visible(await call(twin))
        commands.sent.clear()
        exc = await doubt(lose(name, times=2, namespace=seeded.full_name), lambda: call(seeded))
        assert expected == visible(await resolve(exc))
        assert [name] * 3 == commands.names
        assert (1, 1) == (len(set(commands.numbers)), len(commands.sessions))
        twins = stored.database[twin.name].find().sort("_id")
        assert list(twins) == list(stored.find().sort("_id"))

    async def test_more_often_than_a_retry_helps(self, lose, replica_set, seeded, stored):
        """With a timeout it is sent as often as time allows."""
        exc = await doubt(
            lose("update", times=2, namespace=seeded.full_name), lambda: increment(seeded)
        )
        async with lose("update", times=4, namespace=seeded.full_name):
            assert 1 == (await resolve(exc, 30)).modified_count
        assert 7 == len(report_of(exc).doubt.execution.attempts)
        assert 1 == stored.find_one()["n"]

    async def test_a_surrounding_deadline_counts(self, replica_set, seeded, stored):
        """So it does within a deadline() block."""
        exc = await lost_increment(replica_set, seeded)
        async with replica_set.faults.drop_reply("update", times=4, namespace=seeded.full_name):
            async with deadline(30):
                await resolve(exc)
        assert 1 == stored.find_one()["n"]

    async def test_in_doubt_again(self, lose, seeded, stored, commands):
        """An attempt to resolve that is lost as well can be resolved by its own exception."""
        only = {"times": 2, "namespace": seeded.full_name}
        first = await doubt(lose("update", **only), lambda: increment(seeded))
        second = await doubt(lose("update", **only), lambda: resolve(first))
        assert (4, 4) == (len(commands.sent), len(attempts_of(second)))
        assert 1 == (await resolve(second)).modified_count
        assert (1, 1) == (len(set(commands.numbers)), len(commands.sessions))
        assert 1 == stored.find_one()["n"]

    async def test_twice_at_once(self, lose, seeded, stored):
        """Two tasks that resolve one exception get the same result, and one write."""
        fault = lose("update", times=2, namespace=seeded.full_name)
        exc = await doubt(fault, lambda: increment(seeded))
        first, second = await asyncio.gather(resolve(exc, 30), resolve(exc, 30))
        assert (1, 1) == (first.modified_count, second.modified_count)
        assert 1 == (await resolve(exc)).modified_count
        assert 1 == stored.find_one()["n"]

    async def test_late(self, replica_set, seeded, stored):
        """What was not applied is applied after newer writes."""
        lost = replica_set.faults.drop_request("update", times=2, namespace=seeded.full_name)
        exc = await doubt(lost, lambda: seeded.update_one({"_id": 1}, {"$set": {"by": "older"}}))
        await seeded.update_one({"_id": 1}, {"$set": {"by": "newer"}})
        await resolve(exc)
        assert "older" == stored.find_one()["by"]

    async def test_its_session_is_nobody_elses(self, replica_set, seeded, commands):
        """Neither before it is resolved nor after is the session leased again."""
        exc = await lost_increment(replica_set, seeded)
        (its,) = commands.sessions
        commands.sent.clear()
        await asyncio.gather(*(increment(seeded) for _ in range(20)))
        assert its not in commands.sessions
        await resolve(exc)
        commands.sent.clear()
        await asyncio.gather(*(increment(seeded) for _ in range(20)))
        assert its not in commands.sessions

    async def test_in_an_operation(self, lose, seeded, stored):
        """A write of an operation is resolved, in its block and after it."""
        only = {"times": 2, "namespace": seeded.full_name}
        async with seeded.operation() as op:
            inner = await doubt(lose("update", **only), lambda: increment(op))
            assert 1 == (await resolve(inner)).modified_count
            assert 1 == (await increment(op)).modified_count
            outer = await doubt(lose("update", **only), lambda: increment(op))
        assert 1 == (await resolve(outer)).modified_count
        assert 3 == stored.find_one()["n"]


class TestElsewhere:
    @pytest.mark.usefixtures("three_members")
    @pytest.mark.parametrize("how", ["kill", "step_down"])
    async def test_by_another_primary(self, how, lose, replica_set, seeded, stored):
        """What one primary was asked is resolved by the next."""
        only = {"times": 2, "namespace": seeded.full_name}
        exc = await doubt(lose("update", **only), lambda: increment(seeded))
        primary = await replica_set.primary()
        if how == "kill":
            await replica_set.kill(primary)
        else:
            await replica_set.step_down()
        assert 1 == (await resolve(exc, 30)).modified_count
        assert 1 == stored.find_one()["n"]
        addresses = [a.address for a in report_of(exc).doubt.execution.attempts]
        assert addresses[0] != addresses[-1]

    @pytest.mark.parametrize("fault", ["drop_reply", "drop_request"])
    async def test_by_another_mongos(self, fault, replica_set, seeded, stored):
        """In a sharded cluster any router may find out what the servers behind it have done."""
        async with (
            FakeMongoses(replica_set) as cluster,
            RetryClient(cluster.uri, w="majority", journal=True) as client,
        ):
            mine = client[seeded.database.name][seeded.name]
            arm = getattr(cluster.faults, fault)
            exc = await doubt(arm("update", times=2), lambda: increment(mine))
            await cluster.kill(cluster.mongoses[0])
            assert 1 == (await resolve(exc, 30)).modified_count
        assert 1 == stored.find_one()["n"]

    @pytest.mark.usefixtures("three_members")
    async def test_an_error_of_another_primary_is_the_end(self, replica_set, seeded):
        """One that has looked for the transaction id before it refused the write ends the doubt."""
        lost = replica_set.faults.drop_request("insert", times=2, namespace=seeded.full_name)
        first = await doubt(lost, lambda: seeded.insert_one({"_id": 2}))
        await seeded.insert_one({"_id": 2, "by": "another"})
        # What was lost on the way to this server could still arrive there.
        second = await doubt(AsyncExitStack(), lambda: resolve(first, 20), DuplicateKeyError)
        await replica_set.step_down()
        with pytest.raises(DuplicateKeyError) as caught:
            await resolve(second, 20)
        assert NOT_APPLIED is outcome_of(caught.value)
        with pytest.raises(ResolveError, match="the outcome is known: not applied"):
            await resolve(caught.value)

    async def test_by_a_stricter_collection(self, replica_set, seeded, stored):
        """A document that the collection has ceased to accept is not inserted."""
        lost = replica_set.faults.drop_request("insert", times=2, namespace=seeded.full_name)
        exc = await doubt(lost, lambda: seeded.insert_one({"_id": 2}))
        schema = {"$jsonSchema": {"required": ["must"]}}
        await seeded.database.command("collMod", seeded.name, validator=schema)
        with pytest.raises(WriteError) as caught:
            await resolve(exc)
        assert 121 == caught.value.code
        assert 1 == stored.count_documents({})

    @pytest.mark.parametrize("code", [217, 225])
    async def test_by_a_server_that_has_lost_track(self, code, replica_set, seeded, stored):
        """Incomplete history and a number that is too old tell nothing of the write."""
        first = await lost_increment(replica_set, seeded)
        async with replica_set.fail_command("update", error_code=code, error_labels=[]):
            second = await doubt(AsyncExitStack(), lambda: resolve(first), OperationFailure)
        assert code == second.code
        assert 1 == (await resolve(second)).modified_count
        assert 1 == stored.find_one()["n"]


class TestNotWaitedFor:
    @pytest.mark.parametrize("applied", [True, False])
    async def test_after_the_deadline(self, applied, replica_set, seeded, stored, commands):
        """While a server holds the command, another attempt finds out, and the first is no more."""
        await increment(seeded)
        commands.sent.clear()
        hang = replica_set.faults.hang("update", applied=applied, namespace=seeded.full_name)
        async with hang:
            async with deadline(2):
                with pytest.raises(DeadlineExceeded) as caught:
                    await increment(seeded)
            assert 1 == hang.fired
            assert UNKNOWN is outcome_of(caught.value)
            assert 1 == (await resolve(caught.value, 30)).modified_count
        assert (1, 1) == (len(set(commands.numbers)), len(commands.sessions))
        await increment(seeded)
        assert 3 == stored.find_one()["n"]

    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("by", ["cancel", "timeout"])
    async def test_after_a_cancellation(self, by, applied, replica_set, seeded, stored):
        """So it does for a cancelled write, and for the TimeoutError that is made of it."""
        hang = replica_set.faults.hang("update", applied=applied, namespace=seeded.full_name)
        async with hang:
            error = TimeoutError if by == "timeout" else asyncio.CancelledError
            exc = await doubt(AsyncExitStack(), lambda: give_up(by, hang, seeded), error)
            assert 1 == (await resolve(exc, 30)).modified_count
        assert 1 == stored.find_one()["n"]

    async def test_a_late_answer_is_enough(self, replica_set, seeded, stored, commands):
        """If the answer has come after all, nothing is sent."""
        hang = replica_set.faults.hang("update", applied=True, namespace=seeded.full_name)
        async with hang:
            write = increment(seeded)
            await hang.wait_until_fired()
            write.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
        attempts = report_of(caught.value).doubt.execution.attempts
        async with asyncio.timeout(20):
            while attempts[0].reply is None:
                await asyncio.sleep(0.01)
        assert 1 == (await resolve(caught.value)).modified_count
        assert 1 == len(commands.sent)
        assert 1 == stored.find_one()["n"]

    async def test_resolving_can_be_cancelled_too(self, replica_set, seeded, stored):
        """A cancelled resolve() leaves an exception that can be resolved."""
        exc = await lost_increment(replica_set, seeded)
        hang = replica_set.faults.hang("update", namespace=seeded.full_name)
        async with hang:
            resolving = asyncio.create_task(resolve(exc))
            await hang.wait_until_fired()
            resolving.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await resolving
        assert UNKNOWN is outcome_of(caught.value)
        assert 1 == (await resolve(caught.value)).modified_count
        assert 1 == stored.find_one()["n"]


class TestNotYetByAMajority:
    @pytest.mark.usefixtures("three_members")
    async def test_until_the_members_are_back(self, replica_set, seeded, stored):
        """A write that waits for a frozen member is resolved when that runs again."""
        (frozen, _) = await replica_set.secondaries()
        await replica_set.freeze(frozen)
        slow = seeded.with_options(write_concern=WriteConcern(w=3, wtimeout=50))
        first = await doubt(AsyncExitStack(), lambda: increment(slow), WTimeoutError)
        second = await doubt(AsyncExitStack(), lambda: resolve(first), WTimeoutError)
        await replica_set.thaw(frozen)
        assert 1 == (await resolve(second, 60)).modified_count
        assert 1 == stored.find_one()["n"]

    async def test_after_an_error_that_passes(self, replica_set, seeded, stored, commands):
        """A write concern error is resolved by the same command, with its write concern."""
        fault = replica_set.faults.write_concern_error(64, "update", labels=())
        exc = await doubt(fault, lambda: increment(seeded), WriteConcernError)
        assert 1 == (await resolve(exc)).modified_count
        first, second = commands.sent
        assert (first["txnNumber"], first["writeConcern"]) == (
            second["txnNumber"],
            second["writeConcern"],
        )
        assert 1 == stored.find_one()["n"]
