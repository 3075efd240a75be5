"""What to do after an attempt failed. Pure: no clock, no driver, nothing to await."""

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pymongo.errors import (
    ConnectionFailure,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
    WriteError,
)

from aioretry._commands.error_codes import (
    MAX_TIME_EXPIRED,
    NO_WRITES,
    OVERLOADED,
    RETRYABLE,
    RETRYABLE_CODES,
    RETRYABLE_READ_CODES,
    RETRYABLE_WRITE,
    no_retryable_writes,
    says_no_retryable_writes,
)
from aioretry._drivers.port import Policy
from aioretry.errors import Attempt, Outcome

# Errors of a command before anything of it is executed: FailedToParse, Unauthorized, TypeMismatch,
# AuthenticationFailed, IllegalOperation, CommandNotFound, InvalidOptions, InvalidNamespace,
# TransactionTooOld, BSONObjectTooLarge, APIVersionError, APIStrictError, and an unknown field.
_REFUSING_CODES = frozenset({9, 13, 14, 18, 20, 59, 72, 73, 225, 10334, 322, 323, 40415})
_FIRST_LABELLING_WIRE_VERSION = 9  # MongoDB 4.4

_MONGOS_TIMED_OUT = 202

_INCOMPLETE_TRANSACTION_HISTORY = 217

# With these a write may have been executed all the same.
_IN_DOUBT = RETRYABLE_CODES | {
    MAX_TIME_EXPIRED,
    _MONGOS_TIMED_OUT,
    _INCOMPLETE_TRANSACTION_HISTORY,
}
# A router sends to the shards again by itself, and may answer with what the last sending met. These
# it says of any sending, and so of all of them.
_ROUTERS_DENIALS = frozenset(
    {
        # Of the command, before it is sent, by what it is or whose: BadValue, FailedToParse,
        # Unauthorized, TypeMismatch, AuthenticationFailed, IllegalOperation, CommandNotFound,
        # InvalidOptions, InvalidNamespace, API version errors, unknown fields.
        *(2, 9, 13, 14, 18, 20, 59, 72, 73, 322, 323, 40415),
        # No shard key to send it by, or one that is too large: ShardKeyNotFound and its like.
        *(61, 13334),
        # Of a namespace that is none to be written to: views, and options that are not for them.
        *(166, 167),
        # Of the document or the update, when a shard has found no record of an earlier execution
        # and executes it: Overflow, PathNotViable, ConflictingUpdateOperators, names and ids that
        # are not allowed, NotSingleValueField, ImmutableField, DocumentValidationFailure,
        # BSONObjectTooLarge, DuplicateKey.
        *(15, 28, 40, 52, 53, 54, 55, 56, 57, 66, 121, 10334, 11000),
    }
)

_BASE_BACKOFF = 0.1
_MAX_BACKOFF = 10.0

# client-backpressure has no pause for network errors.
_BASE_PAUSE = 0.02
_MAX_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed, as far as the verdict needs to know it."""

    error: Exception
    sent: bool
    has_transaction_id: bool
    """Whether the command carried a transaction id."""

    server_lost: bool = False
    """Whether the driver has meanwhile learnt that the server takes no more writes."""

    is_sharded: bool = False
    is_read: bool = False
    in_transaction: bool = False
    ends_transaction: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the command again."""

    wait: float
    """The backoff before that, in seconds."""

    deprioritize: bool
    """Whether the server is to be avoided from now on."""

    was_refused: bool = False
    """Whether a server was too busy to do anything of it."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the operation with an error."""

    error: Exception
    timed_out: bool = False
    """Whether the error means that the deadline is over."""


class _Kind(enum.Enum):
    FINAL = enum.auto()
    RETRYABLE = enum.auto()
    OVERLOADED = enum.auto()


def needs_label(
    error: Exception, *, retry_writes: bool, max_wire_version: int | None, is_mongos: bool
) -> bool:
    """Tell whether the driver's side has to add the label ``RetryableWriteError``.

    Network and pool-cleared errors always get it, errors of servers before 4.4 by their code, and
    the answers of newer servers never (retryable-writes, "RetryableWriteError Labels").
    """
    if not retry_writes:
        return False
    if isinstance(error, OperationFailure | NotPrimaryError):
        if max_wire_version is None or max_wire_version >= _FIRST_LABELLING_WIRE_VERSION:
            return False
        if isinstance(error, WriteError):
            return False
        if isinstance(error, WriteConcernError) and is_mongos:
            return False
        return code_of(error) in RETRYABLE_CODES
    return isinstance(error, ConnectionFailure) and not isinstance(
        error, WaitQueueTimeoutError | ServerSelectionTimeoutError
    )


def code_of(error: BaseException) -> int | None:
    """Return the server's error code, or None if the error is not the server's."""
    if isinstance(error, OperationFailure):
        return error.code
    if isinstance(error, NotPrimaryError) and isinstance(error.details, dict):
        code = error.details.get("code")
        return code if isinstance(code, int) else None
    return None


