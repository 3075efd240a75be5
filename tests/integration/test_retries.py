"""Each retry rule against real servers and real faults."""

import asyncio
import os
import signal

import pytest
from bson.int64 import Int64
from pymongo import MongoClient, monitoring
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)
from pymongo.write_concern import WriteConcern

from aioretry import Outcome, RetryClient, RetryScheduled, attempts_of, deadline, outcome_of

WRITES = {
    "insert_one": ("insert", lambda c: c.insert_one({"_id": 2, "n": 1})),
    "update_one": ("update", lambda c: c.update_one({"_id": 1}, {"$inc": {"n": 1}})),
    "replace_one": ("update", lambda c: c.replace_one({"_id": 1}, {"n": 2})),
    "delete_one": ("delete", lambda c: c.delete_one({"_id": 1})),
    "find_one_and_delete": ("findAndModify", lambda c: c.find_one_and_delete({"_id": 1})),
    "find_one_and_replace": (
        "findAndModify",
        lambda c: c.find_one_and_replace({"_id": 1}, {"n": 2}, return_document=True),
    ),
    "find_one_and_update": (
        "findAndModify",
        lambda c: c.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}, return_document=True),
    ),
}


class Commands(monitoring.CommandListener):
    """Remembers the write commands that a client sent."""

    def __init__(self):
        self.sent = []

    def started(self, event):
        if event.command_name in {"insert", "update", "delete", "findAndModify"}:
            self.sent.append(event.command)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass

    def transaction_ids(self):
        """Session and number of each command."""
        return [(bytes(c["lsid"]["id"]), c.get("txnNumber")) for c in self.sent]


@pytest.fixture
def commands():
    """What the client of the test sends."""
    return Commands()


@pytest.fixture
async def client(replica_set, commands):
    """A client whose commands are remembered."""
    async with RetryClient(replica_set.uri, event_listeners=[commands]) as client:
        yield client


@pytest.fixture
async def seeded(collection):
    """The collection with one document."""
    await collection.insert_one({"_id": 1, "n": 1})
    return collection


def visible(result):
    """What a caller sees of a result."""
    raw = getattr(result, "raw_result", None)
    if raw is not None:
        return {key: raw.get(key) for key in ("n", "nModified", "upserted", "updatedExisting")}
    return getattr(result, "inserted_id", result)


@pytest.mark.parametrize("write", WRITES)
async def test_a_lost_reply_is_not_a_lost_nor_a_doubled_write(
    write, replica_set, seeded, stored, commands
):
    """Each of the seven writes is applied once and answers as if nothing had happened."""
    name, call = WRITES[write]
    twin = seeded.database[f"{seeded.name}_twin"]
    await twin.insert_one({"_id": 1, "n": 1})
    expected = visible(await call(twin))
    commands.sent.clear()
    async with replica_set.faults.drop_reply(name, namespace=seeded.full_name) as fault:
        result = await call(seeded)
    assert (1, expected) == (fault.fired, visible(result))
    first, second = commands.transaction_ids()
    assert first == second
    assert isinstance(commands.sent[0]["txnNumber"], Int64)
    documents = list(stored.find().sort("_id"))
    twins = list(stored.database[twin.name].find().sort("_id"))
    assert twins == documents


@pytest.mark.parametrize("write", WRITES)
async def test_a_lost_request_is_sent_again(write, replica_set, seeded):
    """A command that never arrived is sent again."""
    name, call = WRITES[write]
    async with replica_set.faults.drop_request(name, namespace=seeded.full_name) as fault:
        await call(seeded)
    assert fault.fired == 1


async def test_a_reply_lost_by_the_server_itself(replica_set, seeded, stored):
    """With onPrimaryTransactionalWrite the server commits and hangs up: one write, two attempts."""
    async with (
        replica_set.fail_point(
            "onPrimaryTransactionalWrite", {"times": 1}, {"closeConnection": True}
        ),
        seeded.operation() as op,
    ):
        result = await op.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert (1, 1) == (result.matched_count, result.modified_count)
    assert stored.find_one() == {"_id": 1, "n": 2}
    first, second = op.attempts
    assert (True, True) == (first.sent, second.sent)
    assert isinstance(first.error, AutoReconnect)
    assert (None, 1) == (second.error, second.reply["n"])
    assert first.address == second.address
    assert first.started <= second.started
    assert first.duration > 0


