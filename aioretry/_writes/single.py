"""A write of one command, from the user's call down to the coordinator."""

import contextvars
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar, cast

from aioretry._commands.command import Command
from aioretry._commands.single import Arguments
from aioretry._commands.target import Target
from aioretry._drivers.port import Replied
from aioretry._retry.attempt import Ending, PendingAttempt
from aioretry._retry.command_execution import Execution
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._retry.sessions import SessionLease
from aioretry._retry.verdict import outcome_of_attempts
from aioretry._writes.future import RunningWrite
from aioretry._writes.resolve import CommandDoubt
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt, Outcome, attach
from aioretry.events import name_of

T = TypeVar("T")

_MOST_TOLD = 3  # of the first and of the last attempts each, in a note


class Write(RunningWrite[T]):
    """A write of one command.

    The first attempt begins at once, and if it succeeds there is nothing more to it. Whatever else
    happens is the coordinator's, in a task.

    Args:
        coordinator: Executes the command.
        lease: The session that it goes over.
        deadline: When it has to be over, or None.
        watch: Who is told of its attempts and of its end, or None.
    """

    __slots__ = ("_context", "_coordinator", "_deadline", "_execution", "_pending", "_session")

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
        self._execution: Execution | None = None
        self._pending: PendingAttempt | None = None
        self._context: contextvars.Context | None = None

    def begin(self, arguments: Arguments[T], target: Target) -> Self:
        """Send the command that a user's arguments make; an error is raised where it is awaited."""
        try:
            command = arguments.command(target)
        except BaseException as exc:  # noqa: BLE001 - raised where the write is awaited, as by Motor
            self._fail_to_begin(exc)
            return self
        return self.execute(self._execution_of(command))

    def _execution_of(self, command: Command[T]) -> Execution:
        return self._coordinator.execution(command, self._session, self._deadline, self.watch)

    def execute(self, execution: Execution) -> Self:
        """Make the first attempt of an execution, and all further ones."""
        coordinator = self._coordinator
        self._execution = execution
        try:
            if execution.lease.turn is not None or not coordinator.waits.can_begin(execution):
                self._run(coordinator.execute(execution))
            else:
                # What goes on may be begun by a callback of somebody else's.
                self._context = contextvars.copy_context()
                self._pending = coordinator.launch(execution, self)
        except BaseException as exc:  # noqa: BLE001 - raised where the write is awaited
            self._fail_to_begin(exc, may_be_under_way=True)
        return self

    @property
    def execution(self) -> Execution | None:
        """The command, with its attempts; None if it could not be made."""
        return self._execution

    def land(self, result: Ending) -> None:
        """Take what came of the first attempt."""
        self._pending = None
        if self._execution is None or self.done():
            return
        if isinstance(result, Replied):
            self._take(result.reply)
        else:
            self._run(self._coordinator.execute(self._execution, result), self._context)

    def _abandon(self, reason: BaseException) -> None:
        if self._pending is not None:
            self._pending.disown(reason)

    def attempts(self) -> Sequence[Attempt]:
        """Return what was tried for the write."""
        return [] if self._execution is None else self._execution.attempts

    def _leaves_doubt(self, value: Any) -> bool:
        return cast(Execution, self._execution).leaves_doubt(value)

    def _result_of(self, value: Any) -> T:
        result: T = result_of(cast(Execution, self._execution), value)
        return result

    def _explain(self, exc: BaseException) -> bool:
        return explain(exc, self._execution, self._coordinator) is Outcome.UNKNOWN


class WriteDoubt(CommandDoubt[T]):
    """A write of one command whose outcome is unknown."""

    def result(self, reply: Mapping[str, Any]) -> T:
        """Turn a reply into what the user awaits."""
        result: T = result_of(self.execution, reply)
        return result

    def explain(self, exc: BaseException) -> None:
        """Say on an exception how the write ended after all."""
        explain(exc, self.execution, self.coordinator)


def result_of(execution: Execution, reply: Mapping[str, Any]) -> Any:
    """Turn the reply of a successful write into what the user awaits.

    Raises:
        Exception: The reply is not what it should be; the write is applied all the same.
    """
    try:
        return execution.command.result(reply)
    except Exception as exc:
        attach(exc, Outcome.APPLIED, execution.attempts)
        raise


def explain(exc: BaseException, execution: Execution | None, coordinator: Coordinator) -> Outcome:
    """Say on an exception that leaves a write how the write ended.

    Args:
        exc: The exception.
        execution: The command; None if there was none yet.
        coordinator: What it was executed by.

    Returns:
        The outcome.
    """
    if execution is None:
        attach(exc, Outcome.NOT_APPLIED, [])
        return Outcome.NOT_APPLIED
    attempts, command = execution.attempts, execution.command
    outcome = outcome_of_attempts(
        attempts,
        holds_multi=command.holds_multi,
        is_atomic=command.is_atomic,
        is_sharded=execution.is_sharded,
        is_by_majority=execution.is_by_majority,
    )
    doubt = None
    if outcome is Outcome.UNKNOWN:
        doubt = WriteDoubt[Any](coordinator, execution)
    attach(exc, outcome, attempts, doubt=doubt)
    if len(attempts) > 1 or outcome is Outcome.UNKNOWN:
        exc.add_note(_note(execution, outcome))
    return outcome


def tried_for(execution: Execution) -> str:
    """Return what was tried for a command, in less than one line."""
    attempts = execution.attempts
    left_out = len(attempts) - 2 * _MOST_TOLD
    if left_out <= 0:
        return "; ".join(map(_told, attempts))
    first, last = attempts[:_MOST_TOLD], attempts[-_MOST_TOLD:]
    return "; ".join([*map(_told, first), f"{left_out} more", *map(_told, last)])


def _told(attempt: Attempt) -> str:
    return f"{_host(attempt)} {_answer(attempt)} after {attempt.duration:.3f} s"


def _note(execution: Execution, outcome: Outcome) -> str:
    command, tried = execution.command, tried_for(execution)
    return (
        f"aioretry: {command.operation} on {command.namespace}: {tried}; outcome: {outcome.value}"
    )


def _host(attempt: Attempt) -> str:
    return "no server" if attempt.address is None else name_of(attempt.address)


def _answer(attempt: Attempt) -> str:
    if attempt.error is not None:
        return type(attempt.error).__name__
    return "no answer" if attempt.reply is None else "success"
