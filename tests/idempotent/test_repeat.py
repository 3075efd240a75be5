"""When runs are repeated, and what is told of all of them; no server is asked."""

import asyncio
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
    WTimeoutError,
)

from aioretry import DeadlineExceeded, Outcome, outcome_of
from aioretry.errors import attach
from aioretry.idempotent._repeat import (
    Repeats,
    RunAgain,
    RunNoMore,
    may_have_written,
    repeat,
)

OVERLOADED = {"errorLabels": ["SystemOverloadedError", "RetryableError"]}


class Runs:
    """Runs that end as they are told, one after the other."""

    def __init__(self, *endings):
        self.endings = list(endings)
        self.doubts = []

    async def __call__(self, doubt):
        """One run."""
        self.doubts.append(doubt)
        ending = self.endings.pop(0)
        if isinstance(ending, asyncio.Event):
            ending.set()
            await asyncio.Event().wait()
        if isinstance(ending, BaseException):
            raise ending
        return ending


def labelled(error, label):
    """The error with a label."""
    error._add_error_label(label)
    return error


WORTH_ANOTHER = [
    AutoReconnect("lost"),
    NetworkTimeout("no answer"),
    NotPrimaryError("not primary", {"code": 10107}),
    OperationFailure("shutting down", 91),
    OperationFailure("not yet", 134),
    labelled(OperationFailure("the server says so", 5), "RetryableWriteError"),
    WriteConcernError("stepped down", 189, {}),
    labelled(AutoReconnect("refused"), "SystemOverloadedError"),
]
FINAL = [
    OperationFailure("not authorized", 13),
    OperationFailure("overloaded", 91, OVERLOADED),
    DuplicateKeyError("duplicate", 11000),
    WTimeoutError("too late", 64, {}),
    WaitQueueTimeoutError("no connection"),
    DeadlineExceeded("over"),
    ServerSelectionTimeoutError("nobody"),
]


@pytest.mark.parametrize("error", WORTH_ANOTHER, ids=str)
async def test_is_repeated_once_without_a_deadline(error):
    """What may pass is tried once more."""
    assert (5, True) == await repeat("it", Runs(error, 5), None)
    with pytest.raises(type(error)) as caught:
        await repeat("it", Runs(error, error, 5), None)
    assert error is caught.value
    assert "aioretry: it was run 2 times" in error.__notes__


@pytest.mark.parametrize("error", WORTH_ANOTHER + FINAL[-1:], ids=str)
async def test_is_repeated_under_a_deadline(error):
    """Under a deadline it is tried as often as it takes, and finding no server is no end."""
    assert (5, True) == await repeat("it", Runs(error, error, error, 5), 60.0)
    assert (5, True) == await repeat("it", Runs(error, error, 5), math.inf)


@pytest.mark.parametrize("error", FINAL, ids=str)
async def test_ends_at_once(error):
    """What would be the same the next time is raised."""
    with pytest.raises(type(error)) as caught:
        await repeat("it", Runs(error, 5), None)
    assert error is caught.value


async def test_first_run():
    """A run that succeeds is the only one."""
    assert (5, False) == await repeat("it", Runs(5), None)


async def test_other_errors_pass():
    """An error that is not the driver's ends it."""
    with pytest.raises(TypeError):
        await repeat("it", Runs(TypeError(), 5), 60.0)


async def test_time_is_over():
    """When time is over, that is the error, and the last one its cause."""
    error = AutoReconnect("lost")
    with pytest.raises(DeadlineExceeded, match=r"^it: the deadline is over; .*lost") as caught:
        await repeat("it", Runs(error), 0.0)
    assert error is caught.value.__cause__
    assert caught.value.timeout


@pytest.mark.parametrize(
    "error",
    [ExecutionTimeout("over", 50), WaitQueueTimeoutError("no connection"), AutoReconnect("lost")],
    ids=str,
)
def test_says_that_time_is_over(error):
    """Under a deadline, what the driver says of time is the deadline's; without end it is not."""
    repeats = Repeats("it", True, lambda: 1.0)
    assert repeats.wait(error, 0.01, again=False) is None
    assert isinstance(repeats.surfacing(error, 0.01, again=False), DeadlineExceeded)
    assert error is repeats.surfacing(error, math.inf, again=False)


async def test_waits_grow():
    """There is a pause between runs, which grows to half a second, partly by chance."""
    repeats = Repeats("it", True, lambda: 1.0)
    error = AutoReconnect("lost")
    waits = [repeats.wait(error, 60.0, again=False) for _ in range(6)]
    assert [0.05, 0.1, 0.2, 0.4, 0.5, 0.5] == pytest.approx(waits)
    assert 0.25 == Repeats("it", True, lambda: 0.0).wait(error, 60.0, again=False) * 10


