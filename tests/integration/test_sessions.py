"""Sessions that the user started, outside of transactions: as in Motor, and retried."""

import asyncio
import warnings

import pytest
from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorClientSession
from pymongo import ReadPreference
from pymongo.errors import InvalidOperation, PyMongoError

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    RetryMotorClientSession,
    deadline,
    outcome_of,
)

WRITES = {
    "insert_one": lambda c, s: c.insert_one({"_id": 2, "n": 1}, session=s),
    "update_one": lambda c, s: c.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=s),
    "replace_one": lambda c, s: c.replace_one({"_id": 1}, {"n": 2}, session=s),
    "delete_one": lambda c, s: c.delete_one({"_id": 1}, session=s),
    "find_one_and_delete": lambda c, s: c.find_one_and_delete({"_id": 1}, session=s),
    "find_one_and_replace": lambda c, s: c.find_one_and_replace({"_id": 1}, {"n": 2}, session=s),
    "find_one_and_update": lambda c, s: c.find_one_and_update(
        {"_id": 1}, {"$inc": {"n": 1}}, session=s
    ),
}


@pytest.fixture
def client(watched_client):
    """The client, whose commands are remembered."""
    return watched_client


async def outcome(awaitable):
    """What an awaitable gives, or the class and the text of its error."""
    try:
        return await awaitable
    except Exception as exc:  # noqa: BLE001 - it is compared
        return type(exc), str(exc)


@pytest.mark.motor
async def test_are_ours(client):
    """A session is ours, is a Motor session, and leads back to its client."""
    async with await client.start_session(causal_consistency=False) as session:
        assert type(session) is RetryMotorClientSession
        assert isinstance(session, AsyncIOMotorClientSession)
        assert session.client is client
        assert not session.options.causal_consistency
    assert session.has_ended


@pytest.mark.parametrize("write", WRITES)
class TestOfTheSevenWrites:
    async def test_numbers(self, write, client, replica_set, seeded, commands):
        """Each command takes the next number of the session, and its retry the same."""
        async with await client.start_session() as session:
            await seeded.update_one({"_id": 9}, {"$set": {"n": 1}}, session=session)
            async with replica_set.faults.drop_reply(namespace=seeded.full_name):
                await WRITES[write](seeded, session)
            await seeded.update_one({"_id": 9}, {"$set": {"n": 1}}, session=session)
            lsid = session.session_id
        first = commands.sent[0]["txnNumber"]
        assert [first, first + 1, first + 1, first + 2] == [c["txnNumber"] for c in commands.sent]
        assert [lsid] * 4 == [c["lsid"] for c in commands.sent]

    async def test_times_advance(self, write, client, seeded):
        """The session's times are those of its latest write."""
        async with await client.start_session() as session:
            assert (None, None) == (session.operation_time, session.cluster_time)
            await seeded.update_one({"_id": 9}, {"$set": {"n": 1}}, upsert=True, session=session)
            before, cluster_before = session.operation_time, session.cluster_time["clusterTime"]
            await WRITES[write](seeded, session)
            assert before < session.operation_time
            assert cluster_before < session.cluster_time["clusterTime"]

    @pytest.mark.motor
    async def test_of_another_client(self, write, replica_set, seeded, commands):
        """A session of another client is refused, and nothing is sent."""
        async with RetryClient(replica_set.uri) as other:
            async with await other.start_session() as session:
                with pytest.raises(InvalidOperation, match="MongoClient that started it") as caught:
                    await WRITES[write](seeded, session)
        assert (Outcome.NOT_APPLIED, []) == (outcome_of(caught.value), commands.sent)

    @pytest.mark.motor
    async def test_of_motors_client(self, write, motor, seeded, commands):
        """So is a session of a plain Motor client."""
        async with await motor.start_session() as session:
            with pytest.raises(InvalidOperation, match="MongoClient that started it"):
                await WRITES[write](seeded, session)
        assert [] == commands.sent

    async def test_ended(self, write, client, seeded, commands):
        """A session that has ended is refused, and nothing is sent."""
        session = await client.start_session()
        await session.end_session()
        with pytest.raises(InvalidOperation, match="ended session") as caught:
            await WRITES[write](seeded, session)
        assert (Outcome.NOT_APPLIED, []) == (outcome_of(caught.value), commands.sent)

    async def test_of_a_snapshot(self, write, client, motor, seeded):
        """In a snapshot session a write fails as it does with Motor."""
        answers = []
        for side in (client, motor):
            collection = side[seeded.database.name][seeded.name]
            async with await side.start_session(snapshot=True) as session:
                error, text = await outcome(WRITES[write](collection, session))
                answers.append((error, text.partition(", full error")[0]))
        ours, motors = answers
        assert issubclass(motors[0], PyMongoError)
        assert motors == ours


