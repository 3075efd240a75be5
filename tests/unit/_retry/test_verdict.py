import math

import pytest
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    ExecutionTimeout,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)

from aioretry import Attempt, Outcome
from aioretry._commands.error_codes import RETRYABLE_CODES
from aioretry._commands.replies import error_in
from aioretry._drivers.port import Policy
from aioretry._retry.verdict import (
    Failure,
    GiveUp,
    Retry,
    RetryState,
    code_of,
    needs_label,
    outcome_of_attempts,
)

OVERLOAD = ["RetryableError", "SystemOverloadedError"]


def server_error(code=91, labels=(), **details):
    """An error that a server answered."""
    return OperationFailure("no", code, {"errmsg": "no", "errorLabels": list(labels), **details})


def network_error(*labels):
    """A network error, labelled as the coordinator labels it."""
    return AutoReconnect("lost", {"errorLabels": ["RetryableWriteError", *labels]})


def state(*, under_deadline=False, random=lambda: 1.0, **policy):
    """The retries of a fresh command."""
    return RetryState(Policy(**policy), under_deadline, random)


def failure(error, *, sent=True, numbered=True, lost=False, sharded=False):
    """A failed attempt."""
    return Failure(error, sent, numbered, lost, sharded)


def judge(retries, failed, time_left=math.inf):
    """The verdict on a failed attempt."""
    return retries.judge(failed, time_left=time_left)


class TestLabels:
    @pytest.mark.parametrize(
        "error", [AutoReconnect("x"), NetworkTimeout("x"), AutoReconnect("connection pool paused")]
    )
    def test_network_errors_are_labelled(self, error):
        """Network and pool-cleared errors get the label, whatever the server's version."""
        for version in (None, 8, 17):
            assert needs_label(error, retry_writes=True, max_wire_version=version, is_mongos=False)

    @pytest.mark.parametrize(
        "error", [WaitQueueTimeoutError("x"), ServerSelectionTimeoutError("x"), ValueError("x")]
    )
    def test_other_errors_of_the_driver_are_not(self, error):
        """Neither a full pool nor a failed selection is a network error."""
        assert not needs_label(error, retry_writes=True, max_wire_version=17, is_mongos=False)

    def test_nothing_is_labelled_without_retry_writes(self):
        """retryWrites=false means no label at all."""
        error = AutoReconnect("x")
        assert not needs_label(error, retry_writes=False, max_wire_version=17, is_mongos=False)

    @pytest.mark.parametrize("code", sorted(RETRYABLE_CODES))
    def test_servers_before_4_4_are_judged_by_code(self, code):
        """The listed codes count, at the top level, for servers that label nothing themselves."""
        for error in (server_error(code), NotPrimaryError("x", {"code": code})):
            assert needs_label(error, retry_writes=True, max_wire_version=8, is_mongos=False)
            assert not needs_label(error, retry_writes=True, max_wire_version=9, is_mongos=False)

    def test_other_codes_are_not_labelled(self):
        """A code that isn't listed is not retryable."""
        error = server_error(11000)
        assert not needs_label(error, retry_writes=True, max_wire_version=8, is_mongos=False)

    def test_write_errors_never_count(self):
        """writeErrors[].code is not a reason to retry."""
        error = WriteError("x", 91, {"code": 91})
        assert not needs_label(error, retry_writes=True, max_wire_version=8, is_mongos=False)

    def test_write_concern_errors_count_from_a_mongod_only(self):
        """writeConcernError.code counts from a mongod, not from a mongos."""
        error = WriteConcernError("x", 91, {"code": 91})
        assert needs_label(error, retry_writes=True, max_wire_version=8, is_mongos=False)
        assert not needs_label(error, retry_writes=True, max_wire_version=8, is_mongos=True)


