"""What a run of a transaction leaves behind: it is no part of the next run, nor sent outside."""

import asyncio
import contextvars
import threading
from types import SimpleNamespace

import pytest
from pymongo import ReadPreference, monitoring
from pymongo.errors import AutoReconnect, InvalidOperation, PyMongoError
from pymongo.server_description import ServerDescription

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    attempts_of,
    deadline,
    outcome_of,
    run_transaction,
)
from aioretry._writes.context import settled
from aioretry.idempotent import Keys

TRANSIENT = "TransientTransactionError"
SECRET = b"sixteen bytes or so, and more"


@pytest.fixture
def client(watched_client):
    """The client, whose commands are remembered."""
    return watched_client


@pytest.fixture
async def accounts(collection, commands):
    """Two accounts."""
    await collection.insert_many([{"_id": "A", "money": 100}, {"_id": "B", "money": 0}])
    commands.sent.clear()
    return collection


async def by_session(collection, work):
    """Run work in a transaction of one session."""
    async with await collection.database.client.start_session() as session:
        return await session.with_transaction(work)


async def by_sessions(collection, work):
    """Run work in a transaction, each run in a session of its own."""
    return await run_transaction(collection.database.client, work)


async def by_key(collection, work):
    """Run work once for a key."""
    keys = Keys(SECRET, "runs", answer_records=f"{collection.name}.answers")

    async def answering(session):
        await work(session)
        return {}

    await keys.once("a key", answering, database=collection.database)


WAYS = {"with_transaction": by_session, "run_transaction": by_sessions, "once": by_key}


def transient():
    """An error that has everything run again."""
    error = PyMongoError("injected")
    error._add_error_label(TRANSIENT)
    return error


class Late:
    """A callback whose first run leaves a task behind, which acts in the second one."""

    def __init__(self, act, end=None):
        self.act = act
        self.end = end
        self.runs = 0
        self.second = asyncio.Event()
        self.left = None

    async def __call__(self, session):
        self.runs += 1
        if self.runs == 1:
            self.left = asyncio.create_task(self.later(session))
            await self.act(session, "A", -1)
            raise transient()
        await self.act(session, "A", -1)
        self.second.set()
        await asyncio.wait({self.left})
        if self.end is None:
            await self.act(session, "B", +1)

    async def later(self, session):
        """What is left of the first run."""
        await self.second.wait()
        if self.end is not None:
            return await self.end(session)
        return await self.act(session, "B", +1)


def paying(collection):
    """What moves money."""

    async def pay(session, account, money):
        await collection.update_one({"_id": account}, {"$inc": {"money": money}}, session=session)

    return pay


def balances(stored):
    """The money of each account as the majority has it."""
    return [account["money"] for account in stored.find({"money": {"$exists": True}}).sort("_id")]


@pytest.mark.parametrize("way", WAYS)
class TestSecondRun:
    async def test_has_nothing_of_the_first(self, way, accounts, stored):
        """What a task of the first run writes in the second one is refused."""
        late = Late(paying(accounts))
        await WAYS[way](accounts, late)
        assert (2, [99, 1]) == (late.runs, balances(stored))
        error = late.left.exception()
        assert (InvalidOperation, Outcome.NOT_APPLIED) == (type(error), outcome_of(error))

    async def test_of_gathered_work(self, way, replica_set, accounts, stored):
        """Of gathered writes, one of which fails, the others are no part of the next run."""
        pay = paying(accounts)
        left = []

        async def slowly(session):
            await asyncio.sleep(0.05)
            await pay(session, "B", +1)

        async def transfer(session):
            left.append(asyncio.create_task(slowly(session)))
            await asyncio.gather(pay(session, "A", -1), left[-1])

        async with replica_set.fail_command(
            "update", error_code=112, error_labels=[TRANSIENT], mode={"times": 1}
        ):
            await WAYS[way](accounts, transfer)
        await asyncio.wait(left)
        assert (2, [99, 1]) == (len(left), balances(stored))


