"""A bulk operation under way, over a driver that a test answers for: no server, no waiting."""

import asyncio
from dataclasses import replace

import pytest
from bson.codec_options import CodecOptions
from pymongo import UpdateMany
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    OperationFailure,
    ProtocolError,
    PyMongoError,
)
from pymongo.write_concern import WriteConcern

from aioretry import Outcome, attempts_of, outcome_of, partial_result_of, resolve
from aioretry._commands.bulk_arguments import BulkRequests, InsertMany
from aioretry._commands.command import CommandLimits
from aioretry._commands.target import Target
from aioretry._drivers.engine.messages import add_requests
from aioretry._drivers.motor import encode_documents
from aioretry._drivers.port import Failed, Policy, Replied, ServerKind, ServerView, TopologyView
from aioretry._retry.loop import Coordinator
from aioretry._retry.sessions import SessionLease
from aioretry._writes.bulk import BulkWrite
from aioretry.deadlines import Deadline

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
PAIRS = CommandLimits(16 * 2**20, 48_000_000, 2)
SERVER = ServerView(("a", 1), ServerKind.PRIMARY, 17, True, None, 0.0, PAIRS, lambda: 0, object())


class Session:
    """A server session that tells how it ended."""

    def __init__(self, log):
        self.number = 0
        self.log = log

    def next_number(self):
        self.number += 1
        return self.number

    def latest_number(self):
        return self.number

    def open(self, *, has_sessions):
        return self

    def close(self, *, discard):
        self.log.append("discarded" if discard else "pooled")


class Driver:
    """Sends what it is told to, and waits for the answer from the test."""

    def __init__(self, server=SERVER):
        self.server = server
        self.sessions = []
        self.sent = asyncio.Queue()

    def view(self):
        return TopologyView({self.server.address: self.server}, 0.015, object())

    def session(self):
        return Session(self.sessions)

    def time_out(self, call):
        return False  # the attempt ends by itself

    def abandon(self, call):
        return True

    def stop_probing(self):
        pass

    def add_label(self, error, label):
        error._add_error_label(label)

    def attempt(self, loop, call, receiver):
        if call.command.prepare is not None:
            call.command.prepare(PAIRS, encode_documents)
        call.server = self.server
        call.number.take(call.lease.carry())
        call.token.begin_sending()
        self.sent.put_nowait((call, receiver.land))
        return True

    async def answer(self, reply):
        """Answer the next command."""
        end(await self.sent.get(), reply, server=self.server)


def end(attempt, reply=None, error=None, server=SERVER):
    """End an attempt."""
    call, deliver = attempt
    call.lease.drop()
    deliver(Replied(reply) if error is None else Failed(error, sent=True))


@pytest.fixture
async def driver():
    return Driver()


def begin(driver, count=6, *, ordered=False):
    """Begin an insert_many of so many documents, two in a command."""
    documents = [{"_id": number} for number in range(count)]
    return begin_with(driver, InsertMany(documents, ordered, None, None), Policy())


def begin_with(driver, arguments, policy, deadline=None):
    """Begin a bulk operation."""
    coordinator = Coordinator(
        driver, asyncio.get_running_loop(), policy, server_selection_timeout=1.0, hooks=()
    )
    return BulkWrite(coordinator, SessionLease(driver.session), deadline).begin(arguments, TARGET)


@pytest.fixture
async def write(driver):
    """An insert_many of three commands."""
    return begin(driver)


async def test_success(driver, write):
    """Three commands, one session, three numbers."""
    for _ in range(3):
        await driver.answer({"n": 2})
    assert list(range(6)) == (await write).inserted_ids
    assert ["pooled"] == driver.sessions


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        (ServerKind.MONGOS, 11000, NOT_APPLIED),
        (ServerKind.MONGOS, 133, UNKNOWN),  # FailedToSatisfyReadPreference, of its last sending
        (ServerKind.PRIMARY, 133, NOT_APPLIED),
    ],
)
async def test_a_routers_write_errors(kind, code, expected):
    """What a router says of its last sending only leaves a statement in doubt."""
    driver = Driver(replace(SERVER, kind=kind))
    write = begin(driver, 2)
    await driver.answer({"n": 1, "writeErrors": [{"index": 1, "code": code, "errmsg": "scripted"}]})
    with pytest.raises(BulkWriteError) as caught:
        await write
    assert (APPLIED, expected) == partial_result_of(caught.value).outcomes


ERROR = {"index": 1, "code": 11000, "errmsg": "scripted"}
CONCERN = {"code": 64, "errmsg": "scripted"}


