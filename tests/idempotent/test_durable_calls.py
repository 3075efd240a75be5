"""Durable keys on real servers: other calls with the key, blocks that are left, and deadlines."""

import asyncio
from contextlib import AsyncExitStack
from contextvars import ContextVar

import pytest
from pymongo.errors import DuplicateKeyError, InvalidOperation, PyMongoError
from pymongo.monitoring import CommandListener

from aioretry import DeadlineExceeded, Outcome, deadline, outcome_of
from aioretry.idempotent import IdempotencyConflict, Keys
from tests.idempotent.keyed import MAJORITY, NAMESPACE, SECRET, keyed_collection

RECORDS = "aioretry_tests.aioretry.durable_keys"


@pytest.fixture
async def key(collection):
    """A durable key of the test's own."""
    async with Keys(SECRET, NAMESPACE) as keys:
        yield keys(f"{collection.name}-1", durable=True)


@pytest.fixture
async def other(replica_set, collection, client_class):
    """The same collection, of another client."""
    async with client_class(replica_set.uri) as client:
        yield keyed_collection(client, collection.name)


@pytest.fixture
async def seeded(collection):
    await collection.insert_many([{"_id": "a", "n": 0}, {"_id": "b", "n": 0}])
    return collection


def add(_id):
    """A write whose reply does not tell what it has changed."""
    return lambda op: op.update_one({"_id": _id}, {"$inc": {"n": 1}})


def replace(op):
    """Another kind of write, with the same reply."""
    return op.replace_one({"_id": "a"}, {"n": 100})


async def lose(replica_set):
    """Have the server abort all transactions, as it does with those that are open too long."""
    primary = await replica_set.primary()
    await primary.command({"killAllSessions": []})


async def make(collection, key, writes, meanwhile=None, timeout=60):
    """Make writes under a key; give whether the latest was answered from memory."""
    async with collection.operation(timeout=timeout, key=key) as op:
        for write in writes:
            await write(op)
            if meanwhile is not None:
                await meanwhile
                meanwhile = None
    return op.replayed


class TestAnotherCallThatIsFaster:
    """The server loses a transaction, and another call commits before that is noticed."""

    async def outrun(self, replica_set, collection, key, writes):
        await lose(replica_set)
        assert (await make(collection, key, writes)) is False

    @pytest.mark.parametrize("rest", [[], [add("a")]], ids=["at the commit", "in a write"])
    async def test_of_the_same_writes(self, replica_set, seeded, other, key, rest, stored):
        """Its answers are those that were given, and they are known as another call's."""
        writes = [add("b"), *rest]
        faster = self.outrun(replica_set, other, key, writes)
        assert (await make(seeded, key, writes, faster)) is True
        assert len(writes) == sum(each["n"] for each in stored.find())

    @pytest.mark.parametrize("rest", [[], [add("a")]], ids=["at the commit", "in a write"])
    @pytest.mark.parametrize(
        ("theirs", "why"),
        [
            ([add("b")], "write 1 .* its arguments are others"),
            ([replace], "write 1 .* was replace_one .* is update_one now"),
        ],
        ids=["arguments", "kind"],
    )
    async def test_of_other_writes(
        self, replica_set, seeded, other, key, theirs, why, rest, stored
    ):
        """Nobody is told that they are done who made others, though the answers are the same."""
        faster = self.outrun(replica_set, other, key, theirs + rest)
        with pytest.raises(IdempotencyConflict, match=why) as caught:
            await make(seeded, key, [add("a"), *rest], faster)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert await make(other, key, theirs + rest)

    @pytest.mark.parametrize(
        ("mine", "theirs", "why"),
        [
            (1, 2, "used for 2 writes, and this operation has made 1"),
            (2, 1, "used for 1 writes, and this is write 2"),
        ],
        ids=["more", "fewer"],
    )
    async def test_of_more_or_fewer(self, replica_set, seeded, other, key, mine, theirs, why):
        """So is a call that made more writes, or fewer."""
        faster = self.outrun(replica_set, other, key, [add("a")] * theirs)
        with pytest.raises(IdempotencyConflict, match=why) as caught:
            await make(seeded, key, [add("a")] * mine, faster)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)


async def test_fewer_writes_than_before(seeded, other, key):
    """A repeated call that leaves writes out is not the same."""
    await make(seeded, key, [add("a"), add("b")])
    with pytest.raises(IdempotencyConflict, match="used for 2 writes"):
        await make(other, key, [add("a")])


