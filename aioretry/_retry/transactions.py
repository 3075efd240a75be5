"""How transactions end, and what to do after one failed. Pure: no clock, nothing to await."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pymongo.errors import (
    ConnectionFailure,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)
from pymongo.write_concern import WriteConcern

from aioretry._commands.error_codes import MAX_TIME_EXPIRED, RETRYABLE_CODES
from aioretry._commands.transactions import by_majority, options
from aioretry._drivers.port import Address, ServerKind, ServerView
from aioretry._retry.command_execution import trusted_seconds
from aioretry._retry.verdict import code_of, outcome_of_attempts
from aioretry.errors import Attempt, DeadlineExceeded, Outcome

TRANSIENT = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"

RETRY_LIMIT = 120.0
"""How long a transaction is retried where no deadline is set, in seconds."""

_WRITE_CONCERN_TIMEOUT = 64
_TRANSACTION_TOO_OLD = 225
NO_SUCH_TRANSACTION = 251
_INITIAL_BACKOFF = 0.005
_BACKOFF_GROWTH = 1.5
_MAX_BACKOFF = 0.5


_UNKNOWN_COMMIT_CODES = RETRYABLE_CODES | {MAX_TIME_EXPIRED, _WRITE_CONCERN_TIMEOUT}


@dataclass(frozen=True, slots=True)
class CommitSending:
    """One sending of a commit, or the failure to do so."""

    attempt: Attempt
    by_majority: bool
    """Whether it was sent with ``w: majority``."""

    to_router: bool
    """Whether a router was asked, and not a server of the data."""

    age: float = 0.0
    """How old the commit was when this was answered, in seconds since the first sending."""


@dataclass(slots=True)
class Commit:
    """The commit of one transaction, as far as it has come."""

    concern: WriteConcern
    max_time_ms: int | None = None
    """How long it may take on the server where there is no deadline, in milliseconds."""

    under_deadline: bool = False
    is_repeated: bool = False
    """Whether it is sent with ``w: majority``, because it may have been executed before."""

    session_minutes: int | None = None
    """How long the servers remember a session that is not used, in minutes, if that is known."""

    sendings: list[CommitSending] = field(default_factory=list)
    """Oldest first."""

    leaves_doubt: ClassVar[bool] = True

    @property
    def options(self) -> Mapping[str, Any]:
        """What is sent beside the command's own fields now."""
        return options(
            by_majority(self.concern) if self.is_repeated else self.concern,
            max_time_ms=self.max_time_ms,
            under_deadline=self.under_deadline,
        )

    @property
    def was_sent(self) -> bool:
        """Whether a server may have it."""
        return any(sending.attempt.sent for sending in self.sendings)

    def add(self, attempt: Attempt, server: ServerView | None, age: float) -> None:
        """Take note of a sending."""
        is_majority = self.is_repeated or self.concern.document.get("w") == "majority"
        to_router = server is not None and server.kind is ServerKind.MONGOS
        if server is not None:
            self.session_minutes = server.session_minutes
        self.sendings.append(CommitSending(attempt, is_majority, to_router, age))

    def replace(self, place: int, attempt: Attempt) -> None:
        """Take note of the answer to an earlier one, which came when nobody waited any more."""
        self.sendings[place] = replace(self.sendings[place], attempt=attempt)

    def repeat(self) -> None:
        """Take note that it is to be sent after it was sent before."""
        self.is_repeated = True


