"""A bulk operation under way: its commands, one after the other."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from pymongo.errors import OperationFailure, WriteError
from pymongo.results import BulkWriteResult

from aioretry._commands.bulk import Bulk, no_result
from aioretry._commands.bulk_arguments import Arguments, Plan
from aioretry._commands.error_codes import LABELS
from aioretry._commands.replies import has_retryable_concern_error, says_time_is_over
from aioretry._commands.statements import Batch
from aioretry._commands.target import Target
from aioretry._drivers.port import Address
from aioretry._retry.command_execution import Execution
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._retry.sessions import SessionLease
from aioretry._retry.surfacing import too_late
from aioretry._retry.verdict import is_routers_denial, outcome_of_attempts
from aioretry._retry.waiting import turn_of
from aioretry._writes.future import RunningWrite
from aioretry._writes.resolve import CommandDoubt
from aioretry._writes.single import tried_for
from aioretry._writes.unclear_inserts import Inquiry, doubt_vague_replies, vagueness
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt, Outcome, PartialResult, ResolveError, attach

T = TypeVar("T")


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
        self._execution: Execution | None = None
        self._ended: list[Attempt] = []
        self._asked: list[Attempt] = []
        self._avoid: frozenset[Address] = frozenset()
        self._count = 0
        self._bulk = self._step()

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts of all commands, oldest first."""
        latest = [] if self._execution is None else self._execution.attempts
        return self._ended + latest + self._asked

    async def run(self) -> T:
        """Send all commands; return what the user awaits."""
        while self._bulk is None:
            await asyncio.sleep(0)
            self._bulk = self._step()
        bulk = self._bulk
        while bulk.has_more:
            await self._send_next(bulk)
        return bulk.result()

    def explain(self, exc: BaseException) -> bool:
        """Say on an exception how the operation ended; return whether any of it is in doubt."""
        execution, bulk = self._execution, self._bulk
        if bulk is None:
            return explain_unplanned(exc, self._count)
        tried = "" if execution is None else tried_for(execution)
        doubt = None
        if execution is not None:
            doubt = self._close(bulk, execution, exc)
        partial_result = bulk.partial_result()
        counts = bulk.counts()
        attach(exc, _shared(bulk, counts), self.attempts, partial_result, doubt)
        in_doubt = counts[Outcome.UNKNOWN] > 0
        if execution is not None or in_doubt:
            exc.add_note(_note(bulk, tried, counts))
        return in_doubt

    def _step(self) -> Bulk[T] | None:
        try:
            self._count = next(self._plan)
        except StopIteration as stop:
            bulk: Bulk[T] = stop.value
            return bulk
        return None

    async def _send_next(self, bulk: Bulk[T]) -> None:
        command = bulk.next_command()
        self._execution = execution = self._coordinator.execution(
            command, self._lease, self._deadline, self._watch
        )
        execution.deprioritized = self._avoid
        batch = bulk.batch
        failure = None
        async with turn_of(execution):
            try:
                reply = await self._coordinator.send(execution)
            except OperationFailure as exc:
                answer = None if batch is None else batch.answers.get(exc)
                if answer is None:
                    raise
                # The last word was an answer after all, and becomes a part of the result.
                reply, failure = answer, exc
            reply = await self._inquiry(execution).complete(reply, failure)
        self._merge(bulk, execution, reply, _outcome_of_denied(execution, bulk.batch))
        if failure is not None and _ends_the_whole(execution, reply):
            raise self._error_of(bulk, failure) from failure
        deadline = self._deadline
        if deadline is not None and deadline.is_limited and says_time_is_over(reply):
            error = bulk.error()
            raise too_late(execution, error) from error

    def _close(
        self, bulk: Bulk[T], execution: Execution, exc: BaseException
    ) -> CommandDoubt[T] | None:
        """Note what is known of a command that is given up; return what can be resolved of it."""
        attempts, command, batch = execution.attempts, execution.command, bulk.batch
        bulk.stop_reading()
        doubt_vague_replies(execution)
        answers = [] if batch is None else _clear_answers(execution, batch)
        outcome = outcome_of_attempts(
            attempts,
            # Of those it has an answer for, the answer tells.
            holds_multi=command.holds_multi and not answers,
            is_atomic=command.is_atomic,
            is_sharded=execution.is_sharded,
        )
        if batch is not None and len(answers) < len(batch.answers):
            outcome = Outcome.UNKNOWN
        try:
            if batch is not None and any(each.reply is not None for each in attempts):
                self._merge_known(bulk, execution, batch)  # nobody has looked at it yet
            elif answers:
                bulk.merge(answers[-1], denied=outcome)
            else:
                bulk.give_up(outcome)
                if batch is not None and outcome is Outcome.UNKNOWN:
                    return BulkDoubt(self._coordinator, execution, self, bulk, batch, exc)
        except Exception:  # noqa: BLE001 - the answer makes no sense
            bulk.give_up(Outcome.UNKNOWN)
        return None

    def resolve(
        self,
        bulk: Bulk[T],
        execution: Execution,
        batch: Batch,
        reply: Mapping[str, Any],
        exc: BaseException,
    ) -> T:
        """Add an answer that came after the end; return what the user would have awaited.

        Args:
            bulk: The operation.
            execution: The command in doubt.
            batch: Its statements.
            reply: The answer.
            exc: What the operation had ended with.

        Raises:
            ResolveError: Statements were left that were never sent.
            OperationFailure: The answers amount to an error.
        """
        if not batch.is_merged:  # it may be resolved twice
            bulk.take_up(batch)
            self._merge_known(bulk, execution, batch, reply)
        try:
            return _whole_result(bulk, exc)
        except Exception as error:
            self.explain(error)
            raise

    def explain_again(
        self, bulk: Bulk[T], execution: Execution, batch: Batch, exc: BaseException
    ) -> None:
        """Say on what resolving ended with how the operation ended."""
        if not batch.is_merged:
            self._execution = execution
            bulk.take_up(batch)
        self.explain(exc)

    def _merge_known(
        self, bulk: Bulk[T], execution: Execution, batch: Batch, *replies: Mapping[str, Any]
    ) -> None:
        """Add all that is known of a command of which several attempts may have been answered."""
        clear = _clear_answers(execution, batch)
        denied = _outcome_of_denied(execution, batch)
        if len(clear) < len(batch.answers):
            denied = Outcome.UNKNOWN
        reply = bulk.fullest(batch, [*clear, *_clear_replies(execution), *replies])
        self._merge(bulk, execution, reply, denied)

    def _merge(
        self, bulk: Bulk[T], execution: Execution, reply: Mapping[str, Any], denied: Outcome
    ) -> None:
        bulk.merge(reply, denied)
        self._ended += execution.attempts + self._asked
        self._asked = []
        self._avoid = execution.deprioritized
        self._execution = None

    def _inquiry(self, execution: Execution) -> Inquiry:
        return Inquiry(self._coordinator, execution, self._asked)

    def _error_of(self, bulk: Bulk[T], answer: OperationFailure) -> OperationFailure:
        error = bulk.error()
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
        execution: The command.
        run: The operation's way.
        bulk: The operation.
        batch: The command's statements.
        exc: What the operation has ended with.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        execution: Execution,
        run: BulkRun[T],
        bulk: Bulk[T],
        batch: Batch,
        exc: BaseException,
    ) -> None:
        super().__init__(coordinator, execution)
        self._run, self._bulk, self._batch, self._exc = run, bulk, batch, exc

    def result(self, reply: Mapping[str, Any]) -> T:
        """Return what the user would have awaited."""
        return self._run.resolve(self._bulk, self.execution, self._batch, reply, self._exc)

    def explain(self, exc: BaseException) -> None:
        """Say on an exception how the operation ended after all."""
        self._run.explain_again(self._bulk, self.execution, self._batch, exc)

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
        super().__init__(coordinator.loop, watch, lease)
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
        except Exception as exc:  # noqa: BLE001 - raised where the write is awaited, as by Motor
            self._fail(exc)
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
    outcomes = (Outcome.NOT_APPLIED,) * count
    nothing = PartialResult(BulkWriteResult(no_result(), True), outcomes)
    attach(exc, Outcome.NOT_APPLIED, [], nothing)
    return False