async def test_a_run_may_ask_for_another():
    """Whatever its error is."""
    error = DuplicateKeyError("gone", 11000)
    assert (5, True) == await repeat("it", Runs(RunAgain(error), 5), None)
    with pytest.raises(DuplicateKeyError):
        await repeat("it", Runs(RunAgain(error), RunAgain(error)), None)
    with pytest.raises(DeadlineExceeded):
        await repeat("it", Runs(RunAgain(error)), 0.0)


async def test_a_run_may_be_the_last():
    """Whatever its error is: it is raised as it is, the doubt itself too."""
    lost, cause = AutoReconnect("lost"), ValueError()
    lost.__cause__ = cause
    with pytest.raises(AutoReconnect) as caught:
        await repeat("it", Runs(lost, RunNoMore(lost), 5), 60.0)
    assert lost is caught.value
    assert cause is lost.__cause__


async def test_more_repetitions_without_a_deadline():
    """As many as the recipe says."""
    lost = AutoReconnect("lost")
    assert (5, True) == await repeat("it", Runs(lost, lost, 5), None, 2)
    with pytest.raises(AutoReconnect):
        await repeat("it", Runs(lost, lost, lost, 5), None, 2)


class TestDoubt:
    """An earlier run may have written."""

    async def test_is_told_to_later_runs(self):
        """A run knows the latest error of that kind."""
        lost, nobody = AutoReconnect("lost"), ServerSelectionTimeoutError("nobody")
        runs = Runs(nobody, lost, nobody, 5)
        await repeat("it", runs, 60.0)
        assert [None, None, lost, lost] == runs.doubts

    async def test_surfaces(self):
        """The error that may have written is raised, with a note of the last."""
        lost = AutoReconnect("lost")
        with pytest.raises(AutoReconnect) as caught:
            await repeat("it", Runs(lost, OperationFailure("not authorized", 13)), 60.0)
        assert lost is caught.value
        assert "aioretry: it ended with OperationFailure" in lost.__notes__

    async def test_first_error_surfaces_without_it(self):
        """If no run can have written, the first error is raised."""
        nobody = ServerSelectionTimeoutError("nobody")
        with pytest.raises(ServerSelectionTimeoutError) as caught:
            await repeat("it", Runs(nobody, OperationFailure("not authorized", 13)), math.inf)
        assert nobody is caught.value

    async def test_gives_way_to_what_the_server_says_of_the_write(self):
        """A write error is raised as it is, and speaks for the run before it."""
        lost, duplicate = AutoReconnect("lost"), DuplicateKeyError("duplicate", 11000)
        attach(lost, Outcome.UNKNOWN, [])
        attach(duplicate, Outcome.NOT_APPLIED, [])
        with pytest.raises(DuplicateKeyError) as caught:
            await repeat("it", Runs(lost, duplicate), None)
        assert duplicate is caught.value
        assert outcome_of(duplicate) is Outcome.UNKNOWN

    async def test_survives_cancellation(self):
        """Who is cancelled later still finds the error that may have written."""
        lost, running = AutoReconnect("lost"), asyncio.Event()
        task = asyncio.create_task(repeat("it", Runs(lost, running), None))
        await running.wait()
        task.cancel("please")
        with pytest.raises(asyncio.CancelledError, match="please") as caught:
            await task
        assert lost is caught.value.__cause__

    async def test_becomes_a_timeout(self):
        """``asyncio.timeout`` still recognises the cancellation as its own."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await repeat("it", Runs(AutoReconnect("lost"), asyncio.Event()), None)

    @pytest.mark.parametrize("error", [*WORTH_ANOTHER, ExecutionTimeout("over", 50)], ids=str)
    def test_is_what_may_have_written(self, error):
        """Errors after which nobody knows."""
        assert may_have_written(error)

    @pytest.mark.parametrize(
        "error",
        [
            ServerSelectionTimeoutError("nobody"),
            WaitQueueTimeoutError("no connection"),
            OperationFailure("not authorized", 13),
            DuplicateKeyError("duplicate", 11000),
        ],
        ids=str,
    )
    def test_is_not_what_has_not_written(self, error):
        """Errors after which nothing is written."""
        assert not may_have_written(error)


async def test_timeout_is_checked():
    """It must be a number of seconds."""
    with pytest.raises(TypeError):
        await repeat("it", Runs(5), "5")
    with pytest.raises(ValueError, match="from 0 on"):
        await repeat("it", Runs(5), -1.0)
