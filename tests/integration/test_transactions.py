"""`with_transaction` against real servers: what is retried, and what is in the transaction."""

import asyncio

import pytest
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry import RetryMotorClientSession

TRANSIENT = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"


@pytest.fixture
def client(watched_client):
    """The client, whose commands are remembered."""
    return watched_client


def counter(stored):
    """The counter as the majority has it."""
    return stored.find_one({"_id": 1})["n"]


FAILED_COMMITS = {
    "connection lost": {"close_connection": True},
    "not primary": {"error_code": 10107, "error_labels": ["RetryableWriteError"]},
    "wtimeout": {
        "write_concern_error": {"code": 64, "errmsg": "late", "errInfo": {"wtimeout": True}}
    },
}
EXPIRED = {
    "top level": {"error_code": 50},
    "write concern error": {"write_concern_error": {"code": 50, "errmsg": "expired"}},
}
FINAL = {
    "UnknownReplWriteConcern": {"write_concern_error": {"code": 79, "errmsg": "no such mode"}},
    "Unauthorized": {"error_code": 13},
}


class TestCommit:
    @pytest.mark.parametrize("times", [1, 3])
    async def test_a_lost_reply(self, times, replica_set, session, increment, stored, commands):
        """A commit whose replies are lost is sent again, and happens once."""
        async with replica_set.faults.drop_reply("commitTransaction", times=times):
            assert 1 == await session.with_transaction(increment)
        assert ["update", *["commitTransaction"] * (times + 1)] == commands.names
        assert 1 == len(set(commands.numbers))
        assert 1 == counter(stored)

    @pytest.mark.parametrize("failure", FAILED_COMMITS)
    async def test_until_its_result_is_known(
        self, failure, replica_set, session, increment, stored, commands
    ):
        """A commit of unknown result is sent again with a majority, and the callback isn't run."""
        async with replica_set.fail_command(
            "commitTransaction", mode={"times": 3}, **FAILED_COMMITS[failure]
        ):
            assert 1 == await session.with_transaction(increment)
        first, *later = [c for c in commands.sent if "commitTransaction" in c]
        assert 3 <= len(later)
        assert "writeConcern" not in first
        assert [{"w": "majority", "wtimeout": 10000}] * len(later) == [
            c["writeConcern"] for c in later
        ]
        assert 1 == counter(stored)

    @pytest.mark.parametrize("failure", EXPIRED)
    async def test_not_after_max_time_expired(
        self, failure, replica_set, session, increment, commands
    ):
        """A commit that took longer than it was allowed to is not sent again."""
        async with replica_set.fail_command("commitTransaction", **EXPIRED[failure]):
            with pytest.raises(OperationFailure) as caught:
                await session.with_transaction(increment, max_commit_time_ms=60_000)
        assert 50 == caught.value.code
        assert caught.value.has_error_label(UNKNOWN_COMMIT)
        assert ["update", "commitTransaction"] == commands.names
        assert 60_000 == commands.sent[1]["maxTimeMS"]

    @pytest.mark.parametrize("failure", FINAL)
    async def test_not_after_other_errors(self, failure, replica_set, session, increment, commands):
        """An error of the commit without label is raised."""
        async with replica_set.fail_command("commitTransaction", **FINAL[failure]):
            with pytest.raises((OperationFailure, WriteConcernError)):
                await session.with_transaction(increment)
        assert ["update", "commitTransaction"] == commands.names

    @pytest.mark.parametrize("code", [24, 112, 246, 251])
    async def test_a_transient_error(self, code, replica_set, session, increment, stored, commands):
        """If the server has given the transaction up, all of it is run again."""
        async with replica_set.fail_command(
            "commitTransaction", mode={"times": 2}, error_code=code
        ):
            assert 3 == await session.with_transaction(increment)
        assert ["update", "commitTransaction"] * 3 == commands.names
        first = commands.numbers[0]
        assert [first, first, first + 1, first + 1, first + 2, first + 2] == commands.numbers
        assert 1 == counter(stored)