@dataclass(frozen=True, slots=True)
class Abort:
    """The abort of a transaction: of how that ends, nobody is told."""

    options: Mapping[str, Any]
    """What is sent beside the command's own fields."""

    leaves_doubt: ClassVar[bool] = False

    def add(self, attempt: Attempt, server: ServerView | None, age: float) -> None:
        """Take note of nothing."""

    def replace(self, place: int, attempt: Attempt) -> None:
        """Take note of nothing."""

    def repeat(self) -> None:
        """Take note of nothing: each time it is the same."""


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

    def still(self, decision: RunAgain | Raise, *, time_left: float) -> RunAgain | Raise:
        """Say what has become of a decision while the transaction was aborted.

        Args:
            decision: What was to be done.
            time_left: Seconds until retries end.

        Returns:
            What to do.
        """
        if not isinstance(decision, RunAgain) or decision.wait < time_left:
            return decision
        self.retries -= 1
        return _TIME_OUT

    def after_commit(
        self, error: PyMongoError, *, time_left: float, may_be_committed: bool = False
    ) -> RunAgain | CommitAgain | Raise:
        """Say what follows from an error of the commit.

        Args:
            error: What the commit raised.
            time_left: Seconds until retries end.
            may_be_committed: Whether the label that has all of it run again is not to be believed.

        Returns:
            What to do.
        """
        if self._is_deadline_of_the_server(error, time_left):
            return _TIME_OUT
        if _is_max_time_expired(error) or isinstance(error, DeadlineExceeded):
            return _RAISE
        if has_label(error, UNKNOWN_COMMIT):
            return self._commit_again(time_left)
        is_over = has_label(error, TRANSIENT) and not may_be_committed
        return self._run_again(time_left) if is_over else _RAISE

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


def outcome_of_commit(commit: Commit) -> Outcome:
    """Tell how a transaction ended, by what the sendings of its commit were answered.

    Args:
        commit: The commit, which has ended with an error or is not answered yet.
    """
    in_doubt = False
    for sending in commit.sendings:
        if sending.attempt.reply is not None:
            return Outcome.APPLIED
        if _leaves_doubt(sending):
            in_doubt = True
        elif in_doubt:
            in_doubt = not _ends_doubt(sending, trusted_seconds(commit.session_minutes))
    return Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED


def is_unknown_commit(error: BaseException) -> bool:
    """Tell whether a commit may be done in spite of an error (transactions, "Error Labels").

    Args:
        error: The error, without that label.
    """
    if isinstance(error, ConnectionFailure | WTimeoutError):
        return True
    if not isinstance(error, OperationFailure):
        return False
    # Who does not know a transaction waits for a majority, too, and only then may be believed.
    concern = (error.details or {}).get("writeConcernError") or {}
    return not _UNKNOWN_COMMIT_CODES.isdisjoint({error.code, concern.get("code")})


def asks_router(commit: Commit) -> bool:
    """Tell whether a router was asked, which says of what it has sent before as little as of now.

    Args:
        commit: A commit that was sent.
    """
    return any(sending.to_router for sending in commit.sendings)


def is_unheard(router: Address | None, attempts: Sequence[Attempt]) -> bool:
    """Tell whether another router was the last to be asked for an abort, and knows nothing of it.

    Args:
        router: The router that alone knows the transaction; None if any server will do.
        attempts: Those of the abort, oldest first.
    """
    if router is None or not attempts or attempts[-1].address == router:
        return False
    return not any(each.address == router and _is_aborted(each) for each in attempts)


def _is_aborted(attempt: Attempt) -> bool:
    error = attempt.error
    return attempt.reply is not None or (
        isinstance(error, OperationFailure) and error.code == NO_SUCH_TRANSACTION
    )


def _leaves_doubt(sending: CommitSending) -> bool:
    error = sending.attempt.error
    if error is not None and code_of(error) == _TRANSACTION_TOO_OLD:
        return True  # whatever became of it, a later transaction has taken its place
    outcome = outcome_of_attempts([sending.attempt], is_sharded=sending.to_router)
    return outcome is Outcome.UNKNOWN


def _ends_doubt(sending: CommitSending, trusted: float) -> bool:
    # A server says the same of what it has committed and forgotten. Without a majority, one that is
    # no primary any more may say so of what another one has committed.
    error = sending.attempt.error
    return (
        isinstance(error, OperationFailure)
        and error.code == NO_SUCH_TRANSACTION
        and error.has_error_label(TRANSIENT)
        and sending.by_majority
        and sending.age < trusted
    )


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
        isinstance(each, OperationFailure) and each.code == MAX_TIME_EXPIRED
        for each in errors_in(error)
    )
