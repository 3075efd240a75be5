"""A bulk operation under way, over a driver that a test answers for: no server, no waiting."""

import asyncio

import pytest
from bson.codec_options import CodecOptions
from pymongo.write_concern import WriteConcern

from aioretry import Attempt, Outcome, attempts_of, outcome_of, partial_result_of
from aioretry._bulk_write import BulkWrite
from aioretry._commands import Target
from aioretry._coordinator import Coordinator
from aioretry._driver import AttemptResult, Ending, Limits, ServerKind, ServerView, TopologyView
from aioretry._motor import encode_documents
from aioretry._plans import insert_many
from aioretry._sessions import SessionLease
from aioretry._verdict import Policy

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
PAIRS = Limits(16 * 2**20, 48_000_000, 2)
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

    def __init__(self):
        self.sessions = []
        self.sent = asyncio.Queue()

    def view(self):
        return TopologyView({SERVER.address: SERVER}, 0.015, object())

    def session(self):
        return Session(self.sessions)

    def time_out(self, call):
        return False  # the attempt ends by itself

    def abandon(self, call):
        return True

    def stop_probing(self):
        pass

    def attempt(self, loop, call, deliver):
        call.command.prepare(PAIRS, encode_documents)
        call.number.take(call.lease.carry())
        call.token.begin_sending()
        self.sent.put_nowait((call, deliver))

    async def answer(self, reply):
        """Answer the next command."""
        call, deliver = await self.sent.get()
        call.lease.drop()
        record = Attempt(SERVER.address, 0.0, 0.0, True, None, reply)
        deliver(AttemptResult(Ending.REPLIED, record, SERVER, numbered=True))


@pytest.fixture
async def driver():
    return Driver()


def begin(driver):
    """Begin an insert_many of three commands."""
    coordinator = Coordinator(
        driver, asyncio.get_running_loop(), Policy(), server_selection_timeout=1.0, hooks=()
    )
    documents = [{"_id": number} for number in range(6)]
    return BulkWrite(
        coordinator,
        lambda: insert_many(TARGET, documents, False, None, None),
        SessionLease(driver.session),
        None,
    )


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