@pytest.mark.parametrize("act", ["commit_transaction", "abort_transaction", "start_transaction"])
async def test_the_first_run_does_not_end_the_second(act, accounts, stored):
    """Nor can a task of the first run commit, abort or begin anything in the second one."""

    async def end(session):
        if act == "start_transaction":
            session.start_transaction()
        else:
            await getattr(session, act)()

    late = Late(paying(accounts), end)
    await by_session(accounts, late)
    assert isinstance(late.left.exception(), InvalidOperation)
    assert (2, [98 + 1, 0]) == (late.runs, balances(stored))


held = contextvars.ContextVar("held", default=False)


class Hold(monitoring.ConnectionPoolListener):
    """Holds up threads that want a connection, if what they do was begun to be held up."""

    def __init__(self):
        self.arrived = threading.Semaphore(0)
        self.released = threading.Event()

    def connection_check_out_started(self, event):
        if held.get():
            self.arrived.release()
            self.released.wait(30)

    def _nothing(self, event):
        pass

    pool_created = pool_ready = pool_cleared = pool_closed = _nothing
    connection_created = connection_ready = connection_closed = _nothing
    connection_check_out_failed = connection_checked_out = connection_checked_in = _nothing


@pytest.fixture
async def hold():
    """What holds up threads, until the test ends at the latest."""
    hold = Hold()
    yield hold
    hold.released.set()


@pytest.fixture
async def slow_accounts(replica_set, accounts, commands, hold):
    """The accounts, by a client that may be held up."""
    async with RetryClient(replica_set.uri, event_listeners=[commands, hold]) as client:
        yield client[accounts.database.name].get_collection(
            accounts.name, write_concern=accounts.write_concern
        )


class Gathering:
    """A callback that fails while writes are under way which are not sent yet."""

    def __init__(self, collection, hold, error):
        self.collection = collection
        self.hold = hold
        self.error = error
        self.left = []

    async def __call__(self, session):
        if self.left:
            return
        await self.collection.insert_one({"_id": 0}, session=session)
        token = held.set(True)
        self.left = [
            asyncio.ensure_future(self.collection.insert_one({"_id": n}, session=session))
            for n in range(1, 6)
        ]
        held.reset(token)
        for _ in self.left:
            await asyncio.to_thread(self.hold.arrived.acquire)
        raise self.error

    async def ended(self):
        """What comes of the writes once they get on."""
        self.hold.released.set()
        return await asyncio.gather(*self.left, return_exceptions=True)


class TestUnderWay:
    async def test_work_that_raises_leaves_nothing(self, slow_accounts, hold, stored):
        """Writes that were begun and not sent when the work raised are never sent."""
        work = Gathering(slow_accounts, hold, LookupError())
        async with await slow_accounts.database.client.start_session() as session:
            with pytest.raises(LookupError):
                await session.with_transaction(work)
            errors = await work.ended()
        assert [InvalidOperation] * 5 == [type(error) for error in errors]
        assert 2 == stored.count_documents({})

    async def test_nor_does_work_that_is_run_again(self, slow_accounts, hold, stored):
        """Nor are they part of the next run, or sent after it."""
        work = Gathering(slow_accounts, hold, transient())
        async with await slow_accounts.database.client.start_session() as session:
            await session.with_transaction(work)
            errors = await work.ended()
        assert [InvalidOperation] * 5 == [type(error) for error in errors]
        assert 2 == stored.count_documents({})

    @pytest.mark.parametrize("way", WAYS)
    async def test_nor_in_a_session_that_has_ended(self, way, slow_accounts, hold, stored):
        """They find a session that has ended closed, whoever uses its id by then."""
        work = Gathering(slow_accounts, hold, LookupError())
        with pytest.raises(LookupError):
            await WAYS[way](slow_accounts, work)
        errors = await work.ended()
        assert [InvalidOperation] * 5 == [type(error) for error in errors]
        assert 2 == stored.count_documents({})