@pytest.mark.parametrize(
    ("reply", "expected", "count"),
    [
        ({"n": 2}, (APPLIED, APPLIED), 4),
        ({"n": 1, "writeErrors": [ERROR]}, (APPLIED, NOT_APPLIED), 3),
        ({"n": 2, "writeConcernError": CONCERN}, (UNKNOWN, UNKNOWN), 4),
    ],
    ids=["success", "write error", "concern error"],
)
async def test_cancelled_when_the_answer_is_there_already(driver, write, reply, expected, count):
    """Cancelled between an answer and its delivery: what it says is what is known."""
    await driver.answer({"n": 2})
    await driver.answer(reply)
    write.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await write
    partial = partial_result_of(caught.value)
    assert (APPLIED, APPLIED, *expected, NOT_APPLIED, NOT_APPLIED) == partial.outcomes
    assert count == partial.result.inserted_count
    assert UNKNOWN is outcome_of(caught.value)
    assert 2 == len(attempts_of(caught.value))
    assert driver.sent.empty()


async def test_cancelled_while_it_is_planned(driver):
    """Cancelled before anything was sent: each statement is told of."""
    write = begin(driver)
    write.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await write
    assert (NOT_APPLIED,) * 6 == partial_result_of(caught.value).outcomes
    assert NOT_APPLIED is outcome_of(caught.value)


async def test_cancelled_between_commands(driver, write):
    """Cancelled while the third command is under way: its session waits for its thread."""
    for _ in range(2):
        await driver.answer({"n": 2})
    call, _ = await driver.sent.get()
    write.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await write
    assert (APPLIED,) * 4 + (UNKNOWN,) * 2 == partial_result_of(caught.value).outcomes
    assert [] == driver.sessions
    call.lease.drop()
    assert ["discarded"] == driver.sessions


MANY = BulkRequests([UpdateMany({}, {"$set": {"n": 1}})], True, None, None, None, add_requests)
ONE = InsertMany([{"_id": 1}], True, None, None)
ALONE = replace(SERVER, kind=ServerKind.STANDALONE)


class TestWhyNotRetried:
    """The note on the error of a command that another one would have been sent again for."""

    async def note(self, arguments, error, server=SERVER, **policy):
        """The note on what it ends with."""
        driver = Driver(server)
        write = begin_with(driver, arguments, Policy(**policy))
        end(await driver.sent.get(), error=error, server=server)
        with pytest.raises(type(error)) as caught:
            await write
        [note] = caught.value.__notes__
        return note

    @pytest.mark.parametrize(
        ("arguments", "server", "retry_writes", "why"),
        [
            (MANY, SERVER, True, "it holds an UpdateMany or DeleteMany"),
            (ONE, ALONE, True, "a:1 is a standalone server"),
            (ONE, SERVER, False, "the client has retryWrites=false"),
        ],
    )
    async def test_is_told(self, arguments, server, retry_writes, why):
        """The reason comes last, in the words of the warning where that has some."""
        lost = AutoReconnect("scripted")
        note = await self.note(arguments, lost, server, retry_writes=retry_writes)
        assert note.endswith(f" s; not retried: {why}")

    async def test_of_an_error_that_nothing_is_retried_for(self):
        """What no server would be asked for again needs no reason."""
        assert "not retried" not in await self.note(MANY, OperationFailure("scripted", 2))

    async def test_of_an_overloaded_server(self):
        """Nor what it would have been sent again for all the same, but too often."""
        labels = {"errorLabels": ["RetryableError", "SystemOverloadedError"]}
        error = OperationFailure("scripted", 462, labels)
        assert "not retried" not in await self.note(MANY, error, max_adaptive_retries=0)

    async def test_of_a_cancellation(self, driver):
        """Nor does what the caller has ended."""
        write = begin_with(driver, MANY, Policy())
        await driver.sent.get()
        write.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await write
        assert "not retried" not in caught.value.__notes__[0]

    async def test_when_time_is_over(self, driver):
        """Nor does what there was no time for."""
        now = 0.0
        write = begin_with(driver, MANY, Policy(), Deadline.after(60.0, lambda: now))
        attempt = await driver.sent.get()
        now = 61.0
        end(attempt, error=AutoReconnect("scripted"))
        with pytest.raises(PyMongoError) as caught:
            await write
        assert "not retried" not in caught.value.__notes__[0]


REFUSED = {"n": 1, "writeErrors": [ERROR]}
FIRST_REFUSED = {"n": 1, "writeErrors": [{**ERROR, "index": 0}]}
BOTH_REFUSED = {"n": 0, "writeErrors": [{**ERROR, "index": 0}, ERROR]}