class TestRetrying:
    def test_once_without_a_deadline(self):
        """Without a deadline there is one retry."""
        retries = state()
        assert judge(retries, failure(network_error())) == Retry(0.0, deprioritize=False)
        second = network_error()
        assert judge(retries, failure(second)) == GiveUp(second)

    def test_without_end_under_a_deadline(self):
        """Under a deadline only time ends the retries."""
        retries = state(under_deadline=True)
        for _ in range(50):
            assert isinstance(judge(retries, failure(network_error()), 1.0), Retry)

    def test_only_with_the_label(self):
        """An error without the label is final."""
        error = server_error(11601)
        assert judge(state(), failure(error)) == GiveUp(error)

    def test_only_with_a_transaction_id(self):
        """A command that had no transaction id is never sent again for that label."""
        error = network_error()
        assert judge(state(), failure(error, numbered=False)) == GiveUp(error)

    def test_max_time_expired_means_the_deadline_is_over(self):
        """Code 50 ends the operation as a timeout, under a deadline only."""
        for error in (
            ExecutionTimeout("x", 50, {}),
            WTimeoutError("x", 50, {}),
            WriteError("x", 50, {}),
            # Under a deadline, a free connection is awaited for what is left of it.
            WaitQueueTimeoutError("x"),
        ):
            assert judge(state(under_deadline=True), failure(error), 5) == GiveUp(
                error, timed_out=True
            )
            assert judge(state(), failure(error)) == GiveUp(error)
            # timeoutMS=0: no limit that could be over.
            assert judge(state(under_deadline=True), failure(error)) == GiveUp(error)

    def test_a_refused_connection_is_retried(self):
        """A server that is shutting down says so to a new connection; nothing was sent."""
        error = NotPrimaryError("shutting down", {"code": 91})
        assert isinstance(judge(state(), failure(error, sent=False)), Retry)
        assert judge(state(), failure(error)) == GiveUp(error)

    def test_a_deployment_without_retryable_writes_is_named(self):
        """Code 20 with "Transaction numbers" gets the specification's text."""
        error = server_error(20)
        original = OperationFailure(
            "Transaction numbers are only allowed on a replica set member or mongos", 20, {}
        )
        verdict = judge(state(), failure(original))
        assert isinstance(verdict, GiveUp)
        assert str(verdict.error).startswith(
            "This MongoDB deployment does not support retryable writes. "
            "Please add retryWrites=false to your connection string."
        )
        assert verdict.error.code == 20
        assert verdict.error.__cause__ is original
        assert judge(state(), failure(error)) == GiveUp(error)


class TestSurfacing:
    def test_the_latest_that_may_have_written(self):
        """Of two errors that may have written, the latest surfaces."""
        retries = state()
        judge(retries, failure(network_error()))
        second = server_error(11000)
        assert judge(retries, failure(second)) == GiveUp(second)

    def test_not_one_that_wrote_nothing(self):
        """An error that says NoWritesPerformed gives way to one that does not."""
        retries = state()
        first = network_error()
        judge(retries, failure(first))
        second = server_error(10107, ["NoWritesPerformed", "RetryableWriteError"])
        assert judge(retries, failure(second)) == GiveUp(first)

    def test_not_one_that_was_never_sent(self):
        """An error from before anything was sent gives way as well."""
        retries = state()
        first = network_error()
        judge(retries, failure(first))
        assert judge(retries, failure(WaitQueueTimeoutError("full"), sent=False)) == GiveUp(first)

    def test_the_first_if_nothing_was_written(self):
        """If no attempt wrote anything, the first error surfaces."""
        retries = state()
        first = server_error(91, ["NoWritesPerformed", "RetryableWriteError"])
        judge(retries, failure(first))
        second = server_error(10107, ["NoWritesPerformed", "RetryableWriteError"])
        assert judge(retries, failure(second)) == GiveUp(first)

    def test_a_later_one_that_may_have_written(self):
        """An error that may have written counts, also if it came before one that did not."""
        retries = state(under_deadline=True)
        judge(retries, failure(server_error(91, ["NoWritesPerformed", "RetryableWriteError"])))
        second = network_error()
        judge(retries, failure(second))
        third = server_error(13, ["NoWritesPerformed"])
        assert judge(retries, failure(third)) == GiveUp(second)


