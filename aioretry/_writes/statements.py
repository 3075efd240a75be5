"""What has no outcome of its own: a read, and a statement of a transaction."""

import asyncio
import math
import weakref
from collections.abc import Mapping
from typing import Any, Self, TypeVar, cast

from pymongo.errors import AutoReconnect, ConnectionFailure

from aioretry._commands.command import Command
from aioretry._retry.command_execution import Execution
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._retry.sessions import SessionLease
from aioretry._retry.transactions import TRANSIENT, has_label
from aioretry._writes.context import TransactionalSession
from aioretry._writes.single import Write, tried_for
from aioretry.deadlines import Deadline
from aioretry.errors import DeadlineExceeded, WritesUnavailableError, attach, own_report_of

T = TypeVar("T")

_LOST = "the statement that was to begin the transaction was lost; nothing of this one was sent"


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
    are they; if it was never sent, the next one is the first.

    Args:
        coordinator: Executes the command.
        lease: The session that it goes over.
        deadline: When it has to be over, or None.
        watch: Who is told of its attempts and of its end, or None.
        session: The user's session.
    """

    __slots__ = ("_first", "_of")

    def __init__(
        self,
        coordinator: Coordinator,
        lease: SessionLease,
        deadline: Deadline | None,
        watch: Watch | None,
        session: Any,
    ) -> None:
        super().__init__(coordinator, lease, deadline, watch)
        self._of: Any = session
        self._first = self._one_before()

    def execute(self, execution: Execution) -> Self:
        """Make the first attempt of an execution, and all further ones."""
        if self._first is None:
            self._of = None
            return super().execute(execution)
        self._execution = execution
        self._run(self._follow(execution))
        return self

    def _one_before(self) -> "Statement[Any] | None":
        """Return the statement that is to begin the transaction; None if nothing is before this."""
        session = self._of
        if not isinstance(session, TransactionalSession):
            return None  # a stranger's, which is refused
        known = session._first_statement
        first: Statement[Any] | None = None if known is None else known()
        if first is not None and first is not self and not first.done():
            return first
        if known is None or not session._calls.has_begun_transaction(session):
            session._first_statement = weakref.ref(self)
        return None

    async def _follow(self, execution: Execution) -> Mapping[str, Any]:
        while self._first is not None:
            left = execution.time_left()
            await asyncio.wait({self._first}, timeout=None if math.isinf(left) else left)
            if not self._first.done():
                break  # this one's time is over
            if self._first.was_lost:
                raise AutoReconnect(_LOST)
            self._first = self._one_before()
        self._of = self._first = None
        return await self._coordinator.execute(execution)

    @property
    def was_lost(self) -> bool:
        """Whether nobody knows if a server has it."""
        error = self.failure
        is_lost = isinstance(error, ConnectionFailure | asyncio.CancelledError)
        return is_lost and any(attempt.sent for attempt in self.attempts())

    def _execution_of(self, command: Command[T]) -> Execution:
        return self._coordinator.statement(command, self._session, self._deadline, self.watch)

    def _explain(self, exc: BaseException) -> bool:
        if isinstance(exc, ConnectionFailure) and not isinstance(exc, WritesUnavailableError):
            self._coordinator.driver.add_label(exc, TRANSIENT)
        if has_label(exc, TRANSIENT) and not self._has_its_router(exc):
            self._session.unpin()
        return super()._explain(exc)

    def _has_its_router(self, exc: BaseException) -> bool:
        """Tell whether its time was over before it was sent, in a transaction of those before it.

        Nothing is wrong with their router then, and no other one can abort it.
        """
        is_unsent = not any(attempt.sent for attempt in self.attempts())
        return isinstance(exc, DeadlineExceeded) and is_unsent and self._session.has_begun
