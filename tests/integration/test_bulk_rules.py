"""The rules of a retry for bulk operations, at scripted servers with small limits."""

import asyncio
import gc
import random
import threading

import pytest
from bson.int64 import Int64
from bson.objectid import ObjectId
from pymongo import (
    DeleteMany,
    DeleteOne,
    InsertOne,
    UpdateMany,
    UpdateOne,
    common,
)
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    RetryClient,
    TooManyWaiting,
    attempts_of,
    deadline,
    outcome_of,
    partial_result_of,
)
from aioretry.testing import ScriptedServer

RETRYABLE_WRITE = "RetryableWriteError"
OVERLOADED = ("RetryableError", "SystemOverloadedError")
NO_WRITES = "NoWritesPerformed"
APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN

PAIRS = {"maxWriteBatchSize": 2}
HEADLESS = {**PAIRS, "isWritablePrimary": False, "ismaster": False, "secondary": True}
VERSION = {"processId": ObjectId("0" * 24)}
INCREMENT = {"$inc": {"n": 1}}
STATEMENTS = {"insert": "documents", "update": "updates", "delete": "deletes"}


def mixed():
    """Ten requests: five commands of two each, ordered or not."""
    inserts = [InsertOne({"_id": number}) for number in range(4)]
    updates = [UpdateOne({"_id": number}, INCREMENT) for number in range(4)]
    deletes = [DeleteOne({"_id": number}) for number in range(2)]
    return [*inserts[:2], *updates[:2], *inserts[2:], *deletes, *updates[2:]]


# Each is sent as five commands of two statements.
BULKS = {
    "insert_many": lambda c: c.insert_many([{"_id": number} for number in range(10)]),
    "insert_many, unordered": lambda c: c.insert_many(
        [{"_id": number} for number in range(10)], ordered=False
    ),
    "insert_many, of an iterator": lambda c: c.insert_many({"_id": n} for n in range(10)),
    "bulk_write": lambda c: c.bulk_write(mixed()),
    "bulk_write, unordered": lambda c: c.bulk_write(mixed(), ordered=False),
}

# The indexes of the statements in each command.
ORDER = {
    "bulk_write, unordered": [(0, 1), (4, 5), (2, 3), (8, 9), (6, 7)],
}
IN_ORDER = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]


def success(request):
    """The command is done."""
    count = len(request.command[STATEMENTS[request.name]])
    request.reply({"n": count, "nModified": count} if request.name == "update" else {"n": count})


def hang_up(request):
    """The connection is lost."""
    request.hang_up()


def failing(code, *labels, message="scripted", **extra):
    """A top-level error."""
    return lambda request: request.fail(code, message, labels=labels, **extra)


def concern(code, *labels, n=2, **extra):
    """A reply with a writeConcernError."""
    labelled = {"errorLabels": list(labels)} if labels else {}
    error = {"code": code, "errmsg": "scripted", **extra}
    return lambda request: request.reply({"n": n, "writeConcernError": error, **labelled})


def write_error(code, *labels, n=0, index=0):
    """A reply with an entry in writeErrors."""
    labelled = {"errorLabels": list(labels)} if labels else {}
    error = {"index": index, "code": code, "errmsg": "scripted"}
    return lambda request: request.reply({"n": n, "writeErrors": [error], **labelled})


async def play(server, write, *steps):
    """Answer the commands of a write, one step each; return what it ends with, errors too."""
    async with asyncio.timeout(20):
        for step in steps:
            step(await server.expect())
        try:
            return await write
        except PyMongoError as exc:
            return exc


def numbers(server):
    """The transaction number of each command so far; None where there is none."""
    return [request.command.get("txnNumber") for request in server.requests]


def sessions(server):
    """The session ids of the commands so far."""
    return {bytes(request.command["lsid"]["id"]) for request in server.requests}


def told(result):
    """What a result says."""
    return getattr(result, "bulk_api_result", None) or result.inserted_ids


def outcomes(count, name, unknown=()):
    """The outcomes when so many commands are applied; one may be in doubt."""
    ended = [NOT_APPLIED] * 10
    order = ORDER.get(name, IN_ORDER)
    for command in range(count):
        for index in order[command]:
            ended[index] = APPLIED
    for command in unknown:
        for index in order[command]:
            ended[index] = UNKNOWN
    # Nobody knows of what was not taken from an iterator.
    return tuple(ended) if "iterator" not in name else tuple(ended[: 2 * (count + len(unknown))])


def pooled(client):
    """The ids of the sessions in PyMongo's pool."""
    return {bytes(one.session_id["id"]) for one in client.delegate._topology._session_pool}


@pytest.fixture
async def server():
    """A primary of a current version that takes two statements a command."""
    async with ScriptedServer(hello=PAIRS) as server:
        yield server


