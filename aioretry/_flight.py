"""A command on its way, and one attempt of it in the air, as the event loop sees them."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from aioretry import _replies
from aioretry._driver import (
    Address,
    AttemptCall,
    AttemptResult,
    Command,
    Driver,
    Ending,
    Lease,
    Numbering,
)
from aioretry._selection import choose
from aioretry._sessions import CommandNumber
from aioretry._verdict import RetryState
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt

# How long an attempt that is sending may outlive its deadline before it is left behind. The driver
# ends it itself as a rule, with an error that says more.
_GRACE = 0.25


@dataclass(slots=True)
class Statement:
    """One command on its way, with all that its attempts share."""

    command: Command[Any]
    lease: Lease
    deadline: Deadline | None
    numbering: Numbering
    retries: RetryState | None = None
    """None as long as no attempt has failed."""

    number: CommandNumber = field(default_factory=CommandNumber)
    avoid: frozenset[Address] = frozenset()
    attempts: list[Attempt] = field(default_factory=list)

    def time_left(self) -> float:
        """Return the seconds until the deadline; infinite if there is none."""
        return math.inf if self.deadline is None else self.deadline.remaining()

    def last_error(self) -> Exception | None:
        """Return the error that surfaces if nothing more is tried; None if nothing failed."""
        return None if self.retries is None else self.retries.surfacing()


class Flight:
    """One attempt, which ends once: with what the driver says, by its deadline, or abandoned.

    Its record becomes part of the statement's history.

    Args:
        driver: Makes the attempt.
        loop: Where ``deliver`` is called, unless the flight is abandoned first.
        statement: What is sent.
        deliver: Gets the result.
    """

    def __init__(
        self,
        driver: Driver,
        loop: asyncio.AbstractEventLoop,
        statement: Statement,
        deliver: Callable[[AttemptResult], None],
    ) -> None:
        self._driver = driver
        self._loop = loop
        self._statement = statement
        self._deliver: Callable[[AttemptResult], None] | None = deliver
        self._started = time.time()
        self._timer: asyncio.TimerHandle | None = None
        self._call = AttemptCall(
            statement.command,
            statement.lease,
            statement.number,
            statement.numbering,
            statement.deadline,
            partial(choose, avoid=statement.avoid),
        )
        driver.attempt(loop, self._call, self._land)
        if statement.deadline is not None and statement.deadline.is_limited:
            self._timer = loop.call_later(statement.deadline.remaining(), self._expire)

    def abandon(self, reason: BaseException) -> None:
        """Give the attempt up: nothing is sent that is not sent yet, and nothing is delivered."""
        if self._deliver is not None:
            self._deliver = None
            self._note(sent=not self._call.token.revoke(), error=reason)
            self._cancel_timer()

    def _land(self, result: AttemptResult) -> None:
        deliver, self._deliver = self._deliver, None
        if deliver is None:
            return
        self._cancel_timer()
        result = self._with_error_of_reply(result)
        if result.record is not None:
            self._statement.attempts.append(result.record)
        deliver(result)

    def _expire(self) -> None:
        if self._call.token.revoke():
            self._land(AttemptResult(Ending.EXPIRED))
        else:
            self._timer = self._loop.call_later(_GRACE, self._leave_behind)

    def _leave_behind(self) -> None:
        if self._deliver is not None:
            self._note(sent=True)
            self._land(AttemptResult(Ending.EXPIRED))

    def _note(self, *, sent: bool, error: BaseException | None = None) -> None:
        duration = time.time() - self._started
        record = Attempt(self._call.address, self._started, duration, sent, error)
        self._statement.attempts.append(record)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _with_error_of_reply(self, result: AttemptResult) -> AttemptResult:
        reply = None if result.record is None else result.record.reply
        error = None if reply is None else self._statement.command.error_in(reply)
        if result.record is None or reply is None or error is None:
            return result
        for label in reply.get("errorLabels", ()):
            # Labels are the whole reply's, also where a write error stands in it (MongoDB 4.4
            # answers so to a write that meets a step-down).
            self._driver.add_label(error, label)
        return replace(
            result,
            ending=Ending.FAILED,
            record=replace(result.record, error=error, reply=None),
            topology_version=_replies.topology_version_in(reply),
        )
