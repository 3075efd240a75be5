"""One attempt, from its beginning to its only end: a loop, a driver and places of the test's."""

import asyncio
import time
from dataclasses import replace

import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import AutoReconnect, DuplicateKeyError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from aioretry._commands.command import CommandLimits, Reading
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import (
    Expired,
    Failed,
    NoServer,
    Replied,
    ServerKind,
    ServerView,
    TopologyView,
)
from aioretry._retry.attempt import Landed, PendingAttempt
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.sessions import SessionLease
from aioretry.deadlines import Deadline

A = ("a", 1)
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
GRACE = 0.25
BREAK, REASON = AutoReconnect("it broke"), KeyError("enough")
APPLIED = Replied({"ok": 1, "n": 1})
DUPLICATE = {"index": 0, "code": 11000, "errmsg": "E11000"}


class Loop:
    """An event loop whose time passes when it is told to."""

    def __init__(self):
        self.now = 100.0
        self.timers = []

    def time(self):
        return self.now

    def call_later(self, delay, callback):
        timer = Timer(self, self.now + delay, callback)
        self.timers.append(timer)
        return timer

    def call_soon(self, callback, *args):
        self.call_later(0, lambda: callback(*args))

    def pass_by(self, seconds):
        """Let time pass, and call what is due in it."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.when <= end]:
            timer = min(due, key=lambda one: one.when)
            timer.cancel()
            self.now = timer.when
            timer.callback()
        self.now = end


class Timer:
    """Something that a loop calls when its time has come."""

    def __init__(self, loop, when, callback):
        self.loop, self.when, self.callback = loop, when, callback

    def cancel(self):
        if self in self.loop.timers:
            self.loop.timers.remove(self)


class Session:
    """A server session that tells how it ended."""

    def __init__(self):
        self.ended = []

    def close(self, *, discard):
        self.ended.append("discarded" if discard else "pooled")


class CountingSession:
    """A server session that counts."""

    def next_number(self):
        return 1


class Stage:
    """All that an attempt deals with: its driver, its places, its receiver and its watch."""

    def __init__(self, kind=ServerKind.PRIMARY):
        self.loop = Loop()
        self.log = []
        self.calls = []
        self.labels = []
        self.abandoned = []
        self.ends_itself = False
        self.budget = None
        self.began = None
        self.session = Session()
        self.server = ServerView(A, kind, 17, True, None, 0.0, LIMITS, lambda: 0, object())

    def execution(self, deadline=None, numbering=Numbering.IF_SUPPORTED):
        """A command, watched."""
        command = Insert({"_id": 7}).command(TARGET)
        lease = SessionLease(lambda: self.session)
        return Execution(command, lease, deadline, numbering, {"comment": 1}, watch=self)

    def start(self, execution, *, sent=True):
        """Start an attempt, and have it send if it is to."""
        attempt = PendingAttempt(self, self.loop, execution, self, self)
        assert attempt.start()
        attempt.register()
        if sent:
            assert self.calls[-1].token.begin_sending()
        return attempt

    # As the driver.
    def view(self):
        return TopologyView({A: self.server}, 0.015, object())

    def attempt(self, loop, call, receiver):
        self.calls.append(call)
        return True

    def time_out(self, call):
        return self.ends_itself

    def abandon(self, call):
        self.abandoned.append(call)
        return True

    def add_label(self, error, label):
        self.labels.append((error, label))

    # As the places.
    def at(self, address):
        return 0

    def remove(self, attempt):
        self.log.append("place")

    # As the watch.
    def begin_attempt(self, command, number, attempt_notes):
        self.began = command, number

    def end_attempt(self, attempt, number, command, attempt_notes):
        assert self.began in (None, (command.name, number))
        self.log.append((attempt, number))

    # As the receiver.
    def land(self, result):
        self.log.append(result)


@pytest.fixture
def stage():
    return Stage()


def test_only_the_first_result_counts():
    """Whoever awaits an attempt is told once."""
    loop = asyncio.new_event_loop()
    landed = Landed(loop=loop)
    landed.land(APPLIED)
    landed.land(NoServer())
    assert APPLIED is landed.result()
    loop.close()


def test_a_command_begins_with_its_first_attempt(stage, monkeypatch):
    """Later ones leave that moment as it is, in both clocks."""
    execution = stage.execution()
    monkeypatch.setattr(time, "time", lambda: 5000.0)
    stage.start(execution)
    stage.loop.pass_by(3)
    monkeypatch.setattr(time, "time", lambda: 5003.0)
    stage.start(execution)
    assert (100.0, 5000.0) == (execution.began, execution.began_at)


@pytest.mark.parametrize(("age", "is_sent"), [(1499, True), (1500, False)])
def test_a_retry_whose_turn_comes_late(stage, age, is_sent):
    """It is not sent when a server may have forgotten what was sent before."""
    execution = stage.execution()
    attempt = stage.start(execution)
    execution.number.take(CountingSession())
    attempt.land(Failed(BREAK, sent=True))
    stage.calls.clear()
    retry = PendingAttempt(stage, stage.loop, execution, stage, stage)
    stage.loop.pass_by(age)
    assert retry.start()
    stage.loop.pass_by(0)
    assert is_sent is bool(stage.calls)
    assert is_sent is not (NoServer() in stage.log)


@pytest.mark.parametrize(
    ("kind", "numbering", "expected"),
    [
        (ServerKind.PRIMARY, Numbering.IF_SUPPORTED, True),
        (ServerKind.PRIMARY, Numbering.REQUIRED, True),
        (ServerKind.PRIMARY, Numbering.NEVER, False),
        (ServerKind.STANDALONE, Numbering.IF_SUPPORTED, False),
        (ServerKind.STANDALONE, Numbering.NEVER, False),
    ],
)
def test_what_the_driver_is_given(kind, numbering, expected):
    """The command with what its attempts share, and a number where server and retries allow it."""
    stage = Stage(kind)
    execution = stage.execution(Deadline.after(60), numbering)
    attempt = stage.start(execution)
    (call,) = stage.calls
    assert (expected, expected) == (call.may_have_transaction_id, attempt.may_be_repeated)
    assert (execution.command, execution.lease, execution.number, execution.deadline) == (
        call.command,
        call.lease,
        call.number,
        call.deadline,
    )
    assert (stage.server, {"comment": 1}) == (call.server, call.options)


@pytest.mark.parametrize("sent", [True, False])
def test_so_far(stage, sent, monkeypatch):
    """An attempt under way has no answer yet, but a server, a beginning and a duration."""
    execution = stage.execution()
    attempt = stage.start(execution, sent=sent)
    stage.loop.pass_by(2)
    monkeypatch.setattr(time, "time", lambda: 5000.0)
    found = attempt.so_far()
    assert (A, 4998.0, 2.0, sent) == (found.address, found.started, found.duration, found.sent)
    assert (None, None) == (found.error, found.reply)
    assert (attempt, []) == (execution.pending, execution.attempts)


class TestEnd:
    @pytest.mark.parametrize(
        ("result", "is_sending", "records", "has_server"),
        [
            (APPLIED, True, [(True, None, APPLIED.reply)], True),
            (Failed(BREAK, sent=True), True, [(True, BREAK, None)], True),
            (Failed(BREAK, sent=False), False, [(False, BREAK, None)], True),
            (NoServer(), False, [], False),
            (Expired(), False, [], False),
            (Expired(), True, [], True),
        ],
    )
    def test_what_is_remembered(self, stage, result, is_sending, records, has_server):
        """What was tried is in the history; its server is known if something may be there."""
        execution = stage.execution()
        attempt = stage.start(execution, sent=is_sending)
        attempt.land(result)
        assert records == [(each.sent, each.error, each.reply) for each in execution.attempts]
        assert (stage.server if has_server else None) is execution.server
        assert has_server is execution.has_transaction_id
        assert (True, None) == (attempt.is_over, execution.pending)

    def test_in_order(self, stage):
        """Its watch is told first, then its receiver; only then has somebody else its place."""
        failed = Failed(BREAK, sent=True)
        execution = stage.execution(Deadline.after(60, stage.loop.time))
        stage.start(execution).land(failed)
        stage.start(execution).land(APPLIED)
        first, second = execution.attempts
        expected = [(first, 1), failed, "place", (second, 2), APPLIED, "place"]
        assert (expected, []) == (stage.log, stage.loop.timers)

    @pytest.mark.parametrize("broken", ["end_attempt", "land"])
    def test_whatever_is_raised_there(self, stage, broken):
        """Neither a watch nor a receiver that fails keeps anybody waiting."""

        def fail(*_):
            raise ZeroDivisionError

        setattr(stage, broken, fail)
        attempt = stage.start(stage.execution())
        with pytest.raises(ZeroDivisionError):
            attempt.land(APPLIED)
        assert "place" == stage.log[-1]
        assert (APPLIED in stage.log) is (broken == "end_attempt")

    def test_an_error_in_the_answer(self, stage):
        """It is an attempt that failed, and has the labels of the answer, as no other has."""
        stage.start(stage.execution()).land(Replied({"ok": 1, "n": 1, "errorLabels": ["z"]}))
        execution = stage.execution()
        reply = {"ok": 1, "n": 0, "writeErrors": [DUPLICATE], "errorLabels": ["x", "y"]}
        stage.start(execution).land(Replied(reply))
        (record,) = execution.attempts
        assert isinstance(record.error, DuplicateKeyError)
        assert (True, None) == (record.sent, record.reply)
        assert [(record.error, "x"), (record.error, "y")] == stage.labels
        assert Failed(record.error, sent=True) == stage.log[-2]

    @pytest.mark.parametrize("is_late", [False, True])
    def test_whose_answer_it_is(self, stage, is_late):
        """Whoever reads an answer knows which server gave it, and not the one before."""
        execution = stage.execution()
        stage.start(execution).land(Failed(BREAK, sent=True))
        asked_first, stage.server = stage.server, replace(stage.server, max_wire_version=9)
        seen = []
        execution.command.error_in = lambda _: seen.append(execution.server)
        attempt = stage.start(execution)
        assert asked_first is execution.server
        if is_late:
            attempt.disown(REASON)
        attempt.land(APPLIED)
        assert [stage.server] == seen


class TestDeadline:
    def test_that_never_comes(self, stage):
        """Nothing is scheduled for it."""
        stage.start(stage.execution(Deadline.after(float("inf"))))
        assert [] == stage.loop.timers

    @pytest.mark.parametrize("ends_itself", [True, False])
    def test_while_it_is_sending(self, stage, ends_itself):
        """If the driver does not end it, it is left behind after a grace: sent, with no answer."""
        stage.ends_itself = ends_itself
        execution = stage.execution(Deadline.after(1, stage.loop.time))
        stage.start(execution)
        stage.loop.pass_by(1 + GRACE - 0.01)
        assert ([], []) == (stage.log, stage.abandoned)
        stage.loop.pass_by(0.02)
        if ends_itself:
            assert ([], [], []) == (stage.log, stage.abandoned, stage.loop.timers)
            return
        (record,) = execution.attempts
        assert (True, None, None) == (record.sent, record.error, record.reply)
        assert [(record, 1), Expired(), "place"] == stage.log
        assert stage.calls == stage.abandoned


class TestAbandoned:
    @pytest.mark.parametrize("sent", [True, False])
    def test_what_is_told(self, stage, sent):
        """The reason is its error, once; nothing is delivered, and its place is kept."""
        execution = stage.execution()
        attempt = stage.start(execution, sent=sent)
        attempt.disown(REASON)
        attempt.disown(KeyError("again"))
        (record,) = execution.attempts
        assert (sent, REASON) == (record.sent, record.error)
        assert [(record, 1)] == stage.log
        assert (stage.server if sent else None) is execution.server
        assert (True, sent) == (attempt.is_over, not stage.calls[0].token.is_revoked)

    @pytest.mark.parametrize("reads", [True, False])
    def test_a_read(self, stage, reads):
        """Its place is free at once: nothing is to be learnt of a late answer."""
        execution = stage.execution()
        if reads:
            reading = Reading(ReadPreference.PRIMARY, ReadConcern())
            execution.command = replace(execution.command, reading=reading)
        stage.start(execution).disown(REASON)
        assert reads is ("place" in stage.log)
        assert reads is bool(stage.abandoned)

    def test_one_that_waits_for_its_place(self, stage):
        """It waits no more, and nothing of it is left in the loop."""
        execution = stage.execution(Deadline.after(60, stage.loop.time))
        attempt = PendingAttempt(stage, stage.loop, execution, stage, stage)
        attempt.register()
        attempt.disown(REASON)
        assert ["place"] == stage.log[:1]
        assert [] == stage.loop.timers

    @pytest.mark.parametrize(
        ("sent", "late", "told", "ended"),
        [
            (True, APPLIED, (True, None, APPLIED.reply), "pooled"),
            (True, Failed(BREAK, sent=True), (True, BREAK, None), "discarded"),
            (False, Failed(BREAK, sent=False), (False, REASON, None), "discarded"),
        ],
    )
    def test_a_late_end(self, stage, sent, late, told, ended):
        """Of what was sent it takes the place of the reason; an answer frees the session."""
        execution = stage.execution(Deadline.after(60, stage.loop.time))
        execution.lease.carry()
        attempt = stage.start(execution, sent=sent)
        attempt.disown(REASON)
        execution.lease.finish(discard=True)
        attempt.land(late)
        execution.lease.drop()
        assert [told] == [(each.sent, each.error, each.reply) for each in execution.attempts]
        assert ([ended], []) == (stage.session.ended, stage.loop.timers)
        assert "place" == stage.log[-1]


@pytest.mark.parametrize("over_for", [0.0, 0.2])
def test_closing_gives_no_second_grace(stage, over_for):
    """Whose deadline is over when the client is closed ends as soon as without that."""
    deadline = Deadline(stage.loop.now + 1.0, stage.loop.time)
    attempt = stage.start(stage.execution(deadline))
    stage.loop.pass_by(1.0 + over_for)
    attempt.close(10.0)
    stage.loop.pass_by(GRACE - over_for + 0.001)
    assert attempt.is_over
