"""The errors of commands for which there was no time, no server or no room."""

from dataclasses import replace

import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import AutoReconnect, InvalidOperation, ServerSelectionTimeoutError
from pymongo.write_concern import WriteConcern

from aioretry import Attempt, DeadlineExceeded, ResolveError
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import Policy
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.sessions import NO_LEASE
from aioretry._retry.surfacing import (
    forgotten,
    ineligible,
    nobody_found,
    too_late,
    too_many_wait,
)
from aioretry._retry.verdict import Failure, RetryState
from aioretry.deadlines import Deadline

BREAK = AutoReconnect("it broke")
TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())


def execution(*, sent=False, failed=False, over=False, is_one_of_many=False):
    """A command, with what has come of it."""
    command = replace(Insert({"_id": 7}).command(TARGET), is_one_of_many=is_one_of_many)
    deadline = Deadline.after(0) if over else None
    made = Execution(command, NO_LEASE, deadline, Numbering.IF_SUPPORTED)
    if sent or failed:
        made.attempts.append(Attempt(("a", 1), 0.0, 0.0, sent, BREAK if failed else None))
    if failed:
        made.retries = RetryState(Policy(), False, lambda: 0.0)
        made.retries.judge(Failure(BREAK, sent, True), time_left=1)
    return made


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (execution(), "nothing was sent"),
        (execution(is_one_of_many=True), "nothing of the command that was next was sent"),
        (execution(sent=True), "the server has not answered"),
        (execution(sent=True, failed=True), "after 1 attempts; the last error: AutoReconnect: it"),
    ],
)
def test_too_late(given, text):
    """It says what was tried, and what came of it last."""
    assert "the deadline of insert_one is over" in str(too_late(given))
    assert text in str(too_late(given))


def test_too_late_for_another_error():
    """Whoever knows a later one gives it."""
    assert "LookupError: late" in str(too_late(execution(sent=True), LookupError("late")))


@pytest.mark.parametrize(
    ("sent", "text"), [(False, "nothing was sent"), (True, "the command was not sent again")]
)
def test_nobody_found(sent, text):
    """Without an earlier error it is that of PyMongo's selection."""
    error = nobody_found(execution(sent=sent), 2.5, "<topology>")
    assert isinstance(error, ServerSelectionTimeoutError)
    assert f"found within 2.5 s; {text}. Topology: <topology>" in str(error)


def test_nobody_found_after_an_attempt():
    """The attempt's error surfaces; it is a deadline's cause if there is one."""
    assert BREAK is nobody_found(execution(sent=True, failed=True), 2.5, "")
    late = nobody_found(execution(sent=True, failed=True, over=True), 2.5, "")
    assert (DeadlineExceeded, BREAK) == (type(late), late.__cause__)


@pytest.mark.parametrize(
    ("make", "kind"), [(ineligible, InvalidOperation), (forgotten, ResolveError)]
)
def test_after_an_attempt(make, kind):
    """The attempt's error surfaces, and one of their own where there is none."""
    assert BREAK is make(execution(sent=True, failed=True))
    assert isinstance(make(execution()), kind)


def test_too_many_wait():
    """It says how many may, and that nothing was sent."""
    text = "3 writes wait for a server already; nothing was sent"
    assert [text] * 2 == [str(too_many_wait(3, given)) for given in (None, execution())]