@pytest.fixture
async def client(server):
    """A connected client of that primary."""
    async with RetryClient(server.uri) as client:
        await client.admin.command("ping")
        yield client


@pytest.fixture
def talks_to_old_servers(monkeypatch):
    """PyMongo talks to servers before 4.4, as its versions before 4.18 do."""
    known = min(8, common.MIN_SUPPORTED_WIRE_VERSION)
    monkeypatch.setattr(common, "MIN_SUPPORTED_WIRE_VERSION", known)


class TestRetries:
    """Each command is retried on its own."""

    @pytest.mark.parametrize(
        "step",
        [
            hang_up,
            failing(6, RETRYABLE_WRITE),
            failing(10107, RETRYABLE_WRITE),
            concern(91, RETRYABLE_WRITE),
            write_error(11602, RETRYABLE_WRITE, index=1, n=1),
        ],
        ids=["hang_up", "6", "10107", "concern 91", "write error 11602 (4.4)"],
    )
    @pytest.mark.parametrize("name", BULKS)
    async def test_each_of_five_commands(self, name, step, server, client):
        """After a failure of any command it is sent again with its own number, which is by one
        larger than that of the command before; the result is that of an undisturbed one, with a
        deadline or without."""
        bulk = BULKS[name]
        expected = told(await play(server, bulk(client.db.c), *[success] * 5))
        undisturbed = [request.command for request in server.requests]
        for failed in range(5):
            before = len(server.requests)
            steps = [success] * 5
            steps.insert(failed, step)
            async with deadline(20 if failed % 2 else None):
                result = await play(server, bulk(client.db.c), *steps)
            assert expected == told(result)
            requests = server.requests[before:]
            found = [request.command["txnNumber"] for request in requests]
            assert found[failed] == found[failed + 1]
            del found[failed]
            assert list(range(found[0], found[0] + 5)) == found
            sent = [request.command for request in requests]
            assert statements(sent[failed]) == statements(sent[failed + 1])
            del sent[failed]
            assert list(map(statements, undisturbed)) == list(map(statements, sent))
            assert 1 == len({bytes(command["lsid"]["id"]) for command in sent})

    @pytest.mark.parametrize("name", BULKS)
    async def test_every_command_may_be_retried_once(self, name, server, client):
        """The one retry is each command's own."""
        steps = [hang_up, success] * 5
        result = await play(server, BULKS[name](client.db.c), *steps)
        assert not isinstance(result, Exception)
        found = numbers(server)
        assert found[0::2] == found[1::2]

    @pytest.mark.parametrize("name", ["insert_many, of an iterator", "bulk_write, unordered"])
    async def test_a_failed_retry_ends_it(self, name, server, client):
        """Ordered or not: the driver's own error, and what is known of each statement."""
        used = set()
        for failed in range(5):
            before = len(server.requests)
            steps = [*[success] * failed, hang_up, hang_up]
            error = await play(server, BULKS[name](client.db.c), *steps)
            assert type(error) is AutoReconnect
            assert UNKNOWN is outcome_of(error)
            assert len(steps) == len(server.requests) - before
            partial = partial_result_of(error)
            assert outcomes(failed, name, [failed]) == partial.outcomes
            assert 2 * failed == counted(partial.result)
            attempts = attempts_of(error)
            assert [None] * failed == [one.error for one in attempts[:failed]]
            assert [AutoReconnect] * 2 == [type(one.error) for one in attempts[failed:]]
            assert sorted(attempts, key=lambda one: one.started) == list(attempts)
            (note,) = [n for n in error.__notes__ if "aioretry" in n]
            assert f"{2 * failed} applied" in note
            assert "2 unknown" in note
            assert "AutoReconnect" in note
            (session,) = {bytes(one.command["lsid"]["id"]) for one in server.requests[before:]}
            assert session not in pooled(client)
            assert session not in used
            used.add(session)

    @pytest.mark.parametrize("name", BULKS)
    async def test_an_error_that_is_not_retryable(self, name, server, client):
        """It ends the operation; the command that was refused is not applied."""
        for failed in range(5):
            steps = [*[success] * failed, failing(13)]
            error = await play(server, BULKS[name](client.db.c), *steps)
            assert 13 == error.code
            assert (NOT_APPLIED if failed == 0 else UNKNOWN) is outcome_of(error)
            expected = outcomes(failed, name)
            found = partial_result_of(error).outcomes
            assert expected == found[: len(expected)]
            assert {NOT_APPLIED} >= set(found[len(expected) :])
            assert sessions(server) == pooled(client)

    async def test_no_writes_performed(self, server, client):
        """Of a retry that has not written, the error before surfaces."""
        steps = [success, hang_up, failing(6, RETRYABLE_WRITE, NO_WRITES)]
        error = await play(server, BULKS["insert_many"](client.db.c), *steps)
        assert type(error) is AutoReconnect
        assert outcomes(1, "", [1]) == partial_result_of(error).outcomes

    async def test_all_say_no_writes_performed(self, server, client):
        """Then the first surfaces, and the command is not applied."""
        steps = [failing(code, RETRYABLE_WRITE, NO_WRITES) for code in (6, 7)]
        error = await play(server, BULKS["insert_many"](client.db.c), success, *steps)
        assert 6 == error.code
        assert outcomes(1, "") == partial_result_of(error).outcomes

    async def test_a_retry_on_an_ineligible_server(self, server, client):
        """After a downgrade between the attempts the previous error is raised."""

        def downgrade(request):
            server.hello = {**PAIRS, "logicalSessionTimeoutMinutes": None}
            request.hang_up()

        error = await play(server, BULKS["insert_many"](client.db.c), success, downgrade)
        assert type(error) is AutoReconnect
        assert 2 == len(server.requests)
        assert outcomes(1, "", [1]) == partial_result_of(error).outcomes

    async def test_no_retryable_writes(self, server, client):
        """Code 20 is replaced by the specification's error."""
        message = "Transaction numbers are only allowed on a replica set member or mongos"
        steps = [success, failing(20, message=message)]
        error = await play(server, BULKS["insert_many"](client.db.c), *steps)
        assert "retryWrites=false" in str(error)
        assert 20 == error.code
        assert outcomes(1, "") == partial_result_of(error).outcomes

    @pytest.mark.parametrize("limit", [None, 20])
    @pytest.mark.parametrize("name", BULKS)
    async def test_a_standalone_server(self, name, limit):
        """It gets no transaction ids, and nothing twice."""
        async with (
            ScriptedServer(kind="standalone", hello=PAIRS) as server,
            RetryClient(server.uri) as client,
            deadline(limit),
        ):
            error = await play(server, BULKS[name](client.db.c), success, hang_up)
            assert isinstance(error, AutoReconnect)
            assert outcomes(1, name, [1]) == partial_result_of(error).outcomes
        assert [None, None] == numbers(server)

    @pytest.mark.parametrize("name", BULKS)
    async def test_without_retry_writes(self, name, server):
        """With retryWrites=false there are none either."""
        async with RetryClient(server.uri, retryWrites=False) as client:
            error = await play(server, BULKS[name](client.db.c), success, hang_up)
            assert isinstance(error, AutoReconnect)
            error = await play(
                server, BULKS[name](client.db.c), success, failing(6, RETRYABLE_WRITE)
            )
            assert 6 == error.code
        assert [None] * 4 == numbers(server)

    async def test_what_was_sent_is_forgotten_after_a_retry(self, server, client):
        """The attempts that are kept keep no documents."""
        server.hello = {"maxWriteBatchSize": 500}
        alive = most = 0

        class Value(int):
            def __init__(self, _number):
                nonlocal alive, most
                alive += 1
                most = max(alive, most)

            def __del__(self):
                nonlocal alive
                alive -= 1

        while (
            client.delegate.topology_description.server_descriptions()[
                ("127.0.0.1", server.port)
            ].max_write_batch_size
            != 500
        ):
            await client.admin.command("ping")
            await asyncio.sleep(0.01)
        struck = set()

        def answer(request):
            number = request.command["txnNumber"]
            if number in struck:
                success(request)
            else:
                struck.add(number)
                request.fail(6, labels=[RETRYABLE_WRITE])

        server.answer("insert", answer)
        result = await client.db.c.insert_many({"_id": n, "x": Value(n)} for n in range(5000))
        assert 5000 == len(result.inserted_ids)
        assert 20 == len(server.requests)
        gc.collect()
        assert most <= 500 + 2 * 500 + 1