def may_be_retryable(error: Exception) -> bool:
    """Tell whether any rule could have the command sent again after this error."""
    return (
        isinstance(error, NotPrimaryError)
        or _has(error, RETRYABLE_WRITE)
        or (_has(error, RETRYABLE) and _has(error, OVERLOADED))
    )


def is_retryable_read(error: Exception) -> bool:
    """Tell whether a read may be sent again after an error (retryable-reads, "Retryable Error")."""
    if isinstance(error, OperationFailure | NotPrimaryError):
        is_overload = _has(error, RETRYABLE) and _has(error, OVERLOADED)
        return is_overload or code_of(error) in RETRYABLE_READ_CODES
    return isinstance(error, ConnectionFailure) and not isinstance(
        error, WaitQueueTimeoutError | ServerSelectionTimeoutError
    )


@dataclass(slots=True)
class RetryState:
    """The retries of one command: what was seen, and what it means for the next error."""

    policy: Policy
    under_deadline: bool
    random: Callable[[], float]
    """Jitter: returns a number from 0 up to 1."""

    retries: int = 0
    _overloaded: bool = field(default=False, init=False)
    _breaks: int = field(default=0, init=False)
    """How many attempts in a row have ended with a network error."""

    _first: Exception | None = field(default=None, init=False)
    _latest_that_may_have_written: Exception | None = field(default=None, init=False)

    def judge(self, failure: Failure, *, time_left: float) -> Retry | GiveUp:
        """Say what follows from a failed attempt.

        Args:
            failure: The attempt.
            time_left: Seconds until the deadline; infinite if there is none.

        Returns:
            What to do.
        """
        self._remember(failure)
        if math.isfinite(time_left) and _says_time_is_over(failure.error):
            return GiveUp(failure.error, timed_out=True)
        if says_no_retryable_writes(failure.error) and not failure.in_transaction:
            return GiveUp(no_retryable_writes(failure.error))
        kind = self._kind(failure)
        if kind is _Kind.FINAL:
            return GiveUp(self.surfacing())
        self.retries += 1
        if self.retries > self._limit():
            return GiveUp(self.surfacing())
        if kind is _Kind.OVERLOADED:
            wait = self._backoff(failure.error)
            if wait > 0 and wait >= time_left:
                return GiveUp(self.surfacing())
        else:
            wait = min(self._pause(failure), time_left / 2)
        return Retry(wait, self._deprioritizes(failure, kind), kind is _Kind.OVERLOADED)

    def surfacing(self) -> Exception:
        """Return the error that the caller gets if nothing more is tried.

        The latest one of an attempt that may have written; if none may have, the first
        (retryable-writes, "Executing Retryable Write Commands").
        """
        error = self._latest_that_may_have_written or self._first
        if error is None:
            raise AssertionError("no attempt has failed")
        return error

    def _remember(self, failure: Failure) -> None:
        if self._first is None:
            self._first = failure.error
        self._breaks = self._breaks + 1 if _is_network_error(failure.error) else 0
        if failure.is_read or (failure.sent and not _has(failure.error, NO_WRITES)):
            self._latest_that_may_have_written = failure.error

    def _kind(self, failure: Failure) -> _Kind:
        error = failure.error
        if failure.is_read:
            is_on = self.policy.retry_reads
            retryable = is_on and not failure.in_transaction and is_retryable_read(error)
        else:
            is_on = self.policy.retry_writes or failure.ends_transaction
            retryable = _has_number(failure) and _may_be_repeated(failure)
        if _is_overload(failure):
            self._overloaded = True
            repeatable = _has(error, RETRYABLE) and is_on
            return _Kind.OVERLOADED if repeatable or retryable else _Kind.FINAL
        return _Kind.RETRYABLE if retryable else _Kind.FINAL

    def _limit(self) -> float:
        if self._overloaded:
            return self.policy.max_adaptive_retries
        return math.inf if self.under_deadline else 1

    def _backoff(self, error: Exception) -> float:
        # client-backpressure, "Overload retry policy": the first retry counts as 1.
        return self.random() * min(_MAX_BACKOFF, _base_backoff(error) * 2.0**self.retries)

    def _pause(self, failure: Failure) -> float:
        # What breaks every connection while its server is well would be sent thousands of times. A
        # server that is lost is waited for as it is.
        if self._breaks < 2 or failure.server_lost:
            return 0.0
        doublings = min(self._breaks - 2, 10)
        return self.random() * min(_MAX_PAUSE, _BASE_PAUSE * 2.0**doublings)

    def _deprioritizes(self, failure: Failure, kind: _Kind) -> bool:
        if failure.is_sharded:
            return True
        return kind is _Kind.OVERLOADED and self.policy.overload_retargeting


def _is_overload(failure: Failure) -> bool:
    # PyMongo labels each failure to connect as overload. A server that is gone has none, nor is
    # there any where nobody listens: what is overloaded lets connections wait, or ends them.
    is_repeated = _has_number(failure) or failure.is_read
    is_nobody = failure.server_lost or (is_repeated and _is_refused(failure.error))
    return _has(failure.error, OVERLOADED) and (failure.sent or not is_nobody)


