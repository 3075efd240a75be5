"""What follows from a transaction's errors, without a server."""

import math

import pytest
from pymongo.errors import AutoReconnect, OperationFailure, WriteConcernError
from pymongo.write_concern import WriteConcern

from aioretry._retry.transactions import (
    RETRY_LIMIT,
    Commit,
    CommitAgain,
    CommitSending,
    Raise,
    RunAgain,
    TransactionRetries,
    backoff,
    outcome_of_commit,
)
from aioretry.errors import Attempt, DeadlineExceeded, Outcome

TRANSIENT = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
RAISE, TIME_OUT = Raise(timed_out=False), Raise(timed_out=True)


def labelled(*labels, code=None):
    """An error of the server's with labels."""
    return OperationFailure("failed", code, {"errorLabels": list(labels)})


def group(*errors):
    """What a TaskGroup raises."""
    return BaseExceptionGroup("unhandled errors in a TaskGroup", errors)


def retries(random=lambda: 0.5, **options):
    """The retries of a call whose jitter is known."""
    return TransactionRetries(random, **options)


class TestCallback:
    @pytest.mark.parametrize(
        ("error", "time_left", "decision"),
        [
            (labelled(TRANSIENT), 9.0, RunAgain(0.0025)),
            (labelled(TRANSIENT, UNKNOWN_COMMIT), 9.0, RunAgain(0.0025)),
            (labelled(TRANSIENT), math.inf, RunAgain(0.0025)),
            (labelled(TRANSIENT), 0.0, TIME_OUT),
            (labelled(TRANSIENT), 0.0025, TIME_OUT),
            (labelled(UNKNOWN_COMMIT), 9.0, RAISE),
            (labelled(UNKNOWN_COMMIT), 0.0, RAISE),
            (labelled("RetryableWriteError"), 9.0, RAISE),
            (AutoReconnect("no label"), 9.0, RAISE),
            (ValueError("the user's"), 0.0, RAISE),
            (KeyboardInterrupt(), 9.0, RAISE),
            (group(labelled(TRANSIENT)), 9.0, RunAgain(0.0025)),
            (group(ValueError(), group(labelled(TRANSIENT))), 9.0, RunAgain(0.0025)),
            (group(labelled(TRANSIENT)), 0.0, TIME_OUT),
            (group(ValueError(), AutoReconnect("no label")), 9.0, RAISE),
            (group(labelled(TRANSIENT), KeyboardInterrupt()), 9.0, RAISE),
        ],
    )
    def test_table(self, error, time_left, decision):
        """Transient errors alone have everything run again, if the wait ends in time."""
        assert decision == retries().after_callback(error, time_left=time_left)


class TestCommit:
    @pytest.mark.parametrize(
        ("error", "time_left", "decision"),
        [
            (labelled(UNKNOWN_COMMIT), 9.0, CommitAgain()),
            (labelled(UNKNOWN_COMMIT), 0.0, TIME_OUT),
            (labelled(UNKNOWN_COMMIT, TRANSIENT), 9.0, CommitAgain()),
            (labelled(UNKNOWN_COMMIT, code=50), 9.0, RAISE),
            (labelled(UNKNOWN_COMMIT, code=50), 0.0, RAISE),
            (WriteConcernError("expired", 50, {"errorLabels": [UNKNOWN_COMMIT]}), 9.0, RAISE),
            (labelled(TRANSIENT), 9.0, RunAgain(0.0025)),
            (labelled(TRANSIENT), 0.0, TIME_OUT),
            (labelled(), 9.0, RAISE),
            (labelled(), 0.0, RAISE),
        ],
    )
    def test_table(self, error, time_left, decision):
        """The commit is sent again as long as its result is unknown and there is time."""
        assert decision == retries().after_commit(error, time_left=time_left)


@pytest.mark.parametrize("judge", ["after_callback", "after_commit"])
class TestMaxTimeExpired:
    def test_is_the_deadline(self, judge):
        """MaxTimeMSExpired is a timeout where the limit that the server had is the deadline."""
        ours = retries(under_deadline=True)
        error = labelled(UNKNOWN_COMMIT, TRANSIENT, code=50)
        assert TIME_OUT == getattr(ours, judge)(error, time_left=1.0)

    def test_in_a_group(self, judge):
        """So it is in what a TaskGroup raises."""
        ours = retries(under_deadline=True)
        error = group(ValueError(), labelled(code=50))
        assert TIME_OUT == getattr(ours, judge)(error, time_left=1.0)

    def test_is_the_users_without_one(self, judge):
        """Where a deadline sets no limit, the limit is the user's."""
        ours = retries(under_deadline=True)
        error = labelled(UNKNOWN_COMMIT, code=50)
        assert RAISE == getattr(ours, judge)(error, time_left=math.inf)


def test_a_commit_that_says_that_time_is_over():
    """It is let through as it is, with its own outcome."""
    late = DeadlineExceeded("over", {"errorLabels": [UNKNOWN_COMMIT]})
    assert RAISE == retries(under_deadline=True).after_commit(late, time_left=1.0)


