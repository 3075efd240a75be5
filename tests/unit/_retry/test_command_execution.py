"""What the attempts of a command share, and what follows from it."""

import math
import time
from dataclasses import replace

import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import AutoReconnect
from pymongo.write_concern import WriteConcern

from aioretry import Attempt
from aioretry._commands.command import CommandLimits
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import Policy, ServerKind, ServerView
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.sessions import SessionLease
from aioretry._retry.verdict import Failure, RetryState
from aioretry.deadlines import Deadline

TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
SERVER = ServerView(("a", 1), ServerKind.PRIMARY, 17, True, None, 0.0, LIMITS, lambda: 0, object())
OK = {"ok": 1, "n": 1}
REFUSED = {"ok": 1, "n": 0, "writeErrors": [{"index": 0, "code": 11000}]}
UNMET = {"ok": 1, "n": 1, "writeConcernError": {"code": 64}}
BREAK = AutoReconnect("it broke")

LOST = Attempt(("a", 1), 0.0, 0.0, True, BREAK)
UNSENT = Attempt(("a", 1), 0.0, 0.0, False, BREAK)


def answered(reply):
    """An attempt that got an answer."""
    return Attempt(("a", 1), 0.0, 0.0, True, None, reply)


class Session:
    """A server session that tells how it ended."""

    def __init__(self):
        self.ended = []

    def next_number(self):
        return 1

    def close(self, *, discard):
        self.ended.append("discarded" if discard else "pooled")


class UnderWay:
    """An attempt that has not ended."""

    def so_far(self):
        return UNSENT


def execution(*attempts, deadline=None, session=None):
    """A command with what was tried for it."""
    command = Insert({"_id": 7}).command(TARGET)
    made = Execution(command, SessionLease(lambda: session), deadline, Numbering.IF_SUPPORTED)
    made.attempts += attempts
    return made


def test_two_commands_share_nothing():
    """Neither attempts, nor a number, nor options."""
    first, second = execution(LOST), execution()
    first.options["comment"] = 1
    assert ([], {}) == (second.attempts, second.options)
    assert first.number is not second.number


def test_history():
    """It ends with the attempt under way, which is not among the others for all that."""
    made = execution(LOST)
    assert [LOST] == made.history()
    made.pending = UnderWay()
    assert [LOST, UNSENT] == made.history()
    made.history().clear()
    assert [LOST] == made.attempts


class Looks(list):
    """Who is shown the servers that were written to."""

    look = list.append


def test_what_is_shown():
    """Who got it, once it was sent; unless it holds what no server could retry."""
    made = execution()
    made.caution = shown = Looks()
    made.add(UNSENT, SERVER, 1.0)  # a bulk operation's command may not be made yet
    made.add(LOST, None, 1.0)
    assert [] == shown
    made.add(LOST, SERVER, 1.0)
    made.command.holds_multi = True
    made.add(LOST, SERVER, 1.0)
    assert [SERVER] == shown


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([answered(OK)], "pooled"),
        ([UNSENT, answered(OK)], "pooled"),
        ([answered(OK), UNSENT], "pooled"),
        ([LOST, answered(OK)], "discarded"),
        ([answered(OK), answered(OK)], "discarded"),
        ([answered(REFUSED)], "discarded"),
        ([answered(UNMET)], "discarded"),
        ([LOST], "discarded"),
        ([UNSENT], "discarded"),
        ([], "discarded"),
    ],
)
def test_settle(attempts, expected):
    """The session is used again if the only sending was answered, by no error of any kind."""
    session = Session()
    made = execution(*attempts, session=session)
    made.lease.carry()
    made.lease.finish(discard=True)
    made.settle()
    made.lease.drop()
    assert [expected] == session.ended


@pytest.mark.parametrize(
    ("attempts", "reply", "expected"),
    [
        ([], OK, False),
        ([LOST, LOST], OK, False),
        ([LOST], UNMET, True),
        ([], UNMET, True),
        ([LOST], REFUSED, False),
        ([LOST, UNSENT], REFUSED, False),
        ([LOST, LOST], REFUSED, True),
        ([LOST], REFUSED | UNMET, True),
        ([LOST, LOST], OK | {"writeErrors": [], "writeConcernError": {}}, False),
    ],
)
def test_leaves_doubt(attempts, reply, expected):
    """A concern that was not met does, and a refusal if something else was sent as well."""
    assert expected is execution(*attempts).leaves_doubt(reply)


