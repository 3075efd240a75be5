"""Runs that are repeated: what follows from an error, and the loop around the runs."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import anyio
from pymongo.errors import (
    ConnectionFailure,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
    WriteError,
)

from aioretry import (
    Deadline,
    DeadlineExceeded,
    Outcome,
    WritesUnavailableError,
    deadline,
    outcome_of,
)
from aioretry._faces import Whole
from aioretry.errors import copy_report

T = TypeVar("T")

# The codes that make an error retryable (retryable-writes, "RetryableWriteError Labels"), and
# ReadConcernMajorityNotAvailableYet, which a new primary may answer.
_WORTH_ANOTHER = frozenset({6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})
_MAX_TIME_EXPIRED = 50
_BASE_WAIT = 0.05
_LONGEST_WAIT = 0.5


class RunAgain(Exception):  # noqa: N818 - no error: it never leaves the loop
    """What a run raises that ended without an error of a kind that is worth another run."""

    def __init__(self, error: PyMongoError) -> None:
        super().__init__()
        self.error = error


class RunNoMore(Exception):  # noqa: N818 - no error: it never leaves the loop
    """What a run raises that has judged by the doubt: its error is the caller's, as it is."""

    def __init__(self, error: PyMongoError) -> None:
        super().__init__()
        self.error = error


@dataclass(slots=True)
class Repeats:
    """The runs of one recipe that failed, and what it means for the next."""

    name: str
    is_under_deadline: bool
    random: Callable[[], float]
    """Jitter: returns a number from 0 up to 1."""

    most: int = 1
    """How often a run is repeated where there is no deadline."""

    number: int = field(default=0, init=False)
    """How often a run was repeated."""

    doubt: PyMongoError | None = field(default=None, init=False)
    """The latest error of a run that may have written."""

    _first: PyMongoError | None = field(default=None, init=False)

    def wait(self, error: PyMongoError, time_left: float, *, again: bool) -> float | None:
        """Say how long to wait for the next run, in seconds; None if there is to be none.

        Args:
            error: What the latest run has failed with.
            time_left: Seconds until the deadline; infinite if there is none.
            again: Whether the run asks for another one, whatever the error.
        """
        self._first = self._first or error
        if may_have_written(error):
            self.doubt = error
        if not (again or is_worth_another(error, is_under_deadline=self.is_under_deadline)):
            return None
        if not self.is_under_deadline and self.number >= self.most:
            return None
        wait = min(_LONGEST_WAIT, _BASE_WAIT * 2.0**self.number) * (0.5 + self.random() / 2)
        if wait >= time_left:
            return None
        self.number += 1
        return wait

    def surfacing(self, error: PyMongoError, time_left: float, *, again: bool) -> PyMongoError:
        """Return what the caller gets when there is no other run; arguments as of :meth:`wait`."""
        surfacing = self._of_all_runs(error)
        if surfacing is not error:
            surfacing.add_note(f"aioretry: {self.name} ended with {type(error).__name__}")
        if math.isfinite(time_left) and (
            again
            or _says_time_is_over(error)
            or is_worth_another(error, is_under_deadline=self.is_under_deadline)
        ):
            surfacing = self._time_is_over(surfacing)
        if self.number:
            surfacing.add_note(f"aioretry: {self.name} was run {self.number + 1} times")
        return surfacing

    def _time_is_over(self, error: PyMongoError) -> PyMongoError:
        if isinstance(error, DeadlineExceeded):
            return error
        exceeded = DeadlineExceeded(f"{self.name}: the deadline is over; before that: {error}")
        exceeded.__cause__ = error
        return exceeded

    def _of_all_runs(self, error: PyMongoError) -> PyMongoError:
        # As of the attempts of one write: the latest that may have written, else the first. What
        # the server says of the write itself is what the caller has to know.
        if isinstance(error, WriteError):
            if self.doubt is not None:  # it knows of its own run alone
                copy_report(self.doubt, error)
            return error
        return self.doubt or self._first or error