async def test_without_a_deadline_there_is_one_retry(replica_set, seeded, stored, commands):
    """A second lost reply surfaces, as an error whose outcome is unknown."""
    commands.sent.clear()
    async with replica_set.faults.drop_reply("update", times=2, namespace=seeded.full_name):
        with pytest.raises(AutoReconnect) as caught:
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert len(commands.sent) == 2
    assert outcome_of(caught.value) is Outcome.UNKNOWN
    assert [True, True] == [attempt.sent for attempt in attempts_of(caught.value)]
    assert caught.value.has_error_label("RetryableWriteError")
    assert "update_one on" in caught.value.__notes__[0]
    assert stored.find_one() == {"_id": 1, "n": 2}


async def test_under_a_deadline_there_are_as_many_as_it_takes(
    replica_set, seeded, stored, commands
):
    """Under a deadline five lost replies are five retries, and one write."""
    commands.sent.clear()
    async with replica_set.faults.drop_reply(
        "update", times=5, namespace=seeded.full_name
    ) as fault:
        async with deadline(20):
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert (5, 6) == (fault.fired, len(commands.sent))
    assert len(set(commands.transaction_ids())) == 1
    assert stored.find_one() == {"_id": 1, "n": 2}


@pytest.mark.parametrize("options", [{"timeoutMS": 20_000}, {"timeoutMS": 0}])
async def test_timeout_ms_is_a_deadline_too(options, replica_set, seeded):
    """timeoutMS of the client retries as long as it lasts; 0 has no limit."""
    async with RetryClient(replica_set.uri, **options) as client:
        collection = client[seeded.database.name][seeded.name]
        async with replica_set.faults.drop_reply(
            "update", times=3, namespace=seeded.full_name
        ) as fault:
            await collection.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert fault.fired == 3


async def test_each_write_has_its_own_transaction_id(seeded, commands):
    """No two writes share session and number, one after the other or at once."""
    commands.sent.clear()
    for _ in range(5):
        await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
    await asyncio.gather(
        *(seeded.update_one({"_id": n}, {"$inc": {"n": 1}}, upsert=True) for n in range(40))
    )
    assert len(set(commands.transaction_ids())) == len(commands.sent) == 45
    numbers = [number for _, number in commands.transaction_ids()]
    assert min(numbers) >= 1


async def test_labels_of_the_server_decide(replica_set, seeded, commands):
    """A server's error is retried if and only if the server says so."""
    commands.sent.clear()
    labelled = ["RetryableWriteError"]
    async with replica_set.fail_command("update", error_code=11601, error_labels=labelled):
        await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert len(commands.sent) == 2
    commands.sent.clear()
    async with replica_set.fail_command("update", error_code=11601, error_labels=[]):
        with pytest.raises(OperationFailure) as caught:
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert len(commands.sent) == 1
    assert (11601, Outcome.NOT_APPLIED) == (caught.value.code, outcome_of(caught.value))
    assert not caught.value.has_error_label("RetryableWriteError")


async def test_a_command_error_is_raised_as_it_is(seeded, commands):
    """A duplicate key is Motor's DuplicateKeyError, sent once, with nothing added."""
    commands.sent.clear()
    with pytest.raises(DuplicateKeyError) as caught:
        await seeded.insert_one({"_id": 1})
    assert (11000, Outcome.NOT_APPLIED) == (caught.value.code, outcome_of(caught.value))
    assert len(commands.sent) == 1
    assert not hasattr(caught.value, "__notes__")


async def test_an_error_without_writes_gives_way_to_the_one_before(replica_set, seeded):
    """Of a lost reply and an error that wrote nothing, the lost reply surfaces."""
    namespace = seeded.full_name
    async with (
        replica_set.faults.drop_reply("update", namespace=namespace),
        replica_set.fail_command(
            "update",
            mode={"skip": 1},
            error_code=11601,
            error_labels=["RetryableWriteError", "NoWritesPerformed"],
        ),
    ):
        with pytest.raises(AutoReconnect) as caught:
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert not isinstance(caught.value, OperationFailure)
    assert [AutoReconnect, OperationFailure] == [
        type(attempt.error) for attempt in attempts_of(caught.value)
    ]
    assert outcome_of(caught.value) is Outcome.UNKNOWN


