"""What a caller can learn of a write that ended: our exceptions, outcomes and attempts."""

import copyreg
import enum
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    InvalidOperation,
    NetworkTimeout,
    ServerSelectionTimeoutError,
)
from pymongo.results import BulkWriteResult

from aioretry import _installed

__all__ = [
    "Attempt",
    "DeadlineExceeded",
    "Outcome",
    "PartialResult",
    "ResolveError",
    "TooManyWaiting",
    "WritesUnavailableError",
    "attempts_of",
    "outcome_of",
    "partial_result_of",
]

_installed.require_ours()  # here: nearly all needs this module

E = TypeVar("E", bound=BaseException)

_REPORT = "_aioretry_report"


class Outcome(enum.Enum):
    """How a write ended, as far as anybody can know."""

    APPLIED = "applied"
    """The write was acknowledged at its own write concern."""

    NOT_APPLIED = "not applied"
    """The write changed nothing, and nothing of it can arrive later."""

    UNKNOWN = "unknown"
    """The write may or may not be applied, now or shortly; its acknowledgement never came."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sending of a command to one server, or the failure to do so."""

    address: tuple[str, int | None] | None
    """Host and port of the server; None when the attempt failed before a server was chosen."""

    started: float
    """When the attempt began, in seconds since the epoch."""

    duration: float
    """How long it took, in seconds."""

    sent: bool
    """Whether the command can have reached the server."""

    error: BaseException | None = None
    """What the attempt failed with; None if the server accepted the write, or has not answered."""

    reply: Mapping[str, Any] | None = None
    """The server's reply; None if there was none or it was an error."""


class DeadlineExceeded(NetworkTimeout):
    """The deadline of the write is over.

    ``timeout`` is true, ``__cause__`` is the last attempt's error where there was one, and
    :func:`outcome_of` says whether the write can have been applied (Client-Side Operations Timeout
    specification, "Errors").
    """


class TooManyWaiting(ConnectionFailure):
    """As many writes as may wait for a server do so already; nothing of this one was sent.

    Or, of a bulk operation, nothing of the command that was next; :func:`partial_result_of` tells
    of the others.
    """


class WritesUnavailableError(ServerSelectionTimeoutError):
    """No server has taken writes for the client's ``fail_fast_after``; nothing of this was sent.

    Or, of a bulk operation, nothing of the command that was next.
    """


class ClientDraining(InvalidOperation):
    """The client takes no new operations since :func:`~aioretry.drain`; nothing was sent."""


class ResolveError(InvalidOperation):
    """A write can't be resolved: its outcome is known, or sending it again could write twice.

    Nothing was sent. Or a bulk operation can't be resolved as a whole: its command in doubt is, but
    others were never sent. ``__cause__`` is the exception that was to be resolved.
    """


class Doubt(ABC):
    """A write whose outcome is unknown, as far as its exception has to know it."""

    @abstractmethod
    def why_unresolvable(self) -> str | None:
        """Return why the write can't be resolved, or None if it can."""

    def admit(self) -> None:  # noqa: B027 - some need no leave
        """Let it be resolved, unless its client begins nothing any more."""

    def resolve(self, timeout: float | None) -> Awaitable[Any]:
        """Send the command once more; not called where there is a reason why that can't be."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PartialResult:
    """What came of an ``insert_many`` or ``bulk_write`` that ended with an error."""

    result: BulkWriteResult
    """What the server has acknowledged."""

    outcomes: tuple[Outcome, ...]
    """How each statement ended, by its index in the call.

    Documents that were not yet taken from an iterator are not in it.
    """


@dataclass(frozen=True, slots=True)
class Report:
    """What an exception knows of the write that it came out of."""

    outcome: Outcome | None
    """None if it was a read."""

    attempts: tuple[Attempt, ...]
    partial_result: PartialResult | None
    doubt: Doubt | None

    def __reduce__(self) -> tuple[type["Report"], tuple[object, ...]]:
        """Have an exception be pickled without the client that it came from."""
        is_left = self.outcome is Outcome.UNKNOWN and self.doubt is not None
        doubt = LeftBehind() if is_left else None
        return Report, (self.outcome, self.attempts, self.partial_result, doubt)


class LeftBehind(Doubt):
    """Stands for a doubt in the copy of an exception, as for another process."""

    def why_unresolvable(self) -> str:
        """Return why the write can't be resolved."""
        return "this is a copy of its exception, and what it takes is left where that was raised"


