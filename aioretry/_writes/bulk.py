"""A bulk operation under way: its commands, one after the other."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from pymongo.errors import OperationFailure, WriteError

from aioretry._commands.bulk import Bulk
from aioretry._commands.bulk_arguments import Arguments, Plan
from aioretry._commands.error_codes import LABELS
from aioretry._commands.replies import has_retryable_concern_error, says_time_is_over
from aioretry._commands.statements import Batch
from aioretry._commands.target import Target
from aioretry._drivers.port import Address, Policy, ServerKind
from aioretry._retry.caution import why_not
from aioretry._retry.command_execution import Execution
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._retry.sessions import SessionLease
from aioretry._retry.surfacing import too_late
from aioretry._retry.verdict import (
    is_routers_denial,
    may_be_retryable,
    needs_label,
    outcome_of_attempts,
)
from aioretry._retry.waiting import turn_of
from aioretry._writes.bulk_result import BulkResult, nothing
from aioretry._writes.future import RunningWrite
from aioretry._writes.resolve import CommandDoubt
from aioretry._writes.single import tried_for
from aioretry._writes.unclear_inserts import Inquiry, doubt_vague_replies, vagueness
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt, Outcome, ResolveError, attach

T = TypeVar("T")


@dataclass(slots=True)
class BatchExecution:
    """One command of a bulk operation on its way."""

    execution: Execution
    batch: Batch

    @property
    def is_clear(self) -> bool:
        """Whether every answer that was taken for an error says what became of each statement."""
        return len(self.clear_answers()) == len(self.batch.answers)

    def clear_answers(self) -> list[Mapping[str, Any]]:
        """Return the replies that were taken for errors and say what became of each statement."""
        return [
            reply
            for error, reply in self.batch.answers.items()
            if vagueness(self.execution, reply, error) is None
        ]

    def clear_replies(self) -> list[Mapping[str, Any]]:
        """Return the other replies that do."""
        attempts = self.execution.attempts
        replies = [attempt.reply for attempt in attempts if attempt.reply is not None]
        return [reply for reply in replies if vagueness(self.execution, reply) is None]

    def outcome_of_denied(self) -> Outcome:
        """Return how a statement has ended that was refused."""
        # As for a single write whose attempts were answered by a write error, if they were.
        execution = self.execution
        return outcome_of_attempts(
            [self._as_denied(attempt) for attempt in execution.attempts],
            is_atomic=execution.command.is_atomic,
            is_sharded=execution.is_sharded,
            is_by_majority=execution.is_by_majority,
        )

    def outcome_without_reply(self) -> Outcome:
        """Return how the statements have ended, as far as the attempts' errors tell."""
        execution, command = self.execution, self.execution.command
        outcome = outcome_of_attempts(
            execution.attempts,
            # Of those it has an answer for, the answer tells.
            holds_multi=command.holds_multi and not self.clear_answers(),
            is_atomic=command.is_atomic,
            is_sharded=execution.is_sharded,
            is_by_majority=execution.is_by_majority,
        )
        return outcome if self.is_clear else Outcome.UNKNOWN

    def ends_the_whole(self, reply: Mapping[str, Any]) -> bool:
        """Tell whether an answer that was an error at first ends the operation."""
        # A failed retry does. So does, with PyMongo, a write concern error that could be retried
        # where retries are allowed.
        retries = self.execution.retries
        was_retried = retries is not None and retries.retries > 0
        return was_retried or has_retryable_concern_error(reply)

    def _as_denied(self, attempt: Attempt) -> Attempt:
        reply = attempt.reply
        if reply is None and isinstance(attempt.error, OperationFailure):
            reply = self.batch.answers.get(attempt.error)
        if reply is None:
            return attempt
        is_sharded = self.execution.is_sharded
        codes = [error.get("code") for error in reply.get("writeErrors", ())] if is_sharded else []
        # One that says nothing of earlier sendings stands for all of them.
        code = next((code for code in codes if not is_routers_denial(code)), None)
        return replace(attempt, error=WriteError("", code), reply=None)


