"""How `with_transaction` ends early: by its time limits, and by what leaves the callback."""

import asyncio

import anyio
import pymongo
import pytest
from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    PyMongoError,
)

from aioretry import DeadlineExceeded, RetryClient, deadline
from aioretry._retry.transactions import RETRY_LIMIT, TransactionRetries
from aioretry._writes.transactions import TransactionCall
from aioretry.deadlines import Deadline

TRANSIENT = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"


@pytest.fixture
def client(watched_client):
    """The client, whose commands are remembered."""
    return watched_client


def counter(stored):
    """The counter as the majority has it."""
    return stored.find_one({"_id": 1})["n"]


class Stop(BaseException):
    """What an interpreter or a framework might raise."""


class TestGivingUp:
    async def test_cancelled(self, session, increment, seeded, stored, commands):
        """A cancelled callback: aborted, raised, and the session can be used again."""
        reached = asyncio.Event()

        async def callback(given):
            await increment(given)
            reached.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(session.with_transaction(callback))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ["update", "abortTransaction"] == commands.names
        assert session.operation_time is not None
        assert 2 == await session.with_transaction(increment)
        assert 1 == counter(stored)

    async def test_cancelled_by_anyio(self, session, increment, stored, commands):
        """A cancel scope around the call waits for the abort too."""
        with anyio.CancelScope() as scope:

            async def callback(given):
                await increment(given)
                scope.cancel()
                await anyio.sleep_forever()

            await session.with_transaction(callback)
        assert scope.cancelled_caught
        assert ["update", "abortTransaction"] == commands.names
        assert 0 == counter(stored)

    async def test_another_base_exception(self, session, increment, stored, commands):
        """Whatever leaves the callback aborts the transaction."""

        async def callback(given):
            await increment(given)
            raise Stop

        with pytest.raises(Stop):
            await session.with_transaction(callback)
        assert ["update", "abortTransaction"] == commands.names
        assert 0 == counter(stored)

    @pytest.mark.parametrize("how", ["cancelled", "asyncio.timeout", "anyio.fail_after"])
    async def test_what_is_left_running_writes_nothing(
        self, how, replica_set, seeded, stored, commands
    ):
        """A write that was cancelled before it was sent isn't sent after the abort."""
        begun = asyncio.Event()

        async def callback(given):
            write = of_one.insert_one({"_id": 2}, session=given)
            begun.set()
            if how == "anyio.fail_after":
                with anyio.fail_after(0.2):
                    await write
            async with asyncio.timeout(None if how == "cancelled" else 0.2):
                await write

        async with (
            RetryClient(replica_set.uri, maxPoolSize=1, event_listeners=[commands]) as client,
            await client.start_session() as session,
        ):
            of_one = client[seeded.database.name][seeded.name]
            async with replica_set.faults.hang("find", namespace=seeded.full_name) as hang:
                reader = asyncio.ensure_future(of_one.find_one())  # has the only connection
                await hang.wait_until_fired()
                task = asyncio.ensure_future(session.with_transaction(callback))
                await begun.wait()
                if how == "cancelled":
                    task.cancel()
                with pytest.raises((TimeoutError, asyncio.CancelledError)):
                    await task
            await reader
            await of_one.find_one()  # behind the write, if that still waits for the connection
        assert "insert" not in commands.names
        assert [1] == [document["_id"] for document in stored.find()]

    async def test_cancelled_in_the_abort(self, replica_set, session, increment, stored):
        """It goes on, and the session can be used again at once."""

        async def callback(given):
            await increment(given)
            raise ValueError

        async with replica_set.faults.hang("abortTransaction") as hang:
            task = asyncio.ensure_future(session.with_transaction(callback))
            await hang.wait_until_fired()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            hang.disarm()
            assert 2 == await session.with_transaction(increment)
        assert 1 == counter(stored)

    async def test_cancelled_in_the_commit(self, replica_set, client, increment, stored):
        """A commit that was sent when its caller was cancelled happens or not, as a whole."""
        async with replica_set.faults.hang("commitTransaction", applied=True) as hang:
            async with await client.start_session() as session:
                task = asyncio.ensure_future(session.with_transaction(increment))
                await hang.wait_until_fired()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                hang.disarm()
        assert 1 == counter(stored)

    async def test_a_session_that_ends_in_a_transaction(
        self, replica_set, client, increment, stored, commands
    ):
        """Leaving the session's block aborts what is in progress, and holds nobody up."""

        async def leave_open():
            async with await client.start_session() as session:
                session.start_transaction()
                await increment(session)
            return session

        async with replica_set.faults.hang("abortTransaction") as hang:
            task = asyncio.ensure_future(leave_open())
            await hang.wait_until_fired()
            assert not task.done()
        assert (await task).has_ended
        assert ["update", "abortTransaction"] == commands.names
        assert 0 == counter(stored)


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def transaction(session, callback, clock, random=lambda: 0.0):
    """A call of `with_transaction` whose time is the test's."""
    return TransactionCall(
        session,
        callback,
        (None,) * 4,
        TransactionRetries(random),
        Deadline.after(RETRY_LIMIT, clock),
    )