class TestOverload:
    def test_any_command_is_retried_twice(self):
        """Both labels have even a command without a transaction id sent again, twice."""
        retries = state()
        for _ in range(2):
            verdict = judge(retries, failure(server_error(462, OVERLOAD), numbered=False))
            assert isinstance(verdict, Retry)
        last = server_error(462, OVERLOAD)
        assert judge(retries, failure(last, numbered=False)) == GiveUp(last)

    def test_a_deadline_does_not_lift_the_limit(self):
        """maxAdaptiveRetries holds under a deadline too, and for every later error."""
        retries = state(under_deadline=True)
        judge(retries, failure(server_error(462, OVERLOAD)), 60)
        judge(retries, failure(network_error()), 60)
        last = network_error()
        assert judge(retries, failure(last), 60) == GiveUp(last)

    def test_the_limit_is_an_option(self):
        """maxAdaptiveRetries=0 means no retry of an overload error."""
        error = server_error(462, OVERLOAD)
        assert judge(state(max_adaptive_retries=0), failure(error)) == GiveUp(error)

    def test_not_without_retry_writes(self):
        """A write is not retried on overload if retryWrites is off."""
        error = server_error(462, OVERLOAD)
        assert judge(state(retry_writes=False), failure(error, numbered=False)) == GiveUp(error)

    def test_reads_have_an_option_of_their_own(self):
        """A read is not retried on overload if retryReads is off, whatever retryWrites is."""
        error = server_error(462, OVERLOAD)
        read = Failure(error, sent=True, has_transaction_id=False, is_read=True)
        assert judge(state(retry_reads=False), read) == GiveUp(error)
        assert isinstance(judge(state(retry_writes=False), read), Retry)

    def test_overload_without_retryable_is_final(self):
        """SystemOverloadedError alone is no reason to send again."""
        error = server_error(462, ["SystemOverloadedError"])
        assert judge(state(), failure(error)) == GiveUp(error)

    def test_backoff_doubles_up_to_ten_seconds(self):
        """The wait is jitter times base times two to the number of the retry."""
        retries = state(max_adaptive_retries=9)
        overload = failure(server_error(462, OVERLOAD))
        waits = [judge(retries, overload).wait for _ in range(9)]
        assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0])

    def test_backoff_counts_other_retries_and_scales_with_jitter(self):
        """A retry for another reason counts for the exponent; jitter multiplies."""
        retries = state(under_deadline=True, random=lambda: 0.5)
        judge(retries, failure(network_error()))
        assert judge(retries, failure(server_error(462, OVERLOAD))).wait == pytest.approx(0.2)

    def test_the_server_may_name_the_base(self):
        """baseBackoffMS of the reply replaces the 100 ms."""
        error = server_error(462, OVERLOAD, baseBackoffMS=10)
        assert judge(state(), failure(error)).wait == pytest.approx(0.02)

    def test_a_retryable_write_error_backs_off_too(self):
        """SystemOverloadedError with RetryableWriteError alone backs off and caps the total."""
        retries = state(under_deadline=True)
        error = server_error(91, ["RetryableWriteError", "SystemOverloadedError"])
        assert judge(retries, failure(error)).wait == pytest.approx(0.2)
        assert isinstance(judge(retries, failure(network_error())), Retry)
        assert isinstance(judge(retries, failure(network_error())), GiveUp)

    def test_a_wait_beyond_the_deadline_is_not_begun(self):
        """If the backoff would pass the deadline, the error is raised at once."""
        error = server_error(462, OVERLOAD)
        assert judge(state(under_deadline=True), failure(error), 0.2) == GiveUp(error)
        assert isinstance(judge(state(under_deadline=True), failure(error), 0.21), Retry)

    def test_a_server_that_is_gone_is_not_overloaded(self):
        """A failure to connect to a server that the topology has lost is a plain network error."""
        retries = state(under_deadline=True)
        for _ in range(10):
            verdict = judge(retries, failure(network_error(*OVERLOAD), sent=False, lost=True), 9)
            assert verdict == Retry(0.0, deprioritize=False)
        verdict = judge(retries, failure(network_error(*OVERLOAD), sent=False), 9e9)
        assert isinstance(verdict, GiveUp)


class TestDeprioritizing:
    def test_sharded_always(self):
        """On a sharded cluster the failed address is avoided after every retryable error."""
        assert judge(state(), failure(network_error(), sharded=True)).deprioritize

    def test_elsewhere_only_on_overload_and_if_asked_for(self):
        """Elsewhere only enableOverloadRetargeting and an overload error do it."""
        overload = failure(server_error(462, OVERLOAD))
        assert not judge(state(), overload).deprioritize
        assert judge(state(overload_retargeting=True), overload).deprioritize
        assert not judge(state(overload_retargeting=True), failure(network_error())).deprioritize


def attempt(error, *, sent=True, host="host"):
    """An attempt of the history."""
    return Attempt((host, 1), 0.0, 0.0, sent, error)


DUPLICATE = {"index": 0, "code": 11000, "errmsg": "y"}
CONCERN = {"code": 64, "errmsg": "z", "errInfo": {"wtimeout": True}}
REPLIED = Attempt(("host", 1), 0.0, 0.0, True, None, {"ok": 1})


