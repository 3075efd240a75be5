"""What to do after a transaction failed. Pure: no clock, no driver, nothing to await."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pymongo.errors import OperationFailure, PyMongoError

TRANSIENT = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"

RETRY_LIMIT = 120.0
"""How long a transaction is retried where no deadline is set, in seconds."""

_MAX_TIME_EXPIRED = 50
_INITIAL_BACKOFF = 0.005
_BACKOFF_GROWTH = 1.5
_MAX_BACKOFF = 0.5


@dataclass(frozen=True, slots=True)
class RunAgain:
    """Run the whole transaction again."""

    wait: float
    """The backoff before that, in seconds."""


@dataclass(frozen=True, slots=True)
class CommitAgain:
    """Send the commit again."""

    wait: float = 0.0
    """The backoff before that, in seconds."""


@dataclass(frozen=True, slots=True)
class Raise:
    """End with the error."""

    timed_out: bool
    """Whether the time for retries is over; the error is then the cause of a timeout error."""


_RAISE = Raise(timed_out=False)
_TIME_OUT = Raise(timed_out=True)


@dataclass(slots=True)
class TransactionRetries:
    """The retries of one call (transactions-convenient-api, "Sequence of Actions")."""

    random: Callable[[], float]
    """Jitter: returns a number from 0 up to 1."""

    under_deadline: bool = False
    """Whether the limit is a deadline of the user's."""

    retries: int = 0
    """How often the whole transaction was run again."""

    commits: int = 0
    """How often the latest commit was sent again."""

    def after_callback(self, error: BaseException, *, time_left: float) -> RunAgain | Raise:
        """Say what follows from an error of the callback.

        Args:
            error: What the callback raised.
            time_left: Seconds until retries end.

        Returns:
            What to do.
        """
        if self._is_deadline_of_the_server(error, time_left):
            return _TIME_OUT
        return self._run_again(time_left) if has_label(error, TRANSIENT) else _RAISE

    def after_commit(
        self, error: PyMongoError, *, time_left: float
    ) -> RunAgain | CommitAgain | Raise:
        """Say what follows from an error of the commit.

        Args:
            error: What the commit raised.
            time_left: Seconds until retries end.

        Returns:
            What to do.
        """
        if self._is_deadline_of_the_server(error, time_left):
            return _TIME_OUT
        if _is_max_time_expired(error):
            return _RAISE
        if has_label(error, UNKNOWN_COMMIT):
            return self._commit_again(time_left)
        return self._run_again(time_left) if has_label(error, TRANSIENT) else _RAISE

    def _is_deadline_of_the_server(self, error: BaseException, time_left: float) -> bool:
        # Under a deadline it is what the server, or PyMongo in its place, was given as a limit.
        return self.under_deadline and math.isfinite(time_left) and _is_max_time_expired(error)

    def _run_again(self, time_left: float) -> RunAgain | Raise:
        wait = self.random() * backoff(self.retries)
        if wait >= time_left:
            return _TIME_OUT
        self.retries += 1
        self.commits = 0
        return RunAgain(wait)

    def _commit_again(self, time_left: float) -> CommitAgain | Raise:
        # The specification knows no pause here. A server that answers so without end would be asked
        # without end.
        wait = self.random() * backoff(self.commits - 1) if self.commits else 0.0
        if wait >= time_left:
            return _TIME_OUT
        self.commits += 1
        return CommitAgain(wait)


def backoff(retries: int) -> float:
    """Return the longest wait before a transaction is run again, or committed, in seconds.

    Args:
        retries: How often there was such a wait before.
    """
    # The exponent has an end: a float would overflow after some 1700 retries.
    growth = _BACKOFF_GROWTH ** min(retries, 20)
    return min(_MAX_BACKOFF, _INITIAL_BACKOFF * growth)


def errors_in(error: BaseException) -> Iterator[BaseException]:
    """Go through the errors of a group, and of the groups in it; or give the one error.

    Args:
        error: What the callback raised. A group that holds more than errors, such as a
            KeyboardInterrupt, is one.
    """
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from errors_in(each)


def has_label(error: BaseException, label: str) -> bool:
    """Tell whether an error has a label, or one of a group of errors has.

    Args:
        error: The error. Of a group, what the others say shows again when everything is run again.
        label: The label.
    """
    return any(
        isinstance(each, PyMongoError) and each.has_error_label(label) for each in errors_in(error)
    )


def _is_max_time_expired(error: BaseException) -> bool:
    # The code of a write concern error is the error's code too.
    return any(
        isinstance(each, OperationFailure) and each.code == _MAX_TIME_EXPIRED
        for each in errors_in(error)
    )
