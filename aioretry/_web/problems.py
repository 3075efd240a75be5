"""Problem details (RFC 9457): what is answered for what databases raise, and what is logged."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from pymongo.errors import (
    AutoReconnect,
    ConnectionFailure,
    ExecutionTimeout,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from aioretry import ClientDraining, Outcome, outcome_of, partial_result_of
from aioretry.errors import report_of
from aioretry.idempotent import IdempotencyConflict, KeyExpiredError, KeyInUseError, NoTurnError

MEDIA_TYPE = "application/problem+json"

_RETRY_AFTER = 1
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE"}  # RFC 9110, 9.2.1
_UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
_OVERLOADED = "SystemOverloadedError"
_PAGE = re.compile(r"https?://[!$%&'()*+,./:;=?@\[\]_~0-9A-Za-z-]+", re.ASCII)

_logger = logging.getLogger("aioretry")


@dataclass(frozen=True, slots=True)
class Problem:
    """What an answer says that is no success (RFC 9457).

    Raises:
        TypeError: The status is no int.
        ValueError: The status is not one of an error, from 400 to 599.
    """

    status: int
    reason: str
    """What it is, for programs; the member ``reason`` of the body."""

    detail: str
    outcome: Outcome | None = None
    retry_after: int | None = None
    """Seconds."""

    def __post_init__(self) -> None:
        if isinstance(self.status, bool) or not isinstance(self.status, int):
            raise TypeError(f"status must be an int, not {self.status!r}")
        if not 400 <= self.status <= 599:
            raise ValueError(f"status must be from 400 to 599, not {self.status!r}")

    def headers(self, page: str | None = None) -> dict[str, str]:
        """Return what belongs into the answer's header beside its media type."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if page is not None:
            headers["Link"] = f'<{page}#{self.reason}>; rel="describedby"; type="text/html"'
        return headers

    def body(self, page: str | None = None) -> bytes:
        """Return the answer's body."""
        members: dict[str, object] = {
            "type": "about:blank" if page is None else f"{page}#{self.reason}",
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
        }
        if self.status in set(HTTPStatus):
            members["title"] = HTTPStatus(self.status).phrase
        if self.outcome is not None:
            members["outcome"] = self.outcome.value
        return json.dumps(members).encode()


class ProblemError(Exception):
    """Raised in a handler, it is answered with problem details (RFC 9457).

    Args:
        status: The status code, from 400 to 599.
        reason: What it is, for programs.
        detail: What it is, for people.
        retry_after: Seconds after which to repeat the request, or None.

    Raises:
        TypeError: ``status`` is no int.
        ValueError: ``status`` is out of range.
    """

    def __init__(
        self, status: int, reason: str, detail: str, *, retry_after: int | None = None
    ) -> None:
        self.problem: Problem = Problem(status, reason, detail, retry_after=retry_after)
        super().__init__(detail)


_PROBLEMS: Mapping[type[Exception], Problem] = {
    KeyInUseError: Problem(
        409,
        "key_in_use",
        "a request with this Idempotency-Key is still running, or has not ended at the servers "
        "yet; repeat this one later",
        retry_after=_RETRY_AFTER,
    ),
    IdempotencyConflict: Problem(
        422, "key_reused", "this Idempotency-Key was used for another request"
    ),
    KeyExpiredError: Problem(
        422, "key_expired", "this Idempotency-Key was first used too long ago"
    ),
    NoTurnError: Problem(
        503,
        "no_turn",
        "too many requests with an Idempotency-Key wait; repeat this one later",
        Outcome.NOT_APPLIED,
        _RETRY_AFTER,
    ),
    ClientDraining: Problem(
        503,
        "draining",
        "this process is being stopped; repeat the request, and another one answers it",
        Outcome.NOT_APPLIED,
        _RETRY_AFTER,
    ),
}


def page_of(documentation: object) -> str | None:
    """Return the URL of the page that explains problems, without a fragment.

    Raises:
        TypeError: It is neither a str nor None.
        ValueError: It is no URL of http or https, or has a fragment already.
    """
    if documentation is None:
        return None
    if not isinstance(documentation, str):
        raise TypeError(f"documentation must be a str or None, not {documentation!r}")
    if not _PAGE.fullmatch(documentation):
        raise ValueError(
            f"documentation must be an http or https URL without a fragment, not {documentation!r}"
        )
    return documentation


