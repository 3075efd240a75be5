"""One attempt of a command, as the event loop sees it."""

import asyncio
import contextvars
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from pymongo.errors import AutoReconnect, InvalidOperation

from aioretry._commands.encoded import shown
from aioretry._drivers.port import (
    Address,
    AttemptCall,
    AttemptResult,
    Driver,
    Expired,
    Failed,
    NoRoom,
    NoServer,
    Replied,
    ServerKind,
    ServerView,
    Token,
    Unprepared,
)
from aioretry._retry.budget import RetryBudget
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.server_selection import Load, choose, others
from aioretry.errors import Attempt
from aioretry.events import SentCommand, name_of

# How long an attempt that is sending may outlive its deadline before it is left behind. The driver
# ends it itself as a rule, with an error that says more.
_AFTER_DEADLINE = 0.25


@dataclass(slots=True)
class Ineligible:
    """Nothing was tried: the server can't retry writes, and this was a retry."""


Lane: TypeAlias = tuple[bool, Address | None]
"""What attempts that wait have in common: whether they need a thread, and the one router they may
go to."""

Ending: TypeAlias = Replied | Failed | NoServer | Unprepared | Expired | Ineligible
"""How an attempt ended; where there is no room, it waits."""


class Receiver(Protocol):
    """Who waits for an attempt's end."""

    def land(self, result: Ending) -> None:
        """Take how it ended."""
        ...


class Landed(asyncio.Future[Ending]):
    """Awaits an attempt's end."""

    def land(self, result: Ending) -> None:
        """Take how it ended."""
        if not self.done():
            self.set_result(result)


class Places(Load, Protocol):
    """The places for attempts under way, and the queue for one."""

    budget: RetryBudget | None
    """What successes earn for, if retries cost something."""

    def remove(self, attempt: "PendingAttempt") -> None:
        """Take an attempt out of its place or the queue, and start those who wait."""
        ...

    def wait_again(self, attempt: "PendingAttempt") -> None:
        """Have it wait, before others, because its server had no room after all."""
        ...

    def pump(self) -> None:
        """Let those who wait try."""
        ...


