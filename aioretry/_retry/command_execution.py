"""A command on its way, and one attempt of it in the air, as the event loop sees them."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pymongo.errors import AutoReconnect, InvalidOperation

from aioretry._commands.command import Command
from aioretry._drivers.port import (
    Address,
    AttemptCall,
    AttemptResult,
    Driver,
    Expired,
    Failed,
    NoServer,
    Numbering,
    Replied,
    ServerKind,
    ServerView,
    record_of,
)
from aioretry._retry.losses import Loss
from aioretry._retry.monitoring import Watch
from aioretry._retry.server_selection import choose
from aioretry._retry.sessions import CommandNumber, SessionLease
from aioretry._retry.verdict import RetryState
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt
from aioretry.events import name_of

# How long an attempt that is sending may outlive its deadline before it is left behind. The driver
# ends it itself as a rule, with an error that says more.
_GRACE = 0.25
# A server remembers a transaction id for 30 minutes, or for as long as it remembers a session.
_TRUSTED_MINUTES = 25.0
_TRUSTED_PART = 5 / 6


@dataclass(slots=True)
class Execution:
    """A command on its way, with all that its attempts share."""

    command: Command[Any]
    lease: SessionLease
    deadline: Deadline | None
    numbering: Numbering
    retries: RetryState | None = None
    """None as long as no attempt has failed."""

    number: CommandNumber = field(default_factory=CommandNumber)
    avoid: frozenset[Address] = frozenset()
    attempts: list[Attempt] = field(default_factory=list)
    began: float | None = None
    """When the first attempt began, in seconds of the event loop's clock."""

    began_at: float = 0.0
    """The same, in seconds since the epoch."""

    server: ServerView | None = None
    """The server of the latest attempt for which one was chosen."""

    watch: Watch | None = None
    """Who is told of the attempts; None if nobody wants to know."""

    flight: "Flight | None" = None
    """The attempt in the air, which is not among the attempts yet."""

    loss: Loss | None = None
    """What the log tells its latest retry with."""

    is_shared: bool = False
    """Whether inserts of several calls travel in it."""

    def history(self) -> list[Attempt]:
        """Return the attempts, with the one in the air as far as it has come."""
        in_the_air = [] if self.flight is None else [self.flight.so_far()]
        return self.attempts + in_the_air

    def settle(self) -> None:
        """Have the session used again if the only sending was answered late, and by no error."""
        sent = [attempt for attempt in self.attempts if attempt.sent]
        reply = sent[0].reply if len(sent) == 1 else None
        if reply is None or self.leaves_doubt(reply):
            return
        if not reply.get("writeErrors"):  # whoever was refused may have that sent once more
            self.lease.settle()

    def leaves_doubt(self, reply: Mapping[str, Any]) -> bool:
        """Tell whether a reply leaves some of those in doubt that share the command."""
        if reply.get("writeConcernError"):
            return True
        # An earlier sending may still be executed, once whatever refused it now is gone.
        was_sent_before = sum(attempt.sent for attempt in self.attempts) > 1
        return was_sent_before and bool(reply.get("writeErrors"))

    def time_left(self) -> float:
        """Return the seconds until the deadline; infinite if there is none."""
        return math.inf if self.deadline is None else self.deadline.remaining()

    @property
    def is_sharded(self) -> bool:
        """Whether a router, and not a server of the data, was asked last."""
        kinds = {ServerKind.MONGOS, ServerKind.LOAD_BALANCER}
        return self.server is not None and self.server.kind in kinds

    @property
    def trusted_seconds(self) -> float:
        """How long a server remembers the command's transaction id for sure."""
        return trusted_seconds(None if self.server is None else self.server.session_minutes)

    def age(self, now: float) -> float:
        """Return the seconds since the first attempt began, if there was one.

        Args:
            now: What the event loop's clock says.
        """
        if self.began is None:
            return 0.0
        # That clock may stand still while the machine sleeps, and the other one may be set.
        return max(now - self.began, time.time() - self.began_at)

    def began_before(self, now: float, age: float) -> None:
        """Note that another process may have made the first attempt.

        Args:
            now: What the event loop's clock says.
            age: How long ago, in seconds.
        """
        self.began, self.began_at = now - age, time.time() - age

    def may_be_forgotten(self, now: float) -> bool:
        """Tell whether a server may take the command's next attempt for its first.

        Args:
            now: What the event loop's clock says.
        """
        is_known = self.number.is_taken and any(attempt.sent for attempt in self.attempts)
        return is_known and self.age(now) >= self.trusted_seconds

    def last_error(self) -> Exception | None:
        """Return the error that surfaces if nothing more is tried; None if nothing failed."""
        return None if self.retries is None else self.retries.surfacing()