CALLS = {
    "insert_one": lambda c, s: c.insert_one({"_id": 2}, session=s),
    "update_many": lambda c, s: c.update_many({}, {"$inc": {"n": 1}}, session=s),
    "insert_many": lambda c, s: c.insert_many([{"_id": 2}], session=s),
    "find_one": lambda c, s: c.find_one({}, session=s),
    "aggregate": lambda c, s: c.aggregate([{"$match": {}}], session=s).to_list(1),
    "command": lambda c, s: c.database.command("find", c.name, session=s),
}


@pytest.mark.parametrize("call", CALLS)
class TestAfterwards:
    @pytest.mark.motor
    async def test_what_is_left_sends_nothing(self, call, session, seeded, commands):
        """What a run has left behind can't use the session when no transaction runs any more."""
        over = asyncio.Event()
        left = []

        async def later(given):
            await over.wait()
            await CALLS[call](seeded, given)

        async def callback(given):
            left.append(asyncio.create_task(later(given)))
            await seeded.find_one({}, session=given)

        await session.with_transaction(callback)
        sent = len(commands.sent)
        over.set()
        with pytest.raises(InvalidOperation, match="has ended; nothing was sent") as caught:
            await left[0]
        assert (sent, Outcome.NOT_APPLIED) == (len(commands.sent), outcome_of(caught.value))

    @pytest.mark.motor
    async def test_the_session_is_the_callers_again(self, call, session, seeded, commands):
        """Who has called `with_transaction` uses the session, and so do their other tasks."""

        async def callback(given):
            await seeded.find_one({}, session=given)

        await session.with_transaction(callback)
        await CALLS[call](seeded, session)
        assert 3 == len(commands.sent)

    @pytest.mark.motor
    async def test_another_session_is_free(self, call, client, session, seeded, commands):
        """What a run has left behind may use other sessions, in transactions too."""
        over = asyncio.Event()
        left = []

        async def later():
            await over.wait()
            async with await client.start_session() as other:
                await other.with_transaction(lambda given: CALLS[call](seeded, given))

        async def callback(given):
            left.append(asyncio.create_task(later()))
            await seeded.find_one({}, session=given)

        await session.with_transaction(callback)
        over.set()
        await left[0]
        assert 4 == len(commands.sent)


async def test_a_cancelled_run_has_no_share_in_the_new_session(client, seeded, stored):
    """The session that takes the place of a cancelled one is closed to the cancelled run, too."""
    over = asyncio.Event()
    left = []

    async def later(given):
        await over.wait()
        await seeded.insert_one({"_id": 2}, session=given)

    async def callback(given):
        left.append(asyncio.create_task(later(given)))
        await seeded.find_one({}, session=given)
        raise asyncio.CancelledError

    async with await client.start_session() as session:
        with pytest.raises(asyncio.CancelledError):
            await session.with_transaction(callback)
        over.set()
        with pytest.raises(InvalidOperation):
            await left[0]
    assert 1 == stored.count_documents({})


class TestSessions:
    async def test_stay_the_same(self, replica_set, client, accounts, stored, commands):
        """All runs of `with_transaction` are in one session, with one number after the other."""
        pay = paying(accounts)
        async with replica_set.fail_command("update", error_code=112, error_labels=[TRANSIENT]):
            await by_session(accounts, lambda session: pay(session, "A", -1))
        first = commands.numbers[0]
        assert 1 == len(commands.sessions)
        assert [first, first, first + 1, first + 1] == commands.numbers
        assert [99, 0] == balances(stored)

    async def test_are_each_runs_own(self, replica_set, accounts, stored, commands):
        """With `run_transaction`, what the callback gets differs from run to run."""
        given = []

        async def callback(session):
            given.append(session)
            await paying(accounts)(session, "A", -1)

        async with replica_set.fail_command("update", error_code=112, error_labels=[TRANSIENT]):
            await by_sessions(accounts, callback)
        assert (2, [True, True]) == (len({*map(id, given)}), [each.has_ended for each in given])
        assert [99, 0] == balances(stored)


