"""What the attempts of one event loop are made with: its sockets, and threads beside it."""

import asyncio
import socket

from aioretry._drivers.engine.entry import Entry
from aioretry._drivers.engine.steps import Steps
from aioretry._drivers.motor.asking import ThreadAsker
from aioretry._drivers.motor.connections import SocketConnections
from aioretry._drivers.motor.on_thread import ThreadAttempt
from aioretry._drivers.motor.opening import Opening
from aioretry._drivers.port import ThreadCounts
from aioretry._drivers.threads import ThreadPool

# There are fewer as a rule, as few at a time to each server as PyMongo allows.
_MOST_OPENING = 32


class MotorRoom:
    """What the attempts of one event loop are made with.

    Args:
        steps: What they have in common.
        loop: The event loop.
        threads: Make what the loop does not make itself.
        reading: The same, of reads.
    """

    def __init__(
        self,
        steps: Steps,
        loop: asyncio.AbstractEventLoop,
        threads: ThreadPool,
        reading: ThreadPool,
    ) -> None:
        self.connections = SocketConnections(loop, steps.calls)
        self.asker = ThreadAsker(steps.calls, loop)
        self._steps = steps
        self._threads = threads
        self._reading = reading
        self._openers = ThreadPool(_MOST_OPENING, "aioretry-opening")

    def make(self, entry: Entry) -> ThreadAttempt:
        """Have an attempt made by a thread."""
        attempt = ThreadAttempt(self._steps, entry)
        self._threads_of(entry).submit(attempt)
        return attempt

    def open(self, entry: Entry) -> Opening:
        """Have a connection opened by a thread."""
        opening = Opening(self._steps, entry)
        self._openers.submit(opening)
        return opening

    def abandon(self, entry: Entry) -> bool:
        """Let another job take a thread's place; return False if it must be waited for."""
        match entry.job:
            case ThreadAttempt() as attempt:
                return self._threads_of(entry).abandon(attempt)
            case Opening() as opening:
                return self._openers.abandon(opening)
        return False

    def counts(self) -> ThreadCounts:
        """Return how the threads are doing; a glance."""
        return self._threads.counts() + self._reading.counts() + self._openers.counts()

    def _threads_of(self, entry: Entry) -> ThreadPool:
        return self._threads if entry.call.command.reading is None else self._reading

    def close(self) -> None:
        """End the threads that are not the client's, once what they carry has ended."""
        self.asker.close()
        self._openers.close()


def can_watch_sockets(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether an event loop can use the sockets of others."""
    return hasattr(socket, "MSG_DONTWAIT") and (
        type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader
    )