@pytest.mark.parametrize("rest", [[], [add("b")]], ids=["at the commit", "in a write"])
async def test_a_record_that_is_gone_again(replica_set, seeded, key, rest, stored):
    """What was told to be done is done, also if another call's record is rolled back."""
    writes = [add("a"), *rest]
    async with replica_set.faults.error(11000, "insert", nth=2, namespace=RECORDS):
        assert (await make(seeded, key, writes, lose(replica_set), timeout=20)) is False
    assert len(writes) == sum(each["n"] for each in stored.find())
    assert (await make(seeded, key, writes)) is True


class TestErrorsThatAreSwallowed:
    async def swallow(self, replica_set, collection, key):
        """Lose the transaction, and give up while another call's record is waited for."""
        fault = replica_set.faults.error(11000, "insert", nth=2, times=None, namespace=RECORDS)
        async with fault, collection.operation(key=key) as op:
            await add("a")(op)
            await lose(replica_set)
            with pytest.raises(PyMongoError):
                async with deadline(0.5):
                    await add("b")(op)

    async def test_without_a_transaction(self, replica_set, seeded, key, stored):
        """Who was told of a write that is in no transaction any more is told that, too."""
        with pytest.raises(InvalidOperation, match="none of it is applied") as caught:
            await self.swallow(replica_set, seeded, key)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert 0 == stored.count_documents({"n": 1})


class TestBlocksThatAreLeft:
    def transactions(self):
        """The tasks of durable keys."""
        return [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "transact"]

    async def leave(self, collection, key, fault, error=None):
        """Leave a block while a task's first write in it is held up; give that."""
        write = None
        try:
            async with collection.operation(timeout=60, key=key) as op:
                write = asyncio.create_task(add("a")(op))
                await fault.wait_until_fired(timeout=60)
                if error is not None:
                    raise error
        except ZeroDivisionError:
            pass
        return op, write

    async def require_nothing(self, collection, key, write, stored):
        """Nothing is applied, nothing is left, and the key is as good as new."""
        with pytest.raises(InvalidOperation, match="block of this operation has ended") as caught:
            await write
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert [] == self.transactions()
        assert 0 == stored.count_documents({"n": 1})
        assert (await make(collection, key, [add("a")])) is False

    @pytest.mark.parametrize("error", [None, ZeroDivisionError])
    async def test_before_the_transaction(self, replica_set, seeded, key, error, stored):
        """A write that has still to begin the transaction does not begin it any more."""
        async with replica_set.faults.hang("find", namespace=RECORDS) as fault:
            _, write = await self.leave(seeded, key, fault, error)
        await self.require_nothing(seeded, key, write, stored)

    async def test_with_an_error(self, replica_set, seeded, key, stored):
        """A write whose transaction is aborted is not cancelled: nobody has cancelled it."""
        async with replica_set.faults.hang("update", namespace=seeded.full_name) as fault:
            _, write = await self.leave(seeded, key, fault, ZeroDivisionError)
            await asyncio.wait({write})
        await self.require_nothing(seeded, key, write, stored)

    async def test_before_an_error(self, replica_set, seeded, key, stored):
        """The error of a write that nobody has waited for is the block's as well."""
        async with replica_set.faults.hang("insert", namespace=seeded.full_name) as fault:
            leaving = asyncio.create_task(self.insert_twice(seeded, key, fault))
            await fault.wait_until_fired(timeout=60)
        write, block = await leaving
        assert [DuplicateKeyError, InvalidOperation] == [type(write), type(block)]
        assert [Outcome.NOT_APPLIED] * 2 == [outcome_of(write), outcome_of(block)]
        assert [] == self.transactions()
        assert 0 == stored.count_documents({"n": 1})

    async def insert_twice(self, collection, key, fault):
        try:
            async with collection.operation(timeout=10, key=key) as op:
                await add("a")(op)
                write = asyncio.create_task(op.insert_one({"_id": "b"}))
                await fault.wait_until_fired(timeout=60)
        except PyMongoError as exc:
            [error] = await asyncio.gather(write, return_exceptions=True)
            return error, exc

    async def test_while_another_call_is_waited_for(self, replica_set, seeded, other, key, stored):
        """A write that waits for another call in its transaction gets that call's answer."""
        async with other.operation(timeout=60, key=key) as op:
            await add("a")(op)
            async with replica_set.faults.hang("insert", namespace=RECORDS) as fault:
                leaving = asyncio.create_task(self.leave(seeded, key, fault))
                await fault.wait_until_fired(timeout=60)
        late, write = await leaving
        assert 1 == (await write).modified_count
        assert late.replayed is True
        assert [] == self.transactions()
        assert 1 == stored.count_documents({"n": 1})

    async def test_while_a_record_is_waited_for(self, replica_set, seeded, key, stored):
        """A later write that has lost its transaction takes no earlier one with it."""
        faults = replica_set.faults
        taken = faults.error(11000, "insert", nth=2, namespace=RECORDS)
        async with taken, faults.hang("find", nth=2, namespace=RECORDS) as fault:
            async with seeded.operation(timeout=60, key=key) as op:
                await add("a")(op)
                await lose(replica_set)
                write = asyncio.create_task(add("b")(op))
                await fault.wait_until_fired(timeout=60)
            assert ["a"] == stored.distinct("_id", {"n": 1})
        with pytest.raises(InvalidOperation, match="block of this operation has ended"):
            await write
        assert ["a"] == stored.distinct("_id", {"n": 1})

    async def test_when_no_write_is_left(self, replica_set, seeded, other, key, stored):
        """Where the only write has lost its transaction, there is nothing to commit."""
        faults = replica_set.faults
        async with AsyncExitStack() as stack:
            async with other.operation(timeout=60, key=key) as op:
                await add("b")(op)
                async with faults.hang("insert", namespace=RECORDS) as fault:
                    leaving = asyncio.create_task(self.leave(seeded, key, fault))
                    await fault.wait_until_fired(timeout=60)
                found = faults.hang("find", times=2, namespace=RECORDS)
                await stack.enter_async_context(found)
            await found.wait_until_fired(2, timeout=60)
            database = stored.database
            records = database.get_collection("aioretry.durable_keys", write_concern=MAJORITY)
            records.delete_many({})
        _, write = await leaving
        await seeded.update_one({"_id": "b"}, {"$set": {"n": 0}})
        await self.require_nothing(seeded, key, write, stored)