class TestCausalConsistency:
    @pytest.mark.usefixtures("three_members")
    async def test_a_read_sees_the_write(self, replica_set, client, seeded, commands):
        """A read on a secondary that lags waits for what the session has written."""
        near = client[seeded.database.name].get_collection(
            seeded.name, read_preference=ReadPreference.SECONDARY
        )
        fast = seeded.with_options(write_concern=seeded.write_concern.__class__(w=1))
        one, other = await replica_set.secondaries()
        async with await client.start_session() as session:
            async with (
                replica_set.fail_point("rsSyncApplyStop", "alwaysOn", {}, member=one),
                replica_set.fail_point("rsSyncApplyStop", "alwaysOn", {}, member=other),
            ):
                for member in (one, other):
                    await member.command(
                        {"waitForFailPoint": "rsSyncApplyStop", "timesEntered": 1}
                        | {"maxTimeMS": 30_000},
                        timeout=40,
                    )
                await fast.insert_one({"_id": 2}, session=session)
                written = session.operation_time
                assert await near.find_one({"_id": 2}) is None
                commands.sent.clear()
                reading = asyncio.ensure_future(near.find_one({"_id": 2}, session=session))
            assert {"_id": 2} == await reading
        (find,) = commands.sent
        assert {"afterClusterTime": written} == find["readConcern"]

    async def test_not_without(self, client, seeded, commands):
        """Without causal consistency a read does not wait."""
        async with await client.start_session(causal_consistency=False) as session:
            await seeded.insert_one({"_id": 2}, session=session)
            await seeded.find_one({"_id": 2}, session=session)
        assert "readConcern" not in commands.sent[-1]

    async def test_commands_are_motors(self, replica_set, seeded, commands):
        """Writes in a session that has read and written carry what Motor's carry."""
        seen = []
        for kind in (AsyncIOMotorClient, RetryClient):
            listener = type(commands)()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                side = kind(replica_set.uri, event_listeners=[listener])
            collection = side[seeded.database.name][f"{seeded.name}_{kind.__name__}"]
            async with await side.start_session() as session:
                await collection.find_one({}, session=session)
                for write in WRITES.values():
                    await write(collection, session)
            side.close()
            seen.append([sorted(set(c) - {"txnNumber"}) for c in listener.sent])
        motors, ours = seen
        assert motors == ours


class TestShared:
    async def test_by_tasks(self, client, seeded, stored):
        """Tasks that write over one session at once do so one after the other, each once."""
        async with await client.start_session() as session:
            answers = await asyncio.gather(
                *(
                    seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
                    for n in range(40)
                ),
                seeded.insert_many([{"_id": "a"}, {"_id": "b"}], session=session),
                *(seeded.insert_one({"_id": 100 + n}, session=session) for n in range(10)),
            )
        assert 51 == len(answers)
        assert 40 == stored.find_one({"_id": 1})["n"]
        assert 13 == stored.count_documents({})

    async def test_by_tasks_as_motor_does(self, motor, seeded, stored):
        """Motor has some of them refused, and acknowledges others that were not executed."""
        collection = motor[seeded.database.name].get_collection(
            seeded.name, write_concern=seeded.write_concern
        )
        async with await motor.start_session() as session:
            answers = await asyncio.gather(
                *(
                    collection.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
                    for n in range(40)
                ),
                return_exceptions=True,
            )
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert {225} >= {error.code for error in refused}
        assert stored.find_one()["n"] <= 40 - len(refused)

    async def test_one_that_waits_for_its_turn_obeys_its_deadline(
        self, client, replica_set, seeded, stored
    ):
        """A write behind one that hangs ends with its deadline, and is not sent."""
        async with await client.start_session() as session:
            async with replica_set.faults.hang("update", namespace=seeded.full_name) as hang:
                first = seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
                await hang.wait_until_fired()
                async with deadline(0.2):
                    with pytest.raises(DeadlineExceeded, match="nothing was sent") as caught:
                        await seeded.insert_one({"_id": 2}, session=session)
            await first
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert [{"_id": 1, "n": 1}] == list(stored.find())


class TestPooling:
    async def test_a_clean_one_is_used_again(self, client, seeded):
        """A session that has ended well is the next one's."""
        async with await client.start_session() as session:
            await seeded.insert_one({"_id": 2}, session=session)
            lsid = session.session_id
        async with await client.start_session() as session:
            assert lsid == session.session_id

    async def test_a_dirty_one_is_not(self, client, replica_set, seeded):
        """A session that a connection was lost with is dropped, though its write succeeded."""
        async with replica_set.faults.drop_reply("insert", namespace=seeded.full_name):
            async with await client.start_session() as session:
                await seeded.insert_one({"_id": 2}, session=session)
                lsid = session.session_id
        async with await client.start_session() as session:
            assert lsid != session.session_id

    async def test_one_of_a_cancelled_transaction_is(self, client, seeded):
        """It goes back to the pool once the transaction is aborted and all of it was answered."""
        reached = asyncio.Event()

        async def callback(given):
            await seeded.insert_one({"_id": 2}, session=given)
            reached.set()
            await asyncio.Event().wait()

        async with await client.start_session() as session:
            lsid = session.session_id
            task = asyncio.ensure_future(session.with_transaction(callback))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        pool = client.delegate._topology._session_pool
        assert lsid in [pooled.session_id for pooled in pool]

    @pytest.mark.parametrize("applied", [False, True])
    @pytest.mark.motor
    async def test_one_of_a_cancelled_transaction_in_the_air_is_not(
        self, replica_set, client, seeded, applied
    ):
        """As long as something of it may still arrive, nobody gets its session."""
        pool = client.delegate._topology._session_pool
        async with await client.start_session() as session:
            lsid = session.session_id
            async with replica_set.faults.hang("insert", applied=applied) as hang:
                task = asyncio.ensure_future(
                    session.with_transaction(lambda given: seeded.insert_one({}, session=given))
                )
                await hang.wait_until_fired()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert lsid not in [pooled.session_id for pooled in pool]
            async with asyncio.timeout(20.0):  # and then somebody does
                while lsid not in [pooled.session_id for pooled in pool]:
                    await asyncio.sleep(0.01)