def statements(command):
    """What a command holds."""
    return command[STATEMENTS[next(iter(command))]]


def counted(result):
    """How many statements a result counts."""
    return result.inserted_count + result.matched_count + result.deleted_count


class TestMulti:
    """retryable-writes, "Unsupported Write Operations": multi statements."""

    REQUESTS = (
        InsertOne({"_id": 1}),
        UpdateMany({}, INCREMENT),
        InsertOne({"_id": 2}),
        DeleteMany({"_id": 0}),
        UpdateOne({"_id": 1}, INCREMENT),
    )

    async def test_only_the_others_have_numbers(self, server, client):
        """Each command is judged on its own; the numbers are consecutive."""
        write = client.db.c.bulk_write(list(self.REQUESTS))
        await play(server, write, *[success] * 5)
        first, none, second, no_more, third = numbers(server)
        assert (None, None) == (none, no_more)
        assert [first, first + 1, first + 2] == [first, second, third]

    @pytest.mark.parametrize("limit", [None, 20])
    @pytest.mark.parametrize(
        "step", [hang_up, failing(6, RETRYABLE_WRITE), failing(11600, RETRYABLE_WRITE)]
    )
    @pytest.mark.parametrize("position", [1, 3])
    async def test_they_are_not_retried(self, position, step, limit, server, client):
        """A multi command is sent once; those before it were retried."""
        write = client.db.c.bulk_write(list(self.REQUESTS))
        steps = [hang_up, *[success] * position, step]
        async with deadline(limit):
            error = await play(server, write, *steps)
        assert isinstance(error, PyMongoError)
        assert not isinstance(error, BulkWriteError | DeadlineExceeded)
        assert len(steps) == len(server.requests)
        expected = [APPLIED] * position + [UNKNOWN] + [NOT_APPLIED] * (4 - position)
        assert tuple(expected) == partial_result_of(error).outcomes

    @pytest.mark.parametrize("position", [0, 2, 4])
    async def test_the_others_are_retried(self, position, server, client):
        """Those beside them in the same bulk_write are."""
        steps = [success] * 5
        steps.insert(position, hang_up)
        result = await play(server, client.db.c.bulk_write(list(self.REQUESTS)), *steps)
        assert 2 == result.inserted_count
        assert 1 == result.deleted_count

    async def test_a_concern_error_that_others_would_be_retried_for(self, server, client):
        """A multi command is not sent again for it; the error tells it."""
        write = client.db.c.bulk_write(list(self.REQUESTS))
        error = await play(server, write, success, concern(91, RETRYABLE_WRITE, n=3))
        assert isinstance(error, BulkWriteError)
        assert [91] == [one["code"] for one in error.details["writeConcernErrors"]]
        assert 3 == error.details["nMatched"]
        expected = (APPLIED, UNKNOWN, NOT_APPLIED, NOT_APPLIED, NOT_APPLIED)
        assert expected == partial_result_of(error).outcomes

    async def test_labelled_write_errors(self, server, client):
        """Nothing is to be retried, so that they are write errors as any: an unordered operation
        goes on."""
        requests = [UpdateMany({}, INCREMENT), DeleteOne({"_id": 1})]
        write = client.db.c.bulk_write(requests, ordered=False)
        error = await play(server, write, write_error(11602, RETRYABLE_WRITE), success)
        assert isinstance(error, BulkWriteError)
        assert (UNKNOWN, APPLIED) == partial_result_of(error).outcomes

    @pytest.mark.parametrize("many", ["update_many", "delete_many"])
    @pytest.mark.parametrize("step", [hang_up, failing(6, RETRYABLE_WRITE)])
    async def test_alone(self, many, step, server, client):
        """update_many and delete_many have no transaction id, and are sent once."""
        error = await play(server, MANY[many](client.db.c), step)
        assert isinstance(error, PyMongoError)
        assert UNKNOWN is outcome_of(error)
        assert partial_result_of(error) is None
        assert [None] == numbers(server)


