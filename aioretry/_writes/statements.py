"""What has no outcome of its own: a read, and a statement of a transaction."""

import asyncio
import math
import weakref
from collections.abc import Mapping
from typing import Any, Self, TypeVar, cast

from pymongo.errors import ConnectionFailure

from aioretry._commands.command import Command
from aioretry._retry.command_execution import Execution
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._retry.sessions import SessionLease
from aioretry._retry.transactions import TRANSIENT, has_label
from aioretry._writes.context import TransactionalSession
from aioretry._writes.single import Write, tried_for
from aioretry.deadlines import Deadline
from aioretry.errors import attach, copy_of, own_report_of

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
    """A statement of a transaction, which is repeated as a whole (transactions, "Error Labels").

    The others that are gathered with the first one wait until that was answered: to a server that
    has not heard of the transaction they are no part of it. If the first one is lost on its way, so
    are they.

    Args:
        coordinator: Executes the command.
        lease: The session that it goes over.
        deadline: When it has to be over, or None.
        watch: Who is told of its attempts and of its end, or None.
        session: The user's session.
    """

    __slots__ = ("_first",)

    def __init__(
        self,
        coordinator: Coordinator,
        lease: SessionLease,
        deadline: Deadline | None,
        watch: Watch | None,
        session: Any,
    ) -> None:
        super().__init__(coordinator, lease, deadline, watch)
        self._first: asyncio.Future[Any] | None = None
        if not isinstance(session, TransactionalSession):
            return  # a stranger's, which is refused
        known = session._first_statement
        first = None if known is None else known()
        if first is not None and not first.done():
            self._first = first
        elif known is None or not session._calls.has_begun_transaction(session):
            session._first_statement = weakref.ref(self)

    def execute(self, execution: Execution) -> Self:
        """Make the first attempt of an execution, and all further ones."""
        if self._first is None:
            return super().execute(execution)
        self._execution = execution
        self._run(self._follow(self._first, execution))
        return self

    async def _follow(self, first: asyncio.Future[Any], execution: Execution) -> Mapping[str, Any]:
        left, self._first = execution.time_left(), None
        await asyncio.wait({first}, timeout=None if math.isinf(left) else left)
        lost = first.exception() if first.done() and not first.cancelled() else None
        if isinstance(lost, ConnectionFailure):
            error = copy_of(lost)
            attach(error, None, ())
            raise error
        return await self._coordinator.execute(execution)

    def _execution_of(self, command: Command[T]) -> Execution:
        return self._coordinator.statement(command, self._session, self._deadline, self.watch)

    def _explain(self, exc: BaseException) -> bool:
        if isinstance(exc, ConnectionFailure):
            self._coordinator.driver.add_label(exc, TRANSIENT)
        if has_label(exc, TRANSIENT):
            self._session.unpin()
        return super()._explain(exc)