async def test_a_retryable_write_concern_error_is_retried(replica_set, seeded, stored, commands):
    """writeConcernError with the label is retried; the write is applied once."""
    commands.sent.clear()
    error = {"code": 11602, "errmsg": "x", "errorLabels": ["RetryableWriteError"]}
    async with replica_set.fail_command(
        "update", write_concern_error=error, error_labels=["RetryableWriteError"]
    ):
        result = await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert (2, 1) == (len(commands.sent), result.modified_count)
    assert stored.find_one() == {"_id": 1, "n": 2}


async def test_a_write_concern_error_is_motors(seeded, commands):
    """A write concern that can't be met raises WTimeoutError or WriteConcernError; once."""
    slow = seeded.with_options(write_concern=WriteConcern(w=4, wtimeout=100))
    commands.sent.clear()
    with pytest.raises(WriteConcernError) as caught:
        await slow.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert (100, Outcome.UNKNOWN) == (caught.value.code, outcome_of(caught.value))
    assert len(commands.sent) == 1


@pytest.mark.usefixtures("three_members")
async def test_wtimeout_is_told_apart(replica_set, seeded):
    """wtimeout raises WTimeoutError."""
    secondaries = await replica_set.secondaries()
    await replica_set.freeze(secondaries[0])
    slow = seeded.with_options(write_concern=WriteConcern(w=3, wtimeout=50))
    with pytest.raises(WTimeoutError) as caught:
        await slow.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert caught.value.timeout
    await replica_set.thaw(secondaries[0])


async def test_a_validation_error_is_motors(collection):
    """A document that the collection's schema refuses raises WriteError."""
    database = collection.database
    await database.create_collection(
        collection.name, validator={"$jsonSchema": {"required": ["must"]}}
    )
    with pytest.raises(WriteError) as caught:
        await collection.insert_one({"_id": 1})
    assert (121, Outcome.NOT_APPLIED) == (caught.value.code, outcome_of(caught.value))
    await collection.insert_one({"_id": 1}, bypass_document_validation=True)


class TestOverload:
    LABELS = ("RetryableError", "SystemOverloadedError")

    async def test_is_retried_twice(self, replica_set, seeded, commands):
        """An overloaded server is asked three times in all."""
        commands.sent.clear()
        async with replica_set.fail_command(
            "update", mode="alwaysOn", error_code=462, error_labels=self.LABELS
        ):
            with pytest.raises(OperationFailure) as caught:
                await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert (462, 3) == (caught.value.code, len(commands.sent))

    async def test_succeeds_within_its_retries(self, replica_set, seeded, commands):
        """Two overload errors are survived."""
        commands.sent.clear()
        async with replica_set.fail_command(
            "update", mode={"times": 2}, error_code=462, error_labels=self.LABELS
        ):
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert len(set(commands.transaction_ids())) == 1
        assert len(commands.sent) == 3

    async def test_counts_the_option(self, replica_set, seeded, commands):
        """The client's maxAdaptiveRetries is obeyed."""
        async with RetryClient(
            f"{replica_set.uri}&maxAdaptiveRetries=0", event_listeners=[commands]
        ) as client:
            commands.sent.clear()
            async with replica_set.fail_command(
                "update", mode="alwaysOn", error_code=462, error_labels=self.LABELS
            ):
                with pytest.raises(OperationFailure):
                    await client[seeded.database.name][seeded.name].update_one(
                        {}, {"$set": {"x": 1}}
                    )
        assert len(commands.sent) == 1

    async def test_is_not_retried_without_retry_writes(self, replica_set, seeded, commands):
        """retryWrites=false turns these retries off too."""
        async with RetryClient(
            replica_set.uri, retryWrites=False, event_listeners=[commands]
        ) as client:
            commands.sent.clear()
            async with replica_set.fail_command(
                "update", mode="alwaysOn", error_code=462, error_labels=self.LABELS
            ):
                with pytest.raises(OperationFailure):
                    await client[seeded.database.name][seeded.name].update_one(
                        {}, {"$set": {"x": 1}}
                    )
        assert len(commands.sent) == 1


