"""One operation as hooks are told of it, if there are any that want to know."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pymongo.errors import BulkWriteError

from aioretry._commands.transactions import DATABASE
from aioretry._retry.verdict import code_of
from aioretry.errors import Attempt, Outcome, partial_result_of, report_of
from aioretry.events import (
    AttemptBegan,
    AttemptEnded,
    EventHook,
    Hook,
    OperationBegan,
    OperationEnded,
    SentCommand,
    publish_to_all,
    wanting_beginnings,
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

    def begin_attempt(
        self,
        command: str,
        number: int,
        attempt_notes: dict[Any, Any],
        sharing: Sequence[Mapping[Any, Any]] = (),
    ) -> None:
        """Take note of an attempt that begins.

        Args:
            command: The command's name.
            number: Which of its command's, from 1.
            attempt_notes: What hooks keep about it.
            sharing: What hooks keep about the other operations that travel in it.
        """
        ...

    def end_attempt(
        self, attempt: Attempt, number: int, command: SentCommand, attempt_notes: dict[Any, Any]
    ) -> None:
        """Take note of an attempt that ended.

        Args:
            attempt: The attempt.
            number: Which of its command's, from 1.
            command: What was sent.
            attempt_notes: What hooks keep about it.
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

    __slots__ = ("_beginnings", "_hooks")

    def __init__(self, hooks: tuple[Hook, ...]) -> None:
        self._hooks = wanting_every_event(hooks)
        self._beginnings = wanting_beginnings(self._hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def watch(
        self, operation: str, namespace: str, within: Watch | None = None
    ) -> "OperationWatch | None":
        """Tell them that an operation begins; return None if there is nobody.

        Args:
            operation: Its name.
            namespace: Database and collection, joined by a dot.
            within: The transaction that it is a part of, or None.
        """
        if not self._hooks:
            return None
        return OperationWatch(self._hooks, self._beginnings, operation, namespace, within)


class OperationWatch:
    """Tells hooks of one operation, from its beginning to its only end.

    Args:
        hooks: The hooks.
        beginnings: Those of them that are told of beginnings, too.
        operation: Its name.
        namespace: Database and collection, joined by a dot.
        within: The transaction that it is a part of, or None.
    """

    __slots__ = (
        "_address",
        "_attempts",
        "_began",
        "_beginnings",
        "_ended",
        "_hooks",
        "_latest_statements",
        "_new_wait",
        "_statements",
        "_wait",
        "_what",
        "notes",
    )

    def __init__(
        self,
        hooks: tuple[EventHook, ...],
        beginnings: tuple[EventHook, ...],
        operation: str,
        namespace: str,
        within: Watch | None = None,
    ) -> None:
        self._hooks = hooks
        self._beginnings = beginnings
        self._what = operation, namespace
        self._began = time.monotonic()
        self._ended = False
        self._attempts = 0
        self._statements = self._latest_statements = 0
        self._address: tuple[str, int | None] | None = None
        self._wait = self._new_wait = 0.0
        self.notes: dict[Any, Any] = {}
        if beginnings:
            outer = None if within is None else within.notes
            publish_to_all(beginnings, OperationBegan(operation, namespace, self.notes, outer))

    def add_wait(self, seconds: float) -> None:
        """Take note of a time that was spent waiting for a server."""
        self._wait += seconds
        self._new_wait += seconds

    def begin_attempt(
        self,
        command: str,
        number: int,
        attempt_notes: dict[Any, Any],
        sharing: Sequence[Mapping[Any, Any]] = (),
    ) -> None:
        """Tell of an attempt that begins."""
        if self._beginnings:
            event = AttemptBegan(*self._what, command, number, sharing, attempt_notes, self.notes)
            publish_to_all(self._beginnings, event)

    def end_attempt(
        self, attempt: Attempt, number: int, command: SentCommand, attempt_notes: dict[Any, Any]
    ) -> None:
        """Tell of an attempt that ended, unless the operation has ended before it."""
        if self._ended:
            return
        self._attempts += 1
        self._address = attempt.address
        # A retry sends those of the attempt before it, which were not known if it sent nothing.
        self._statements += command.statements - (self._latest_statements if number > 1 else 0)
        self._latest_statements = command.statements
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
            command,
            attempt_notes,
            self.notes,
        )
        publish_to_all(self._hooks, event)

    def end(self, exc: BaseException | None, outcome: Outcome | None = None) -> None:
        """Tell of the end, once.

        Args:
            exc: What is raised; None if nothing is.
            outcome: How it ended, if that is not what follows from it.
        """
        if self._ended:
            return
        self._ended = True
        event = OperationEnded(
            *self._what,
            outcome or self._outcome(exc),
            time.monotonic() - self._began,
            self._attempts,
            None if exc is None else type(exc).__name__,
            None if exc is None else _told_code(exc),
            self._wait,
            _statements(exc),
            self._address,
            self._statements,
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


class TransactionWatch:
    """Tells hooks of the transactions of one session, one after the other.

    Args:
        watchers: Whoever wants to know.
    """

    __slots__ = ("_watchers", "call", "latest")

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self.call: OperationWatch | None = None
        """That of the call of ``with_transaction`` that is under way; None if there is none."""

        self.latest: OperationWatch | None = None
        """That of the latest transaction; None if nobody wants to know."""

    def begin(self) -> None:
        """Tell that a transaction was started."""
        self.latest = self._watchers.watch("transaction", DATABASE, self.call)

    def end(self, exc: BaseException | None) -> None:
        """Tell of the end of the latest one, if nobody has."""
        if self.latest is not None:
            self.latest.end(exc)


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

    def begin_attempt(
        self,
        command: str,
        number: int,
        attempt_notes: dict[Any, Any],
        sharing: Sequence[Mapping[Any, Any]] = (),
    ) -> None:
        """Tell of an attempt that begins, for the first: it is one command."""
        watches = [*self._watches()]
        others = [watch.notes for watch in watches[1:]]
        for watch in watches[:1]:
            watch.begin_attempt(command, number, attempt_notes, [*sharing, *others])

    def end_attempt(
        self, attempt: Attempt, number: int, command: SentCommand, attempt_notes: dict[Any, Any]
    ) -> None:
        """Tell of an attempt that ended, for each."""
        for watch in self._watches():
            watch.end_attempt(attempt, number, command, attempt_notes)

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
