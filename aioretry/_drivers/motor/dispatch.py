"""Who makes an attempt: the event loop, or a thread."""

import asyncio
import contextlib
import contextvars
import socket
from collections import Counter, deque
from collections.abc import Collection

from aioretry._drivers.motor.attempts import Attempts
from aioretry._drivers.motor.checkup import Checkups
from aioretry._drivers.motor.connections import Connections
from aioretry._drivers.motor.on_loop import LoopAttempt
from aioretry._drivers.motor.on_thread import ThreadAttempt
from aioretry._drivers.motor.opening import Opening
from aioretry._drivers.port import (
    Address,
    AttemptCall,
    AttemptResult,
    NoServer,
    Receiver,
    ThreadCounts,
    Unprepared,
)
from aioretry._drivers.threads import ThreadPool

# Each asks one server at a time, and for a moment only.
_MOST_ASKING = 4


class Dispatch:
    """Has the attempts of one event loop made, in the order in which they come.

    The loop makes an attempt itself if there is an idle connection for it. What may block is done
    on a thread: to open a connection, to prepare a command from an iterator of the user's, to call
    listeners. As few open connections to a server at a time as PyMongo allows; the others wait.

    Args:
        attempts: What they have in common.
        loop: The event loop.
        threads: Makes what the loop does not make itself.
        only_threads: Whether the loop makes none.
    """

    def __init__(
        self,
        attempts: Attempts,
        loop: asyncio.AbstractEventLoop,
        threads: ThreadPool,
        *,
        only_threads: bool,
    ) -> None:
        self.loop = loop
        self._attempts = attempts
        self._threads = threads
        self._only_threads = only_threads or not _can_watch_sockets(loop)
        self._connections = Connections(loop)
        # Not the threads of the attempts, which may all wait for answers.
        self._asking = ThreadPool(_MOST_ASKING, "aioretry-checkup")
        self._checkups = Checkups(attempts.delegate, loop, self._asking)
        self._opening: Counter[Address] = Counter()
        self._waiting: deque[Entry] = deque()

    def add(self, call: AttemptCall, receiver: Receiver) -> None:
        """Have an attempt made; its result is told in a later turn of the loop.

        Raises:
            RuntimeError: There is no thread, and none can be started.
        """
        call.carrier = entry = Entry(self, call, receiver)
        if self._waiting or not self._start(entry):
            self._waiting.append(entry)

    def counts(self) -> ThreadCounts:
        """Return how the threads are doing; a glance."""
        counts = self._threads.counts()
        queued = counts.queued + len(self._waiting)
        return ThreadCounts(counts.threads, counts.idle, queued, counts.abandoned)

    def free(self, entry: "Entry") -> None:
        """Let another attempt take the place of one."""
        if entry.is_under_way:
            self._leave(entry)
            self._pump()

    def close(self) -> None:
        """Give back the connections that are kept; called on any thread."""
        self._asking.close()
        if _running_loop() is self.loop or not self.loop.is_running():
            self._connections.close()
        else:
            with contextlib.suppress(RuntimeError):  # it was closed just now
                self.loop.call_soon_threadsafe(self._connections.close)

    def _pump(self) -> None:
        while self._waiting:
            if self._is_full and not self._connections.are_kept:
                return  # whoever opens one looks again
            entry = self._waiting.popleft()
            if not self._start_waiting(entry):
                self._waiting.appendleft(entry)
                return

    def _start_waiting(self, entry: "Entry") -> bool:
        if self._has_lost(entry.call.server.address):  # while the attempt has waited
            self.loop.call_soon(entry.land, NoServer())
            return True
        try:
            return entry.context.run(self._start, entry)
        except RuntimeError as exc:  # no thread to be had
            is_closed = self._attempts.is_closed  # the event loop will find out
            result = NoServer() if is_closed else Unprepared(exc)
            self.loop.call_soon(entry.land, result)
            return True

    def _start(self, entry: "Entry") -> bool:
        """Begin an attempt; return False if it has to wait for a connection."""
        call = entry.call
        if not (self._only_threads or call.command.may_block or self._attempts.need_threads):
            attempt = entry.on_loop = LoopAttempt(
                self._attempts, self._connections, self._checkups, entry
            )
            if attempt.begin():
                entry.is_under_way = True
                return True
            entry.on_loop = None
            if not entry.had_opened:
                return self._open(entry, call.server.address)
        self._start_on_thread(entry, ThreadAttempt(self._attempts, entry))
        return True

    @property
    def _is_full(self) -> bool:
        if not self._opening:
            return False
        servers = self._writable()
        if servers is None:
            return False
        return self._opening.total() >= len(servers) * self._attempts.max_connecting

    def _has_lost(self, server: Address) -> bool:
        servers = self._writable()
        return servers is not None and server not in servers

    def _writable(self) -> Collection[Address] | None:
        try:
            return self._attempts.view().writable
        except Exception:  # noqa: BLE001 - whoever looks for a server meets it too, and can raise it
            return None

    def _open(self, entry: "Entry", address: Address) -> bool:
        if self._opening[address] >= self._attempts.max_connecting:
            return False
        self._start_on_thread(entry, Opening(self._attempts, entry))
        entry.opening = address
        self._opening[address] += 1
        return True

    def opened(self, entry: "Entry", result: AttemptResult | None) -> None:
        """Go on with an attempt for which a connection was to be opened.

        Args:
            entry: The attempt.
            result: What came of it if it ended thereby, or None.
        """
        if result is not None or not entry.is_under_way:  # it failed, or was abandoned
            try:
                entry.land(result or NoServer())
            finally:
                self._pump()
            return
        # It goes first. If another user of the pool has been faster, a thread makes the attempt.
        self._leave(entry)
        entry.had_opened = True
        entry.on_thread = None
        entry.call.is_waiting = False
        self._waiting.appendleft(entry)
        self._pump()

    def start_again(self, entry: "Entry") -> None:
        """Begin an attempt anew, and before others, whose connection was gone."""
        self._leave(entry)
        entry.on_loop = None
        self._waiting.appendleft(entry)
        self._pump()

    def _leave(self, entry: "Entry") -> None:
        entry.is_under_way = False
        if entry.opening is not None:
            self._opening[entry.opening] -= 1
            if not self._opening[entry.opening]:
                del self._opening[entry.opening]
            entry.opening = None

    def _start_on_thread(self, entry: "Entry", job: ThreadAttempt | Opening) -> None:
        entry.on_thread = job
        self._threads.submit(job)
        entry.is_under_way = True

    def abandon(self, entry: "Entry") -> bool:
        """End an attempt that is under way without a result, and free its place.

        Returns:
            False if it must be waited for.
        """
        if entry.on_loop is not None:
            entry.on_loop.abandon()
        elif entry.on_thread is not None and self._threads.abandon(entry.on_thread):
            entry.on_thread.end()
        else:
            return False
        self.free(entry)
        return True