def _clear_answers(execution: Execution, batch: Batch) -> list[Mapping[str, Any]]:
    """Return the replies that were taken for errors and say what became of each statement."""
    return [
        reply
        for error, reply in batch.answers.items()
        if vagueness(execution, reply, error) is None
    ]


def _clear_replies(execution: Execution) -> list[Mapping[str, Any]]:
    """Return the other replies that do."""
    replies = [attempt.reply for attempt in execution.attempts if attempt.reply is not None]
    return [reply for reply in replies if vagueness(execution, reply) is None]


def _whole_result(bulk: Bulk[T], exc: BaseException) -> T:
    if bulk.has_more:
        raise ResolveError(
            "the command in doubt is resolved, but other statements were never sent: "
            "partial_result_of() tells each"
        ) from exc
    return bulk.result()


def _ends_the_whole(execution: Execution, reply: Mapping[str, Any]) -> bool:
    # A failed retry does. So does, with PyMongo, a write concern error that could be retried where
    # retries are allowed.
    was_retried = execution.retries is not None and execution.retries.retries > 0
    return was_retried or has_retryable_concern_error(reply)


def _outcome_of_denied(execution: Execution, batch: Batch | None) -> Outcome:
    # As for a single write whose attempts were answered by a write error, if they were answered.
    answers = {} if batch is None else batch.answers
    return outcome_of_attempts(
        [
            _as_denied(attempt, answers, is_sharded=execution.is_sharded)
            for attempt in execution.attempts
        ],
        is_atomic=execution.command.is_atomic,
        is_sharded=execution.is_sharded,
    )


def _as_denied(
    attempt: Attempt,
    answers: Mapping[OperationFailure, Mapping[str, Any]],
    *,
    is_sharded: bool,
) -> Attempt:
    reply = attempt.reply
    if reply is None and isinstance(attempt.error, OperationFailure):
        reply = answers.get(attempt.error)
    if reply is None:
        return attempt
    codes = [error.get("code") for error in reply.get("writeErrors", ())] if is_sharded else []
    # One that says nothing of earlier sendings stands for all of them.
    code = next((code for code in codes if not is_routers_denial(code)), None)
    return replace(attempt, error=WriteError("", code), reply=None)


def _shared(bulk: Bulk[Any], counts: Mapping[Outcome, int]) -> Outcome:
    """Return the outcome that all statements have in common; of none, nothing is applied."""
    match [outcome for outcome, count in counts.items() if count]:
        case []:
            return Outcome.NOT_APPLIED
        case [Outcome.APPLIED] if bulk.has_unsent:
            return Outcome.UNKNOWN
        case [outcome]:
            return outcome
        case _:
            return Outcome.UNKNOWN


def _note(bulk: Bulk[Any], tried: str, counts: Mapping[Outcome, int]) -> str:
    ended = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
    note = f"aioretry: {bulk.operation} on {bulk.namespace}: statements: {ended}"
    return f"{note}; the last command: {tried}" if tried else note