def log_problem(problem: Problem, request: str, error: BaseException) -> None:
    """Tell operators of the error behind an answer: classes and codes, and no content.

    Args:
        problem: What is answered.
        request: Method and path.
        error: What was raised.
    """
    level = logging.ERROR if problem.status == 500 else logging.WARNING
    classes = ", from ".join(_described(each) for each in _chain(error))
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("aioretry: ")]
    _logger.log(
        level if problem.status >= 500 else logging.INFO,
        "%s is answered with %d %s: %s",
        request,
        problem.status,
        problem.reason,
        "; ".join([classes, *notes]),
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _described(error: BaseException) -> str:
    code = getattr(error, "code", None)
    inner = getattr(error, "exceptions", None)
    if isinstance(inner, tuple):
        return f"{type(error).__name__}({', '.join(sorted({_described(one) for one in inner}))})"
    return f"{type(error).__name__} {code}" if isinstance(code, int) else type(error).__name__


def problem_of(error: BaseException, method: str, *, is_over: bool) -> Problem | None:
    """Return what an exception means to the caller of a service, None if that is not known here.

    Args:
        error: What a handler has raised. A group means something if all in it mean the same.
        method: The request's.
        is_over: Whether the request's deadline is over.
    """
    if isinstance(error, BaseExceptionGroup):
        problems = {problem_of(each, method, is_over=is_over) for each in error.exceptions}
        return problems.pop() if len(problems) == 1 else None
    for kind, problem in _PROBLEMS.items():
        if isinstance(error, kind):
            return problem
    outcome = _outcome_of(error)
    if _is_drivers_loss(error) and method not in _SAFE_METHODS:
        outcome = Outcome.UNKNOWN
    return _problem_of_write(error, outcome, is_over=is_over)


def _is_drivers_loss(error: BaseException) -> bool:
    """Tell whether a command of the driver's own was lost, which may have been a write."""
    is_unsent = isinstance(error, ServerSelectionTimeoutError)
    return isinstance(error, AutoReconnect) and not is_unsent and report_of(error) is None


def _problem_of_write(
    error: BaseException, outcome: Outcome | None, *, is_over: bool
) -> Problem | None:
    # A deadline is told to be over a little before it is, where no time is left for anything.
    is_late = isinstance(error, NetworkTimeout | ExecutionTimeout)
    if isinstance(error, PyMongoError) and error.timeout and (is_over or is_late):
        return _deadline_exceeded(outcome)
    if outcome is Outcome.UNKNOWN:
        detail = "the database did not say whether this request has changed anything"
        return Problem(500, "unknown_outcome", detail, outcome)
    if not isinstance(error, ConnectionFailure) and not _is_refused(error):
        return None
    if outcome is Outcome.APPLIED or _is_partly_applied(error):
        detail = "the database failed when a part of what was to be written was there"
        return Problem(500, "partly_applied", detail)
    if _is_refused(error):
        detail = "the database has too much to do; repeat the request later"
        return Problem(503, "overloaded", detail, outcome, _RETRY_AFTER)
    detail = "the database can't be reached; repeat the request later"
    return Problem(503, "no_server", detail, outcome, _RETRY_AFTER)


def _is_refused(error: BaseException) -> bool:
    # By a server that has too much to do (client-backpressure, "Overload retry policy").
    return isinstance(error, OperationFailure) and error.has_error_label(_OVERLOADED)


def _is_partly_applied(error: BaseException) -> bool:
    partial = partial_result_of(error)
    return partial is not None and Outcome.APPLIED in partial.outcomes


def too_late(cancelled: asyncio.CancelledError | None, request: str, *, has_begun: bool) -> Problem:
    """Return what is answered to a request that was cancelled after its time, and log it.

    Args:
        cancelled: What its handler has ended with.
        request: Method and path.
        has_begun: Whether it has answered when it was cancelled.

    Raises:
        TimeoutError: It has: only its server can break that off.
    """
    if has_begun:
        raise TimeoutError("the time of a request was over, and it answered then") from cancelled
    problem = _deadline_exceeded(None if cancelled is None else outcome_of(cancelled))
    if cancelled is not None:
        log_problem(problem, request, cancelled)
    return problem


def _deadline_exceeded(outcome: Outcome | None) -> Problem:
    return Problem(504, "deadline_exceeded", "the time for this request is over", outcome)


def _outcome_of(error: BaseException) -> Outcome | None:
    if isinstance(error, PyMongoError) and error.has_error_label(_UNKNOWN_COMMIT):
        return Outcome.UNKNOWN
    partial = partial_result_of(error)
    outcome = outcome_of(error)
    if partial is not None and outcome is Outcome.UNKNOWN and outcome not in partial.outcomes:
        return None  # some statements are applied and some are not, and each is known
    return outcome