def test_time_left():
    """It is endless without a deadline, and never negative."""
    assert math.inf == execution().time_left()
    assert 7.0 == execution(deadline=Deadline(107.0, lambda: 100.0)).time_left()
    assert 0.0 == execution(deadline=Deadline(100.0, lambda: 107.0)).time_left()


@pytest.mark.parametrize("kind", [None, *ServerKind])
def test_is_sharded(kind):
    """Routers and load balancers stand before others; who was not asked is neither."""
    made = execution()
    made.server = None if kind is None else replace(SERVER, kind=kind)
    assert made.is_sharded is (kind in (ServerKind.MONGOS, ServerKind.LOAD_BALANCER))


def test_trusted_seconds_of_its_server():
    """What the server of the latest attempt says counts; if there was none, the usual time."""
    made = execution()
    assert pytest.approx(1500) == made.trusted_seconds
    made.server = replace(SERVER, session_minutes=6)
    assert pytest.approx(300) == made.trusted_seconds


class TestAge:
    @pytest.mark.parametrize(
        ("loop_passed", "wall_passed", "expected"),
        [(5.0, 5.0, 5.0), (5.0, 900.0, 900.0), (900.0, 5.0, 900.0), (5.0, -900.0, 5.0)],
    )
    def test_by_either_clock(self, monkeypatch, loop_passed, wall_passed, expected):
        """The one by which more time has passed counts."""
        made = execution()
        made.began, made.began_at = 100.0, 5000.0
        monkeypatch.setattr(time, "time", lambda: 5000.0 + wall_passed)
        assert expected == made.age(100.0 + loop_passed)

    def test_of_what_has_not_begun(self):
        """It has none, whatever the clocks say."""
        assert 0.0 == execution().age(100.0)

    def test_of_what_another_process_began(self, monkeypatch):
        """It has begun as long ago as that says, in both clocks."""
        monkeypatch.setattr(time, "time", lambda: 5000.0)
        made = execution()
        made.began_before(100.0, 30.0)
        assert (70.0, 4970.0, 30.0) == (made.began, made.began_at, made.age(100.0))


@pytest.mark.parametrize(
    ("attempts", "is_numbered", "age", "expected"),
    [
        ([LOST], True, 1500.0, True),
        ([LOST], True, 1499.0, False),
        ([LOST], False, 1500.0, False),
        ([UNSENT], True, 1500.0, False),
        ([UNSENT, LOST, UNSENT], True, 1500.0, True),
        ([], True, 1500.0, False),
    ],
)
def test_may_be_forgotten(monkeypatch, attempts, is_numbered, age, expected):
    """So it is if a server has got its number, and the time is over that it is remembered for."""
    monkeypatch.setattr(time, "time", lambda: 5000.0)
    made = execution(*attempts)
    made.began_before(100.0, age)
    if is_numbered:
        made.number.take(Session())
    assert expected is made.may_be_forgotten(100.0)


def test_last_error():
    """It is what would surface, which need not be that of the last attempt."""
    made = execution(LOST, UNSENT)
    assert made.last_error() is None
    made.retries = RetryState(Policy(), True, lambda: 0.0)
    made.retries.judge(Failure(BREAK, True, True), time_left=60)
    made.retries.judge(Failure(AutoReconnect("not sent"), False, True), time_left=60)
    assert BREAK is made.last_error()


@pytest.mark.parametrize(
    ("concern", "wire_version", "expected"),
    [
        ({}, 9, False),
        ({}, 13, True),
        ({"j": True}, 13, False),
        ({"j": True}, 17, True),
        ({"w": "majority", "wtimeout": 5}, 9, True),
        ({"w": 1}, 25, False),
        ({"w": 3}, 25, False),
        ({"w": "my tags"}, 25, False),
    ],
)
def test_answers_that_hold_at_a_majority(concern, wire_version, expected):
    """The write concern says so, or the default of the server's version."""
    one = execution()
    one.server = replace(SERVER, max_wire_version=wire_version)
    one.options = {"writeConcern": concern} if concern else {}
    assert expected is one.is_by_majority


def test_nobody_answered():
    """Without a server nothing is known of its default."""
    one = execution()
    one.server, one.options = None, {}
    assert not one.is_by_majority