WHERE = ContextVar("where", default="nowhere")


class Sent(CommandListener):
    """What the transaction sends: whether that has a limit, and in whose context it is sent."""

    def __init__(self):
        self.commands = []

    def started(self, event):
        if event.command_name in {"insert", "update", "commitTransaction"}:
            limited = "maxTimeMS" in event.command
            self.commands.append((event.command_name, limited, WHERE.get()))

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


class TestDeadlines:
    @pytest.mark.parametrize("timeout", [None, 60])
    async def test_of_one_write(self, replica_set, seeded, key, timeout, client_class):
        """The first write's deadline is not that of the others: the operation's own is."""
        sent = Sent()
        async with client_class(replica_set.uri, event_listeners=[sent]) as client:
            mine = keyed_collection(client, seeded.name)
            WHERE.set("operation")
            async with mine.operation(timeout=timeout, key=key) as op:
                WHERE.set("first write")
                async with deadline(30):
                    await add("a")(op)
                WHERE.set("second write")
                await add("b")(op)
        assert [
            (name, timeout is not None, "operation")
            for name in ("insert", "update", "update", "update", "commitTransaction")
        ] == sent.commands

    async def test_of_a_later_write(self, replica_set, seeded, key, stored):
        """Each write is waited for as long as its own deadline allows."""
        async with replica_set.faults.hang("update", nth=2, namespace=seeded.full_name):
            with pytest.raises(DeadlineExceeded) as caught:
                await self.add_both(seeded, key)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        assert 0 == stored.count_documents({"n": 1})

    async def add_both(self, collection, key):
        async with collection.operation(key=key) as op:
            await add("a")(op)
            async with deadline(0.5):
                await add("b")(op)

    async def test_of_the_end(self, replica_set, seeded, key, stored):
        """So is the commit, which is in doubt then."""
        async with AsyncExitStack() as stack:
            op = await stack.enter_async_context(seeded.operation(key=key))
            await add("a")(op)
            async with replica_set.faults.hang("commitTransaction"):
                with pytest.raises(DeadlineExceeded) as caught:
                    async with deadline(0.5):
                        await stack.aclose()
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        await make(seeded, key, [add("a")])
        assert 1 == stored.count_documents({"n": 1})
