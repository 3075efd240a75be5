"""Resolving a write whose outcome is unknown."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from pymongo.errors import InvalidOperation

from aioretry._drivers.port import ServerSession
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._writes.future import RunningWrite
from aioretry.deadlines import Deadline, validate_seconds
from aioretry.errors import (
    Attempt,
    Doubt,
    Outcome,
    Report,
    ResolveError,
    report_of,
    require_exception,
)

T = TypeVar("T")

WITHOUT_ID = "it was sent without a transaction id, so that sending it again could write twice"
_TOLD_EACH = "partial_result_of() tells how each statement ended"


class CommandDoubt(Doubt, Generic[T]):
    """A command whose outcome is unknown, and what it takes to send it once more.

    Args:
        coordinator: What it was executed by.
        execution: The command; its attempts are added to.
    """

    def __init__(self, coordinator: Coordinator, execution: Execution) -> None:
        self.coordinator = coordinator
        self.execution = execution

    @abstractmethod
    def result(self, reply: Mapping[str, Any]) -> T:
        """Turn a reply into what the user awaits."""

    @abstractmethod
    def explain(self, exc: BaseException) -> None:
        """Say on an exception how the write ended after all."""

    def why_unresolvable(self) -> str | None:
        """Return why the command can't be sent once more, or None if it can."""
        if asyncio.get_running_loop() is not self.coordinator.loop:
            return "its client is used on another event loop, where it has to be resolved"
        if self.known_reply() is not None:
            return None
        execution, session = self.execution, self.execution.lease.session
        if session is None or not execution.number.is_taken or execution.began is None:
            return WITHOUT_ID
        return self._why_forgotten(session)

    def _why_forgotten(self, session: ServerSession) -> str | None:
        execution = self.execution
        age, trusted = self._age(), execution.trusted_seconds
        if age >= trusted:
            return (
                f"the server may have forgotten it: the first attempt began {age:.0f} s ago, and "
                f"its transaction id can be relied on for {trusted:.0f} s"
            )
        try:
            is_latest = execution.number.is_latest_of(session)
        except InvalidOperation:
            return "its session was ended"
        if not is_latest or execution.lease.is_given_back:
            return (
                "its session was used for another write since, and a server remembers only the "
                "latest write of a session"
            )
        return None

    def admit(self) -> None:
        """Let it be resolved, unless its client begins nothing any more."""
        self.coordinator.admit()

    def resolve(self, timeout: float | None, watch: Watch | None = None) -> "Resolving[T]":
        """Send the command once more.

        Args:
            timeout: How long this may take, in seconds, or None.
            watch: The operation that this is a part of; None if it is one of its own.
        """
        deadline = self.coordinator.deadline(timeout)
        if deadline is not None and self.execution.began is not None:
            # Its retries must not come later than it could begin.
            left = self.execution.trusted_seconds - self._age()
            deadline = Deadline.after(left).nearer(deadline)
        if watch is None:
            watch = self.coordinator.watchers.watch("resolve", self.execution.command.namespace)
        return Resolving(self, deadline, watch).begin()

    def known_reply(self) -> Mapping[str, Any] | None:
        """Return the answer if it came after the write had ended, or None."""
        attempts = self.execution.attempts
        return next((each.reply for each in attempts if each.reply is not None), None)

    async def execute(self, execution: Execution) -> Mapping[str, Any]:
        """Send the command; return the reply.

        Args:
            execution: The command, to be sent once more.
        """
        try:
            return await self.coordinator.execute(execution)
        except Exception:
            known = self.known_reply()  # an earlier attempt was answered meanwhile
            if known is None:
                raise
            return known

    def _age(self) -> float:
        return self.execution.age(self.coordinator.loop.time())


