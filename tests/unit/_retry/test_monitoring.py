"""What hooks are told of an operation, and when."""

import time

import pytest
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure
from pymongo.results import BulkWriteResult

from aioretry import Attempt, Outcome
from aioretry._retry.monitoring import OperationWatch, SharedWatch, Watchers
from aioretry.errors import PartialResult, attach
from aioretry.events import (
    AttemptBegan,
    AttemptEnded,
    OperationBegan,
    OperationEnded,
    SentCommand,
    every_event,
)

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
OK = Attempt(("a", 1), 0.0, 0.5, True, None, {"ok": 1})
FAILED = Attempt(("b", 2), 0.0, 0.25, True, OperationFailure("no", 91))
UNSENT = Attempt(None, 0.0, 0.0, False, AutoReconnect("it broke"))
INSERT = SentCommand("insert", 3)


def watch(*hooks):
    """A watch of an operation, and what it has told."""
    events = []
    told = events.append, *hooks
    return OperationWatch(told, told, "insert_one", "db.c"), events


def bulk_error(*, writes=(), concerns=()):
    """The error of a bulk operation with such codes."""
    return BulkWriteError(
        {
            "writeErrors": [{"index": 0, **each} for each in writes],
            "writeConcernErrors": list(concerns),
        }
    )


class TestWatchers:
    def test_nobody(self):
        """Whoever is told of retries only is nobody here, nor is who says anything but True."""

        def vague(event):
            raise AssertionError(event)

        vague.wants_every_event = 1
        for hooks in [(), ([].append,), (vague,)]:
            watchers = Watchers(hooks)
            assert (False, None) == (bool(watchers), watchers.watch("insert_one", "db.c"))

    def test_whoever_wants_to_know(self):
        """Those are told at once that it begins, and the others nothing."""
        events, retries = [], []
        watchers = Watchers((retries.append, every_event(events.append)))
        assert watchers
        found = watchers.watch("insert_one", "db.c")
        assert [OperationBegan("insert_one", "db.c", found.notes)] == events
        found.end(None)
        assert ([], OperationEnded) == (retries, type(events[-1]))

    def test_beginnings(self):
        """A hook that wants none is told of no beginning; all others are."""

        class Ends(list):
            wants_every_event, wants_beginnings = True, False

            def __call__(self, event):
                self.append(type(event))

        class Both(Ends):
            wants_beginnings = None

        ends, both, notes = Ends(), Both(), {}
        found = Watchers((ends, both)).watch("insert_one", "db.c")
        found.begin_attempt("insert", 1, notes)
        found.end_attempt(OK, 1, INSERT, notes)
        found.end(None)
        assert [AttemptEnded, OperationEnded] == ends
        assert [OperationBegan, AttemptBegan, AttemptEnded, OperationEnded] == both


class TestAttempts:
    @pytest.mark.parametrize(
        ("attempt", "error_class", "code"),
        [(OK, None, None), (FAILED, "OperationFailure", 91), (UNSENT, "AutoReconnect", None)],
    )
    def test_one(self, attempt, error_class, code):
        """It is told as it is recorded, under the number that it is given."""
        found, events = watch()
        found.end_attempt(attempt, 3, INSERT, {})
        told = attempt.address, 3, attempt.duration, attempt.sent, error_class, code
        assert AttemptEnded("insert_one", "db.c", *told, 0.0, INSERT, {}, {}) == events[-1]

    def test_waits(self):
        """Each tells how long it was waited for since the one before, and the end tells all."""
        found, events = watch()
        found.add_wait(1.0)
        found.add_wait(2.0)
        found.end_attempt(FAILED, 1, INSERT, {})
        found.end_attempt(FAILED, 2, INSERT, {})
        found.add_wait(4.0)
        found.end_attempt(OK, 3, INSERT, {})
        found.add_wait(8.0)
        found.end(None)
        assert [3.0, 0.0, 4.0, 15.0] == [event.server_wait for event in events[1:]]

    def test_a_beginning(self):
        """It is told with the notes of the attempt, which another one does not have."""
        found, events = watch()
        found.begin_attempt("insert", 1, {"mine": 1})
        event = events[-1]
        assert AttemptBegan("insert_one", "db.c", "insert", 1, (), {}, {}) == event
        assert ({"mine": 1}, ()) == (event.attempt_notes, event.sharing)

    def test_what_was_sent(self):
        """The end tells the latest server, and how many statements were sent, none twice."""
        found, events = watch()
        found.end_attempt(FAILED, 1, SentCommand("insert", 1), {})  # nothing was prepared
        found.end_attempt(FAILED, 2, INSERT, {})
        found.end_attempt(OK, 3, INSERT, {})
        found.end_attempt(OK, 1, SentCommand("insert", 2), {})  # of the next command
        found.end(None)
        assert (("a", 1), 5) == (events[-1].address, events[-1].sent_statements)

    def test_after_the_end(self):
        """What lands late is told to nobody."""
        found, events = watch()
        found.end(None)
        found.end_attempt(OK, 1, INSERT, {})
        assert [OperationBegan, OperationEnded] == list(map(type, events))

    def test_they_share_their_notes(self):
        """All events of an operation have the same ones, and another operation has its own."""
        found, events = watch()
        found.end_attempt(OK, 1, INSERT, {})
        found.end(None)
        assert {id(found.notes)} == {id(event.notes) for event in events}
        assert found.notes is not watch()[0].notes