def _has_number(failure: Failure) -> bool:
    return failure.has_transaction_id or failure.ends_transaction


def _may_be_repeated(failure: Failure) -> bool:
    if _has(failure.error, RETRYABLE_WRITE):
        return True
    # A server that is shutting down may say so while a connection to it is being opened: an answer
    # without label, but not to the command, of which nothing was sent.
    return not failure.sent and isinstance(failure.error, NotPrimaryError)


class _Says(enum.Enum):
    """What the end of an attempt says of its command."""

    NOTHING = enum.auto()
    NOT_THIS_TIME = enum.auto()
    """This sending was not executed."""

    NEVER_THERE = enum.auto()
    """Nor was an earlier one, if it went to another server."""


def outcome_of_attempts(
    attempts: Iterable[Attempt],
    *,
    holds_multi: bool = False,
    is_atomic: bool = True,
    is_sharded: bool = False,
    is_by_majority: bool = False,
) -> Outcome:
    """Tell how a write ended that ends with an error, by what its attempts were answered.

    Args:
        attempts: Its attempts, oldest first.
        holds_multi: Whether a statement of it may change several documents, so that one that failed
            may have changed some of them.
        is_atomic: Whether it is about one document, so that an error means that nothing is changed.
        is_sharded: Whether routers were asked, each of which may still pass on what it was sent.
        is_by_majority: Whether a server has answered only what a majority of the members holds.
    """
    in_doubt: set[object] = set()
    for attempt in attempts:
        if attempt.reply is not None:
            return Outcome.APPLIED
        if not attempt.sent:
            continue
        match _what_says(attempt.error, holds_multi, is_atomic, is_sharded):
            case _Says.NOTHING:
                in_doubt.add(attempt.address)
            case _Says.NEVER_THERE if is_by_majority:
                in_doubt &= {attempt.address}
    return Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED


def _what_says(
    error: BaseException | None, holds_multi: bool, is_atomic: bool, is_sharded: bool
) -> _Says:
    if is_sharded and _is_of_last_sending(error):
        return _Says.NOTHING
    if not isinstance(error, WriteError):
        return _Says.NOT_THIS_TIME if _denies_writing(error, is_atomic=is_atomic) else _Says.NOTHING
    if holds_multi:
        return _Says.NOTHING
    # It was executed after looking for a record of the earlier attempts. What still lies in the
    # queue of the same server may be executed all the same; and a refusal that has not reached a
    # majority may be rolled back, and one of those come back.
    if is_sharded or isinstance(error.__cause__, WriteConcernError):
        return _Says.NOT_THIS_TIME
    return _Says.NEVER_THERE


def _is_of_last_sending(error: BaseException | None) -> bool:
    """Tell whether a router's error says nothing of what it may have sent before.

    In the place of a write error, too, stands whatever went wrong between it and the shard.
    """
    return (
        isinstance(error, OperationFailure)
        and error.code is not None
        and not is_routers_denial(error.code)
        and not _says_nothing_was_written(error)
    )


def is_routers_denial(code: int | None) -> bool:
    """Tell whether a router's error says of all its sendings that they wrote nothing."""
    return code in _ROUTERS_DENIALS


def _says_nothing_was_written(error: BaseException) -> bool:
    return _has(error, NO_WRITES) or (_has(error, RETRYABLE) and _has(error, OVERLOADED))


def _denies_writing(error: BaseException | None, *, is_atomic: bool) -> bool:
    if not isinstance(error, PyMongoError):
        return False
    if _says_nothing_was_written(error):
        return True
    if isinstance(error, WriteConcernError):
        return False
    if not is_atomic:  # it may have been interrupted after a part was done
        return code_of(error) in _REFUSING_CODES
    return (
        isinstance(error, OperationFailure)
        and error.code is not None
        and error.code not in _IN_DOUBT
    )


def _says_time_is_over(error: Exception) -> bool:
    # Under a deadline, what is left of it is how long PyMongo waits for a free connection.
    return code_of(error) == MAX_TIME_EXPIRED or isinstance(error, WaitQueueTimeoutError)


def _is_refused(error: Exception) -> bool:
    return isinstance(error.__cause__, ConnectionRefusedError)


def _is_network_error(error: Exception) -> bool:
    return isinstance(error, ConnectionFailure) and not isinstance(error, NotPrimaryError)


def _has(error: BaseException, label: str) -> bool:
    return isinstance(error, PyMongoError) and error.has_error_label(label)


def _base_backoff(error: Exception) -> float:
    details = error.details if isinstance(error, OperationFailure | NotPrimaryError) else None
    milliseconds: object = details.get("baseBackoffMS") if isinstance(details, Mapping) else None
    if isinstance(milliseconds, int | float) and milliseconds > 0:
        return float(milliseconds) / 1000
    return _BASE_BACKOFF