class TestOutcome:
    @pytest.mark.parametrize(
        ("attempts", "expected"),
        [
            ([], Outcome.NOT_APPLIED),
            ([attempt(AutoReconnect("x"), sent=False)], Outcome.NOT_APPLIED),
            ([attempt(AutoReconnect("x"))], Outcome.UNKNOWN),
            ([attempt(None)], Outcome.UNKNOWN),
            ([attempt(DuplicateKeyError("x", 11000, {}))], Outcome.NOT_APPLIED),
            ([attempt(server_error(13))], Outcome.NOT_APPLIED),
            ([attempt(server_error(91))], Outcome.UNKNOWN),
            ([attempt(server_error(91, ["NoWritesPerformed"]))], Outcome.NOT_APPLIED),
            ([attempt(ExecutionTimeout("x", 50, {}))], Outcome.UNKNOWN),
            ([attempt(WTimeoutError("x", 64, {}))], Outcome.UNKNOWN),
            ([attempt(OperationFailure("no code"))], Outcome.UNKNOWN),
            (
                [attempt(AutoReconnect("x")), attempt(AutoReconnect("y"), sent=False)],
                Outcome.UNKNOWN,
            ),
            ([attempt(AutoReconnect("x")), attempt(server_error(13))], Outcome.UNKNOWN),
            (
                [attempt(AutoReconnect("x")), attempt(DuplicateKeyError("y", 11000, {}))],
                Outcome.UNKNOWN,
            ),
            (
                [
                    attempt(AutoReconnect("x"), host="other"),
                    attempt(DuplicateKeyError("y", 11000, {})),
                ],
                Outcome.NOT_APPLIED,
            ),
            (
                [
                    attempt(AutoReconnect("x"), host="other"),
                    attempt(error_in({"writeErrors": [DUPLICATE], "writeConcernError": CONCERN})),
                ],
                Outcome.UNKNOWN,
            ),
            ([attempt(AutoReconnect("x")), REPLIED], Outcome.APPLIED),
        ],
    )
    def test_of_a_failed_write(self, attempts, expected):
        """Only an answer that denies the write ends the doubt that a lost reply leaves."""
        assert expected == outcome_of_attempts(attempts, is_by_majority=True)

    def test_of_one_that_a_minority_denies(self):
        """A refusal that may be rolled back leaves the doubt about another server's attempt."""
        denied = attempt(DuplicateKeyError("y", 11000, {}))
        attempts = [attempt(AutoReconnect("x"), host="other"), denied]
        assert Outcome.UNKNOWN == outcome_of_attempts(attempts)
        assert Outcome.NOT_APPLIED == outcome_of_attempts([denied])

    @pytest.mark.parametrize(
        ("attempts", "expected"),
        [
            (
                [
                    attempt(AutoReconnect("x"), host="other"),
                    attempt(DuplicateKeyError("y", 11000, {})),
                ],
                Outcome.UNKNOWN,
            ),
            ([attempt(DuplicateKeyError("y", 11000, {}))], Outcome.NOT_APPLIED),
            ([attempt(AutoReconnect("x"), host="other"), REPLIED], Outcome.APPLIED),
            ([attempt(WriteError("y", 6, {}))], Outcome.UNKNOWN),
            ([attempt(WriteError("y", 50, {}))], Outcome.UNKNOWN),
            ([attempt(WriteError("y", 121, {}))], Outcome.NOT_APPLIED),
        ],
    )
    def test_of_one_that_routers_pass_on(self, attempts, expected):
        """Behind another router there may be the same server, and the lost attempt in its queue."""
        assert expected == outcome_of_attempts(attempts, is_sharded=True)


class TestMemoriesLost:
    """A server that has forgotten what came before says nothing of it."""

    @pytest.mark.parametrize("is_atomic", [True, False])
    @pytest.mark.parametrize(
        ("codes", "expected"),
        [
            ([225], Outcome.NOT_APPLIED),  # sent once, and refused
            ([None, 225], Outcome.UNKNOWN),
            ([225, 225], Outcome.NOT_APPLIED),  # each time
            ([217], Outcome.UNKNOWN),
            ([None, 217], Outcome.UNKNOWN),
        ],
    )
    def test_is_no_denial(self, codes, expected, is_atomic):
        """That the session has gone on denies nothing that was sent before."""
        attempts = [
            Attempt(("a", 1), 0.0, 0.0, True, None if code is None else server_error(code))
            for code in codes
        ]
        assert expected is outcome_of_attempts(attempts, is_atomic=is_atomic)


def test_code_of():
    """Codes come from server errors only."""
    assert code_of(server_error(91)) == 91
    assert code_of(NotPrimaryError("x", {"code": 10107})) == 10107
    assert code_of(NotPrimaryError("x")) is None
    assert code_of(AutoReconnect("x")) is None