class TestTransactions:
    def test_within(self):
        """A part of a transaction is told with the transaction's notes."""
        events = []
        watchers = Watchers((every_event(events.append),))
        outer = watchers.watch("transaction", "admin")
        outer.notes["x"] = 1
        watchers.watch("insert_one", "db.c", outer)
        assert [None, {"x": 1}] == [event.within for event in events]

    def test_aborted(self):
        """It is told to be not applied, though nothing was raised."""
        found, events = watch()
        found.end(None, NOT_APPLIED)
        assert (NOT_APPLIED, None) == (events[-1].outcome, events[-1].error_class)


class TestEnd:
    def test_once(self):
        """Only the first is told."""
        found, events = watch()
        found.end(None)
        found.end(KeyError())
        assert (2, APPLIED) == (len(events), events[-1].outcome)

    def test_counts(self, monkeypatch):
        """It tells how many attempts there were of all commands, and how long it took."""
        monkeypatch.setattr(time, "monotonic", lambda: 10.0)
        found, events = watch()
        found.end_attempt(OK, 1, INSERT, {})
        found.end_attempt(OK, 1, INSERT, {})  # of the next command
        monkeypatch.setattr(time, "monotonic", lambda: 12.5)
        found.end(None)
        event = events[-1]
        assert (2, 2.5, None, None) == (
            event.attempts,
            event.duration,
            event.error_class,
            event.error_code,
        )

    @pytest.mark.parametrize("reported", [APPLIED, NOT_APPLIED, UNKNOWN, None])
    @pytest.mark.parametrize("tried", [True, False])
    def test_outcome(self, reported, tried):
        """What an error says of it counts; one that says nothing leaves in doubt what was tried."""
        found, events = watch()
        error = KeyError()
        if reported is not None:
            attach(error, reported, [])
        if tried:
            found.end_attempt(UNSENT, 1, INSERT, {})
        found.end(error)
        expected = reported or (UNKNOWN if tried else NOT_APPLIED)
        assert (expected, "KeyError") == (events[-1].outcome, events[-1].error_class)

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (OperationFailure("no", 91), 91),
            (AutoReconnect("it broke"), None),
            (bulk_error(writes=[{"code": 11000}, {"code": 11000}]), 11000),
            (bulk_error(concerns=[{"code": 64}]), 64),
            (bulk_error(writes=[{"code": 64}], concerns=[{"code": 64}]), 64),
            (bulk_error(writes=[{"code": 11000}], concerns=[{"code": 64}]), None),
            (bulk_error(writes=[{"code": 11000}, {}]), None),
            (bulk_error(writes=[{"code": "x"}]), None),
            (bulk_error(), None),
            (BulkWriteError({}), None),
        ],
    )
    def test_code(self, error, expected):
        """It is the server's; of a bulk operation the one that all its errors have."""
        found, events = watch()
        found.end(error)
        assert expected == events[-1].error_code

    def test_statements(self):
        """Of a bulk operation that raised it is told how many ended in each way."""
        found, events = watch()
        error = bulk_error(writes=[{"code": 1}])
        result = BulkWriteResult({}, True)
        partial = PartialResult(result, (APPLIED, UNKNOWN, APPLIED))
        attach(error, UNKNOWN, [], partial)
        found.end(error)
        assert {APPLIED: 2, UNKNOWN: 1} == events[-1].statements
        other, others = watch()
        other.end(KeyError())
        assert others[-1].statements is None


def test_a_shared_command():
    """All who share it at that moment are told of waits and attempts, and nobody of its end."""
    (first, firsts), (second, seconds) = watch(), watch()
    sharing = [first, second]
    shared = SharedWatch(lambda: sharing)
    shared.add_wait(1.0)
    sharing.remove(second)
    shared.add_wait(2.0)
    shared.end_attempt(OK, 2, INSERT, {})
    sharing.append(second)
    shared.end_attempt(FAILED, 3, INSERT, {})
    shared.end(None)
    assert [(2, 3.0), (3, 0.0)] == [(each.attempt, each.server_wait) for each in firsts[1:]]
    assert [(3, 1.0)] == [(each.attempt, each.server_wait) for each in seconds[1:]]
    shared.notes["x"] = 1
    assert ({}, {}, {}) == (shared.notes, first.notes, second.notes)


def test_a_shared_beginning():
    """The first is told, with the notes of the others; with nobody left, nobody is."""
    (first, firsts), (second, seconds) = watch(), watch()
    second.notes["x"] = 1
    sharing = [first, second]
    shared = SharedWatch(lambda: sharing)
    shared.begin_attempt("insert", 1, {})
    assert [{"x": 1}] == firsts[-1].sharing
    assert [OperationBegan] == list(map(type, seconds))
    sharing.clear()
    shared.begin_attempt("insert", 2, {})
    assert 2 == len(firsts)
