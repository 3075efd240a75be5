"""Reads of an old PyMongo that are repeated after an overload error, on the thread that reads."""

import time

import pytest
from pymongo.errors import OperationFailure

from aioretry._drivers.port import Policy
from aioretry._retry.overload import _repeating, repeat_reads
from aioretry.deadlines import Deadline

OVERLOADED = ["RetryableError", "SystemOverloadedError"]


def refusal(labels=OVERLOADED):
    """What an overloaded server answers."""
    return OperationFailure("busy", 462, {"errorLabels": labels, "baseBackoffMS": 1000})


class Session:
    """A session, in a transaction."""

    in_transaction = True


@pytest.fixture
def waits(monkeypatch):
    """How long was waited, for which no time passes."""
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr("random.random", lambda: 1.0)
    return waits


def read(*answers, deadline=None, session=None, **policy):
    """Read once; return what it gave and how often it was tried."""
    left, sessions = list(answers), []

    def one(send, preference, session, *, operation):
        sessions.append((send, preference, session, operation))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    repeated = repeat_reads(one, Policy(**policy), lambda: deadline)
    try:
        found = repeated("send", "primary", session, operation="find")
    except OperationFailure as exc:
        found = exc
    assert {("send", "primary", session, "find")} == set(sessions)
    return found, len(sessions)


def test_after_a_wait(waits):
    """It is read again with growing waits, as the server says."""
    assert (7, 3) == read(refusal(), refusal(), 7)
    assert [2.0, 4.0] == waits


def test_no_more_often_than_allowed(waits):
    """Then the error is raised."""
    found, times = read(*[refusal() for _ in range(5)])
    assert isinstance(found, OperationFailure)
    assert (3, 2) == (times, len(waits))


def test_no_longer_than_the_deadline(waits):
    """A wait that would pass it is not begun."""
    _, times = read(refusal(), 7, deadline=Deadline.after(1))
    assert (1, []) == (times, waits)


@pytest.mark.parametrize("labels", [[], OVERLOADED[:1], OVERLOADED[1:], ["RetryableWriteError"]])
def test_other_errors(labels, waits):
    """They are the caller's, or PyMongo's to repeat."""
    assert 1 == read(refusal(labels), 7)[1]


def test_without_retry_reads(waits):
    """The option turns it off."""
    assert 1 == read(refusal(), 7, retry_writes=False)[1]


def test_in_a_transaction(waits):
    """A refused command begins the transaction all the same, so that nothing is repeated."""
    assert 1 == read(refusal(), 7, session=Session())[1]


def test_of_what_is_repeated_as_a_whole(waits):
    """What a repeated call reads is not repeated once more."""
    with _repeating():
        assert 1 == read(refusal(), 7)[1]
    assert 2 == read(refusal(), 7)[1]