MANY = {
    "update_many": lambda c: c.update_many({}, INCREMENT),
    "delete_many": lambda c: c.delete_many({}),
}
MULTI = {
    **MANY,
    "bulk_write, an update": lambda c: c.bulk_write([UpdateMany({}, INCREMENT)]),
    "bulk_write, a deletion": lambda c: c.bulk_write([DeleteMany({})]),
}


class TestOverload:
    """client-backpressure, "Overload retry policy"."""

    @pytest.fixture
    def events(self):
        """What hooks are told."""
        return []

    @pytest.fixture
    async def client(self, server, events, monkeypatch):
        """A client whose jitter takes the whole backoff, and whose retries are told."""
        async with RetryClient(server.uri, hooks=[events.append]) as client:
            await client.admin.command("ping")
            monkeypatch.setattr(random, "random", lambda: 1.0)
            yield client

    @pytest.mark.parametrize("limit", [None, 20])
    @pytest.mark.parametrize("name", MULTI)
    async def test_multi_statements(self, name, limit, server, client, events):
        """They are retried as well, at most maxAdaptiveRetries times, each after its backoff."""
        step = failing(462, *OVERLOADED, baseBackoffMS=4)
        async with deadline(limit):
            error = await play(server, MULTI[name](client.db.c), step, step, step)
        assert 462 == error.code
        assert NOT_APPLIED is outcome_of(error) or UNKNOWN is outcome_of(error)
        assert [0.008, 0.016] == [event.wait for event in events]
        assert [None] * 3 == numbers(server)

    @pytest.mark.parametrize("name", MULTI)
    async def test_and_succeed(self, name, server, client):
        """The second retry may succeed."""
        step = failing(462, *OVERLOADED, baseBackoffMS=1)
        result = await play(server, MULTI[name](client.db.c), step, step, success)
        assert result.acknowledged

    @pytest.mark.parametrize("name", [*MULTI, *BULKS])
    async def test_a_wait_that_would_pass_the_deadline(self, name, server, client):
        """The error is raised at once."""
        bulk = {**MULTI, **BULKS}[name]
        async with deadline(5):
            step = failing(462, *OVERLOADED, baseBackoffMS=60_000)
            error = await play(server, bulk(client.db.c), step)
        assert (462, OperationFailure) == (error.code, type(error))
        assert 1 == len(server.requests)

    @pytest.mark.parametrize("name", BULKS)
    async def test_each_command_has_its_own_retries(self, name, server, client):
        """Two retries for each of five commands."""
        step = failing(462, *OVERLOADED, baseBackoffMS=0.1)
        result = await play(server, BULKS[name](client.db.c), *[step, step, success] * 5)
        assert not isinstance(result, Exception)
        assert 5 == len(set(numbers(server)))

    async def test_no_retries_at_all(self, server, client):
        """With retryWrites=false they are not retried either."""
        async with RetryClient(server.uri, retryWrites=False) as client:
            step = failing(462, *OVERLOADED, baseBackoffMS=1)
            for write in MULTI.values():
                error = await play(server, write(client.db.c), step)
                assert 462 == error.code


