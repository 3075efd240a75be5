"""How transactions end: what a session knows of it, under deadlines too, and commits in doubt."""

import asyncio

import anyio
import pymongo
import pytest
from pymongo import DeleteOne
from pymongo.errors import DuplicateKeyError, InvalidOperation, PyMongoError

from aioretry import DeadlineExceeded, Outcome, RetryClient, deadline, outcome_of

UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
WRITES = {
    "insert_one": lambda c, s: c.insert_one({"_id": 2}, session=s),
    "insert_many": lambda c, s: c.insert_many([{"_id": 2}], session=s),
    "update_many": lambda c, s: c.update_many({}, {"$set": {"n": 1}}, session=s),
    "delete_one": lambda c, s: c.delete_one({"_id": 1}, session=s),
    "find_one_and_update": lambda c, s: c.find_one_and_update({}, {"$set": {"n": 1}}, session=s),
    "bulk_write": lambda c, s: c.bulk_write([DeleteOne({"_id": 1})], session=s),
}


@pytest.fixture
def client(watched_client):
    """The client, whose commands are remembered."""
    return watched_client


def counter(stored):
    """The counter as the majority has it."""
    return stored.find_one({"_id": 1})["n"]


@pytest.mark.parametrize("way", ["on the loop", "on a thread"])
@pytest.mark.parametrize("write", WRITES)
class TestAfterATransaction:
    """Official `transactions/unified/commit.json`, "reset session state commit" and "... abort"."""

    @pytest.fixture
    async def session(self, way, replica_set, client):
        """A session of a client whose writes go the one way or the other."""
        if way == "on a thread":
            async with await client.start_session() as session:
                yield session
            return
        async with RetryClient(replica_set.uri) as plain, await plain.start_session() as session:
            yield session

    @pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
    async def test_a_write_closes_the_chapter(self, end, write, session, seeded):
        """After a write outside, there is no transaction any more to be committed or aborted."""
        own = session.client[seeded.database.name][seeded.name]
        session.start_transaction()
        await own.insert_one({"_id": 3}, session=session)
        await getattr(session, end)()
        await WRITES[write](own, session)
        for again in (session.commit_transaction, session.abort_transaction):
            with pytest.raises(InvalidOperation, match="No transaction started"):
                await again()


async def until_over(limit):
    """Wait until a deadline is over."""
    while not limit.is_over:
        await anyio.sleep(limit.remaining())


@pytest.fixture
def unlocked(stored, open_transactions):
    """Whether nobody holds the document any more: another client can write it at once."""

    def look():
        stored.update_one({"_id": 1}, {"$set": {"seen": True}})
        return not open_transactions()

    def is_unlocked():
        with pymongo.timeout(5.0):
            return look()

    return is_unlocked


