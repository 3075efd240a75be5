"""Who makes an attempt: the event loop, or a thread."""

import asyncio
import contextlib
import socket
from collections import Counter

from aioretry._drivers.motor.checkup import Checkups
from aioretry._drivers.motor.connections import Connections
from aioretry._drivers.motor.entry import Entry
from aioretry._drivers.motor.on_loop import LoopAttempt
from aioretry._drivers.motor.on_thread import ThreadAttempt
from aioretry._drivers.motor.opening import Opening
from aioretry._drivers.motor.steps import Steps
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
from aioretry._drivers.threads import ThreadPool

# Each asks one server at a time, and for a moment only.
_MOST_ASKING = 4
# There are fewer as a rule, as few at a time to each server as PyMongo allows.
_MOST_OPENING = 32


class Dispatch:
    """Has the attempts of one event loop made, for which there is room. Nobody waits in it.

    The loop makes an attempt itself if there is an idle connection for it. What may block is done
    on a thread: to open a connection, to prepare a command from an iterator of the user's, to call
    listeners. As few connections to a server are opened at a time as PyMongo allows.

    Args:
        steps: What they have in common.
        loop: The event loop.
        threads: Makes what the loop does not make itself.
        most: How many attempts threads make at a time at most.
        only_threads: Whether the loop makes none.
    """

    def __init__(
        self,
        steps: Steps,
        loop: asyncio.AbstractEventLoop,
        threads: ThreadPool,
        *,
        most: int,
        only_threads: bool,
    ) -> None:
        self.loop = loop
        self._steps = steps
        self._threads = threads
        self._most = most
        self._on_threads = 0
        self._only_threads = only_threads or not _can_watch_sockets(loop)
        self._connections = Connections(loop)
        # Not the threads of the attempts, which may all wait for answers, or for the user.
        self._asking = ThreadPool(_MOST_ASKING, "aioretry-checkup")
        self._openers = ThreadPool(_MOST_OPENING, "aioretry-opening")
        self._checkups = Checkups(steps.delegate, loop, self._asking)
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
        return self._threads.counts() + self._openers.counts()

    def close(self) -> None:
        """Give back the connections that are kept; called on any thread."""
        self._asking.close()
        self._openers.close()
        if _running_loop() is self.loop or not self.loop.is_running():
            self._connections.close()
        else:
            with contextlib.suppress(RuntimeError):  # it was closed just now
                self.loop.call_soon_threadsafe(self._connections.close)

    def _start(self, entry: Entry) -> bool:
        """Begin an attempt; return False if there is no connection, or no thread, for it."""
        call = entry.call
        if not (self._only_threads or call.command.may_block or self._steps.need_threads):
            attempt = entry.on_loop = LoopAttempt(
                self._steps, self._connections, self._checkups, entry
            )
            # Those for which one is to be opened wait in the pool, if it is full.
            if attempt.begin(is_awaited=call.server.address in self._opening):
                entry.is_under_way = True
                return True
            entry.on_loop = None
            self._only_threads = self._connections.are_unusable
            if not (entry.had_opened or self._only_threads):
                return self._open(entry, call.server.address)
        if self._on_threads >= self._most:
            return False
        entry.on_thread = job = ThreadAttempt(self._steps, entry)
        self._threads.submit(job)
        self._on_threads += 1
        entry.is_under_way = True
        return True

    def _open(self, entry: Entry, address: Address) -> bool:
        if self._opening[address] >= self._steps.max_connecting:
            return False
        entry.on_thread = job = Opening(self._steps, entry)
        self._openers.submit(job)
        entry.opening = address
        self._opening[address] += 1
        entry.is_under_way = True
        return True

    def opened(self, entry: Entry, result: AttemptResult | None) -> None:
        """Go on with an attempt for which a connection was to be opened.

        Args:
            entry: The attempt.
            result: What came of it if it ended thereby, or None.
        """
        if result is not None or not entry.is_under_way:  # it failed, or was abandoned
            entry.land(result or NoServer())
            return
        # If another user of the pool has been faster, a thread makes the attempt.
        self.free(entry)
        entry.had_opened = True
        entry.on_thread = None
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
            if self._has_lost(entry.call.server):  # there may be another one in its place by now
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
        elif entry.on_thread is not None:
            self._on_threads -= 1

    def abandon(self, entry: Entry) -> bool:
        """End an attempt that is under way without a result, and free its place.

        Returns:
            False if it must be waited for.
        """
        if entry.on_loop is not None:
            entry.on_loop.abandon()
        elif entry.on_thread is not None and self._pool_of(entry).abandon(entry.on_thread):
            entry.on_thread.end()
        else:
            return False
        self.free(entry)
        entry.on_loop = entry.on_thread = None
        return True

    def _pool_of(self, entry: Entry) -> ThreadPool:
        return self._threads if entry.opening is None else self._openers


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _can_watch_sockets(loop: asyncio.AbstractEventLoop) -> bool:
    return hasattr(socket, "MSG_DONTWAIT") and (
        type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader
    )
