"""What the attempts of one event loop are made with: its transports, and tasks beside it."""

import asyncio

from aioretry._drivers.engine.entry import Entry
from aioretry._drivers.engine.steps import Steps
from aioretry._drivers.port import ThreadCounts
from aioretry._drivers.pymongo_async.asking import TaskAsker
from aioretry._drivers.pymongo_async.calls import AsyncioCalls
from aioretry._drivers.pymongo_async.connections import TransportConnections
from aioretry._drivers.pymongo_async.jobs import TaskAttempt, TaskJob, TaskOpening


class AsyncioRoom:
    """What the attempts of one event loop are made with.

    Args:
        calls: The client.
        steps: What they have in common.
        loop: The event loop.
    """

    def __init__(self, calls: AsyncioCalls, steps: Steps, loop: asyncio.AbstractEventLoop) -> None:
        self.connections = TransportConnections(loop, calls)
        self.asker = TaskAsker(calls)
        self._calls = calls
        self._steps = steps

    def make(self, entry: Entry) -> TaskAttempt:
        """Have an attempt made in a task."""
        return TaskAttempt(self._calls, self._steps, entry)

    def open(self, entry: Entry) -> TaskOpening:
        """Have a connection opened in a task."""
        return TaskOpening(self._calls, self._steps, entry)

    def abandon(self, entry: Entry) -> bool:
        """Tell whether there is a task to be ended."""
        return isinstance(entry.job, TaskJob) and not entry.job.is_over

    def counts(self) -> ThreadCounts:
        """Return that there are no threads."""
        return ThreadCounts(0, 0, 0, 0)

    def close(self) -> None:
        """Nothing is to be closed."""