async def test_of_another_client(motor):
    """A client without retries is refused."""

    async def callback(session):
        del session

    with pytest.raises(TypeError, match="must be a RetryClient"):
        await run_transaction(motor, callback)


class TestFirst:
    """Of gathered statements, the first begins the transaction at the server; the others follow."""

    @pytest.mark.parametrize("way", WAYS)
    async def test_that_is_lost(self, way, replica_set, accounts, stored, commands):
        """The others are not sent, to be told that there is no such transaction."""
        lost = {"times": 4, "where": lambda command: command.get("startTransaction")}

        async def work(session):
            await asyncio.gather(pay(session, "A", -1), pay(session, "B", 1), look(session))

        pay = paying(accounts)

        async def look(session):
            assert await accounts.find_one({"_id": "A"}, session=session)

        with replica_set.faults.drop_request("update", **lost):
            await WAYS[way](accounts, work)
        assert [99, 1] == balances(stored)
        updates = [each for each in commands.sent if "update" in each and "autocommit" in each]
        begin = [bool(each.get("startTransaction")) for each in updates]
        assert [*[True] * 5, False] == begin

    async def test_that_never_was(self, client, accounts, stored):
        """One that can't be made begins nothing, and holds up nobody."""
        async with await client.start_session() as session:
            await settled(session.start_transaction())
            bad = accounts.update_one({"_id": "A"}, {"money": 1}, session=session)
            good = [
                accounts.update_one({"_id": each}, {"$inc": {"money": 1}}, session=session)
                for each in "AB"
            ]
            errors = await asyncio.gather(bad, *good, return_exceptions=True)
            assert [ValueError] == [type(each) for each in errors if isinstance(each, Exception)]
            await session.commit_transaction()
        assert [101, 1] == balances(stored)

    async def test_that_hangs(self, replica_set, client, accounts, commands):
        """The others wait no longer than they have time."""
        held = replica_set.faults.hang("update")
        async with await client.start_session() as session:
            await settled(session.start_transaction())
            first = accounts.update_one({"_id": "A"}, {"$inc": {"money": 1}}, session=session)
            await held.wait_until_fired()
            with pytest.raises(DeadlineExceeded) as caught:
                async with deadline(0.1):
                    await accounts.update_one({"_id": "B"}, {"$set": {"n": 1}}, session=session)
            assert () == attempts_of(caught.value)
            held.disarm()
            await first
            await session.abort_transaction()
        assert 1 == len([each for each in commands.sent if "update" in each])

    async def test_whose_time_is_over(self, replica_set, client, accounts):
        """The others have more of it; they are lost with it, and no deadline of theirs is over."""
        async with await client.start_session() as session:
            await settled(session.start_transaction())
            with replica_set.faults.hang("update"):
                async with deadline(0.3):
                    first = accounts.update_one({"_id": "A"}, {"$set": {"n": 1}}, session=session)
                other = accounts.update_one({"_id": "B"}, {"$set": {"n": 1}}, session=session)
                ends = await asyncio.gather(first, other, return_exceptions=True)
            assert [DeadlineExceeded, AutoReconnect] == list(map(type, ends))
            assert ends[1].has_error_label(TRANSIENT)
            await session.abort_transaction()

    async def test_that_is_cancelled(self, client, accounts):
        """Of the others, all are in the transaction, or none is."""
        for _ in range(20):
            async with await client.start_session() as session:
                await settled(session.start_transaction())
                first, *others = (
                    accounts.update_one({"_id": each}, {"$inc": {"n": 1}}, session=session)
                    for each in "ABABA"
                )
                first.cancel()
                ends = await asyncio.gather(*others, return_exceptions=True)
                assert len({type(end) for end in ends}) == 1, ends
                await session.abort_transaction()

    async def test_that_was_never_sent(self, replica_set, accounts, client_class, commands):
        """Another one is the first then, and the others wait for that."""
        options = {"maxPoolSize": 2, "event_listeners": [commands]}
        increment = {"$inc": {"money": 1}}
        async with client_class(replica_set.uri, **options) as client:
            narrow = client[accounts.database.name][accounts.name]
            async with await client.start_session() as session:
                await settled(session.start_transaction())
                with replica_set.faults.hang("insert", times=2) as held:
                    busy = [narrow.insert_one({}) for _ in range(2)]
                    await held.wait_until_fired(2)
                    first, *others = (
                        narrow.update_one({"_id": each}, increment, session=session)
                        for each in "ABAB"
                    )
                    first.cancel()
                    begins = {"where": lambda command: command.get("startTransaction")}
                    with replica_set.faults.hang("update", **begins) as begun:
                        held.disarm()
                        await asyncio.gather(*busy)
                        await begun.wait_until_fired()
                        for _ in range(5):  # in the time of which others could be sent
                            await narrow.insert_one({})
                        assert 1 == len([each for each in commands.sent if "update" in each])
                    await asyncio.gather(*others)
                await session.commit_transaction()