def is_worth_another(error: PyMongoError, *, is_under_deadline: bool) -> bool:
    """Tell whether a run that failed so is worth another one.

    Errors of the network and of a primary that is no more are; that a server is overloaded is not,
    because the driver has tried again by then.
    """
    if isinstance(error, DeadlineExceeded | WaitQueueTimeoutError | WritesUnavailableError):
        return False
    if isinstance(error, ServerSelectionTimeoutError):
        return is_under_deadline
    if isinstance(error, ConnectionFailure):
        return True
    if error.has_error_label("SystemOverloadedError"):
        return False
    if error.has_error_label("RetryableWriteError"):
        return True
    return isinstance(error, OperationFailure) and error.code in _WORTH_ANOTHER


def may_have_written(error: PyMongoError) -> bool:
    """Tell whether a run that failed so may have written something."""
    outcome = outcome_of(error)
    if outcome is not None:
        return outcome is not Outcome.NOT_APPLIED
    if isinstance(error, ServerSelectionTimeoutError | WaitQueueTimeoutError):
        return False
    if error.has_error_label("NoWritesPerformed"):
        return False
    if isinstance(error, ConnectionFailure | WriteConcernError):
        return True
    if error.has_error_label("RetryableWriteError"):
        return True
    return isinstance(error, OperationFailure) and error.code in {
        *_WORTH_ANOTHER,
        _MAX_TIME_EXPIRED,
    }


async def repeat(
    name: str,
    run: Callable[[PyMongoError | None], Awaitable[T]],
    timeout: float | None,  # noqa: ASYNC109 - a deadline, with an outcome
    most: int = 1,
) -> tuple[T, bool]:
    """Run something until it succeeds, fails for good, or time is over.

    Args:
        name: Of the recipe, for the error that time is over.
        run: One run, which can be repeated safely; it is given the latest error of an earlier run
            that may have written, if there was any.
        timeout: Seconds for all runs; a surrounding ``deadline()`` that is nearer counts.
        most: How often it is repeated where there is no deadline.

    Returns:
        What the run returned that succeeded, and whether it was another than the first.
    """
    async with deadline(timeout) as limit:
        repeats = Repeats(name, limit is not None, random.random, most)
        try:
            return await _run_until_done(run, repeats, limit)
        except asyncio.CancelledError as exc:
            if repeats.doubt is None:
                raise
            # What was cancelled knows of its own run alone.
            raise asyncio.CancelledError(*exc.args) from repeats.doubt


async def _run_until_done(
    run: Callable[[PyMongoError | None], Awaitable[T]], repeats: Repeats, limit: Deadline | None
) -> tuple[T, bool]:
    def wait_after(failure: Exception) -> float:
        match failure:
            case RunNoMore():
                raise failure.error
            case RunAgain():
                error, again = failure.error, True
            case _:
                error, again = cast(PyMongoError, failure), False
        time_left = math.inf if limit is None else limit.remaining()
        wait = repeats.wait(error, time_left, again=again)
        if wait is None:
            raise repeats.surfacing(error, time_left, again=again)
        return wait

    return await until_done(lambda: run(repeats.doubt), wait_after), repeats.number > 0


async def until_done(
    run: Callable[[], Awaitable[T]], wait_after: Callable[[Exception], float | None]
) -> T:
    """Run something until it succeeds or is not to be run again: the loop of all recipes.

    Args:
        run: One run, which can be repeated safely.
        wait_after: Says how long to wait after what a run has failed with, in seconds; None if
            there is to be no other run. It may raise something else instead.

    Returns:
        What the run returned that succeeded.
    """
    with Whole():
        while True:
            try:
                return await run()
            except (PyMongoError, RunAgain, RunNoMore) as exc:
                failure: Exception = exc
            # Not in the handler: what it raises has a context of its own.
            wait = wait_after(failure)
            if wait is None:
                raise failure
            del failure
            await anyio.sleep(wait)


def _says_time_is_over(error: PyMongoError) -> bool:
    if isinstance(error, OperationFailure):
        return error.code == _MAX_TIME_EXPIRED
    return isinstance(error, DeadlineExceeded | WaitQueueTimeoutError)