class BulkRun(Generic[T]):
    """A bulk operation under way: each of its commands is judged and retried on its own.

    Args:
        coordinator: Executes the commands.
        plan: Makes the bulk operation.
        lease: The session that it goes over.
        deadline: When all of it has to be over, or None.
        watch: Who is told of its attempts, or None.

    Raises:
        Exception: What the user gave can't be sent.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        plan: Plan[T],
        lease: SessionLease,
        deadline: Deadline | None,
        watch: Watch | None,
    ) -> None:
        self._coordinator = coordinator
        self._watch = watch
        self._plan = plan
        self._lease = lease
        self._deadline = deadline
        self._current: BatchExecution | None = None
        self._ended: list[Attempt] = []
        self._asked: list[Attempt] = []
        self._avoid: frozenset[Address] = frozenset()
        self._count = 0
        self._operation_id: int | None = None
        self._result = self._step()

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts of all commands, oldest first."""
        latest = [] if self._current is None else self._current.execution.attempts
        return self._ended + latest + self._asked

    async def run(self) -> T:
        """Send all commands; return what the user awaits."""
        while self._result is None:
            await asyncio.sleep(0)
            self._result = self._step()
        result = self._result
        while result.has_more:
            await self._send_next(result)
        return result.get()

    def explain(self, exc: BaseException) -> bool:
        """Say on an exception how the operation ended; return whether any of it is in doubt."""
        current, result = self._current, self._result
        if result is None:
            return explain_unplanned(exc, self._count)
        tried, doubt = "", None
        if current is not None:
            tried = tried_for(current.execution)
            why = _why_not_retried(current.execution, self._coordinator.policy)
            tried = f"{tried}; not retried: {why}" if why else tried
            doubt = self._close(result, current, exc)
        attach(exc, result.outcome(), self.attempts, result.partial(), doubt)
        counts = result.counts()
        in_doubt = counts[Outcome.UNKNOWN] > 0
        if current is not None or in_doubt:
            exc.add_note(_note(result.bulk, tried, counts))
        return in_doubt

    def _step(self) -> BulkResult[T] | None:
        try:
            self._count = next(self._plan)
        except StopIteration as stop:
            return BulkResult(stop.value)
        return None

    async def _send_next(self, result: BulkResult[T]) -> None:
        command, batch = result.bulk.next_command()
        execution = self._coordinator.execution(command, self._lease, self._deadline, self._watch)
        execution.deprioritized = self._avoid
        self._operation_id = self._operation_id or execution.operation_id
        execution.operation_id = self._operation_id
        self._current = current = BatchExecution(execution, batch)
        failure = None
        async with turn_of(execution):
            try:
                reply = await self._coordinator.send(execution)
            except OperationFailure as exc:
                answer = batch.answers.get(exc)
                if answer is None:
                    raise
                # The last word was an answer after all, and becomes a part of the result.
                reply, failure = answer, exc
            inquiry = Inquiry(self._coordinator, execution, self._asked)
            reply = await inquiry.complete(reply, failure)
        self._merge(result, current, reply, current.outcome_of_denied())
        if failure is not None and current.ends_the_whole(reply):
            raise self._error_of(result, failure) from failure
        deadline = self._deadline
        if deadline is not None and deadline.is_limited and says_time_is_over(reply):
            error = result.error()
            raise too_late(execution, error) from error

    def _close(
        self, result: BulkResult[T], current: BatchExecution, exc: BaseException
    ) -> CommandDoubt[T] | None:
        """Note what is known of a command that is given up; return what can be resolved of it."""
        batch = current.batch
        result.bulk.stop_reading()
        doubt_vague_replies(current.execution)
        answers, outcome = current.clear_answers(), current.outcome_without_reply()
        try:
            if any(attempt.reply is not None for attempt in current.execution.attempts):
                self._merge_known(result, current)  # nobody has looked at it yet
            elif answers:
                result.merge(batch, answers[-1], denied=outcome)
            else:
                result.give_up(batch, outcome)
                if outcome is Outcome.UNKNOWN:
                    return BulkDoubt(self._coordinator, current, self, result, exc)
        except Exception:  # noqa: BLE001 - the answer makes no sense
            result.give_up(batch, Outcome.UNKNOWN)
        return None

    def resolve(
        self,
        result: BulkResult[T],
        current: BatchExecution,
        reply: Mapping[str, Any],
        exc: BaseException,
    ) -> T:
        """Add an answer that came after the end; return what the user would have awaited.

        Args:
            result: What was known before.
            current: The command in doubt.
            reply: The answer.
            exc: What the operation had ended with.

        Raises:
            ResolveError: Statements were left that were never sent.
            OperationFailure: The answers amount to an error.
        """
        if not current.batch.is_merged:  # it may be resolved twice
            self._merge_known(result, current, reply)
        try:
            return _whole_result(result, exc)
        except Exception as error:
            self.explain(error)
            raise

    def explain_again(self, current: BatchExecution, exc: BaseException) -> None:
        """Say on what resolving ended with how the operation ended."""
        if not current.batch.is_merged:
            self._current = current
        self.explain(exc)

    def _merge_known(
        self, result: BulkResult[T], current: BatchExecution, *replies: Mapping[str, Any]
    ) -> None:
        """Add all that is known of a command of which several attempts may have been answered."""
        denied = current.outcome_of_denied() if current.is_clear else Outcome.UNKNOWN
        known = [*current.clear_answers(), *current.clear_replies(), *replies]
        self._merge(result, current, result.fullest(current.batch, known), denied)

    def _merge(
        self,
        result: BulkResult[T],
        current: BatchExecution,
        reply: Mapping[str, Any],
        denied: Outcome,
    ) -> None:
        result.merge(current.batch, reply, denied)
        self._ended += current.execution.attempts + self._asked
        self._asked = []
        self._avoid = current.execution.deprioritized
        self._current = None

    def _error_of(self, result: BulkResult[T], answer: OperationFailure) -> OperationFailure:
        error = result.error()
        if error is None:
            raise AssertionError("an answer that was an error, but for nobody")
        for label in LABELS:
            if answer.has_error_label(label):
                self._coordinator.driver.add_label(error, label)
        return error