class TestConcernErrors:
    """Write concern errors: a part of the result, unless they have the command sent again."""

    @pytest.mark.parametrize("name", BULKS)
    async def test_are_gathered(self, name, server, client):
        """The operation goes on, and ends with all of them."""
        steps = [success, concern(64, "a"), success, concern(100), success]
        error = await play(server, BULKS[name](client.db.c), *steps)
        assert isinstance(error, BulkWriteError)
        first, second = error.details["writeConcernErrors"]
        assert (64, ["a"], 100) == (first["code"], first["errorLabels"], second["code"])
        assert [] == error.details["writeErrors"]
        assert outcomes(5, name, [1, 3])[:10] == partial_result_of(error).outcomes or (
            "iterator" in name
        )
        assert UNKNOWN is outcome_of(error)
        assert 5 == len(attempts_of(error))

    @pytest.mark.parametrize("name", BULKS)
    async def test_a_retry_that_is_answered_so_again(self, name, server, client):
        """The retry is exhausted: the error tells the concern error and its label, and ends it."""
        for failed in range(5):
            before = len(server.requests)
            step = concern(91, RETRYABLE_WRITE)
            steps = [*[success] * failed, step, step]
            error = await play(server, BULKS[name](client.db.c), *steps)
            assert isinstance(error, BulkWriteError)
            (found,) = error.details["writeConcernErrors"]
            assert (91, [RETRYABLE_WRITE]) == (found["code"], found["errorLabels"])
            assert error.has_error_label(RETRYABLE_WRITE)
            assert outcomes(failed, name, [failed]) == partial_result_of(error).outcomes
            assert 2 * (failed + 1) == counted(partial_result_of(error).result)
            assert failed + 2 == len(attempts_of(error)) == len(server.requests) - before

    async def test_no_wtimeout_under_a_deadline(self, server, client):
        """wtimeout is left out of every command, the rest of the concern is not."""
        slow = client.db.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=5000))
        async with deadline(20):
            for bulk in BULKS.values():
                await play(server, bulk(slow), *[success] * 5)
            for many in MULTI.values():
                await play(server, many(slow), success)
        assert [{"w": 3}] * len(server.requests) == [
            request.command["writeConcern"] for request in server.requests
        ]
        assert all(0 < request.command["maxTimeMS"] <= 20_000 for request in server.requests)
        await play(server, BULKS["insert_many"](slow), *[success] * 5)
        assert {"w": 3, "wtimeout": 5000} == server.requests[-1].command["writeConcern"]