class Entry:
    """An attempt, waiting or under way.

    Args:
        dispatch: Has it made.
        call: What is tried.
        receiver: Is told the result.
    """

    __slots__ = (
        "_receiver",
        "call",
        "context",
        "dispatch",
        "had_opened",
        "is_under_way",
        "loop",
        "on_loop",
        "on_thread",
        "opening",
    )

    def __init__(self, dispatch: Dispatch, call: AttemptCall, receiver: Receiver) -> None:
        self.dispatch = dispatch
        self.loop = dispatch.loop
        self.call = call
        self._receiver = receiver
        self.context = contextvars.copy_context()
        self.had_opened = False
        """Whether a connection was opened for it before."""

        self.opening: Address | None = None
        """Where a thread is opening a connection for it."""

        self.is_under_way = False
        self.on_loop: LoopAttempt | None = None
        self.on_thread: ThreadAttempt | Opening | None = None

    def land(self, result: AttemptResult) -> None:
        """Tell the result of an attempt that has ended, and free its place."""
        self.on_loop = self.on_thread = self.call.carrier = None
        try:
            # First, so that the next one finds the session that is given back.
            self._receiver.land(result)
        finally:
            self.dispatch.free(self)

    def land_from_thread(self, result: AttemptResult) -> None:
        """Do so on the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self.loop.call_soon_threadsafe(self.land, result)

    def opened_from_thread(self, result: AttemptResult | None) -> None:
        """Go on on the event loop when a connection was opened, or end with a result."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self.loop.call_soon_threadsafe(self.dispatch.opened, self, result)

    def start_again(self) -> None:
        """Have the attempt begun anew, because its connection was gone."""
        self.dispatch.start_again(self)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _can_watch_sockets(loop: asyncio.AbstractEventLoop) -> bool:
    return hasattr(socket, "MSG_DONTWAIT") and (
        type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader
    )
