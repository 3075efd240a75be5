"""What has no outcome of its own: a read, and a statement of a transaction."""

from typing import Any, TypeVar, cast

from pymongo.errors import ConnectionFailure

from aioretry._commands.command import Command
from aioretry._retry.command_execution import Execution
from aioretry._retry.transactions import TRANSIENT, has_label
from aioretry._writes.single import Write, tried_for
from aioretry.errors import attach, own_report_of

T = TypeVar("T")


class WithoutOutcome(Write[T]):
    """What leaves no doubt however it ends."""

    __slots__ = ()

    _outcome_of_success = None

    def _leaves_doubt(self, value: Any) -> bool:  # noqa: ARG002
        return False

    def _result_of(self, value: Any) -> T:
        execution = cast(Execution, self.execution)
        try:
            result: T = execution.command.result(value)
        except Exception as exc:
            attach(exc, None, execution.attempts)
            raise
        return result

    def _explain(self, exc: BaseException) -> bool:
        execution = self.execution
        attempts = [] if execution is None else execution.attempts
        if own_report_of(exc) is None:  # one that was refused says so
            attach(exc, None, attempts)
        if execution is not None and len(attempts) > 1:
            command, tried = execution.command, tried_for(execution)
            exc.add_note(f"aioretry: {command.operation} on {command.namespace}: {tried}")
        return False


class Statement(WithoutOutcome[T]):
    """A statement of a transaction, which is repeated as a whole (transactions, "Error Labels")."""

    __slots__ = ()

    def _execution_of(self, command: Command[T]) -> Execution:
        return self._coordinator.statement(command, self._session, self._deadline, self.watch)

    def _explain(self, exc: BaseException) -> bool:
        if isinstance(exc, ConnectionFailure):
            self._coordinator.driver.add_label(exc, TRANSIENT)
        if has_label(exc, TRANSIENT):
            self._session.unpin()
        return super()._explain(exc)