class TestWithoutTransactionIds:
    async def test_retry_writes_false(self, replica_set, seeded, stored, commands):
        """retryWrites=false: sent once, without transaction id; the error says what is known."""
        async with RetryClient(
            replica_set.uri, retryWrites=False, event_listeners=[commands]
        ) as client:
            collection = client[seeded.database.name][seeded.name]
            await collection.update_one({"_id": 1}, {"$inc": {"n": 1}})
            assert all(number is None for _, number in commands.transaction_ids()[1:])
            commands.sent.clear()
            async with replica_set.faults.drop_reply("update", namespace=seeded.full_name):
                with pytest.raises(AutoReconnect) as caught:
                    async with deadline(10):
                        await collection.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert [None] == [number for _, number in commands.transaction_ids()]
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        assert not caught.value.has_error_label("RetryableWriteError")
        assert stored.find_one() == {"_id": 1, "n": 3}

    async def test_w_0_is_motors(self, seeded, commands):
        """w: 0 is sent by Motor, without transaction id, and acknowledged by nobody."""
        silent = seeded.with_options(write_concern=WriteConcern(w=0))
        commands.sent.clear()
        result = await silent.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert not result.acknowledged
        result = await seeded.find_one_and_update(
            {"_id": 1}, {"$set": {"x": 1}}, writeConcern={"w": 0}
        )
        assert [None, None] == [c.get("txnNumber") for c in commands.sent]

    async def test_a_transaction_is_motors(self, client, seeded, stored, commands):
        """Inside a transaction writes carry the transaction's number and are not retried."""
        commands.sent.clear()
        async with await client.start_session() as session, session.start_transaction():
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
            await seeded.insert_one({"_id": 2}, session=session)
        assert [False, False] == [c["autocommit"] for c in commands.sent]
        assert [1, 2] == [document["_id"] for document in stored.find().sort("_id")]


class TestExplicitSessions:
    async def test_are_used_and_retried(self, client, replica_set, seeded, commands):
        """A session outside a transaction lends its id and its counter, also to a retry."""
        commands.sent.clear()
        async with await client.start_session() as session:
            await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
            async with replica_set.faults.drop_reply("update", namespace=seeded.full_name):
                await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
            lsid = bytes(session.session_id["id"])
            assert session.operation_time is not None
        (one, first), (two, second), (three, third) = commands.transaction_ids()
        assert {lsid} == {one, two, three}
        assert (first + 1, second) == (second, third)

    async def test_shared_by_tasks(self, client, seeded, commands):
        """Two tasks that write over one session never use a number twice."""
        commands.sent.clear()
        async with await client.start_session() as session:
            await asyncio.gather(
                *(
                    seeded.update_one({"_id": n}, {"$inc": {"n": 1}}, upsert=True, session=session)
                    for n in range(20)
                ),
                return_exceptions=True,
            )
        assert len(set(commands.transaction_ids())) == len(commands.sent)

    async def test_in_doubt_are_not_pooled(self, client, replica_set, seeded):
        """A session whose write ended unknown is leased to nobody after it is ended."""
        async with replica_set.faults.drop_reply("update", times=2, namespace=seeded.full_name):
            async with await client.start_session() as session:
                lsid = session.session_id
                with pytest.raises(AutoReconnect):
                    await seeded.update_one({}, {"$inc": {"n": 1}}, session=session)
        assert lsid not in [s.session_id for s in client.delegate._topology._session_pool]

    async def test_of_another_client_is_refused(self, replica_set, seeded):
        """A session of another client is an error, and nothing is sent."""
        async with RetryClient(replica_set.uri) as other:
            async with await other.start_session() as session:
                with pytest.raises(PyMongoError, match="MongoClient that started it") as caught:
                    await seeded.insert_one({"_id": 7}, session=session)
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED

    async def test_must_be_a_session(self, seeded):
        """Anything else is an error that says what a session is."""
        with pytest.raises(TypeError, match="session must be what"):
            await seeded.insert_one({"_id": 7}, session=object())