class TestPauses:
    def test_none_before_the_first_retry(self):
        """One broken connection, as of a restarted proxy, costs no time."""
        assert 0.0 == judge(state(under_deadline=True), failure(network_error()), 60).wait

    def test_they_grow_up_to_a_second(self):
        """From the second break in a row on there is a pause, twice as long each time."""
        retries = state(under_deadline=True)
        waits = [judge(retries, failure(network_error()), 60).wait for _ in range(9)]
        assert waits == pytest.approx([0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1])

    def test_they_have_jitter(self):
        """Those that broke together do not come back together."""
        numbers = iter([0.5, 0.25])
        retries = state(under_deadline=True, random=lambda: next(numbers))
        waits = [judge(retries, failure(network_error()), 60).wait for _ in range(3)]
        assert waits == pytest.approx([0, 0.01, 0.01])

    def test_not_if_the_server_is_lost(self):
        """An election is waited for, and not more than that."""
        retries = state(under_deadline=True)
        lost = failure(network_error(), lost=True)
        assert [0.0] * 5 == [judge(retries, lost, 60).wait for _ in range(5)]

    def test_an_answer_ends_the_row(self):
        """A server that answers has a connection that does not break."""
        retries = state(under_deadline=True)
        for error in (network_error(), server_error(91, ["RetryableWriteError"]), network_error()):
            assert 0.0 == judge(retries, failure(error), 60).wait

    def test_there_is_time_for_another_attempt_after_it(self):
        """Near the deadline a pause is half of what is left at most."""
        retries = state(under_deadline=True)
        judge(retries, failure(network_error()), 60)
        assert judge(retries, failure(network_error()), 0.01).wait == pytest.approx(0.005)

    def test_without_end(self):
        """A day of breaks is no more than its pauses."""
        retries = state(under_deadline=True)
        waits = [judge(retries, failure(network_error()), math.inf).wait for _ in range(5000)]
        assert 1.0 == waits[-1]


class TestRefusedConnections:
    def refused(self):
        error = network_error(*OVERLOAD)
        error.__cause__ = ConnectionRefusedError(111, "Connection refused")
        return error

    def test_they_are_no_overload(self):
        """Where nobody listens nothing is overloaded: only time ends the retries."""
        retries = state(under_deadline=True)
        for _ in range(10):
            assert isinstance(judge(retries, failure(self.refused(), sent=False), 60), Retry)

    def test_they_are_retried_with_pauses(self):
        """The driver goes on to take the server for known."""
        retries = state(under_deadline=True)
        waits = [judge(retries, failure(self.refused(), sent=False), 60).wait for _ in range(3)]
        assert waits == pytest.approx([0, 0.02, 0.04])

    def test_timeouts_and_breaks_are(self):
        """What ends while a connection is opened may be overload, and is retried twice."""
        for cause in (TimeoutError("timed out"), ConnectionResetError(104, "reset"), None):
            retries = state(under_deadline=True)
            for retried in (True, True, False):
                error = network_error(*OVERLOAD)
                error.__cause__ = cause
                verdict = judge(retries, failure(error, sent=False), 60)
                assert retried is isinstance(verdict, Retry)

    def test_without_transaction_id(self):
        """What had none is retried for its labels alone, so that they count."""
        retries = state(under_deadline=True)
        for retried in (True, True, False):
            verdict = judge(retries, failure(self.refused(), sent=False, numbered=False), 60)
            assert retried is isinstance(verdict, Retry)


class TestRouters:
    @pytest.mark.parametrize("code", [133, 317, 90, 11601, 112, 217, 225, 13388, 8000, 91])
    def test_what_the_last_sending_met(self, code):
        """A router may have sent the command before, and been told nothing."""
        for error in (server_error(code), WriteError("x", code, {})):
            expected = Outcome.UNKNOWN
            assert expected == outcome_of_attempts([attempt(error)], is_sharded=True)

    @pytest.mark.parametrize("code", [9, 13, 18, 20, 59, 72, 73, 61, 66, 121, 166, 11000])
    def test_what_is_so_of_each_sending(self, code):
        """What the command or its document is does not change on the way."""
        for error in (server_error(code), WriteError("x", code, {})):
            expected = Outcome.NOT_APPLIED
            assert expected == outcome_of_attempts([attempt(error)], is_sharded=True)

    def test_labels_that_deny(self):
        """A router that says that nothing was written is believed, whatever the code."""
        for labels in (["NoWritesPerformed"], OVERLOAD):
            tried = [attempt(server_error(133, labels))]
            assert Outcome.NOT_APPLIED == outcome_of_attempts(tried, is_sharded=True)

    def test_a_member_of_a_replica_set_speaks_for_itself(self):
        """It sends to nobody."""
        tried = [attempt(server_error(133))]
        assert Outcome.NOT_APPLIED == outcome_of_attempts(tried)