class TestLabelledWriteErrors:
    """Answers as MongoDB 4.4 gives them to a command that meets a step-down: ok, write errors, and
    the label at the top."""

    STEP = staticmethod(write_error(11602, RETRYABLE_WRITE, n=1, index=1))

    async def test_again_and_again(self, server, client):
        """A second such answer is the result; it has the label."""
        write = BULKS["insert_many"](client.db.c)
        error = await play(server, write, success, self.STEP, self.STEP)
        assert isinstance(error, BulkWriteError)
        assert error.has_error_label(RETRYABLE_WRITE)
        assert 3 == error.details["nInserted"]
        (found,) = error.details["writeErrors"]
        assert (3, 11602, {"_id": 3}) == (found["index"], found["code"], found["op"])
        assert outcomes(1, "")[:2] == partial_result_of(error).outcomes[:2]
        assert APPLIED is partial_result_of(error).outcomes[2]
        assert 3 == len(server.requests)

    async def test_a_lost_retry(self, server, client):
        """After it a lost answer leaves in doubt what the first one had not acknowledged."""
        write = BULKS["insert_many"](client.db.c)
        error = await play(server, write, success, self.STEP, hang_up)
        assert type(error) is AutoReconnect
        partial = partial_result_of(error)
        assert (*outcomes(1, "")[:2], APPLIED, UNKNOWN) == partial.outcomes[:4]
        assert {NOT_APPLIED} == set(partial.outcomes[4:])
        assert 3 == partial.result.inserted_count

    async def lose_the_primary(self, server, client):
        """Answer two commands so, with the driver told that there is no primary any more."""
        write = BULKS["insert_many"](client.db.c)
        success(await server.expect())
        request = await server.expect()
        server.hello = {**HEADLESS, "topologyVersion": {**VERSION, "counter": Int64(2)}}
        while client.delegate.topology_description.has_writable_server():
            await asyncio.sleep(0.01)
        self.STEP(request)
        return write

    @pytest.fixture
    async def server(self):
        """A primary that tells at once what it has become."""
        version = {**VERSION, "counter": Int64(1)}
        async with ScriptedServer(hello={**PAIRS, "topologyVersion": version}) as server:
            yield server

    async def test_the_deadline_is_over_before_its_retry(self, server, client):
        """What it says to be applied is not reported as not applied."""
        async with deadline(1.5):
            write = await self.lose_the_primary(server, client)
            with pytest.raises(DeadlineExceeded) as caught:
                await write
        assert 2 == len(server.requests)
        found = partial_result_of(caught.value).outcomes
        assert (APPLIED, APPLIED) == found[:2]
        assert found[2] is not NOT_APPLIED

    async def test_cancelled_before_its_retry(self, server, client):
        """Nor when the operation is cancelled then."""
        events = []
        async with RetryClient(server.uri, hooks=[events.append]) as client:
            await client.admin.command("ping")
            write = await self.lose_the_primary(server, client)
            while not events:
                await asyncio.sleep(0.01)
            write.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
        assert 2 == len(server.requests)
        found = partial_result_of(caught.value).outcomes
        assert (APPLIED, APPLIED) == found[:2]
        assert found[2] is not NOT_APPLIED

    async def test_refused_on_its_retry(self, server, client):
        """Nor when the retry is refused."""
        write = BULKS["insert_many"](client.db.c)
        error = await play(server, write, success, self.STEP, failing(13))
        found = partial_result_of(error).outcomes
        assert (APPLIED, APPLIED) == found[:2]
        assert found[2] is not NOT_APPLIED


@pytest.mark.usefixtures("talks_to_old_servers")
class TestOldServers:
    """Servers before 4.4 send no labels: the codes decide."""

    @pytest.mark.parametrize("name", BULKS)
    @pytest.mark.parametrize("step", [failing(91), concern(91), failing(6)])
    async def test_codes_of_a_mongod(self, step, name):
        """A retryable code at the top or in the concern error has the command sent again."""
        async with (
            ScriptedServer(hello={**PAIRS, "maxWireVersion": 8}) as server,
            RetryClient(server.uri) as client,
        ):
            steps = [success, step, *[success] * 4]
            result = await play(server, BULKS[name](client.db.c), *steps)
            assert not isinstance(result, Exception)
            found = numbers(server)
            assert found[1] == found[2]

    async def test_write_errors(self):
        """A code in writeErrors never does."""
        async with (
            ScriptedServer(hello={**PAIRS, "maxWireVersion": 8}) as server,
            RetryClient(server.uri) as client,
        ):
            error = await play(server, BULKS["insert_many"](client.db.c), write_error(91))
            assert isinstance(error, BulkWriteError)
            assert 1 == len(server.requests)

    async def test_concern_errors_of_a_mongos(self):
        """A mongos's concern error never does either."""
        async with (
            ScriptedServer(kind="mongos", hello={**PAIRS, "maxWireVersion": 8}) as server,
            RetryClient(server.uri) as client,
        ):
            error = await play(server, BULKS["insert_many"](client.db.c), success, concern(91))
            assert isinstance(error, BulkWriteError)
            assert [91] == [one["code"] for one in error.details["writeConcernErrors"]]
            assert 2 == len(server.requests)

    async def test_unlabelled_codes_of_newer_servers(self, server, client):
        """A 4.4 server's own answer gets no label."""
        error = await play(server, BULKS["insert_many"](client.db.c), success, failing(6))
        assert 6 == error.code
        assert 2 == len(server.requests)