def attach(
    exc: BaseException,
    outcome: Outcome | None,
    attempts: Sequence[Attempt],
    partial_result: PartialResult | None = None,
    doubt: Doubt | None = None,
) -> None:
    """Record on an exception that leaves a write how the write ended."""
    exc.__dict__[_REPORT] = Report(outcome, tuple(attempts), partial_result, doubt)


def refusal(exc: E) -> E:
    """Return an exception by which a write is refused, with its outcome: nothing was tried."""
    attach(exc, Outcome.NOT_APPLIED, [])
    return exc


def copy_report(source: BaseException, target: BaseException) -> None:
    """Have an exception know of the write what another one knows."""
    report = report_of(source)
    if report is not None:
        target.__dict__[_REPORT] = report


def leave_to_context(exc: BaseException) -> None:
    """Have an exception tell nothing but what that tells which was handled when it was raised."""
    exc.__dict__.pop(_REPORT, None)
    exc.__cause__ = None


def copy_of(exc: E) -> E:
    """Return a copy of an exception that has not been raised, for one of several who wait for it.

    One that all of them raise would gather all their tracebacks, and have the context of each.
    """
    try:
        copy = type(exc).__new__(type(exc), *exc.args)
    except Exception:  # noqa: BLE001 - of a class of the user's
        return exc
    copy.__dict__.update(exc.__dict__)
    copy.__dict__["__notes__"] = list(getattr(exc, "__notes__", ()))
    copy.__cause__ = exc.__cause__
    return copy


def outcome_of(exc: BaseException) -> Outcome | None:
    """Tell how the write that raised this exception ended.

    Args:
        exc: An exception that came out of a write of this library, or one that was raised from or
            while handling it (``asyncio.timeout()`` turns a cancellation into a ``TimeoutError``).

    Returns:
        The outcome, or None if the exception has nothing to do with a write of this library. For
        ``insert_many`` and ``bulk_write`` it is the one that all statements share; ``UNKNOWN`` if
        they don't share one, and :func:`partial_result_of` tells each.

    Raises:
        TypeError: ``exc`` is no exception.
    """
    report = report_of(require_exception(exc))
    return None if report is None else report.outcome


def attempts_of(exc: BaseException) -> tuple[Attempt, ...]:
    """Tell what was tried before the write raised this exception.

    Args:
        exc: As for :func:`outcome_of`.

    Returns:
        The attempts of the write, oldest first; empty if nothing was tried or if the exception has
        nothing to do with a write of this library.

    Raises:
        TypeError: ``exc`` is no exception.
    """
    report = report_of(require_exception(exc))
    return () if report is None else report.attempts


def partial_result_of(exc: BaseException) -> PartialResult | None:
    """Tell what a bulk operation did before it raised this exception.

    Args:
        exc: As for :func:`outcome_of`.

    Returns:
        The partial result, or None if the exception does not come from an ``insert_many`` or
        ``bulk_write`` of this library.

    Raises:
        TypeError: ``exc`` is no exception.
    """
    report = report_of(require_exception(exc))
    return None if report is None else report.partial_result


def require_exception(exc: object) -> BaseException:
    """Return an exception that the user gave.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(exc, BaseException):
        kind = type(exc).__name__
        raise TypeError(f"exc must be an exception, the one that was caught, not {kind}")
    return exc


def own_report_of(exc: BaseException) -> Report | None:
    """Return what is recorded on an exception itself."""
    report = exc.__dict__.get(_REPORT)
    return report if isinstance(report, Report) else None


def report_of(exc: BaseException) -> Report | None:
    """Return what is recorded on an exception or on one that it came from."""
    for link in links_of(exc):
        if (report := own_report_of(link)) is not None:
            return report
    return None


def _reduce(exc: BulkWriteError) -> tuple[Any, ...]:
    made, given, *_ = exc.__reduce__()
    return made, given, exc.__dict__


copyreg.pickle(BulkWriteError, _reduce)  # PyMongo's own way forgets what is recorded on it


def links_of(exc: BaseException) -> Iterator[BaseException]:
    """Go from an exception to what it was raised from, or while handling, and so on."""
    seen: set[int] = set()
    link: BaseException | None = exc
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