class TestLateAnswers:
    """Two inserts are given up and resolved, and the answer to the first attempt comes then."""

    @pytest.fixture(params=[False, True], ids=["unordered", "ordered"])
    async def given_up(self, request, driver):
        """The attempt, and what its write ended with."""
        write = begin(driver, 2, ordered=request.param)
        attempt = await driver.sent.get()
        write.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await write
        assert (UNKNOWN, UNKNOWN) == partial_result_of(caught.value).outcomes
        return attempt, caught.value

    async def test_before_a_resolve_fails(self, driver, given_up):
        """What was refused is not applied, but the attempt that failed may still apply it."""
        late, exc = given_up
        resolving = asyncio.ensure_future(resolve(exc))
        again = await driver.sent.get()
        end(late, REFUSED)
        end(again, error=ProtocolError("scripted"))
        with pytest.raises(ProtocolError) as caught:
            await resolving
        partial = partial_result_of(caught.value)
        assert ((APPLIED, UNKNOWN), 1) == (partial.outcomes, partial.result.inserted_count)

    async def test_after_a_resolve_has_failed(self, driver, given_up):
        """The same, if it is resolved by that answer."""
        late, exc = given_up
        resolving = asyncio.ensure_future(resolve(exc))
        end(await driver.sent.get(), error=ProtocolError("scripted"))
        with pytest.raises(ProtocolError) as failed:
            await resolving
        end(late, REFUSED)
        with pytest.raises(BulkWriteError) as caught:
            await resolve(failed.value)
        partial = partial_result_of(caught.value)
        assert ((APPLIED, UNKNOWN), 1) == (partial.outcomes, partial.result.inserted_count)
        assert driver.sent.empty()

    async def test_before_an_answer_that_could_be_retried(self, driver, given_up):
        """An answer that was taken for an error does not make applied what was refused."""
        late, exc = given_up
        resolving = asyncio.ensure_future(resolve(exc))
        again = await driver.sent.get()
        end(late, REFUSED)
        end(again, {**REFUSED, "errorLabels": ["RetryableError", "SystemOverloadedError"]})
        end(await driver.sent.get(), error=ProtocolError("scripted"))
        with pytest.raises(ProtocolError) as caught:
            await resolving
        assert (APPLIED, UNKNOWN) == partial_result_of(caught.value).outcomes

    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            (REFUSED, REFUSED, (APPLIED, NOT_APPLIED)),
            (BOTH_REFUSED, REFUSED, (APPLIED, NOT_APPLIED)),
            (REFUSED, {"n": 2}, (APPLIED, APPLIED)),
            ({"n": 2}, REFUSED, (APPLIED, APPLIED)),
        ],
        ids=["the same", "more now", "all now", "all before"],
    )
    async def test_to_both_attempts(self, driver, given_up, first, second, expected):
        """What either says to be applied is, and nothing else."""
        late, exc = given_up
        resolving = asyncio.ensure_future(resolve(exc))
        again = await driver.sent.get()
        end(late, first)
        end(again, second)
        if expected == (APPLIED, APPLIED):
            assert [0, 1] == (await resolving).inserted_ids
            return
        with pytest.raises(BulkWriteError) as caught:
            await resolving
        partial = partial_result_of(caught.value)
        assert (expected, 1) == (partial.outcomes, partial.result.inserted_count)


class TestOvertaken:
    """Two inserts are given up and resolved, and an old server executes what was sent last first.

    It inserts the second one, and refuses the first. So it has nothing to say of that one in its
    answer to the first attempt, which was sent before any other.
    """

    @pytest.fixture
    async def both_sent(self, driver):
        """The first attempt, another one, and the task that made this."""
        driver.server = replace(SERVER, max_wire_version=9)
        write = begin(driver, 2)
        late = await driver.sent.get()
        write.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await write
        resolving = asyncio.ensure_future(resolve(caught.value))
        return late, await driver.sent.get(), resolving

    @pytest.mark.parametrize("is_late_first", [False, True], ids=["after", "before"])
    async def test_what_is_found_out(self, driver, both_sent, is_late_first):
        """What is asked for singly counts, and not what the first attempt's answer leaves out."""
        late, again, resolving = both_sent
        if is_late_first:
            end(late, {"n": 1})
        end(again, FIRST_REFUSED)
        await driver.answer({"n": 0, "writeErrors": [{**ERROR, "index": 0}]})
        if not is_late_first:
            end(late, {"n": 1})
        await driver.answer({"n": 1})
        with pytest.raises(BulkWriteError) as caught:
            await resolving
        partial = partial_result_of(caught.value)
        assert ((NOT_APPLIED, APPLIED), 1) == (partial.outcomes, partial.result.inserted_count)

    async def test_what_is_not(self, driver, both_sent):
        """Nothing is known, and it can be resolved later; what got lost may still be executed."""
        late, again, resolving = both_sent
        end(late, {"n": 1})
        end(again, error=ProtocolError("scripted"))
        with pytest.raises(ProtocolError) as caught:
            await resolving
        assert (UNKNOWN, UNKNOWN) == partial_result_of(caught.value).outcomes
        resolving = asyncio.ensure_future(resolve(caught.value))
        await driver.answer(FIRST_REFUSED)
        await driver.answer({"n": 0, "writeErrors": [{**ERROR, "index": 0}]})
        await driver.answer({"n": 1})
        with pytest.raises(BulkWriteError) as caught:
            await resolving
        assert (UNKNOWN, APPLIED) == partial_result_of(caught.value).outcomes