class PendingAttempt:
    """One attempt, which ends once: with what the driver says, by its deadline, or disowned.

    It waits for its place first (and has no call), is with the driver then, and is over when its
    receiver was told. If that has left it before, it stays with the driver until its end.

    Its record becomes part of the execution's history.

    Args:
        driver: Makes the attempt.
        loop: Where ``receiver`` is told, unless it is abandoned first.
        execution: What is sent.
        receiver: Who waits for its end.
        places: Where it has a place until then.
    """

    __slots__ = (
        "__weakref__",
        "_began",
        "_call",
        "_driver",
        "_execution",
        "_loop",
        "_noted",
        "_notes",
        "_places",
        "_receiver",
        "_timer",
        "_token",
        "added_at",
        "may_block",
    )

    def __init__(
        self,
        driver: Driver,
        loop: asyncio.AbstractEventLoop,
        execution: Execution,
        receiver: Receiver,
        places: Places,
    ) -> None:
        self._driver = driver
        self._loop = loop
        self._execution = execution
        self.may_block: bool = execution.command.may_block
        """Whether it needs a thread for itself."""

        self._receiver: Receiver | None = receiver
        self._places = places
        self._token = Token()
        self._call: AttemptCall | None = None
        self._noted: Attempt | None = None
        self._notes: dict[Any, Any] = {}
        self.added_at: float = loop.time()
        """When it began to wait for its place, in seconds of the event loop's clock."""

        self._began = self.added_at
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lane(self) -> Lane:
        """With whom it waits for its turn."""
        return self.may_block, self._execution.pinned

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for its result any more."""
        return self._receiver is None

    def register(self) -> None:
        """Be the command's attempt under way, and end by its deadline."""
        execution = self._execution
        execution.pending = self
        if execution.deadline is not None and execution.deadline.is_limited:
            self._timer = self._loop.call_later(execution.deadline.remaining(), self._expire)

    def start(self) -> bool:
        """Choose a server that has room, and have the driver send it the command.

        Returns:
            False if none has room now.

        Raises:
            InvalidOperation: The client was closed.
        """
        execution = self._execution
        self._began = self._loop.time()
        if execution.may_be_forgotten(self._began):
            self.land_soon(NoServer())  # while it waited for its turn; whoever goes on finds it out
            return True
        if execution.began is None:
            execution.began, execution.began_at = self._began, time.time()
        view = self._driver.view()
        reading = execution.command.reading
        server, pinned = choose(view, execution.deprioritized, self._places, reading), None
        if server is not None and server.kind is ServerKind.MONGOS:
            pinned = execution.pinned
            if pinned is not None:
                server = view.writable.get(pinned)
        if server is None:
            self.land_soon(NoServer())
            return True
        return self._start_at(server) or (
            pinned is None
            and any(
                self._start_at(other)
                for other in others(view, server, execution.deprioritized, reading)
            )
        )

    def _start_at(self, server: ServerView) -> bool:
        execution = self._execution
        if execution.numbering is Numbering.REQUIRED and not server.can_retry_writes:
            self.land_soon(Ineligible())
            return True
        call = AttemptCall(
            execution.command,
            execution.lease,
            execution.number,
            server,
            may_have_transaction_id=execution.numbering is not Numbering.NEVER
            and server.can_retry_writes,
            options=execution.options,
            deadline=execution.deadline,
            operation_id=execution.operation_id,
            leaves_doubt=execution.is_in_doubt_unanswered,
            is_watched=execution.watch is not None,
            token=self._token,
        )
        is_pinned_now = execution.pin(server)
        if not self._begin(call):
            if is_pinned_now:
                execution.lease.unpin()
            return False
        self._call = call
        return True

    def _begin(self, call: AttemptCall) -> bool:
        if self._execution.watch is None:
            return self._driver.attempt(self._loop, call, self)
        # What hooks put into the context is seen by whoever is shown the command, and ends with it.
        return contextvars.copy_context().run(self._begin_watched, call)

    def _begin_watched(self, call: AttemptCall) -> bool:
        execution = self._execution
        if execution.watch is not None:
            number = len(execution.attempts) + 1
            execution.watch.begin_attempt(call.command.name, number, self._notes)
        return self._driver.attempt(self._loop, call, self)

    def land_soon(self, result: Ending) -> None:
        """End it in a later turn of the event loop."""
        self._loop.call_soon(self.land, result)

    @property
    def server(self) -> ServerView | None:
        """The server, while the attempt may be given up and made again; None before that.

        None for a read: a server that was deposed may answer it still.
        """
        call = self._call
        if call is None or not call.is_waiting or call.command.reading is not None:
            return None
        return call.server

    @property
    def address(self) -> Address | None:
        """The server that was chosen for it, or None."""
        return None if self._call is None else self._call.server.address

    @property
    def may_be_repeated(self) -> bool:
        """Whether the command may be sent again wherever it may have been executed."""
        if self._execution.transaction_end is not None:
            return True
        return self._call is not None and self._call.has_transaction_id

    def so_far(self) -> Attempt:
        """Return the record of it as if it ended now, without an answer."""
        return self._record(sent=self._token.is_sending)

    def disown(self, reason: BaseException) -> None:
        """Give the attempt up: nothing is sent that is not sent yet, and nothing is delivered.

        If the driver has it already, it keeps its place until the driver tells its end, or its
        server is lost; over a connection of the event loop's its deadline ends it, too. What a late
        answer says of the write is still recorded.
        """
        if self._receiver is not None:
            record = self._note(sent=not self._token.revoke(), error=reason)
            self._fall_silent()
            if self._call is None or self._leaves_thread() or self._leaves_read():
                self._cancel_timer()
                self._places.remove(self)
            self._tell(record)

    def lose_server(self) -> None:
        """End the attempt because its server takes no more writes, if it need not be waited for."""
        call = self._call
        if call is None or self._receiver is None:
            self._free_thread()
            return
        is_sent = not self._token.revoke()
        if not self._driver.abandon(call) and is_sent:
            return
        server = name_of(call.server.address)
        error = AutoReconnect(f"{server}: the server stopped taking writes before it answered")
        record = self._record(sent=is_sent, error=error)
        self._finish(Failed(error, is_sent) if is_sent else NoServer(), record)

    def close(self, patience: float) -> None:
        """End the attempt because the client is closed: now if it is not sent, or after a while.

        Args:
            patience: How long an attempt that was sent may go on, in seconds.
        """
        if self._token.revoke():
            self._give_up_closed(sent=False)
        else:
            self._cancel_timer()
            deadline = self._execution.deadline
            if deadline is not None:  # it may be over already, so that nothing is left of its grace
                patience = min(patience, deadline.at - deadline.clock() + _AFTER_DEADLINE)
            self._timer = self._loop.call_later(patience, partial(self._give_up_closed, sent=True))

    def land(self, result: AttemptResult | Ineligible) -> None:
        """Take what came of it."""
        if isinstance(result, NoRoom):
            if self._receiver is not None:
                self._call = None
                self._places.wait_again(self)
                return
            result = NoServer()
        if isinstance(result, Replied | Failed) and self._receiver is not None:
            self._note_server()  # what a reply says depends on who gives it
        if isinstance(result, Replied):
            error = self._error_in(result.reply)
            if error is not None:
                result = Failed(error, sent=True)
        record: Attempt | None = None
        match result:
            case Replied():
                record = self._record(sent=True, reply=result.reply)
                if self._places.budget is not None:
                    self._places.budget.earn(by_retry=self._execution.is_paid)
            case Failed():
                record = self._record(sent=result.sent, error=result.error)
        if self._receiver is not None:
            self._finish(result, record)
            return
        try:
            self._note_late(record)
        finally:
            self._cancel_timer()
            self._places.remove(self)

    def _finish(self, result: Ending, record: Attempt | None = None) -> None:
        receiver = self._receiver
        if receiver is None:  # a listener that was told so has given it up
            self._cancel_timer()
            self._places.remove(self)
            return
        if record is not None:
            self._add(record)
        self._fall_silent()
        if self._timer is not None:
            self._timer.cancel()
        try:
            if record is not None and self._execution.watch is not None:
                self._tell(record)
        finally:
            try:
                receiver.land(result)
            finally:  # after landing, which gives back a session that the next attempt can take
                self._places.remove(self)

    def _free_thread(self) -> None:
        if self._call is not None and self._driver.abandon(self._call):
            self._cancel_timer()
            self._places.remove(self)

    def make_way(self) -> None:
        """Let others try who found no room."""
        self._places.pump()

    def _fall_silent(self) -> None:
        self._receiver = None
        self._execution.pending = None
        if self._token.is_sending:
            self._note_server()

    def _note_server(self) -> None:
        if self._call is not None:
            self._execution.server = self._call.server
            self._execution.has_transaction_id = self._call.has_transaction_id

    def _expire(self) -> None:
        self._execution.is_late = True
        if self._token.revoke():
            self._leaves_thread()
            self._finish(Expired())
        elif self._call is None or not self._driver.time_out(self._call):
            self._timer = self._loop.call_later(_AFTER_DEADLINE, self._leave_behind)

    def _leaves_thread(self) -> bool:
        """Leave a thread to itself that may read for ever from an iterator of the user's."""
        if self._call is None or self._token.is_sending or not self.may_block:
            return False
        return self._driver.abandon(self._call)

    def _leaves_read(self) -> bool:
        """End a read that nobody waits for; nothing is to be learnt of a late answer."""
        return (
            self._call is not None
            and self._execution.command.reading is not None
            and self._driver.abandon(self._call)
        )

    def _leave_behind(self) -> None:
        if self._receiver is not None:
            self._abandon_call()
            self._tell(self._note(sent=True))
            self._finish(Expired())

    def _abandon_call(self) -> None:
        if self._call is not None:
            self._driver.abandon(self._call)

    def _give_up_closed(self, *, sent: bool) -> None:
        if self._receiver is None:
            self._free_thread()
        else:
            self._abandon_call()
            error = InvalidOperation("the client was closed before the server answered")
            self._finish(Failed(error, sent), self._record(sent=sent, error=error))

    def _note(self, *, sent: bool, error: BaseException | None = None) -> Attempt:
        self._noted = record = self._record(sent=sent, error=error)
        self._add(record)
        return record

    def _add(self, record: Attempt) -> None:
        server = None if self._call is None else self._call.server
        self._execution.add(record, server, self._loop.time())

    def _tell(self, record: Attempt) -> None:
        # Last of all: a hook of the user's may cancel the write, or close the client.
        watch = self._execution.watch
        if watch is not None:
            watch.end_attempt(record, len(self._execution.attempts), self._sent(), self._notes)

    def _note_late(self, record: Attempt | None) -> None:
        # An answer that nobody waits for any more still tells how the write ended.
        noted = self._noted
        if noted is not None and noted.sent and record is not None:
            self._execution.replace(noted, record)
            self._execution.settle()

    def _record(
        self,
        *,
        sent: bool,
        error: BaseException | None = None,
        reply: Mapping[str, Any] | None = None,
    ) -> Attempt:
        address = None if self._call is None else self._call.server.address
        duration = self._loop.time() - self._began
        return Attempt(address, time.time() - duration, duration, sent, error, reply)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _error_in(self, reply: Mapping[str, Any]) -> Exception | None:
        try:
            error = self._execution.command.error_in(reply)
            if error is not None:
                for label in reply.get("errorLabels", ()):
                    # Labels are the whole reply's, also where a write error stands in it (MongoDB
                    # 4.4 answers so to a write that meets a step-down).
                    self._driver.add_label(error, label)
        except Exception as exc:  # noqa: BLE001 - the answer makes no sense, but it came
            return exc
        return error

    def _sent(self) -> SentCommand:
        command, sending = (
            self._execution.command,
            None if self._call is None else self._call.sending,
        )
        if sending is None:
            return SentCommand(command.name, command.statement_count)
        body = sending.body
        session_id, number = body.get("lsid"), body.get("txnNumber")
        return SentCommand(
            command.name,
            command.statement_count,
            None if session_id is None else str(UUID(bytes=bytes(session_id["id"]))),
            None if number is None else int(number),
            sending.connection_id,
            sending.server_connection_id,
            max(0.0, sending.at - self.added_at),
            partial(shown, body, command.codec_options, is_sent=False),
        )