class TestBackoff:
    def test_grows_to_its_limit(self):
        """5 ms, half as much again each time, at most 500 ms; 13 of them are some 1.8 s."""
        waits = [backoff(n) for n in range(14)]
        assert [0.005, 0.0075, 0.01125] == pytest.approx(waits[:3])
        assert [0.5, 0.5] == [waits[13], backoff(10**6)]
        assert 1.787 == pytest.approx(sum(waits[:13]), abs=0.001)

    def test_each_run_counts(self):
        """Failed callbacks and failed commits count together; repeated commits don't."""
        ours = retries(lambda: 1.0)
        waits = [
            ours.after_callback(labelled(TRANSIENT), time_left=9.0),
            ours.after_commit(labelled(UNKNOWN_COMMIT), time_left=9.0),
            ours.after_commit(labelled(TRANSIENT), time_left=9.0),
            ours.after_callback(labelled(TRANSIENT), time_left=9.0),
        ]
        assert [RunAgain(0.005), CommitAgain(), RunAgain(0.0075), RunAgain(0.01125)] == waits

    def test_time_that_is_gone_meanwhile(self):
        """What was to be run again is not, and does not count."""
        ours = retries(lambda: 1.0)
        again = ours.after_callback(labelled(TRANSIENT), time_left=9.0)
        assert (again, 1) == (ours.still(again, time_left=0.006), ours.retries)
        assert (TIME_OUT, 0) == (ours.still(again, time_left=0.004), ours.retries)
        assert RAISE == ours.still(RAISE, time_left=0.0)

    def test_jitter_may_be_nothing(self):
        """A random number of 0 means no wait."""
        assert RunAgain(0.0) == retries(lambda: 0.0).after_callback(
            labelled(TRANSIENT), time_left=RETRY_LIMIT
        )


LOST = AutoReconnect("lost")
GONE = labelled(TRANSIENT, code=251)
CONCERN = WriteConcernError("not yet", 64, {})
REFUSED = labelled(code=13)
APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
TRUSTED = 25 * 60.0


def sending(error, *, by_majority=True, to_router=False, age=0.0):
    """A sending that was answered so; "ok" is no error."""
    reply = {"ok": 1} if error == "ok" else None
    attempt = Attempt(("a", 1), 0.0, 0.0, True, None if reply else error, reply)
    return CommitSending(attempt, by_majority, to_router, age)


class TestOutcomes:
    @pytest.mark.parametrize(
        ("errors", "outcome"),
        [
            ([], NOT_APPLIED),
            ([None], UNKNOWN),
            ([LOST], UNKNOWN),
            ([LOST, "ok"], APPLIED),
            (["ok", GONE], APPLIED),
            ([GONE], NOT_APPLIED),
            ([LOST, GONE], NOT_APPLIED),
            ([LOST, GONE, LOST], UNKNOWN),
            ([LOST, labelled(code=251)], UNKNOWN),
            ([LOST, labelled(TRANSIENT, code=112)], UNKNOWN),
            ([labelled(TRANSIENT, code=112)], NOT_APPLIED),
            ([REFUSED], NOT_APPLIED),
            ([LOST, REFUSED], UNKNOWN),
            ([labelled(UNKNOWN_COMMIT, code=50)], UNKNOWN),
            ([CONCERN], UNKNOWN),
            ([labelled(code=217)], UNKNOWN),
            ([labelled(code=225)], UNKNOWN),
            ([LOST, labelled(code=225)], UNKNOWN),
        ],
    )
    def test_of_servers(self, errors, outcome):
        """What servers of the data say, when it is the latest that they know."""
        commit = Commit(WriteConcern(), session_minutes=30, sendings=[*map(sending, errors)])
        assert outcome is outcome_of_commit(commit)

    @pytest.mark.parametrize(
        ("minutes", "how", "outcome"),
        [
            (30, {"age": TRUSTED - 1}, NOT_APPLIED),
            (30, {"age": TRUSTED}, UNKNOWN),
            (None, {"age": TRUSTED - 1}, NOT_APPLIED),
            (6, {"age": 301.0}, UNKNOWN),
            (30, {"by_majority": False}, UNKNOWN),
            (30, {"to_router": True}, UNKNOWN),
        ],
    )
    def test_who_is_believed(self, minutes, how, outcome):
        """Who has no such transaction may have forgotten it, or be no primary, or pass it on."""
        sendings = [sending(LOST), sending(GONE, **how)]
        commit = Commit(WriteConcern(), session_minutes=minutes, sendings=sendings)
        assert outcome is outcome_of_commit(commit)

    def test_of_a_router_at_once(self):
        """It may have sent it before."""
        commit = Commit(WriteConcern(), sendings=[sending(GONE, to_router=True)])
        assert UNKNOWN is outcome_of_commit(commit)

    def test_may_be_committed(self):
        """The label does not have all of it run again then."""
        assert RAISE == retries().after_commit(GONE, time_left=9.0, may_be_committed=True)