class TestCallback:
    @pytest.mark.motor
    async def test_its_value_is_returned(self, session):
        """What the callback returns is returned; with nothing to commit, nothing is sent."""

        async def callback(given):
            assert given is session
            assert isinstance(given, RetryMotorClientSession)
            return "a value"

        assert "a value" == await session.with_transaction(callback)

    async def test_its_own_error_is_raised(self, session, increment, stored, commands):
        """An exception of the user's aborts the transaction, and passes as it is."""
        error = LookupError("the user's own")

        async def callback(given):
            await increment(given)
            raise error

        with pytest.raises(LookupError) as caught:
            await session.with_transaction(callback)
        assert caught.value is error
        assert ["update", "abortTransaction"] == commands.names
        assert 0 == counter(stored)

    async def test_an_error_without_label_is_raised(self, session, seeded, stored, commands):
        """A duplicate key aborts the transaction, and nothing is tried again."""

        async def callback(given):
            await seeded.insert_one({"_id": 2}, session=given)
            await seeded.insert_one({"_id": 2}, session=given)

        with pytest.raises(DuplicateKeyError):
            await session.with_transaction(callback)
        assert ["insert", "insert", "abortTransaction"] == commands.names
        assert [1] == [document["_id"] for document in stored.find()]

    async def test_a_transient_error(self, replica_set, session, increment, stored, commands):
        """After a lost connection the transaction is aborted and run again."""
        async with replica_set.fail_command("update", mode={"times": 2}, close_connection=True):
            assert 3 == await session.with_transaction(increment)
        assert [*["update", "abortTransaction"] * 2, "update", "commitTransaction"] == (
            commands.names
        )
        first = commands.numbers[0]
        assert [first, first + 1, first + 2] == commands.numbers[::2]
        assert 1 == counter(stored)

    async def test_a_transient_error_of_the_users(self, session):
        """The label counts, wherever the error comes from."""
        runs = []

        async def callback(given):
            runs.append(given.delegate.in_transaction)
            if len(runs) < 3:
                error = PyMongoError("mine")
                error._add_error_label(TRANSIENT)
                raise error

        await session.with_transaction(callback)
        assert [True] * 3 == runs

    async def test_that_commits_itself(self, session, increment, stored, commands):
        """A callback that has committed is done."""

        async def callback(given):
            await increment(given)
            await given.commit_transaction()
            return "committed"

        assert "committed" == await session.with_transaction(callback)
        assert ["update", "commitTransaction"] == commands.names
        assert 1 == counter(stored)

    async def test_that_aborts_itself(self, session, increment, stored, commands):
        """A callback that has aborted is done, and nothing is written."""

        async def callback(given):
            await increment(given)
            await given.abort_transaction()
            return "aborted"

        assert "aborted" == await session.with_transaction(callback)
        assert ["update", "abortTransaction"] == commands.names
        assert 0 == counter(stored)

    async def test_whose_own_commit_is_unknown(self, replica_set, session, increment, commands):
        """If the callback commits and that fails, its error is raised."""

        async def callback(given):
            await increment(given)
            await given.commit_transaction()

        async with replica_set.fail_command(
            "commitTransaction", mode={"times": 2}, close_connection=True
        ):
            with pytest.raises(AutoReconnect) as caught:
                await session.with_transaction(callback)
        assert caught.value.has_error_label(UNKNOWN_COMMIT)
        assert ["update", "commitTransaction", "commitTransaction"] == commands.names

    @pytest.mark.usefixtures("three_members")
    async def test_options(self, session, increment, commands):
        """The options are those of the transaction."""
        await session.with_transaction(
            increment,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern(w=2, j=True),
            max_commit_time_ms=30_000,
        )
        update, commit = commands.sent
        assert {"level": "majority"} == update["readConcern"]
        assert {"w": 2, "j": True} == commit["writeConcern"]
        assert 30_000 == commit["maxTimeMS"]

    async def test_only_one_at_a_time(self, session, increment):
        """A transaction that is in progress is left alone."""
        session.start_transaction()
        with pytest.raises(InvalidOperation, match="already in progress"):
            await session.with_transaction(increment)
        assert (0, True) == (increment.runs, session.in_transaction)
        await session.abort_transaction()

    async def test_conflicts(self, client, seeded, stored):
        """Transactions that write the same document at once are all committed in the end."""

        async def increment(given):
            document = await seeded.find_one({"_id": 1}, session=given)
            await seeded.update_one({"_id": 1}, {"$set": {"n": document["n"] + 1}}, session=given)

        async def count():
            async with await client.start_session() as session:
                await session.with_transaction(increment)

        await asyncio.gather(*(count() for _ in range(10)))
        assert 10 == counter(stored)


