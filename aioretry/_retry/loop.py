"""The one retry loop: select, attempt, judge, wait."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, assert_never
from weakref import WeakSet

import anyio
from pymongo.errors import InvalidOperation, PyMongoError, ServerSelectionTimeoutError

from aioretry._commands import single
from aioretry._commands.command import Command
from aioretry._commands.error_codes import RETRYABLE_WRITE
from aioretry._drivers.port import (
    Address,
    AttemptResult,
    Driver,
    Expired,
    Failed,
    Ineligible,
    NoServer,
    Policy,
    Replied,
    ServerKind,
    ServerView,
    Unprepared,
)
from aioretry._retry.attempt import PendingAttempt
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.losses import Losses
from aioretry._retry.monitoring import OperationWatch, Watch
from aioretry._retry.pending import PendingAttempts
from aioretry._retry.server_selection import Selection
from aioretry._retry.sessions import NO_LEASE, SessionLease
from aioretry._retry.verdict import (
    Failure,
    GiveUp,
    Retry,
    RetryState,
    code_of,
    may_be_retryable,
    needs_label,
)
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt, DeadlineExceeded, ResolveError, TooManyWaiting, links_of
from aioretry.events import Hook, RetryScheduled, publish, wanting_every_event

MOST_WAITING = 100_000
MOST_UNDER_WAY = 100  # as many as PyMongo opens connections by default


def _deadline(seconds: float | None) -> Deadline | None:
    return None if seconds is None else Deadline.after(seconds)


class Coordinator:
    """Runs commands until they succeed, fail for good, or run out of time. Bound to one loop.

    Args:
        driver: Makes the attempts.
        loop: Where everything but the attempts themselves happens.
        policy: What the client's options say about retries.
        server_selection_timeout: How long to wait for a server at most, in seconds.
        hooks: Who is told of retries, and of more if they want to know.
        deadline: Returns the deadline of an operation that begins now and may take some seconds.
        most_under_way: How many attempts may be under way at once.
        most_waiting: How many writes may wait for a server at once.
    """

    def __init__(
        self,
        driver: Driver,
        loop: asyncio.AbstractEventLoop,
        policy: Policy,
        *,
        server_selection_timeout: float,
        hooks: tuple[Hook, ...],
        deadline: Callable[[float | None], Deadline | None] = _deadline,
        most_under_way: int = MOST_UNDER_WAY,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self.driver = driver
        self.loop = loop
        self.deadline = deadline
        self._policy = policy
        self._selection = Selection(driver, loop)
        self._pending = PendingAttempts(driver, loop, most_under_way)
        self._topology_text: tuple[object, str] = (None, "")
        self._server_selection_timeout = server_selection_timeout
        self._most_waiting = most_waiting
        self._waiting = 0
        self.queues: WeakSet[Any] = WeakSet()
        """Where inserts wait that travel together, each with its number of those ``waiting``."""

        self._hooks = hooks
        self._watchers = wanting_every_event(hooks)
        self._losses = Losses(loop)

    def watch(
        self, operation: str, target: "single.Target | Command[Any]"
    ) -> OperationWatch | None:
        """Tell whoever wants to know that an operation begins; return None if nobody does.

        Args:
            operation: Its name.
            target: Where it goes.
        """
        if not self._watchers:
            return None
        return OperationWatch(self._watchers, operation, target.namespace)

    @property
    def is_watched(self) -> bool:
        """Whether anybody wants to know of operations."""
        return bool(self._watchers)

    def execution(
        self,
        command: Command[Any],
        lease: SessionLease,
        deadline: Deadline | None,
        watch: Watch | None = None,
    ) -> Execution:
        """Return a new command on its way."""
        command.body |= single.write_concern_of(
            command.write_concern, under_deadline=deadline is not None
        )
        numbering = Numbering.IF_SUPPORTED if self._policy.retry_writes else Numbering.NEVER
        return Execution(command, lease, deadline, numbering, watch=watch)

    @property
    def retries_writes(self) -> bool:
        """Whether the client's options allow it."""
        return self._policy.retry_writes

    async def servers(
        self, command: Command[Any], deadline: Deadline | None, watch: Watch | None = None
    ) -> tuple[ServerView, ...]:
        """Return the servers that a write may go to; wait until there is one.

        Args:
            command: What waits.
            deadline: When the waiting ends, or None.
            watch: Who is told how long it took.

        Raises:
            DeadlineExceeded: There was none in time.
            ServerSelectionTimeoutError: The same, where there is no deadline.
        """
        waiting = Execution(command, NO_LEASE, deadline, Numbering.NEVER, watch=watch)
        while True:
            await self._find_server(waiting)
            found = tuple(self.driver.view().writable.values())
            if found:
                return found

    def can_launch(self, execution: Execution) -> bool:
        """Tell whether an attempt can begin now, without waiting for anything.

        Raises:
            InvalidOperation: The client was closed.
        """
        if execution.deadline is not None and execution.deadline.is_over:
            return False
        return self._selection.has_server()

    def make_room(self, execution: Execution | None = None) -> None:
        """Let one more write wait for a server, if there is none.

        Args:
            execution: Its command; None if there is none yet.

        Raises:
            TooManyWaiting: There are too many already.
            InvalidOperation: The client was closed.
        """
        if self._selection.has_server():
            return
        waiting = self._waiting + sum(queue.waiting for queue in self.queues)
        if waiting >= self._most_waiting:
            raise TooManyWaiting(
                f"{self._most_waiting} writes wait for a server already; {_nothing_sent(execution)}"
            )

    def launch(
        self, execution: Execution, deliver: Callable[[AttemptResult], None]
    ) -> PendingAttempt:
        """Begin an attempt, whose result is delivered in a later turn of the event loop."""
        remove = self._pending.remove
        attempt = PendingAttempt(self.driver, self.loop, execution, deliver, remove)
        self._pending.add(attempt)
        attempt.begin()
        return attempt

    @property
    def attempts_waiting(self) -> int:
        """How many attempts wait until fewer are under way."""
        return self._pending.waiting

    def close(self, patience: float) -> None:
        """End what is under way, because the client is closed.

        Args:
            patience: How long a command that was sent may wait for its answer, in seconds.
        """
        self._pending.close(patience)
        self._losses.close()

    async def execute(
        self, execution: Execution, result: AttemptResult | None = None
    ) -> Mapping[str, Any]:
        """Send a command until it is done (retryable-writes, "Executing Retryable Write Commands").

        Args:
            execution: The command.
            result: What came of the first attempt, if that was made already.

        Returns:
            The server's reply.

        Raises:
            PyMongoError: What the verdict lets through.
        """
        if execution.lease.turn is None:
            return await self.send(execution, result)
        async with self.turn_of(execution):
            return await self.send(execution, result)

    @asynccontextmanager
    async def turn_of(self, execution: Execution) -> AsyncIterator[None]:
        """Keep other commands from a session that can have one at a time.

        Raises:
            DeadlineExceeded: The command's turn did not come in time.
        """
        turn = execution.lease.turn
        if turn is None:
            yield
            return
        with anyio.move_on_after(_finite(execution.time_left())) as limit:
            await turn.acquire()
        if limit.cancelled_caught:
            raise self.too_late(execution)
        try:
            yield
        finally:
            turn.release()

    async def send(
        self, execution: Execution, result: AttemptResult | None = None
    ) -> Mapping[str, Any]:
        """Send a command until it is done, as :meth:`execute` does, when it has its turn."""
        while True:
            if result is None:
                await self._find_server(execution)
                if execution.may_be_forgotten(self.loop.time()):
                    raise execution.last_error() or ResolveError(
                        "the write can't be resolved: no server was found before one may have "
                        "forgotten it"
                    )
                result = await self._attempt(execution)
            match result:
                case Replied():
                    return result.reply
                case Failed():
                    await self._prepare_retry(execution, result)
                case Ineligible():
                    raise execution.last_error() or InvalidOperation(
                        "the server that takes writes now knows no transaction ids"
                    )
                case Unprepared():
                    raise result.reason
                case Expired():
                    raise self.too_late(execution) from execution.last_error()
                case NoServer():
                    pass  # it was gone before anything was tried
                case _:
                    assert_never(result)
            result = None

    async def _find_server(self, execution: Execution) -> None:
        try:
            if not self.can_launch(execution):
                await self._wait_for_server(execution)
        except InvalidOperation as exc:  # the client was closed
            raise exc from execution.last_error()

    async def _wait_for_server(self, execution: Execution) -> None:
        count = 0 if execution.is_shared else 1  # each of those that share it was let by itself
        if count and not any(attempt.sent for attempt in execution.attempts):
            self.make_room(execution)  # what is in doubt waits in any case
        seconds = min(self._server_selection_timeout, execution.time_left())
        began = self.loop.time()
        is_there = False
        self._waiting += count
        try:
            while not is_there:
                if execution.time_left() <= 0:
                    raise self.too_late(execution) from execution.last_error()
                if not await self._selection.wait_for_server(began + seconds):
                    raise self._nobody_found(execution, seconds)
                is_there = self.can_launch(execution)
        finally:
            self._waiting -= count
            self._add_wait(execution, began)

    def _add_wait(self, execution: Execution, began: float) -> None:
        if execution.watch is not None:
            execution.watch.add_wait(self.loop.time() - began)

    def _nobody_found(self, execution: Execution, seconds: float) -> Exception:
        error = execution.last_error()
        if error is None:
            error = ServerSelectionTimeoutError(
                f"no server that takes writes was found within {seconds:.3g} s; "
                f"{_nothing_sent(execution)}. Topology: {self._topology()}"
            )
        if execution.time_left() <= 0:
            late = self.too_late(execution, error)
            late.__cause__ = error
            return late
        return error

    def _topology(self) -> str:
        # Of thousands that fail together, each wants the same long text.
        source = self.driver.view().source
        if self._topology_text[0] is not source:
            self._topology_text = (source, repr(source))
        return self._topology_text[1]

    async def _attempt(self, execution: Execution) -> AttemptResult:
        landed: asyncio.Future[AttemptResult] = self.loop.create_future()

        def deliver(result: AttemptResult) -> None:
            if not landed.done():
                landed.set_result(result)

        attempt = self.launch(execution, deliver)
        try:
            return await landed
        except asyncio.CancelledError as exc:
            attempt.abandon(exc)
            raise

    async def _prepare_retry(self, execution: Execution, result: Failed) -> None:
        record, server, error = result.record, result.server, result.error
        is_mongos = server is not None and server.kind is ServerKind.MONGOS
        if result.numbered and needs_label(
            error,
            retry_writes=self._policy.retry_writes,
            max_wire_version=None if server is None else server.max_wire_version,
            is_mongos=is_mongos,
        ):
            self.driver.add_label(error, RETRYABLE_WRITE)
        lost = False
        try:
            elsewhere = is_mongos and record.sent and self._has_another(execution, record.address)
            waits = server is not None and not elsewhere and not result.is_server_well
            if server is not None and waits and may_be_retryable(error):
                lost = not await self._settle(execution, server)
        except InvalidOperation as exc:  # the client was closed
            raise exc from error
        failure = Failure(error, record.sent, result.numbered, lost, is_mongos)
        if execution.retries is None:
            execution.retries = RetryState(
                self._policy, execution.deadline is not None, random.random
            )
        verdict = execution.retries.judge(failure, time_left=execution.time_left())
        match verdict:
            case GiveUp():
                self._give_up(execution, verdict)
            case Retry():
                execution.numbering = Numbering.REQUIRED if result.numbered else Numbering.NEVER
                if verdict.deprioritize and record.address is not None:
                    execution.deprioritized |= {record.address}
                self._announce(execution, record, error, verdict)
                _forget_frames(error)
                if verdict.wait > 0:
                    await anyio.sleep(verdict.wait)

    async def _settle(self, execution: Execution, server: ServerView) -> bool:
        began = self.loop.time()
        try:
            return await self._selection.settle(server)
        finally:
            self._add_wait(execution, began)

    def _has_another(self, execution: Execution, failed: Address | None) -> bool:
        """Tell whether a retry need not wait for news of the router that failed."""
        spent = execution.deprioritized | {failed}
        return any(address not in spent for address in self.driver.view().writable)

    def _give_up(self, execution: Execution, verdict: GiveUp) -> None:
        error = verdict.error
        times_out = isinstance(error, PyMongoError) and error.timeout
        if verdict.timed_out or (times_out and execution.time_left() <= 0):
            raise self.too_late(execution, error) from error
        raise error

    def too_late(self, execution: Execution, last: Exception | None = None) -> DeadlineExceeded:
        """Return the error that says that a command's deadline is over.

        Args:
            execution: The command.
            last: What came of it last; None for the error that would surface.
        """
        last = last or execution.last_error()
        text = f"the deadline of {execution.command.operation} is over"
        if last is None:
            if not execution.attempts:
                return DeadlineExceeded(f"{text}; {_nothing_sent(execution)}")
            return DeadlineExceeded(f"{text}; the server has not answered")
        return DeadlineExceeded(
            f"{text} after {len(execution.attempts)} attempts; the last error: "
            f"{type(last).__name__}: {last}"
        )

    def _announce(
        self, execution: Execution, record: Attempt, error: Exception, verdict: Retry
    ) -> None:
        event = RetryScheduled(
            operation=execution.command.operation,
            namespace=execution.command.namespace,
            address=record.address,
            error_class=type(error).__name__,
            error_code=code_of(error),
            attempt=len(execution.attempts),
            wait=verdict.wait,
            notes={} if execution.watch is None else execution.watch.notes,
        )
        count = execution.command.operation_count
        execution.loss = self._losses.add(event, count, execution.loss)
        publish(self._hooks, event)


def _finite(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds


def _forget_frames(error: Exception) -> None:
    # The history keeps the error, whose frames would keep alive what was sent.
    for link in links_of(error):
        link.__traceback__ = None


def _nothing_sent(execution: Execution | None) -> str:
    if execution is not None:
        if any(attempt.sent for attempt in execution.attempts):
            return "the command was not sent again"
        if execution.command.is_part:
            return "nothing of the command that was next was sent"
    return "nothing was sent"