class TestTime:
    """One deadline for the whole call."""

    @pytest.mark.parametrize("name", BULKS)
    async def test_over_during_a_command(self, name, server, client):
        """The command that is under way is in doubt, the others are known."""
        async with deadline(1.0):
            write = BULKS[name](client.db.c)
            success(await server.expect())
            success(await server.expect())
            await server.expect()
            with pytest.raises(DeadlineExceeded) as caught:
                await write
        error = caught.value
        assert error.timeout
        assert outcomes(2, name, [2]) == partial_result_of(error).outcomes
        assert 4 == counted(partial_result_of(error).result)
        assert 3 == len(attempts_of(error)) == len(server.requests)

    async def over_between_commands(self, server, client):
        """Let time run out while an iterator makes a call wait between its commands."""
        ended = threading.Event()

        def slow():
            yield from ({"_id": number} for number in range(5))
            assert ended.wait(20)
            yield from ({"_id": number} for number in range(5, 10))

        async with deadline(0.5):
            write = client.db.c.insert_many(slow())
            write.add_done_callback(lambda _: ended.set())
            for _ in range(2):
                success(await server.expect())
            with pytest.raises(DeadlineExceeded) as caught:
                await write
        await client.admin.command("ping")
        assert 2 == len(server.requests)
        return caught.value

    async def test_over_between_commands(self, server, client):
        """Nothing is in doubt: what was sent is applied, and nothing more is sent."""
        error = await self.over_between_commands(server, client)
        assert error.timeout
        assert (APPLIED,) * 4 == partial_result_of(error).outcomes[:4]
        assert {NOT_APPLIED} >= set(partial_result_of(error).outcomes[4:])
        assert 4 == partial_result_of(error).result.inserted_count

    async def test_its_text_does_not_deny_what_was_sent(self, server, client):
        """Where commands were sent, the error does not say that nothing was."""
        error = await self.over_between_commands(server, client)
        assert "nothing was sent" not in str(error)

    async def test_no_server_after_the_first_commands(self, server, client):
        """Nor where the deadline passes, or server selection ends, without a server."""

        def last(request):
            server.hello = HEADLESS
            request.fail(11600, "scripted", labels=[RETRYABLE_WRITE, NO_WRITES])

        async with deadline(1.0):
            error = await play(server, BULKS["insert_many"](client.db.c), success, last)
        assert isinstance(error, DeadlineExceeded)
        assert error.timeout
        assert outcomes(1, "") == partial_result_of(error).outcomes

    async def test_too_many_wait_after_the_first_commands(self, server):
        """Nor where as many writes wait for a server as may when the next command is to be sent."""
        async with RetryClient(server.uri, max_waiting_writes=1) as client:
            db = client.db

            def last(request):
                server.hello = HEADLESS
                request.fail(11600, "scripted", labels=[RETRYABLE_WRITE, NO_WRITES])

            write = BULKS["insert_many"](db.c)
            success(await server.expect())
            second = await server.expect()
            waiting = db.other.insert_one({})
            last(await server.expect())
            while "waiting=1" not in repr(client._write_path.coordinator().waits):
                await asyncio.sleep(0.005)
            success(second)
            with pytest.raises(TooManyWaiting, match="nothing of the command that was") as caught:
                await write
            assert 4 == partial_result_of(caught.value).result.inserted_count
            waiting.cancel()

    @pytest.mark.parametrize("name", BULKS)
    @pytest.mark.parametrize("step", [write_error(50), concern(50)])
    async def test_max_time_expired(self, step, name, server, client):
        """Code 50 in an answer becomes the timeout error, whose cause tells it."""
        async with deadline(20):
            error = await play(server, BULKS[name](client.db.c), success, step)
        assert isinstance(error, DeadlineExceeded)
        assert error.timeout
        assert isinstance(error.__cause__, BulkWriteError)
        details = error.__cause__.details
        (found,) = details["writeErrors"] + details["writeConcernErrors"]
        assert 50 == found["code"]
        assert partial_result_of(error) is not None
        assert 2 == len(server.requests)

    async def test_max_time_expired_at_the_top(self, server, client):
        """So does one at the top level."""
        async with deadline(20):
            error = await play(server, BULKS["insert_many"](client.db.c), success, failing(50))
        assert isinstance(error, DeadlineExceeded)
        assert 50 == error.__cause__.code
        assert outcomes(1, "", [1]) == partial_result_of(error).outcomes

    @pytest.mark.parametrize("step", [write_error(50), concern(50)])
    async def test_max_time_expired_without_a_deadline(self, step, server, client):
        """Without a deadline it is a part of the result."""
        write = BULKS["insert_many, unordered"](client.db.c)
        error = await play(server, write, success, step, *[success] * 3)
        assert isinstance(error, BulkWriteError)

    async def test_nothing_left(self, server, client):
        """deadline(0) has expired already: nothing is sent."""
        async with deadline(0):
            for write in BULKS.values():
                error = await play(server, write(client.db.c))
                assert isinstance(error, DeadlineExceeded)
                assert NOT_APPLIED is outcome_of(error)
                assert {NOT_APPLIED} >= set(partial_result_of(error).outcomes)
            for write in MANY.values():
                error = await play(server, write(client.db.c))
                assert isinstance(error, DeadlineExceeded)
        assert () == server.requests


