"""What a command waits for before it is sent: a server, and its turn in a shared session."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

import anyio
from pymongo.errors import InvalidOperation

from aioretry._commands.command import Command
from aioretry._drivers.port import Driver, ServerView, TopologyView
from aioretry._retry.availability import Availability
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.lookout import Lookout
from aioretry._retry.monitoring import Watch
from aioretry._retry.server_selection import Selection
from aioretry._retry.sessions import NO_LEASE
from aioretry._retry.surfacing import (
    nobody_found,
    router_lost,
    too_late,
    too_many_wait,
    unavailable,
)
from aioretry.deadlines import Deadline

_LOOK_EVERY = 0.1


class ServerWaits:
    """The commands of one event loop that wait for a server that takes writes.

    Args:
        driver: Knows the servers.
        loop: The event loop.
        lookout: Looks at what the driver knows.
        timeout: How long to wait for a server at most, in seconds.
        most: How many writes may wait at once.
        availability: Looks for a server that nobody waits for.
        fail_fast_after: For how many seconds none is there before no write waits any more.
    """

    def __init__(
        self,
        driver: Driver,
        loop: asyncio.AbstractEventLoop,
        lookout: Lookout,
        timeout: float,
        most: int,
        availability: Availability,
        fail_fast_after: float = math.inf,
    ) -> None:
        self._driver = driver
        self._loop = loop
        self._lookout = lookout
        self._selections: dict[str, Selection] = {"": Selection(driver, loop, lookout)}
        self._timeout = timeout
        self._most = most
        self._availability = availability
        self._fail_fast_after = fail_fast_after
        self._lost_at: float | None = None
        """When a write has found no server, if none was seen since."""

        self._count = 0
        self._topology_text: tuple[object, str] = (None, "")
        self.queues: WeakSet[Any] = WeakSet()
        """The queues of group commit; the inserts that are ``waiting`` in each count, too."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} waiting={self.waiting}>"

    @property
    def waiting(self) -> int:
        """How many wait, those in the queues of group commit included."""
        waiting: int = self._count + sum(queue.waiting for queue in self.queues)
        return waiting

    def can_begin(self, execution: Execution) -> bool:
        """Tell whether an attempt can begin now, without waiting for anything.

        Raises:
            InvalidOperation: The client was closed.
        """
        if execution.time_left() <= 0:
            return False
        reading = execution.command.reading
        is_there = bool(self._driver.view().servers_for(reading))
        if is_there and reading is None:
            self._lost_at = None
        return is_there

    def check_room(self, execution: Execution | None = None) -> None:
        """Refuse one more write that would wait for a server, where too many do.

        Args:
            execution: Its command; None if there is none yet.

        Raises:
            TooManyWaiting: There are too many already.
            InvalidOperation: The client was closed.
        """
        reading = None if execution is None else execution.command.reading
        if self._driver.view().servers_for(reading):
            return
        if self.waiting >= self._most:
            raise too_many_wait(self._most, execution)

    async def find_server(self, execution: Execution) -> None:
        """Wait until there is a server for a command.

        Raises:
            DeadlineExceeded: There was none in time.
            ServerSelectionTimeoutError: The same, where there is no deadline.
            WritesUnavailableError: There was none for so long that nobody waits any more.
            AutoReconnect: The router that alone knows the transaction is lost.
            InvalidOperation: The client was closed.
        """
        try:
            self._follow_pin(execution)
            if not self.can_begin(execution):
                await self._wait(execution)
        except InvalidOperation as exc:  # the client was closed
            raise exc from execution.last_error()

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
            await self.find_server(waiting)
            found = tuple(self._driver.view().writable.values())
            if found:
                return found

    async def still_takes_writes(self, execution: Execution, server: ServerView) -> bool:
        """Let the driver catch up with what an attempt has learnt; say if the server is still one.

        Args:
            execution: The command.
            server: The server as it was known before the attempt.
        """
        began = self._loop.time()
        try:
            return await self._selection_of(execution).still_takes_writes(
                server, execution.time_left()
            )
        finally:
            self._add_wait(execution, began)

    async def _wait(self, execution: Execution) -> None:
        # The inserts of a shared command are counted by their queue, each from its call on.
        count = 0 if execution.is_shared else 1
        if count and not any(attempt.sent for attempt in execution.attempts):
            # A command that was sent may wait in any case: its outcome would stay unknown.
            self.check_room(execution)
        left = execution.time_left()
        seconds = min(self._timeout, left)
        began = self._loop.time()
        self._count += count
        try:
            while True:
                if execution.time_left() <= 0:
                    raise too_late(execution) from execution.last_error()
                until, fails_at = began + seconds, self._fails_at(execution)
                selection = self._selection_of(execution)
                is_found = fails_at > self._loop.time() and await selection.wait_for_server(
                    min(until, fails_at)
                )
                self._follow_pin(execution)
                if self.can_begin(execution):  # also just now, or while the loop stood
                    return
                if is_found:
                    continue
                if until <= fails_at:
                    execution.is_late = left <= self._timeout
                    raise nobody_found(execution, seconds, self._topology())
                # Timers are early by up to the clock's resolution: the clock is not asked again.
                if self._fails_at(execution) <= fails_at:
                    self._availability.search_now()
                    raise unavailable(self._fail_fast_after, execution) from execution.last_error()
        finally:
            self._count -= count
            self._add_wait(execution, began)

    def _fails_at(self, execution: Execution) -> float:
        """Return when a write waits no more, by the loop's clock, for one nobody has waited for."""
        if execution.command.reading is not None or math.isinf(self._fail_fast_after):
            return math.inf
        if self._lost_at is None:
            self._lost_at = self._loop.time()
            self._lookout.add(self, _LOOK_EVERY)
        # A command that was sent waits in any case: its outcome would stay unknown.
        was_sent = any(attempt.sent for attempt in execution.attempts)
        end = execution.transaction_end
        is_commit = end is not None and end.leaves_doubt
        return math.inf if was_sent or is_commit else self._lost_at + self._fail_fast_after

    def look(self, view: TopologyView | None) -> float | None:
        """Take note of a server that takes writes again, or that nobody will be told of one."""
        if view is None or view.servers_for(None):
            self._lost_at = None
        return None if self._lost_at is None else _LOOK_EVERY

    def _follow_pin(self, execution: Execution) -> None:
        pinned = execution.pinned
        if pinned is None or pinned in self._driver.view().writable:
            return
        if execution.transaction_end is None:
            raise router_lost(pinned)
        execution.lease.unpin()  # any router can end it (transactions, "Recovery Token")

    def _selection_of(self, execution: Execution) -> Selection:
        reading = execution.command.reading
        kind = "" if reading is None else reading.kind
        selection = self._selections.get(kind)
        if selection is None:
            selection = Selection(self._driver, self._loop, self._lookout, reading)
            self._selections[kind] = selection
        return selection

    def _add_wait(self, execution: Execution, began: float) -> None:
        if execution.watch is not None:
            execution.watch.add_wait(self._loop.time() - began)

    def _topology(self) -> str:
        # Of thousands that fail together, each wants the same long text.
        source = self._driver.view().source
        if self._topology_text[0] is not source:
            self._topology_text = (source, repr(source))
        return self._topology_text[1]


@asynccontextmanager
async def turn_of(execution: Execution) -> AsyncIterator[None]:
    """Keep other commands from a session that can have one at a time.

    Raises:
        DeadlineExceeded: The command's turn did not come in time.
    """
    turn = execution.lease.turn
    if turn is None:
        yield
        return
    left = execution.time_left()
    with anyio.move_on_after(None if math.isinf(left) else left) as limit:
        await turn.acquire()
    if limit.cancelled_caught:
        raise too_late(execution)
    try:
        yield
    finally:
        turn.release()
