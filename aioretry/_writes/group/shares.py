"""What came of a command for each of the writes that travelled in it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pymongo.errors import OperationFailure, WriteConcernError, WriteError

from aioretry._commands.error_codes import (
    MAX_TIME_EXPIRED,
    no_retryable_writes,
    says_no_retryable_writes,
)
from aioretry._commands.replies import error_in, leaves_out
from aioretry._retry.command_execution import Execution
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._retry.surfacing import too_late
from aioretry._retry.verdict import code_of, is_routers_denial, outcome_of_attempts
from aioretry._writes.group.kinds import INSERTS, Kind, Reading, is_unread
from aioretry._writes.resolve import CommandDoubt, Resolving
from aioretry._writes.unclear_inserts import numbers_in, silence, unknown_from, vagueness
from aioretry.errors import Attempt, Doubt, Outcome, attach, outcome_of

Result = Callable[[Mapping[str, Any]], Any]


class Shares:
    """Tells each write of a command what it would have been told alone.

    Args:
        coordinator: Executes the command.
        kind: What its statements are.
        execution: The command.
        answers: Replies that were taken for errors, so that the command may be sent again.
        is_over: Tells whether it is sent no more.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        kind: Kind,
        execution: Execution,
        answers: Mapping[BaseException, Mapping[str, Any]],
        is_over: Callable[[], bool],
    ) -> None:
        self._coordinator = coordinator
        self.kind = kind
        self._execution = execution
        self._answers = answers
        self._is_over = is_over
        self._read: tuple[Mapping[str, Any], Reading] | None = None
        self._known: tuple[Mapping[str, Any] | None, int] | None = None
        self._history: _History | None = None

    def is_silent(self, reply: Mapping[str, Any], index: int) -> bool:
        """Tell whether a reply does not say what became of a write."""
        if self.kind is not INSERTS:
            return self.alone(reply, index) is None
        if self.silence_in(reply) is None:
            return False
        if self._vagueness(reply) is None:
            return index not in self._reading_of(reply).denials
        numbers = numbers_in(reply, self._execution)
        return numbers is None or index in numbers

    def denial(self, index: int) -> Mapping[str, Any] | None:
        """Return the latest reply if it says that a write was refused, or None."""
        reply = self._latest_reply()
        if reply is None or index not in self._reading_of(reply).denials:
            return None
        return None if self.is_silent(reply, index) else reply

    def alone(self, reply: Mapping[str, Any], index: int) -> Mapping[str, Any] | None:
        """Return what the reply to a write alone would have been; None if that is not said."""
        return self._reading_of(reply).alone(index)

    def has_known_number(self, index: int) -> bool:
        """Tell whether it is known by which number a server remembers a write.

        Servers before 5.0 give none to documents that they refuse at once, and only a reply tells
        which these are.
        """
        if self.kind is not INSERTS or self._has_given_none():
            return True
        reply = self._latest_reply()
        if self._known is None or self._known[0] is not reply:
            self._known = reply, unknown_from(self._execution, reply)
        return index < self._known[1]

    def _has_given_none(self) -> bool:
        """Tell whether no server has given a number, nor will, so that each has that of its place.

        That is so after all was refused unread, unless an earlier sending is in doubt.
        """
        if not self._is_over() or self._execution.pending is not None:
            return False
        return self._look_back().outcome is Outcome.NOT_APPLIED

    def error_in(self, reply: Mapping[str, Any], index: int, result: Result) -> Exception | None:
        """Return the error that a write gets by a reply, or None if it is acknowledged.

        The error knows how the write ended.

        Args:
            reply: The reply.
            index: Which write.
            result: Makes of a reply what the user awaits.
        """
        error = self._error_in(reply, index)
        if error is None:
            return None
        attempts = [
            replace(attempt, error=error, reply=None)
            if self._reply_to(attempt) is reply
            else self._as_alone(attempt, index)
            for attempt in self._execution.attempts
        ]
        surfacing = self._surfacing(error)
        self._attach(surfacing, attempts, self._outcome_of(attempts), index, result)
        return surfacing

    def explain(self, exc: BaseException, index: int, result: Result) -> None:
        """Say on an exception how a write ended, by all that was tried."""
        history = self._look_back()
        if history.latest_reply is None:  # so that it is the same for all of them
            attempts, outcome = history.attempts, history.outcome
        else:
            attempts = tuple(self._as_alone(attempt, index) for attempt in history.attempts)
            outcome = self._outcome_of(attempts)
        self._attach(exc, attempts, outcome, index, result)

    def left_out(self, index: int) -> list[Attempt]:
        """Return the attempts that were answered without a word of a write."""
        attempts = self._execution.attempts
        return [self._as_alone(one, index) for one in attempts if self._is_silent(one, index)]

    @property
    def tried(self) -> int:
        """How many attempts of the command have ended."""
        return len(self._execution.attempts)

    def may_write_after(self, tried: int, index: int) -> bool:
        """Tell whether a write that is asked for alone may come with the others all the same.

        Args:
            tried: How many attempts of the command had ended when it was asked for.
            index: Which write.
        """
        if self._execution.command.statement_count == 1:
            return False  # there are no others
        later = (self._as_alone(attempt, index) for attempt in self._execution.attempts[tried:])
        return not self._is_over() or any(
            self._outcome_of([attempt]) is not Outcome.NOT_APPLIED for attempt in later
        )

    def doubt(self, index: int, result: Result) -> "ShareDoubt":
        """Return what it takes to find out how a write ended."""
        whole = self._doubt(self._execution, index, result)
        return ShareDoubt(self, whole, index, result)

    def ask(
        self, index: int, result: Result, timeout: float | None, watch: Watch | None = None
    ) -> Resolving[Any]:
        """Send one write once more, under the number that it has in the command."""
        execution = self._execution
        if execution.command.statement_count > 1:
            execution = self._alone(index)
        return self._doubt(execution, index, result).resolve(timeout, watch)

    def acknowledgement(self, index: int) -> Mapping[str, Any] | None:
        """Return the reply that a write would have got alone, if it is applied, or None."""
        attempts = (self._as_alone(attempt, index) for attempt in self._execution.attempts)
        reply = next((attempt.reply for attempt in attempts if attempt.reply is not None), None)
        return None if reply is None else self.alone(reply, index)

    def silence_in(self, reply: Mapping[str, Any]) -> OperationFailure | None:
        """Return an error if a reply does not say of some writes what became of them.

        Of updates it has sums. And servers before 5.0 leave out the refused documents that stand
        before others, or name others for them, when they are asked a second time.
        """
        count = self._execution.command.statement_count
        if self.kind is not INSERTS:
            is_said = count == 1 or self._reading_of(reply).says_each
            return None if is_said else silence(reply, count)
        if count > 1 and leaves_out(reply, count):
            return silence(reply, count)
        return self._vagueness(reply)

    def _doubt(self, execution: Execution, index: int, result: Result) -> CommandDoubt[Any]:
        return _PartDoubt(self._coordinator, execution, self, index, result)

    def _alone(self, index: int) -> Execution:
        whole = self._execution
        field = self.kind.field
        (statements,) = whole.command.body[field]
        body = {
            **whole.command.body,
            field: [statements.document(index)],
            "stmtIds": [self._number_of(index)],
        }
        command = replace(
            whole.command, body=body, error_in=error_in, statement_count=1, may_fill_message=False
        )
        # An answer without a word of it says nothing of it, nor does one to what was not read.
        attempts = [
            self._as_alone(attempt, index)
            for attempt in whole.history()
            if not (self._is_silent(attempt, index) or is_unread(attempt.error))
        ]
        return replace(whole, command=command, attempts=attempts, retries=None, pending=None)

    def _vagueness(self, reply: Mapping[str, Any]) -> OperationFailure | None:
        error = next((error for error, known in self._answers.items() if known is reply), None)
        return vagueness(self._execution, reply, error)

    def _number_of(self, index: int) -> int:
        if self.kind is not INSERTS:
            return index
        reply = self._latest_reply()
        numbers = None if reply is None else numbers_in(reply, self._execution)
        return index if numbers is None or index not in numbers else numbers.index(index)

    def _latest_reply(self) -> Mapping[str, Any] | None:
        return self._look_back().latest_reply

    def _look_back(self) -> "_History":
        # Once for all writes, of which there may be thousands, as may be the attempts.
        attempts = tuple(self._execution.attempts)
        if self._history is None or self._history.attempts != attempts:
            replies = map(self._reply_to, reversed(attempts))
            latest = next((reply for reply in replies if reply is not None), None)
            self._history = _History(attempts, latest, self._outcome_of(attempts))
        return self._history

    def _is_silent(self, attempt: Attempt, index: int) -> bool:
        reply = self._reply_to(attempt)
        return reply is not None and self.is_silent(reply, index)

    def _outcome_of(self, attempts: Sequence[Attempt]) -> Outcome:
        execution = self._execution
        return outcome_of_attempts(
            [attempt for attempt in attempts if not self._was_unread(attempt)],
            is_atomic=execution.command.is_atomic,
            is_sharded=execution.is_sharded,
            is_by_majority=execution.is_by_majority,
        )

    def _was_unread(self, attempt: Attempt) -> bool:
        """Tell whether nothing of a sending was executed, however many statements it has."""
        error = attempt.error
        if error is None or not is_unread(error):
            return False
        # A router sends again by itself, and may pass on what it was told at last.
        return not self._execution.is_sharded or is_routers_denial(code_of(error))

    def _attach(
        self,
        exc: BaseException,
        attempts: Sequence[Attempt],
        outcome: Outcome,
        index: int,
        result: Result,
    ) -> None:
        doubt = self.doubt(index, result) if outcome is Outcome.UNKNOWN else None
        attach(exc, outcome, attempts, doubt=doubt)

    def _surfacing(self, error: OperationFailure) -> Exception:
        if says_no_retryable_writes(error):
            return no_retryable_writes(error)
        deadline = self._execution.deadline
        if code_of(error) == MAX_TIME_EXPIRED and deadline is not None and deadline.is_limited:
            late = too_late(self._execution, error)
            late.__cause__ = error
            return late
        return error

    def _reply_to(self, attempt: Attempt) -> Mapping[str, Any] | None:
        if attempt.reply is not None or attempt.error is None:
            return attempt.reply
        return self._answers.get(attempt.error)

    def _as_alone(self, attempt: Attempt, index: int) -> Attempt:
        reply = self._reply_to(attempt)
        if reply is None:
            return attempt
        error = self._error_in(reply, index)
        return replace(attempt, error=error, reply=reply if error is None else None)

    def _error_in(self, reply: Mapping[str, Any], index: int) -> OperationFailure | None:
        if self.is_silent(reply, index):
            return self.silence_in(reply)
        error = error_in(self.alone(reply, index) or reply)
        if error is None:
            return None
        for label in reply.get("errorLabels", ()):
            self._coordinator.driver.add_label(error, label)
        return error

    def _reading_of(self, reply: Mapping[str, Any]) -> Reading:
        if self._read is None or self._read[0] is not reply:
            count = self._execution.command.statement_count
            self._read = reply, self.kind.reading(reply, count)
        return self._read[1]