WRITES = {
    "insert_one": lambda c, s: c.insert_one({"_id": 2}, session=s),
    "insert_many": lambda c, s: c.insert_many([{"_id": 2}, {"_id": 3}], session=s),
    "update_one": lambda c, s: c.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=s),
    "update_many": lambda c, s: c.update_many({}, {"$inc": {"n": 1}}, session=s),
    "replace_one": lambda c, s: c.replace_one({"_id": 1}, {"n": 2}, session=s),
    "delete_one": lambda c, s: c.delete_one({"_id": 1}, session=s),
    "delete_many": lambda c, s: c.delete_many({}, session=s),
    "find_one_and_delete": lambda c, s: c.find_one_and_delete({"_id": 1}, session=s),
    "find_one_and_replace": lambda c, s: c.find_one_and_replace({"_id": 1}, {"n": 2}, session=s),
    "find_one_and_update": lambda c, s: c.find_one_and_update(
        {"_id": 1}, {"$inc": {"n": 1}}, session=s
    ),
    "bulk_write": lambda c, s: c.bulk_write(
        [InsertOne({"_id": 2}), UpdateOne({"_id": 1}, {"$inc": {"n": 1}}), DeleteOne({"_id": 2})],
        session=s,
    ),
}


@pytest.mark.parametrize("write", WRITES)
class TestWrites:
    async def test_are_part_of_the_transaction(self, write, session, seeded, stored, commands):
        """Each write carries the transaction's number, and is undone with it."""

        async def callback(given):
            await WRITES[write](seeded, given)
            raise LookupError

        with pytest.raises(LookupError):
            await session.with_transaction(callback)
        *writes, abort = commands.sent
        assert "abortTransaction" in abort
        assert 1 == len({(bytes(c["lsid"]["id"]), c["txnNumber"]) for c in commands.sent})
        assert [False] * len(commands.sent) == [c["autocommit"] for c in commands.sent]
        assert [True, *[None] * (len(writes) - 1)] == [c.get("startTransaction") for c in writes]
        assert [{"_id": 1, "n": 0}] == list(stored.find())

    async def test_are_not_retried(self, write, replica_set, session, seeded, stored, commands):
        """A write whose connection is lost is an error; the transaction is for running again."""
        session.start_transaction()
        async with replica_set.faults.drop_request(namespace=seeded.full_name):
            with pytest.raises(AutoReconnect) as caught:
                await WRITES[write](seeded, session)
        assert caught.value.has_error_label(TRANSIENT)
        assert 1 == len(commands.sent)
        await session.abort_transaction()
        assert [{"_id": 1, "n": 0}] == list(stored.find())


class Bank:
    """Accounts between which money goes to and fro."""

    ACCOUNTS = 6

    def __init__(self, collection):
        self.collection = collection
        self.done = 0
        self.stopped = False
        self.progress = asyncio.Event()

    async def open(self):
        """Give every account some money."""
        await self.collection.insert_many([{"_id": n, "money": 100} for n in range(self.ACCOUNTS)])

    async def transfer(self, session, giver, taker):
        """Move one unit."""
        giver, taker = giver % self.ACCOUNTS, taker % self.ACCOUNTS
        await self.collection.update_one({"_id": giver}, {"$inc": {"money": -1}}, session=session)
        await self.collection.update_one({"_id": taker}, {"$inc": {"money": 1}}, session=session)
        await self.collection.insert_one({"from": giver, "to": taker}, session=session)

    async def trade(self, me):
        """Transfer until told to stop."""
        async with await self.collection.database.client.start_session() as session:
            while not self.stopped:
                await session.with_transaction(lambda s: self.transfer(s, me, me + 1))
                self.done += 1
                self.progress.set()

    async def gets_on(self):
        """Wait until more transfers were made."""
        target = self.done + 20
        while self.done < target:
            self.progress.clear()
            await self.progress.wait()


@pytest.mark.usefixtures("three_members")
@pytest.mark.parametrize("how", ["step down", "kill"])
async def test_a_failover_loses_no_money(how, replica_set, collection):
    """Transfers through a failover: none fails, and each is there once and as a whole."""
    bank = Bank(collection)
    await bank.open()
    async with asyncio.TaskGroup() as group:
        for me in range(6):
            group.create_task(bank.trade(me))
        await bank.gets_on()
        if how == "kill":
            primary = await replica_set.primary()
            await replica_set.kill(primary)
            await bank.gets_on()
            await replica_set.restart(primary)
        else:
            await replica_set.step_down()
        await bank.gets_on()
        bank.stopped = True
    with MongoClient(replica_set.uri, readConcernLevel="majority") as plain:
        stored = plain[collection.database.name][collection.name]
        expected = dict.fromkeys(range(bank.ACCOUNTS), 100)
        transfers = list(stored.find({"from": {"$exists": True}}))
        for transfer in transfers:
            expected[transfer["from"]] -= 1
            expected[transfer["to"]] += 1
        accounts = {d["_id"]: d["money"] for d in stored.find({"money": {"$exists": True}})}
    assert (bank.done, expected) == (len(transfers), accounts)
