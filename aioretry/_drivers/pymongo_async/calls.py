"""An asynchronous client of PyMongo's, asked in plain calls on its event loop."""

import asyncio
import contextlib
import contextvars
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import Any

from aioretry._drivers.port import Address

_CHECKED_AFTER = 1.0  # seconds, as PyMongo's own check of idle connections
_NOBODY: frozenset[Address] = frozenset()
_UNLOCKED = contextlib.nullcontext()


class AsyncioCalls:
    """An asynchronous client, whose coroutines are begun at once and end in tasks of their own.

    All of it is done on one event loop, and PyMongo waits for nothing while it holds the lock of a
    pool: what is done between two turns of the loop needs none.

    Args:
        delegate: The client.
    """

    def __init__(self, delegate: Any) -> None:
        self.delegate: Any = delegate
        self.untold = _NOBODY
        """The servers of which the topology has yet to be told that something is wrong."""

        self.tasks: set[asyncio.Task[Any]] = set()
        """What is under way."""

        self._being_told: Counter[Address] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None

    def topology(self) -> Any:
        """Return PyMongo's topology, which the prober opens."""
        return self.delegate._topology

    def locked(self, pool: Any) -> AbstractContextManager[object]:  # noqa: ARG002
        """Keep others from a pool, which they are anyway."""
        return _UNLOCKED

    def has_perished(self, pool: Any, connection: Any) -> bool:
        """Tell whether an idle connection can't be used any more; it is closed then."""
        task, perished = self._begin(pool._perished(connection))
        if task is not None or perished:
            return True
        # PyMongo does not read from one that is idle, and so does not hear of its end either.
        if connection.idle_time_seconds() > _CHECKED_AFTER:
            descriptor = connection.conn.sock
            if connection.socket_checker.socket_closed(descriptor):
                self.close(connection)
                return True
        return False

    def check_in(self, pool: Any, connection: Any) -> None:
        """Give a connection back to its pool."""
        self._begin(pool.checkin(connection))

    def close(self, connection: Any) -> None:
        """Close a connection, which has PyMongo's protocol."""
        self._begin(connection.close_conn(None))

    def hear_time(self, cluster_time: Any) -> None:
        """Have the topology learn the cluster's time."""
        self.delegate._topology._receive_cluster_time_no_lock(cluster_time)

    def handle_error(self, address: Address, news: Any) -> None:
        """Have the topology learn of a server from an error; until it has, that takes no writes."""
        task, _ = self._begin(self.delegate._topology.handle_error(address, news))
        if task is not None:
            self._being_told[address] += 1
            self.untold = frozenset(self._being_told)
            task.add_done_callback(lambda _: self._told(address))

    def reset_transaction(self, session: Any) -> None:
        """Have a session of the user's forget how its last transaction has ended."""
        self._begin(session._transaction.reset())

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have something done in a task in nobody's context."""
        with contextlib.suppress(RuntimeError):  # it ends, and cancels what is left
            self._loop = asyncio.get_running_loop()
        # Not by the loop's factory, which may begin it at once.
        task = asyncio.Task(coroutine, loop=self._loop, context=contextvars.Context())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> tuple[asyncio.Task[Any] | None, Any]:
        """Run a coroutine until it has to wait; return the task of its rest, or its result."""
        try:
            waits_for = coroutine.send(None)
        except StopIteration as stop:
            return None, stop.value
        return self.start(_go_on(coroutine, waits_for)), None

    def _told(self, address: Address) -> None:
        self._being_told[address] -= 1
        if not self._being_told[address]:
            del self._being_told[address]
        self.untold = frozenset(self._being_told)


async def _go_on(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
    return await _rest(coroutine, waits_for)


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    while True:
        step: Callable[[Any], Any] = coroutine.send
        came: Any = None
        try:
            came = yield waits_for
        except BaseException as exc:  # noqa: BLE001 - it is the coroutine's to catch
            step, came = coroutine.throw, exc
        try:
            waits_for = step(came)
        except StopIteration as stop:
            return stop.value