class BulkDoubt(CommandDoubt[T]):
    """A command of a bulk operation whose outcome is unknown.

    Args:
        coordinator: What it was executed by.
        current: The command.
        run: The operation's way.
        result: What is known of the operation.
        exc: What the operation has ended with.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        current: BatchExecution,
        run: BulkRun[T],
        result: BulkResult[T],
        exc: BaseException,
    ) -> None:
        super().__init__(coordinator, current.execution)
        self._run, self._current, self._result, self._exc = run, current, result, exc

    def result(self, reply: Mapping[str, Any]) -> T:
        """Return what the user would have awaited."""
        return self._run.resolve(self._result, self._current, reply, self._exc)

    def explain(self, exc: BaseException) -> None:
        """Say on an exception how the operation ended after all."""
        self._run.explain_again(self._current, exc)

    def known_reply(self) -> Mapping[str, Any] | None:
        """Return the answer if it came after the operation had ended, and says enough, or None."""
        doubt_vague_replies(self.execution)
        return super().known_reply()

    async def execute(self, execution: Execution) -> Mapping[str, Any]:
        """Send the command; return a reply that says what became of each statement."""
        async with turn_of(execution):
            reply = await self.coordinator.send(execution)
            return await Inquiry(self.coordinator, execution, []).complete(reply)


class BulkWrite(RunningWrite[T]):
    """A bulk operation that runs whether or not anybody awaits it.

    Args:
        coordinator: Executes its commands.
        lease: The session that it goes over.
        deadline: When all of it has to be over, or None.
        watch: Who is told of its attempts and of its end, or None.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        lease: SessionLease,
        deadline: Deadline | None,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(coordinator, watch, lease)
        self._coordinator = coordinator
        self._session = lease
        self._deadline = deadline
        self._bulk_run: BulkRun[T] | None = None

    def begin(self, arguments: Arguments[T], target: Target) -> Self:
        """Send what a user's arguments make; an error is raised where it is awaited."""
        try:
            plan = arguments.plan(target)
            self._bulk_run = BulkRun(
                self._coordinator, plan, self._session, self._deadline, self.watch
            )
        except BaseException as exc:  # noqa: BLE001 - raised where the write is awaited, as by Motor
            self._fail_to_begin(exc)
            return self
        self._run(self._bulk_run.run())
        return self

    def attempts(self) -> Sequence[Attempt]:
        """Return what was tried for the write."""
        return [] if self._bulk_run is None else self._bulk_run.attempts

    def _leaves_doubt(self, value: Any) -> bool:  # noqa: ARG002
        return False  # a bulk operation in doubt has no result

    def _result_of(self, value: T) -> T:
        return value

    def _explain(self, exc: BaseException) -> bool:
        run = self._bulk_run
        return explain_unplanned(exc) if run is None else run.explain(exc)


def explain_unplanned(exc: BaseException, count: int = 0) -> bool:
    """Say on an exception that a bulk operation has done nothing; return False.

    Args:
        exc: The exception.
        count: How many statements there are, if that is known.
    """
    attach(exc, Outcome.NOT_APPLIED, [], nothing(count))
    return False


def _whole_result(result: BulkResult[T], exc: BaseException) -> T:
    if result.has_more:
        raise ResolveError(
            "the command in doubt is resolved, but other statements were never sent: "
            "partial_result_of() tells each"
        ) from exc
    return result.get()


def _why_not_retried(execution: Execution, policy: Policy) -> str | None:
    """Return why a command was sent once after whose error another one is sent again, or None."""
    retries, server = execution.retries, execution.server
    if execution.has_transaction_id or retries is None or retries.retries or server is None:
        return None
    is_mongos = server.kind is ServerKind.MONGOS
    error, version = retries.surfacing(), server.max_wire_version
    if execution.time_left() <= 0 or not (
        may_be_retryable(error)
        or needs_label(error, retry_writes=True, max_wire_version=version, is_mongos=is_mongos)
    ):
        return None
    if execution.command.holds_multi:
        return "it holds an UpdateMany or DeleteMany"
    found = why_not(server, retry_writes=policy.retry_writes)
    return None if found is None else found[0]


def _note(bulk: Bulk[Any], tried: str, counts: Mapping[Outcome, int]) -> str:
    ended = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
    note = f"aioretry: {bulk.operation} on {bulk.namespace}: statements: {ended}"
    return f"{note}; the last command: {tried}" if tried else note