class TestUnderADeadlineThatIsOver:
    async def test_a_block_that_fails(self, client, increment, unlocked, commands):
        """What is aborted then is aborted on the server."""

        async def failing():
            async with session.start_transaction():
                await increment(session)
                await until_over(limit)
                raise LookupError

        async with await client.start_session() as session:
            async with deadline(0.3) as limit:
                with pytest.raises(LookupError):
                    await failing()
            assert ["update", "abortTransaction"] == commands.names
            assert unlocked()

    async def test_a_block_that_ends(self, session, increment, stored, unlocked, commands):
        """What can't be committed any more is aborted, and not left behind in doubt."""

        async def block():
            async with session.start_transaction():
                await increment(session)
                await until_over(limit)

        async with deadline(0.3) as limit:
            with pytest.raises(DeadlineExceeded, match="it is aborted") as caught:
                await block()
        assert not caught.value.has_error_label(UNKNOWN_COMMIT)
        assert ["update", "abortTransaction"] == commands.names
        assert (True, 0) == (unlocked(), counter(stored))
        session.start_transaction()
        await session.abort_transaction()

    @pytest.mark.parametrize("how", ["end_session", "block"])
    async def test_a_session_that_ends(self, how, client, increment, unlocked, commands):
        """A session that is ended aborts what is in progress."""
        async with deadline(0.3) as limit:
            if how == "block":
                async with await client.start_session() as session:
                    session.start_transaction()
                    await increment(session)
                    await until_over(limit)
            else:
                session = await client.start_session()
                session.start_transaction()
                await increment(session)
                await until_over(limit)
                await session.end_session()
        assert session.has_ended
        assert ["update", "abortTransaction"] == commands.names
        assert unlocked()

    async def test_a_callback_that_ends(self, session, increment, stored, unlocked, commands):
        """`with_transaction` does not leave behind what it can't commit any more, either."""

        async def callback(given):
            await increment(given)
            await until_over(limit)

        async with deadline(0.3) as limit:
            with pytest.raises(DeadlineExceeded) as caught:
                await session.with_transaction(callback)
        assert not caught.value.has_error_label(UNKNOWN_COMMIT)
        assert ["update", "abortTransaction"] == commands.names
        assert (True, 0) == (unlocked(), counter(stored))

    async def test_nothing_to_commit(self, session):
        """A transaction in which nothing was done is committed all the same, as by Motor."""
        async with deadline(0):
            async with session.start_transaction():
                pass
            assert "done" == await session.with_transaction(nothing)

    async def test_an_abort_that_hangs(self, replica_set, session, increment):
        """An abort that is not answered is waited for, and not for ever."""
        async with deadline(0.3) as limit:
            session.start_transaction()
            await increment(session)
            await until_over(limit)
            async with replica_set.faults.hang("abortTransaction", times=None):
                with anyio.fail_after(10):
                    await session.abort_transaction()

    @pytest.mark.parametrize("way", ["with_transaction", "by hand"])
    async def test_an_abort_whose_time_is_over(
        self, way, replica_set, session, increment, unlocked
    ):
        """It goes on by itself, so that what was written bars nobody for a minute."""

        async def callback(given):
            await increment(given)
            raise ZeroDivisionError

        async def call():
            if way == "with_transaction":
                await session.with_transaction(callback, timeout=0.5)
            else:
                async with deadline(0.5), session.start_transaction():
                    await callback(session)

        async with replica_set.faults.hang("abortTransaction"):
            with pytest.raises(ZeroDivisionError):
                await call()
            assert await asyncio.to_thread(unlocked)
            assert 2 == await session.with_transaction(increment)

    async def test_a_late_statement(self, replica_set, session, increment, unlocked):
        """What is held up on its way begins the transaction after its abort, which goes on."""
        async with replica_set.faults.hang("update", where=begins) as hang:
            session.start_transaction()
            with pytest.raises(DeadlineExceeded):
                async with deadline(0.3):
                    await increment(session)
            await session.abort_transaction()
            hang.disarm()
        async with asyncio.timeout(30):  # by themselves, servers end it after a minute
            while not await asyncio.to_thread(unlocked):
                await asyncio.sleep(0.05)

    async def test_a_client_that_is_closed(self, replica_set):
        """The servers are told which sessions have ended."""
        async with replica_set.faults.watch("endSessions", app_name="closing") as ended:
            async with deadline(0.3) as limit:
                async with RetryClient(replica_set.uri, appName="closing") as client:
                    await client.aioretry_tests.ends.find_one()
                    await until_over(limit)
            assert 1 == ended.seen


async def nothing(session):
    """A callback that has nothing to do."""
    del session
    return "done"


class TestCommitsInDoubt:
    @pytest.mark.parametrize("way", ["with_transaction", "block"])
    async def test_under_a_deadline(self, way, replica_set, session, increment, commands):
        """A commit whose result is never known is repeated until time is over, and not at once."""

        async def block():
            async with session.start_transaction():
                await increment(session)

        async with replica_set.fail_command("commitTransaction", mode="alwaysOn", error_code=6):
            async with deadline(1.0) as limit:
                with pytest.raises(PyMongoError) as caught:
                    await (block() if way == "block" else session.with_transaction(increment))
        assert caught.value.has_error_label(UNKNOWN_COMMIT)
        assert limit.remaining() < 0.5
        assert 6 <= commands.names.count("commitTransaction") <= 80

    async def test_without_one(self, replica_set, session, increment, stored, commands):
        """So it is without one, until the result is known."""
        loop = asyncio.get_running_loop()
        async with replica_set.fail_command("commitTransaction", mode={"times": 40}, error_code=6):
            began = loop.time()
            assert 1 == await session.with_transaction(increment)
        # Of the 19 pauses the longest are half a second; a random half of each is left on average.
        assert loop.time() - began > 0.5
        assert (41, 1) == (commands.names.count("commitTransaction"), counter(stored))

    async def test_reads_of_the_callback_meanwhile(self, replica_set, session, seeded, stored):
        """What the callback has left running does not make the session forget its transaction."""
        left = []

        async def later(given):
            while True:
                await seeded.find_one({}, session=given)

        async def callback(given):
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=given)
            left.append(asyncio.create_task(later(given)))

        async with replica_set.fail_command("commitTransaction", mode={"times": 6}, error_code=6):
            await session.with_transaction(callback)
        with pytest.raises(InvalidOperation, match="nothing was sent"):
            await left[0]
        assert 1 == counter(stored)

    async def test_while_another_error_is_handled(self, replica_set, session, increment, stored):
        """The outcome of a write before it is not the transaction's."""

        async def repeat():
            try:
                await session.client[stored.database.name][stored.name].insert_one({"_id": 1})
            except DuplicateKeyError:
                await session.with_transaction(increment)

        async with replica_set.faults.error(
            50, "commitTransaction", times=1, applied=True, labels=[UNKNOWN_COMMIT]
        ):
            with pytest.raises(PyMongoError) as caught:
                await repeat()
        assert Outcome.NOT_APPLIED is outcome_of(caught.value.__context__)
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        assert 1 == counter(stored)


def begins(command):
    """Tell whether a command begins a transaction."""
    return "startTransaction" in command