class TestLimits:
    """The prose tests "Retry Timeout is Enforced" and "Retry Backoff is Enforced"."""

    async def test_of_the_callback(self, replica_set, session, increment):
        """After 120 seconds a transient error of the callback is a timeout."""
        clock = Clock()

        async def callback(given):
            clock.now += 50
            await increment(given)

        async with replica_set.fail_command("update", mode="alwaysOn", close_connection=True):
            with pytest.raises(NetworkTimeout, match="gave up after 120 s and 3 trans") as caught:
                await transaction(session, callback, clock).run()
        assert type(caught.value) is NetworkTimeout
        assert (3, True) == (increment.runs, caught.value.has_error_label(TRANSIENT))
        assert isinstance(caught.value.__cause__, AutoReconnect)

    @pytest.mark.parametrize(
        ("label", "failure"),
        [(UNKNOWN_COMMIT, {"close_connection": True}), (TRANSIENT, {"error_code": 251})],
    )
    async def test_of_the_commit(self, label, failure, replica_set, session, increment):
        """After 120 seconds a commit is not retried, nor is the transaction because of it."""
        clock = Clock()

        async def callback(given):
            await increment(given)
            clock.now = 121

        async with replica_set.fail_command("commitTransaction", mode="alwaysOn", **failure):
            with pytest.raises(NetworkTimeout) as caught:
                await transaction(session, callback, clock).run()
        assert type(caught.value) is NetworkTimeout
        assert (1, True) == (increment.runs, caught.value.has_error_label(label))
        assert caught.value.__cause__.has_error_label(label)
        assert str(caught.value.__cause__) in str(caught.value)

    async def test_a_wait_is_not_begun_in_vain(self, replica_set, session, increment):
        """If the backoff would end too late, the error is raised at once."""
        clock = Clock()

        async def callback(given):
            clock.now = RETRY_LIMIT - 0.001
            await increment(given)

        async with replica_set.fail_command("update", close_connection=True):
            with pytest.raises(NetworkTimeout):
                await transaction(session, callback, clock, lambda: 0.99).run()

    async def test_backoff(self, replica_set, session, increment):
        """Thirteen retries at full length wait for 1.8 seconds."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with replica_set.fail_command(
            "commitTransaction", mode={"times": 13}, error_code=251
        ):
            await transaction(session, increment, Clock(), lambda: 1.0).run()
        assert 14 == increment.runs
        assert 1.78 <= loop.time() - started

    async def test_a_deadline_of_the_callback(self, replica_set, session, increment, commands):
        """Under a deadline the timeout is DeadlineExceeded, and the abort is sent all the same."""
        async with replica_set.faults.hang("update", times=None):
            async with deadline(2.0):
                with pytest.raises(DeadlineExceeded, match="the deadline of with_trans") as caught:
                    await session.with_transaction(increment)
        assert caught.value.timeout
        assert caught.value.has_error_label(TRANSIENT)
        assert caught.value.__cause__.timeout
        assert "abortTransaction" == commands.names[-1]

    async def test_a_deadline_of_the_commit(self, replica_set, session, increment):
        """When the deadline ends the commits, whether they happened is unknown."""
        async with replica_set.faults.drop_reply("commitTransaction", times=None):
            async with deadline(1.0):
                with pytest.raises(DeadlineExceeded) as caught:
                    await session.with_transaction(increment)
        assert caught.value.has_error_label(UNKNOWN_COMMIT)
        assert 1 == increment.runs

    async def test_a_deadline_on_the_server(self, replica_set, session, increment):
        """MaxTimeMSExpired of a commit under a deadline means that it is over."""
        async with replica_set.fail_command("commitTransaction", error_code=50), deadline(20):
            with pytest.raises(DeadlineExceeded) as caught:
                await session.with_transaction(increment, max_commit_time_ms=1)
        assert caught.value.has_error_label(UNKNOWN_COMMIT)
        assert 50 == caught.value.__cause__.code

    async def test_a_deadline_that_a_callback_meets_on_the_server(
        self, replica_set, session, increment, commands
    ):
        """So does MaxTimeMSExpired of an operation in the callback."""
        async with replica_set.fail_command("update", error_code=50), deadline(20):
            with pytest.raises(DeadlineExceeded) as caught:
                await session.with_transaction(increment)
        assert 50 == caught.value.__cause__.code
        assert ["update", "abortTransaction"] == commands.names

    async def test_a_final_error_under_a_deadline(self, session):
        """An error that isn't retried passes as it is, deadline or not."""

        async def callback(given):
            raise LookupError("the user's own")

        async with deadline(0):
            with pytest.raises(LookupError):
                await session.with_transaction(callback)

    async def test_pymongos_timeout(self, replica_set, session, increment):
        """A surrounding `pymongo.timeout()` is the deadline."""
        async with replica_set.faults.drop_request("commitTransaction", times=None):
            with pymongo.timeout(0.5):
                with pytest.raises(DeadlineExceeded):
                    await session.with_transaction(increment)

    async def test_timeout_ms(self, replica_set, seeded, stored):
        """The client's `timeoutMS` is for the whole call, callback included."""
        inserts = []

        async def callback(given):
            for number in range(50):
                inserts.append(number)
                await limited.insert_one({"_id": 100 + number}, session=given)

        async with (
            RetryClient(replica_set.uri, timeoutMS=1000) as client,
            await client.start_session() as session,
        ):
            limited = client[seeded.database.name][seeded.name]
            async with replica_set.faults.delay(0.3, "insert", times=None):
                with pytest.raises(PyMongoError) as caught:
                    await session.with_transaction(callback)
        assert caught.value.timeout
        assert len(inserts) < 10
        assert 1 == stored.count_documents({})

    async def test_an_endless_one(self, replica_set, increment, stored):
        """`timeoutMS=0` sets no limit."""
        async with (
            RetryClient(replica_set.uri, timeoutMS=0) as client,
            await client.start_session() as session,
            replica_set.fail_command("update", mode={"times": 2}, close_connection=True),
        ):
            theirs = increment.collection
            mine = type(increment)(client[theirs.database.name][theirs.name])
            assert 3 == await session.with_transaction(mine)
        assert 1 == counter(stored)