class Flight:
    """One attempt, which ends once: with what the driver says, by its deadline, or abandoned.

    Its record becomes part of the execution's history.

    Args:
        driver: Makes the attempt.
        loop: Where ``deliver`` is called, unless the flight is abandoned first.
        execution: What is sent.
        deliver: Gets the result.
        forget: Called when it ends.
    """

    def __init__(
        self,
        driver: Driver,
        loop: asyncio.AbstractEventLoop,
        execution: Execution,
        deliver: Callable[[AttemptResult], None],
        forget: "Callable[[Flight], None]",
    ) -> None:
        self._driver = driver
        self._loop = loop
        self._execution = execution
        self._deliver: Callable[[AttemptResult], None] | None = deliver
        self._forget = forget
        self._noted: Attempt | None = None
        self._started = time.time()
        self._timer: asyncio.TimerHandle | None = None
        self._call = AttemptCall(
            execution.command,
            execution.lease,
            execution.number,
            execution.numbering,
            execution.deadline,
            partial(choose, avoid=execution.avoid),
        )
        execution.flight = self
        if execution.began is None:
            execution.began, execution.began_at = loop.time(), self._started
        driver.attempt(loop, self._call, self._land)
        if execution.deadline is not None and execution.deadline.is_limited:
            self._timer = loop.call_later(execution.deadline.remaining(), self._expire)

    @property
    def server(self) -> ServerView | None:
        """The server that it waits for, or None."""
        return self._call.server if self._call.is_waiting else None

    @property
    def numbered(self) -> bool:
        """Whether the command carries a transaction id, so that it may be sent again."""
        return self._call.numbered

    def so_far(self) -> Attempt:
        """Return the record of it as if it ended now, without an answer."""
        return self._record(sent=self._call.token.is_sending, error=None)

    def abandon(self, reason: BaseException) -> None:
        """Give the attempt up: nothing is sent that is not sent yet, and nothing is delivered.

        It is forgotten when it lands: its thread has to be freed if the server is deposed, and it
        ends by its deadline as it would have.
        """
        if self._deliver is not None:
            record = self._note(sent=not self._call.token.revoke(), error=reason)
            self._fall_silent()
            self._tell(record)

    def lose_server(self) -> None:
        """End the attempt because its server takes no more writes, if it need not be waited for."""
        call = self._call
        if self._deliver is None:
            self._free_thread()
            return
        is_sent = not call.token.revoke()
        if not self._driver.abandon(call) and is_sent:
            return
        server = "" if call.address is None else f"{name_of(call.address)}: "
        error = AutoReconnect(f"{server}the server stopped taking writes before it answered")
        record = self._record(sent=is_sent, error=error)
        if is_sent:
            self._finish(Failed(record, error, call.server, call.numbered))
        else:
            self._finish(NoServer(record))

    def close(self, patience: float) -> None:
        """End the attempt because the client is closed: now if it is not sent, or after a while.

        Args:
            patience: How long an attempt that was sent may go on, in seconds.
        """
        if self._call.token.revoke():
            self._give_up_closed(sent=False)
        else:
            self._cancel_timer()
            patience = min(patience, self._execution.time_left() + _GRACE)
            self._timer = self._loop.call_later(patience, partial(self._give_up_closed, sent=True))

    def _land(self, result: AttemptResult) -> None:
        if self._deliver is None:
            try:
                self._note_late(result)
            finally:
                self._cancel_timer()
                self._forget(self)
        else:
            self._finish(self._with_error_of_reply(result))

    def _finish(self, result: AttemptResult) -> None:
        deliver = self._deliver
        if deliver is not None:
            record = record_of(result)
            if record is not None:
                self._execution.attempts.append(record)
            self._end()
            try:
                if record is not None:
                    self._tell(record)
            finally:
                deliver(result)

    def _end(self) -> None:
        self._fall_silent()
        self._cancel_timer()
        self._forget(self)

    def _free_thread(self) -> None:
        if self._driver.abandon(self._call):
            self._cancel_timer()
            self._forget(self)

    def _fall_silent(self) -> None:
        self._deliver = None
        self._execution.flight = None
        self._execution.server = self._call.server or self._execution.server

    def _expire(self) -> None:
        if self._call.token.revoke():
            self._finish(Expired())
        elif not self._driver.time_out(self._call):
            self._timer = self._loop.call_later(_GRACE, self._leave_behind)

    def _leave_behind(self) -> None:
        if self._deliver is not None:
            self._driver.abandon(self._call)
            self._tell(self._note(sent=True))
            self._finish(Expired())

    def _give_up_closed(self, *, sent: bool) -> None:
        if self._deliver is None:
            self._free_thread()
        else:
            self._driver.abandon(self._call)
            error = InvalidOperation("the client was closed before the server answered")
            record = self._record(sent=sent, error=error)
            self._finish(Failed(record, error))

    def _note(self, *, sent: bool, error: BaseException | None = None) -> Attempt:
        self._noted = record = self._record(sent=sent, error=error)
        self._execution.attempts.append(record)
        return record

    def _tell(self, record: Attempt) -> None:
        # When the flight has ended, because a hook may do as it likes.
        watch = self._execution.watch
        if watch is not None:
            watch.end_attempt(record, len(self._execution.attempts))

    def _note_late(self, result: AttemptResult) -> None:
        # An answer that nobody waits for any more still tells how the write ended.
        noted, record = self._noted, record_of(self._with_error_of_reply(result))
        if noted is not None and noted.sent and record is not None:
            attempts = self._execution.attempts
            attempts[attempts.index(noted)] = record
            self._execution.settle()

    def _record(self, *, sent: bool, error: BaseException | None) -> Attempt:
        duration = time.time() - self._started
        return Attempt(self._call.address, self._started, duration, sent, error)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _with_error_of_reply(self, result: AttemptResult) -> AttemptResult:
        if not isinstance(result, Replied):
            return result
        try:
            error = self._error_in(result.reply)
            if error is None:
                return result
        except Exception as exc:  # noqa: BLE001 - the answer makes no sense, but it came
            error = exc
        record = replace(result.record, error=error, reply=None)
        return Failed(record, error, result.server, result.numbered)

    def _error_in(self, reply: Mapping[str, Any]) -> Exception | None:
        error = self._execution.command.error_in(reply)
        if error is not None:
            for label in reply.get("errorLabels", ()):
                # Labels are the whole reply's, also where a write error stands in it (MongoDB 4.4
                # answers so to a write that meets a step-down).
                self._driver.add_label(error, label)
        return error


def trusted_seconds(session_minutes: float | None) -> float:
    """Return for how long a server remembers a transaction id for sure, in seconds.

    Args:
        session_minutes: How long it remembers a session that is not used, if that is known.
    """
    if session_minutes is None:
        return _TRUSTED_MINUTES * 60
    return min(_TRUSTED_MINUTES, session_minutes * _TRUSTED_PART) * 60
