"""One operation as hooks are told of it, if there are any that want to know."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pymongo.errors import BulkWriteError

from aioretry._retry.verdict import code_of
from aioretry.errors import Attempt, Outcome, partial_result_of, report_of
from aioretry.events import (
    AttemptEnded,
    EventHook,
    Hook,
    OperationBegan,
    OperationEnded,
    publish_to_all,
    wanting_every_event,
)


class Watch(Protocol):
    """Whoever is to know of what happens to a command."""

    @property
    def notes(self) -> dict[Any, Any]:
        """What hooks keep about the operation."""
        ...

    def add_wait(self, seconds: float) -> None:
        """Take note of a time that was spent waiting for a server."""
        ...

    def end_attempt(self, attempt: Attempt, number: int) -> None:
        """Take note of an attempt that ended.

        Args:
            attempt: The attempt.
            number: Which of its command's, from 1.
        """
        ...

    def end(self, exc: BaseException | None) -> None:
        """Take note of the end.

        Args:
            exc: What is raised, which says already how the operation ended; None if nothing is.
        """
        ...


class Watchers:
    """Whoever wants to know of operations.

    Args:
        hooks: Everybody who is told of something.
    """

    __slots__ = ("_hooks",)

    def __init__(self, hooks: tuple[Hook, ...]) -> None:
        self._hooks = wanting_every_event(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def watch(self, operation: str, namespace: str) -> "OperationWatch | None":
        """Tell them that an operation begins; return None if there is nobody.

        Args:
            operation: Its name.
            namespace: Database and collection, joined by a dot.
        """
        return OperationWatch(self._hooks, operation, namespace) if self._hooks else None


class OperationWatch:
    """Tells hooks of one operation, from its beginning to its only end.

    Args:
        hooks: The hooks.
        operation: Its name.
        namespace: Database and collection, joined by a dot.
    """

    __slots__ = ("_attempts", "_began", "_ended", "_hooks", "_new_wait", "_wait", "_what", "notes")

    def __init__(self, hooks: tuple[EventHook, ...], operation: str, namespace: str) -> None:
        self._hooks = hooks
        self._what = operation, namespace
        self._began = time.monotonic()
        self._ended = False
        self._attempts = 0
        self._wait = self._new_wait = 0.0
        self.notes: dict[Any, Any] = {}
        publish_to_all(hooks, OperationBegan(operation, namespace, self.notes))

    def add_wait(self, seconds: float) -> None:
        """Take note of a time that was spent waiting for a server."""
        self._wait += seconds
        self._new_wait += seconds

    def end_attempt(self, attempt: Attempt, number: int) -> None:
        """Tell of an attempt that ended, unless the operation has ended before it."""
        if self._ended:
            return
        self._attempts += 1
        wait, self._new_wait = self._new_wait, 0.0
        error = attempt.error
        event = AttemptEnded(
            *self._what,
            attempt.address,
            number,
            attempt.duration,
            attempt.sent,
            None if error is None else type(error).__name__,
            None if error is None else _told_code(error),
            wait,
            self.notes,
        )
        publish_to_all(self._hooks, event)

    def end(self, exc: BaseException | None) -> None:
        """Tell of the end, once."""
        if self._ended:
            return
        self._ended = True
        event = OperationEnded(
            *self._what,
            self._outcome(exc),
            time.monotonic() - self._began,
            self._attempts,
            None if exc is None else type(exc).__name__,
            None if exc is None else _told_code(exc),
            self._wait,
            _statements(exc),
            self.notes,
        )
        publish_to_all(self._hooks, event)

    def _outcome(self, exc: BaseException | None) -> Outcome:
        if exc is None:
            return Outcome.APPLIED
        report = report_of(exc)
        if report is not None:
            return report.outcome or Outcome.NOT_APPLIED  # that of what has none of its own
        return Outcome.UNKNOWN if self._attempts else Outcome.NOT_APPLIED


class SharedWatch:
    """Tells of a command that several operations share; each tells of its end by itself.

    Args:
        watches: Returns the watches of those that share it now.
    """

    __slots__ = ("_watches",)

    def __init__(self, watches: Callable[[], Iterable[Watch]]) -> None:
        self._watches = watches

    @property
    def notes(self) -> dict[Any, Any]:
        """Nothing: it is nobody's own."""
        return {}

    def add_wait(self, seconds: float) -> None:
        """Take note of a wait, for each."""
        for watch in self._watches():
            watch.add_wait(seconds)

    def end_attempt(self, attempt: Attempt, number: int) -> None:
        """Tell of an attempt that ended, for each."""
        for watch in self._watches():
            watch.end_attempt(attempt, number)

    def end(self, exc: BaseException | None) -> None:
        """Tell nobody: each ends when it is told what came of it."""


def _told_code(exc: BaseException) -> int | None:
    if not isinstance(exc, BulkWriteError):
        return code_of(exc)
    # Its own code is the driver's, and not the server's.
    details = exc.details or {}
    errors = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
    codes = {error.get("code") for error in errors}
    code = codes.pop() if len(codes) == 1 else None
    return code if isinstance(code, int) else None


def _statements(exc: BaseException | None) -> dict[Outcome, int] | None:
    partial = None if exc is None else partial_result_of(exc)
    return None if partial is None else dict(Counter(partial.outcomes))