class TestCancellation:
    """Cancelled means nothing more is sent."""

    @pytest.mark.parametrize("name", BULKS)
    async def test_at_each_command(self, name, server, client):
        """Cancelled while any of five commands is under way."""
        for failed in range(5):
            before = len(server.requests)
            write = BULKS[name](client.db.c)
            for _ in range(failed):
                success(await server.expect())
            request = await server.expect()
            write.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
            assert UNKNOWN is outcome_of(caught.value)
            partial = partial_result_of(caught.value)
            assert outcomes(failed, name, [failed]) == partial.outcomes
            assert 2 * failed == counted(partial.result)
            session = bytes(request.command["lsid"]["id"])
            assert session not in pooled(client)
            success(request)
            await client.admin.command("ping")
            assert failed + 1 == len(server.requests) - before

    @pytest.mark.parametrize("name", BULKS)
    async def test_before_it_begins(self, name, server, client):
        """Cancelled in the same breath: nothing is sent, and both questions are answered."""
        write = BULKS[name](client.db.c)
        write.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await write
        assert NOT_APPLIED is outcome_of(caught.value)
        assert {NOT_APPLIED} >= set(partial_result_of(caught.value).outcomes)
        await client.admin.command("ping")
        assert () == server.requests

    @pytest.mark.parametrize("name", BULKS)
    async def test_while_it_waits_for_a_server(self, name):
        """Nothing is sent, and nothing is applied."""
        async with (
            ScriptedServer(hello=HEADLESS) as server,
            RetryClient(server.uri) as client,
        ):
            write = BULKS[name](client.db.c)
            async with asyncio.timeout(20):
                for _ in range(10):  # its task begins
                    await asyncio.sleep(0)
                while client.delegate.topology_description.topology_type_name == "Unknown":
                    await asyncio.sleep(0.01)
            write.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
            assert NOT_APPLIED is outcome_of(caught.value)
            assert {NOT_APPLIED} >= set(partial_result_of(caught.value).outcomes)

    async def test_while_a_retry_waits_for_a_server(self, server, client):
        """What was lost stays in doubt."""
        write = BULKS["insert_many"](client.db.c)
        success(await server.expect())
        request = await server.expect()
        server.hello = HEADLESS
        request.hang_up()
        while client.delegate.topology_description.has_writable_server():
            await asyncio.sleep(0.01)
        write.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await write
        assert outcomes(1, "", [1]) == partial_result_of(caught.value).outcomes
        assert 2 == len(attempts_of(caught.value))

    async def test_by_asyncio_timeout(self, server, client):
        """asyncio.timeout() gives a TimeoutError that still answers."""
        write = BULKS["insert_many"](client.db.c)
        success(await server.expect())
        await server.expect()
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.01):
                await write
        assert outcomes(1, "", [1]) == partial_result_of(caught.value).outcomes

    async def test_by_gather(self, server, client):
        """asyncio.gather() cancels all of them, and each still answers."""
        writes = [BULKS["insert_many"](client.db[f"c{number}"]) for number in range(3)]
        gathered = asyncio.gather(*writes)
        for _ in range(3):
            await server.expect()
        gathered.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await gathered
        assert partial_result_of(caught.value) is not None
        for write in writes:
            with pytest.raises(asyncio.CancelledError) as caught:
                await write
            assert outcomes(0, "", [0]) == partial_result_of(caught.value).outcomes

    async def test_while_an_iterator_is_read(self, server, client):
        """The rest of the iterator may be read by the thread, but nothing of it is sent."""
        reading, cancelled = threading.Event(), threading.Event()

        def slow():
            yield {"_id": 0}
            reading.set()
            assert cancelled.wait(20)
            yield {"_id": 1}

        write = client.db.c.insert_many(slow())
        await asyncio.to_thread(reading.wait, 20)
        write.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await write
        cancelled.set()
        assert NOT_APPLIED is outcome_of(caught.value)
        assert partial_result_of(caught.value) is not None
        await client.admin.command("ping")
        assert () == server.requests

    @pytest.mark.parametrize("name", BULKS)
    async def test_nobody_awaits_it(self, name, server, client):
        """A bulk operation that nobody awaits happens, though nobody holds it."""
        BULKS[name](client.db.c)
        for _ in range(5):
            request = await server.expect()
            gc.collect()
            success(request)
