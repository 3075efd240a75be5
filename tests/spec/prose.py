"""What the prose tests share: listeners, and what they need of the server."""

import threading
import time
from dataclasses import dataclass

import pytest
from pymongo import monitoring

RETRYABLE_WRITE = "RetryableWriteError"
NO_WRITES = "NoWritesPerformed"
OVERLOADED = ("RetryableError", "SystemOverloadedError")


@dataclass(frozen=True)
class Heard:
    """A command event: what happened to which command, at which server, and when."""

    what: str
    command: str
    address: tuple[str, int | None]
    seconds: float


class Commands(monitoring.CommandListener):
    """Remembers what happened to the commands of some names."""

    def __init__(self, *names):
        self.names = names
        self.events = []

    def started(self, event):
        self._add("started", event)

    def succeeded(self, event):
        self._add("succeeded", event)

    def failed(self, event):
        self._add("failed", event)

    def of(self, what):
        """The events of one kind."""
        return [event for event in self.events if event.what == what]

    def _add(self, what, event):
        if event.command_name in self.names:
            now = time.monotonic()
            self.events.append(Heard(what, event.command_name, event.connection_id, now))


class Pools(monitoring.ConnectionPoolListener):
    """Remembers check-outs, failed ones, and cleared pools."""

    def __init__(self):
        self.events = []
        self.waiting = threading.Event()
        """Two check-outs have begun since the last reset."""
        self.cleared = threading.Event()
        self.failed = threading.Event()
        self._begun = 0

    def reset(self):
        """Forget what came before the test."""
        self._begun = 0
        self.events.clear()

    def connection_check_out_started(self, event):
        self._begun += 1
        if self._begun == 2:
            self.waiting.set()

    def connection_checked_out(self, event):
        self.events.append("checked out")

    def connection_check_out_failed(self, event):
        self.events.append(event.reason)
        self.failed.set()

    def pool_cleared(self, event):
        self.events.append("cleared")
        self.cleared.set()

    def pool_created(self, event):
        pass

    def pool_ready(self, event):
        pass

    def pool_closed(self, event):
        pass

    def connection_created(self, event):
        pass

    def connection_ready(self, event):
        pass

    def connection_closed(self, event):
        pass

    def connection_checked_in(self, event):
        pass


class Heartbeats(monitoring.ServerHeartbeatListener):
    """Holds the driver's monitors up between a cleared pool and the failed check-out.

    Otherwise the pool may be ready again before who waits for a connection has seen it paused.
    """

    def __init__(self, pools):
        self.pools = pools

    def started(self, event):
        pass

    def succeeded(self, event):
        if self.pools.cleared.is_set():
            self.pools.failed.wait(10)

    def failed(self, event):
        pass


async def skip_without_labels(replica_set):
    """Skip the test if failCommand of these servers can't be told the labels of an error."""
    build = await replica_set.members[0].command({"buildInfo": 1})
    if build["versionArray"][:2] < [4, 4]:
        pytest.skip("failCommand has errorLabels from MongoDB 4.4 on")