class TestGroups:
    async def test_a_transient_error_in_a_group(self, replica_set, client, accounts, commands):
        """One error of a `TaskGroup` that is transient has everything run again."""
        pay = paying(accounts)

        async def callback(session):
            async with asyncio.TaskGroup() as group:
                group.create_task(pay(session, "A", -1))

        async with replica_set.fail_command("update", close_connection=True):
            await by_session(accounts, callback)
        assert ["update", "abortTransaction", "update", "commitTransaction"] == commands.names
        assert 1 == len(commands.sessions)

    async def test_of_work_that_is_done_once(self, replica_set, accounts, stored):
        """So it does in `once()`."""
        pay = paying(accounts)

        async def work(session):
            async with asyncio.TaskGroup() as group:
                group.create_task(pay(session, "A", -1))

        async with replica_set.fail_command("update", close_connection=True):
            await by_key(accounts, work)
        assert [99, 0] == balances(stored)

    async def test_lost_transactions_in_groups(self, replica_set, accounts):
        """Work whose transactions are lost again and again is told so, in groups too."""
        pay = paying(accounts)

        async def work(session):
            async with asyncio.TaskGroup() as group:
                group.create_task(pay(session, "A", -1))

        async with replica_set.fail_command("update", mode="alwaysOn", error_code=251):
            with pytest.raises(InvalidOperation, match="3 times in a row"):
                await by_key(accounts, work)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.motor
async def test_over_a_connection_opened_during_a_change_of_state(way, client, accounts, stored):
    """A server that said nothing of sessions then has them all the same.

    PyMongo remembers with a connection what the server said when it was opened.
    """
    for server in client.delegate._get_topology()._servers.values():
        for connection in server.pool.conns:
            connection.supports_sessions = False
    pay = paying(accounts)
    await WAYS[way](accounts, lambda session: pay(session, "A", -1))
    assert [99, 0] == balances(stored)


@pytest.mark.motor
async def test_over_such_a_connection_to_a_server_that_was_just_lost(client, accounts):
    """The server is to answer, which an error of its own is, and not PyMongo in its place."""
    topology = client.delegate._get_topology()
    address = client.delegate.primary
    connection = SimpleNamespace(
        address=address, supports_sessions=False, logical_session_timeout_minutes=None
    )
    async with await client.start_session() as session:

        async def callback(_):
            topology.on_change(ServerDescription(address, error=AutoReconnect("lost")))
            command = {"insert": accounts.name}
            session.delegate._apply_to(command, False, ReadPreference.PRIMARY, connection)
            return command

        command = await session.with_transaction(callback)
    assert "lsid" in command