class TestEvents:
    async def test_a_retry_is_told_and_logged(self, replica_set, seeded, caplog):
        """A hook and the logger learn of a retry, and of no document."""
        events = []
        async with RetryClient(replica_set.uri, hooks=[events.append]) as client:
            collection = client[seeded.database.name][seeded.name]
            async with replica_set.faults.drop_reply("update", namespace=seeded.full_name):
                await collection.update_one({"_id": 1}, {"$set": {"secret": "hush"}})
        (event,) = events
        assert isinstance(event, RetryScheduled)
        assert ("update_one", seeded.full_name, "AutoReconnect", None, 1, 0.0) == (
            event.operation,
            event.namespace,
            event.error_class,
            event.error_code,
            event.attempt,
            event.wait,
        )
        (record,) = [r for r in caplog.records if r.name == "aioretry"]
        assert record.levelname == "WARNING"
        assert seeded.full_name in record.getMessage()
        assert "hush" not in record.getMessage() + repr(event)

    async def test_a_failing_hook_fails_no_write(self, replica_set, seeded, caplog):
        """What a hook raises is logged; the write goes on."""

        def bad(event):
            raise ZeroDivisionError

        async with RetryClient(replica_set.uri, hooks=[bad]) as client:
            async with replica_set.faults.drop_reply("update", namespace=seeded.full_name):
                await client[seeded.database.name][seeded.name].update_one(
                    {"_id": 1}, {"$inc": {"n": 1}}
                )
        assert "a hook failed" in caplog.text


class TestSelection:
    async def test_nothing_is_sent_if_there_is_no_server(self, free_port):
        """A first selection that fails propagates as it is."""
        async with RetryClient(
            f"mongodb://127.0.0.1:{free_port}", serverSelectionTimeoutMS=150
        ) as c:
            with pytest.raises(ServerSelectionTimeoutError) as caught:
                await c.db.c.insert_one({})
        assert (Outcome.NOT_APPLIED, ()) == (outcome_of(caught.value), attempts_of(caught.value))
        assert caught.value.timeout

    @pytest.mark.usefixtures("three_members")
    async def test_a_failed_reselection_surfaces_the_error_before(self, replica_set, seeded):
        """If no server comes back, the error of the attempt is raised, not the selection's."""

        async with RetryClient(replica_set.uri, serverSelectionTimeoutMS=400) as client:
            mine = client[seeded.database.name][seeded.name]
            async with replica_set.faults.hang("update", namespace=seeded.full_name) as hang:
                write = mine.update_one({"_id": 1}, {"$inc": {"n": 1}})
                await hang.wait_until_fired()
                for member in replica_set.members:
                    os.kill(member.pid, signal.SIGKILL)
                with pytest.raises(AutoReconnect) as caught:
                    await write
        assert not isinstance(caught.value, ServerSelectionTimeoutError)
        (attempt,) = attempts_of(caught.value)
        assert (caught.value, True) == (attempt.error, attempt.sent)
        assert outcome_of(caught.value) is Outcome.UNKNOWN


@pytest.mark.usefixtures("three_members")
async def test_a_not_primary_error_is_survived(replica_set, seeded, stored):
    """A step-down between two writes costs a retry, and no error."""
    for _ in range(2):
        await replica_set.step_down()
        result = await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert result.modified_count == 1
    assert stored.find_one() == {"_id": 1, "n": 3}


@pytest.mark.usefixtures("three_members")
async def test_writes_in_flight_survive_a_step_down(replica_set, seeded, stored):
    """Fifty writes that a step-down finds under way are all applied, once."""
    async with deadline(30):
        writers = [seeded.update_one({"_id": 1}, {"$inc": {"n": 1}}) for _ in range(50)]
    await replica_set.step_down()
    results = await asyncio.gather(*writers, return_exceptions=True)
    assert [] == [result for result in results if isinstance(result, Exception)]
    assert stored.find_one() == {"_id": 1, "n": 51}


@pytest.mark.usefixtures("three_members")
async def test_a_connection_opened_during_a_step_down_keeps_transaction_ids(
    client, replica_set, seeded, commands
):
    """A server that says nothing of sessions while it changes state is still sent numbered writes.

    PyMongo remembers with a connection what the server said when it was opened.
    """
    pool = client.delegate._get_topology().get_server_by_address(client.delegate.primary).pool
    for connection in pool.conns:
        connection.supports_sessions = False
    commands.sent.clear()
    await seeded.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert [True] == [number is not None for _, number in commands.transaction_ids()]


def test_pymongo_reads_what_we_wrote(plain: MongoClient):
    """The twin client of these tests is really connected."""
    assert plain.admin.command("ping")["ok"] == 1
