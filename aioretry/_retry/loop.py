"""The one retry loop: select, attempt, judge, wait (retryable-writes, "Executing Retryable Write
Commands")."""

import asyncio
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, assert_never

import anyio
from pymongo.errors import ConnectionFailure, InvalidOperation, PyMongoError

from aioretry._commands.command import Command, Reading
from aioretry._commands.error_codes import RETRYABLE_WRITE
from aioretry._commands.target import write_concern_of
from aioretry._drivers.port import (
    Address,
    Driver,
    Expired,
    Failed,
    NoServer,
    Policy,
    Replied,
    ServerKind,
    Unprepared,
)
from aioretry._retry.attempt import Ending, Ineligible, Landed, PendingAttempt, Receiver
from aioretry._retry.availability import Availability
from aioretry._retry.budget import RetryBudget
from aioretry._retry.caution import Caution
from aioretry._retry.command_execution import Execution, Numbering, TransactionEnd
from aioretry._retry.lookout import Lookout
from aioretry._retry.losses import Losses
from aioretry._retry.monitoring import Watch, Watchers
from aioretry._retry.pending import PendingAttempts
from aioretry._retry.sessions import SessionLease
from aioretry._retry.surfacing import forgotten, ineligible, too_late
from aioretry._retry.verdict import (
    Failure,
    GiveUp,
    Retry,
    RetryState,
    code_of,
    is_retryable_read,
    may_be_retryable,
    needs_label,
)
from aioretry._retry.waiting import ServerWaits, turn_of
from aioretry.deadlines import Deadline
from aioretry.errors import links_of
from aioretry.events import Hook, RetryScheduled, publish

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
        running: Gets the operations that have not ended.
        admit: Raises if no operation may begin any more.
        caution: Warns of writes that can't be retried.
        fail_fast_after: For how many seconds no server takes writes before none of them waits.
        budget: What retries cost; None lets them be free.
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
        running: set[Any] | None = None,
        admit: Callable[[], None] = lambda: None,
        caution: Caution | None = None,
        fail_fast_after: float = math.inf,
        budget: RetryBudget | None = None,
    ) -> None:
        self.driver = driver
        self.loop = loop
        self.policy = policy
        self.deadline = deadline
        self._lookout = lookout = Lookout(driver, loop)
        self._most_under_way = most_under_way
        self.availability: Availability = Availability(driver, loop, lookout)
        self.waits: ServerWaits = ServerWaits(
            driver,
            loop,
            lookout,
            server_selection_timeout,
            most_waiting,
            self.availability,
            fail_fast_after,
        )
        self._budget = budget
        self._places = list[PendingAttempts]()
        self.pending: PendingAttempts = self._new_places()
        # Slow reads take no places from writes, nor from those that read elsewhere.
        self.reading: dict[str, PendingAttempts] = {}
        self.watchers: Watchers = Watchers(hooks)
        self._hooks = hooks
        self.running: set[Any] = set() if running is None else running
        """The operations that have not ended."""

        self.admit = admit
        """Raises if no operation may begin any more."""

        self._losses = Losses(loop)
        self._caution = caution

    def execution(
        self,
        command: Command[Any],
        lease: SessionLease,
        deadline: Deadline | None,
        watch: Watch | None = None,
    ) -> Execution:
        """Return a new command on its way."""
        has_number = self.policy.retry_writes and command.reading is None
        numbering = Numbering.IF_SUPPORTED if has_number else Numbering.NEVER
        concern = write_concern_of(command.write_concern, under_deadline=deadline is not None)
        execution = Execution(command, lease, deadline, numbering, concern, watch=watch)
        if command.reading is None:
            execution.caution = self._caution
        return execution

    def statement(
        self,
        command: Command[Any],
        lease: SessionLease,
        deadline: Deadline | None,
        watch: Watch | None = None,
    ) -> Execution:
        """Return a command of a transaction; the session adds the transaction's number to it."""
        return Execution(
            command, lease, deadline, Numbering.NEVER, watch=watch, in_transaction=True
        )

    def ending(
        self,
        command: Command[Any],
        lease: SessionLease,
        deadline: Deadline | None,
        end: TransactionEnd,
        watch: Watch | None = None,
    ) -> Execution:
        """Return a command that ends a transaction, which may be repeated whatever the policy."""
        execution = self.statement(command, lease, deadline, watch)
        execution.transaction_end, execution.options = end, end.options
        return execution

    def launch(self, execution: Execution, receiver: Receiver) -> PendingAttempt:
        """Begin an attempt, of whose end somebody is told in a later turn of the event loop."""
        places = self._places_of(execution.command.reading)
        attempt = PendingAttempt(self.driver, self.loop, execution, receiver, places)
        places.add(attempt)
        attempt.register()
        return attempt

    def _places_of(self, reading: Reading | None) -> PendingAttempts:
        if reading is None:
            return self.pending
        places = self.reading.get(reading.kind)
        if places is None:
            places = self.reading[reading.kind] = self._new_places()
        return places

    def _new_places(self) -> PendingAttempts:
        most, patience = self._most_under_way, self.policy.wait_queue_timeout
        return PendingAttempts(self.loop, self._lookout, most, patience, self._places, self._budget)

    def close(self, patience: float) -> None:
        """End what is under way, because the client is closed.

        Args:
            patience: How long a command that was sent may wait for its answer, in seconds.
        """
        for places in [*self._places]:
            places.close(patience)
        self._losses.close()

    async def execute(
        self, execution: Execution, result: Ending | None = None
    ) -> Mapping[str, Any]:
        """Send a command until it is done, when its session is free for it.

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
        async with turn_of(execution):
            return await self.send(execution, result)

    async def send(self, execution: Execution, result: Ending | None = None) -> Mapping[str, Any]:
        """Send a command until it is done, as :meth:`execute` does, when it has its turn."""
        while True:
            if result is None:
                # 1. Select: there has to be a server. 2. Attempt, at one that is chosen then.
                await self.waits.find_server(execution)
                result = await self._attempt(execution)
            match result:
                case Replied():
                    return result.reply
                case Failed():
                    # 3. Judge, with what the driver has learnt of the server. 4. Wait.
                    self._label(execution, result.error)
                    lost = await self._has_lost_server(execution, result)
                    verdict = self._judge(execution, result, lost=lost)
                    self._prepare_retry(execution, result.error, verdict)
                    await _sleep(verdict.wait)
                case NoServer():
                    pass  # the server was lost before anything was sent
                case Ineligible():
                    raise ineligible(execution)
                case Unprepared():
                    raise result.reason
                case Expired():
                    raise too_late(execution) from execution.last_error()
                case _:
                    assert_never(result)
            result = None

    async def _attempt(self, execution: Execution) -> Ending:
        if execution.may_be_forgotten(self.loop.time()):
            raise forgotten(execution)
        landed = Landed(loop=self.loop)
        attempt = self.launch(execution, landed)
        try:
            return await landed
        except asyncio.CancelledError as exc:
            attempt.disown(exc)
            raise

    def _label(self, execution: Execution, error: Exception) -> None:
        server = execution.server
        ends_transaction = execution.transaction_end is not None
        if (execution.has_transaction_id or ends_transaction) and needs_label(
            error,
            retry_writes=self.policy.retry_writes or ends_transaction,
            max_wire_version=None if server is None else server.max_wire_version,
            is_mongos=server is not None and server.kind is ServerKind.MONGOS,
        ):
            self.driver.add_label(error, RETRYABLE_WRITE)

    async def _has_lost_server(self, execution: Execution, result: Failed) -> bool:
        """Tell whether the server takes no more writes, once the driver knows of its error."""
        error, server = result.error, execution.server
        is_mongos = server is not None and server.kind is ServerKind.MONGOS
        try:
            is_read = execution.command.reading is not None
            may_be = is_retryable_read(error) if is_read else may_be_retryable(error)
            if server is None or result.is_server_well or not may_be:
                return False
            if is_mongos and result.sent and self._has_another(execution, server.address):
                return False  # a retry goes there, and need not wait for news of this one
            return not await self.waits.still_takes_writes(execution, server)
        except InvalidOperation as exc:  # the client was closed
            raise exc from error

    def _has_another(self, execution: Execution, failed: Address) -> bool:
        """Tell whether there is a router that has not failed the command yet."""
        spent = execution.deprioritized | {failed}
        return any(address not in spent for address in self.driver.view().writable)

    def _judge(self, execution: Execution, result: Failed, *, lost: bool) -> Retry:
        if execution.retries is None:
            limited = execution.deadline is not None
            execution.retries = RetryState(self.policy, limited, random.random)
        server, has_id = execution.server, execution.has_transaction_id
        is_mongos = server is not None and server.kind is ServerKind.MONGOS
        is_read = execution.command.reading is not None
        in_transaction = execution.in_transaction
        failure = Failure(
            result.error,
            result.sent,
            has_id,
            lost,
            is_mongos,
            is_read,
            in_transaction,
            execution.transaction_end is not None,
        )
        verdict = execution.retries.judge(failure, time_left=execution.time_left())
        match verdict:
            case GiveUp():
                raise self._surfacing(execution, verdict)
            case Retry():
                self._pay(execution)
                return verdict

    def _pay(self, execution: Execution) -> None:
        """Pay for a retry, unless it ends a transaction, whose locks would stay."""
        is_end = execution.transaction_end is not None
        if self._budget is None or execution.retries is None or is_end:
            return
        if self._budget.take():
            execution.is_paid = True
            return
        error = self._surfacing(execution, GiveUp(execution.retries.surfacing()))
        error.add_note("aioretry: it was not retried: the client's retry budget is spent")
        raise error

    def _prepare_retry(self, execution: Execution, error: Exception, verdict: Retry) -> None:
        has_id, server = execution.has_transaction_id, execution.server
        execution.numbering = Numbering.REQUIRED if has_id else Numbering.NEVER
        if verdict.deprioritize and server is not None:
            execution.deprioritized |= {server.address}
        if execution.transaction_end is not None:
            execution.lease.unpin()
            if execution.attempts[-1].sent and not verdict.was_refused:
                execution.transaction_end.repeat()
                execution.options = execution.transaction_end.options
        self._announce(execution, error, verdict)
        _forget_frames(error)

    def _surfacing(self, execution: Execution, verdict: GiveUp) -> Exception:
        error = verdict.error
        is_statement = execution.in_transaction and execution.transaction_end is None
        if is_statement and not isinstance(error, ConnectionFailure):
            return error  # it is judged with the transaction
        times_out = isinstance(error, PyMongoError) and error.timeout
        if not verdict.timed_out and not (times_out and execution.time_left() <= 0):
            return error
        late = too_late(execution, error)
        late.__cause__ = error
        return late

    def _announce(self, execution: Execution, error: Exception, verdict: Retry) -> None:
        event = RetryScheduled(
            operation=execution.command.operation,
            namespace=execution.command.namespace,
            address=execution.attempts[-1].address,
            error_class=type(error).__name__,
            error_code=code_of(error),
            attempt=len(execution.attempts),
            wait=verdict.wait,
            notes={} if execution.watch is None else execution.watch.notes,
        )
        count = execution.command.operation_count
        execution.loss = self._losses.add(event, count, execution.loss)
        publish(self._hooks, event)


async def _sleep(seconds: float) -> None:
    if seconds > 0:
        await anyio.sleep(seconds)


def _forget_frames(error: Exception) -> None:
    # The history keeps the error, whose frames would keep alive what was sent.
    for link in links_of(error):
        link.__traceback__ = None