class _History(NamedTuple):
    """What was tried for a command, and what it says of each write if none was answered."""

    attempts: tuple[Attempt, ...]
    latest_reply: Mapping[str, Any] | None
    outcome: Outcome


class _PartDoubt(CommandDoubt[Any]):
    """A write of a command, which may still be answered with the others.

    Args:
        coordinator: Executes it.
        execution: The write alone, or the command.
        shares: What is known of the command.
        index: Which write.
        result: Makes of a reply what the user awaits.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        execution: Execution,
        shares: Shares,
        index: int,
        result: Result,
    ) -> None:
        super().__init__(coordinator, execution)
        self._shares = shares
        self._tried = shares.tried
        self._index = index
        self._result = result

    def result(self, reply: Mapping[str, Any]) -> Any:
        """Return what the user awaits."""
        return self._result(reply)

    def explain(self, exc: BaseException) -> None:
        """Say on an exception how the write ended after all."""
        alone = Shares(self.coordinator, self._shares.kind, self.execution, {}, lambda: True)
        alone.explain(exc, 0, self._result)
        if outcome_of(exc) is not Outcome.NOT_APPLIED:
            return
        tried, left_out = self.execution.attempts, self._shares.left_out(self._index)
        is_left_out = bool(left_out) and not any(map(_refuses, tried))
        if is_left_out or self._shares.may_write_after(self._tried, self._index):
            doubt = self._shares.doubt(self._index, self._result)
            attach(exc, Outcome.UNKNOWN, [*left_out, *tried], doubt=doubt)

    def known_reply(self) -> Mapping[str, Any] | None:
        """Return the answer if it came after the write had ended, or None."""
        known = self._shares.acknowledgement(self._index)
        if known is None and self.execution.command.statement_count == 1:
            known = super().known_reply()
        return known


class ShareDoubt(Doubt):
    """A write whose outcome is unknown, of several in a command.

    Args:
        shares: What is known of the command.
        whole: The doubt about the command.
        index: Which write.
        result: Makes of a reply what the user awaits.
    """

    def __init__(
        self,
        shares: Shares,
        whole: CommandDoubt[Any],
        index: int,
        result: Result,
    ) -> None:
        self._shares = shares
        self._whole = whole
        self._index = index
        self._result = result

    def why_unresolvable(self) -> str | None:
        """Return why the write can't be resolved, or None if it can."""
        reason = self._whole.why_unresolvable()
        if reason is None and not self._shares.has_known_number(self._index):
            return (
                "a document before it in its command may have been refused without a number, so "
                "that nobody knows by which number the server remembers it"
            )
        return reason

    def admit(self) -> None:
        """Let it be resolved, unless its client begins nothing any more."""
        self._whole.admit()

    def resolve(self, timeout: float | None) -> Awaitable[Any]:
        """Send the write once more, and none of the others."""
        return self._shares.ask(self._index, self._result, timeout)


def _refuses(attempt: Attempt) -> bool:
    """Tell whether a server has looked for a record of a write, found none, and refused it."""
    error = attempt.error
    return isinstance(error, WriteError) and not isinstance(error.__cause__, WriteConcernError)