class Resolving(RunningWrite[T]):
    """A command that is sent once more, because nobody knows how it ended.

    Args:
        doubt: What is known of it.
        deadline: When it has to be over, or None.
        watch: Who is told of its attempts and of its end, or None.
    """

    def __init__(
        self, doubt: CommandDoubt[T], deadline: Deadline | None, watch: Watch | None
    ) -> None:
        lease = doubt.execution.lease.again()
        super().__init__(doubt.coordinator, watch, lease)
        self._doubt = doubt
        self._again = lease
        self._deadline = deadline

    def begin(self) -> Self:
        """Send the command, unless it was answered meanwhile."""
        doubt, old = self._doubt, self._doubt.execution
        known = doubt.known_reply()
        if known is not None:
            self._take(known)
            return self
        execution = doubt.coordinator.execution(
            old.command, self._again, self._deadline, self.watch
        )
        execution.numbering = Numbering.REQUIRED
        execution.follow(old)
        self._run(doubt.execute(execution))
        return self

    @property
    def was_sent(self) -> bool:
        """Whether it has begun to be sent."""
        return self._again.session is not None

    def attempts(self) -> Sequence[Attempt]:
        """Return what was tried for the write."""
        return self._doubt.execution.attempts

    def _leaves_doubt(self, value: Any) -> bool:  # noqa: ARG002
        return True  # it was given to whoever writes next, or is nobody's any more

    def _result_of(self, value: Any) -> T:
        return self._doubt.result(value)

    def _explain(self, exc: BaseException) -> bool:
        self._doubt.explain(exc)
        return True


async def resolve(exc: BaseException, timeout: float | None = None) -> Any:  # noqa: ASYNC109
    """Find out how a write ended whose outcome is unknown, and apply it if it is not applied yet.

    The same command is sent once more with the same transaction id, by which the server knows
    whether it has executed it. Whatever had happened, it is applied once. It may be applied only
    now, after writes that were made later. If the write itself was answered meanwhile, that answer
    counts, and nothing is sent.

    Of a transaction, it is the commit that is sent again, with ``w: majority``: one that is still
    open at the server is committed by that.

    Args:
        exc: As for :func:`outcome_of`; its outcome is ``UNKNOWN``.
        timeout: How long this may take, in seconds, with retries as often as time allows. None
            means the surrounding deadline, else the client's ``timeoutMS``, else one retry. It ends
            in any case when the server may have forgotten the id.

    Returns:
        What the write would have returned; None of a transaction, which is committed then.

    Raises:
        ResolveError: Nothing was sent: the exception does not come from a write of this library,
            the outcome is known, the write had no transaction id (such as ``update_many``), its
            session was used for another write since, or the server may have forgotten the id: it
            remembers it for some 30 minutes, and this function counts on 25 from the first attempt,
            or five sixths of ``logicalSessionTimeoutMinutes`` if that is less. Or it was an insert
            of a group commit whose number a server before 5.0 keeps to itself. Or the write was a
            bulk operation whose command in doubt is resolved now, and others of which were never
            sent: :func:`partial_result_of` tells of each statement.
        PyMongoError: What came of it this time. :func:`outcome_of` tells the outcome; if that is
            still ``UNKNOWN``, this exception can be resolved in its turn.
        ClientDraining: The client is being drained.
        TypeError: ``exc`` is no exception, or ``timeout`` is not a number.
        ValueError: ``timeout`` is negative or NaN.
    """
    seconds = validate_seconds("timeout", timeout)
    report = report_of(require_exception(exc))
    if report is None or report.outcome is None:
        raise ResolveError(
            "exc must be an exception that came out of a write of aioretry, "
            f"not {type(exc).__name__}"
        ) from exc
    if report.outcome is not Outcome.UNKNOWN and report.doubt is None:
        raise ResolveError(f"the outcome is known: {report.outcome.value}") from exc
    reason = _why_no_doubt(report) if report.doubt is None else report.doubt.why_unresolvable()
    if report.doubt is None or reason is not None:
        raise ResolveError(f"the write can't be resolved: {reason}") from exc
    report.doubt.admit()
    return await report.doubt.resolve(seconds)


def _why_no_doubt(report: Report) -> str:
    partial_result = report.partial_result
    if partial_result is None:
        return WITHOUT_ID
    if Outcome.UNKNOWN in partial_result.outcomes:
        return f"each of its commands was answered; {_TOLD_EACH}"
    return f"none of its statements is in doubt; {_TOLD_EACH}"
