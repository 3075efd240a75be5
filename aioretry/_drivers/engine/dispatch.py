"""Who makes an attempt: the event loop, or a job beside it."""

import asyncio
import contextlib
from collections import Counter
from typing import Protocol

from aioretry._drivers.engine.attempt import LoopAttempt
from aioretry._drivers.engine.checkup import Asker, Checkups
from aioretry._drivers.engine.connections import Connections
from aioretry._drivers.engine.entry import Entry, Held, Job
from aioretry._drivers.engine.steps import Steps
from aioretry._drivers.port import (
    Address,
    AttemptCall,
    AttemptResult,
    NoRoom,
    NoServer,
    Receiver,
    ServerView,
    ThreadCounts,
    Unprepared,
)

_MOST_OPENINGS = 3  # for one attempt


class Room(Protocol):
    """What the attempts of one event loop are made with."""

    @property
    def connections(self) -> Connections:
        """The connections that the event loop holds."""
        ...

    @property
    def asker(self) -> Asker:
        """Asks servers whether they are well."""
        ...

    def make(self, entry: Entry) -> Job:
        """Have an attempt made that may block.

        Raises:
            RuntimeError: There is no thread for it, and none can be started.
        """
        ...

    def open(self, entry: Entry) -> Job:
        """Have a connection opened, and left to its pool.

        Raises:
            RuntimeError: As for :meth:`make`.
        """
        ...

    def abandon(self, entry: Entry) -> bool:
        """Have a job hold up nobody any more; return False if it must be waited for."""
        ...

    def counts(self) -> ThreadCounts:
        """Return how the threads are doing; a glance."""
        ...

    def close(self) -> None:
        """Begin nothing more; called on any thread."""
        ...


class Dispatch:
    """Has the attempts of one event loop made, for which there is room. Nobody waits in it.

    The loop makes an attempt itself if there is an idle connection for it. What may block is a job
    of the room's, on a thread or in a task: to open a connection, to prepare a command from an
    iterator of the user's, to call listeners that may block. As few connections to a server are
    opened at a time as PyMongo allows.

    Args:
        steps: What they have in common.
        loop: The event loop.
        room: Makes what the loop does not make itself.
        most: How many writes the room makes at a time at most, and how many reads.
        only_jobs: Whether the loop makes none.
    """

    def __init__(
        self,
        steps: Steps,
        loop: asyncio.AbstractEventLoop,
        room: Room,
        *,
        most: int,
        only_jobs: bool,
    ) -> None:
        self.loop = loop
        self._steps = steps
        self._room = room
        self._most = most
        # Those of slow reads are no hindrance to writes.
        self._jobs: Counter[bool] = Counter()
        self._only_jobs = only_jobs
        self._connections = room.connections
        self._checkups = Checkups(loop, room.asker)
        self._opening: Counter[Address] = Counter()

    def add(self, call: AttemptCall, receiver: Receiver) -> bool:
        """Have an attempt made; its result is told in a later turn of the loop.

        Returns:
            False if there is no room for it now.

        Raises:
            RuntimeError: There is no thread, and none can be started.
        """
        entry = Entry(self, call, receiver)
        if not self._start(entry):
            return False
        call.carrier = entry
        return True

    def counts(self) -> ThreadCounts:
        """Return how the threads are doing; a glance."""
        return self._room.counts()

    def close(self) -> None:
        """Give back the connections that are kept; called on any thread."""
        self._room.close()
        if _running_loop() is self.loop or not self.loop.is_running():
            self._connections.close()
        else:
            with contextlib.suppress(RuntimeError):  # it was closed just now
                self.loop.call_soon_threadsafe(self._connections.close)

    def _start(self, entry: Entry) -> bool:
        """Begin an attempt; return False if there is no connection, or no room, for it."""
        call = entry.call
        if not (self._only_jobs or call.command.may_block or self._steps.need_jobs):
            attempt = entry.on_loop = LoopAttempt(
                self._steps, self._connections, self._checkups, entry
            )
            # Those for which one is to be opened wait in the pool, if it is full.
            if attempt.begin(is_awaited=call.server.address in self._opening):
                entry.is_under_way = True
                return True
            entry.on_loop = None
            self._only_jobs = self._connections.are_unusable
            # Another one may be faster at the pool; where that is full, one has to wait in it.
            has_waited = entry.openings and attempt.has_found_full
            if not (self._only_jobs or has_waited or entry.openings >= _MOST_OPENINGS):
                return self._open(entry, call.server.address)
        is_read = call.command.reading is not None
        if self._jobs[is_read] >= self._most:
            return False
        entry.job = self._room.make(entry)
        self._jobs[is_read] += 1
        entry.is_under_way = True
        return True

    def _open(self, entry: Entry, address: Address) -> bool:
        if self._opening[address] >= self._steps.max_connecting:
            return False
        entry.job = self._room.open(entry)
        entry.opening = address
        self._opening[address] += 1
        entry.is_under_way = True
        return True

    def opened(self, entry: Entry, result: AttemptResult | None, held: Held | None = None) -> None:
        """Go on with an attempt for which a connection was to be opened.

        Args:
            entry: The attempt.
            result: What came of it if it ended thereby, or None.
            held: A pool and the connection that was checked out of it; None if it was left there.
        """
        if held is not None:
            with contextlib.suppress(Exception):  # it was closed; the attempt finds another one
                self._connections.hold(*held)
        if result is not None or not entry.is_under_way:  # it failed, or was abandoned
            entry.context.run(entry.land, result or NoServer())
            return
        self.free(entry)
        entry.openings += 1
        entry.job = None
        entry.call.is_waiting = False
        try:
            result = entry.context.run(self._go_on, entry)
            if result is not None:
                entry.context.run(entry.land, result)
        finally:
            entry.make_way()  # another one can be opened

    def _go_on(self, entry: Entry) -> AttemptResult | None:
        """Begin an attempt whose connection was opened; return what came of it if it ends here."""
        try:
            is_read = entry.call.command.reading is not None
            if not is_read and self._has_lost(
                entry.call.server
            ):  # there may be another one in its place by now
                return NoServer()
            return None if self._start(entry) else NoRoom()
        except RuntimeError as exc:  # no thread to be had
            # That the client was closed, the event loop will find out.
            return NoServer() if self._steps.is_closed else Unprepared(exc)

    def _has_lost(self, server: ServerView) -> bool:
        try:
            return self._steps.view().has_lost(server)
        except Exception:  # noqa: BLE001 - whoever looks for a server meets it too, and can raise it
            return False

    def free(self, entry: Entry) -> None:
        """Have room for another attempt."""
        if not entry.is_under_way:
            return
        entry.is_under_way = False
        if entry.opening is not None:
            self._opening[entry.opening] -= 1
            if not self._opening[entry.opening]:
                del self._opening[entry.opening]
            entry.opening = None
        elif entry.job is not None:
            self._jobs[entry.call.command.reading is not None] -= 1

    def abandon(self, entry: Entry) -> bool:
        """End an attempt that is under way without a result, and free its place.

        Returns:
            False if it must be waited for.
        """
        if entry.on_loop is not None:
            entry.on_loop.abandon()
        elif entry.job is not None and self._room.abandon(entry):
            entry.job.end()
        else:
            return False
        self.free(entry)
        entry.on_loop = entry.job = None
        return True


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
