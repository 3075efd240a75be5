"""Sessions that are used once, ended in batches."""

import asyncio
import contextlib
import weakref

from bson.binary import Binary
from pymongo.errors import PyMongoError

from aioretry import deadline, detached
from aioretry._faces import Client
from aioretry.idempotent._per_client import PerClient

# How many a command may name (sessions specification, "endSessions").
_MOST_AT_ONCE = 10_000

_PATIENCE = 10.0
_LAST_PATIENCE = 1.0  # at the end of a process, which has to be over in time without a server too


class SessionEnder:
    """Ends the sessions of one client once there are enough of them, or after a while.

    A session is worth nothing once its statement has been answered, but takes one of the places
    that the whole cluster has for sessions. What a server remembers of the statement stays.

    Args:
        client: The client; it is not kept alive.
        most: How many make a batch.
        after: How long a session may wait, in seconds.
    """

    def __init__(self, client: Client, most: int, after: float) -> None:
        self._client = weakref.ref(client)
        self._most = most
        self._after = after
        self._waiting: list[Binary] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, session_id: Binary) -> None:
        """Have a session ended."""
        self._loop = asyncio.get_running_loop()
        self._waiting.append(session_id)
        if len(self._waiting) >= self._most:
            self._start()
        elif self._timer is None:
            # The request that begins the wait is over when it ends.
            self._timer = detached(self._loop.call_later, self._after, self._start)

    async def flush(self) -> None:
        """End those that wait, now; one that can't be ended ends by itself, after half an hour.

        That takes a second at most.

        Those of a client of another event loop are ended there, if that still runs.
        """
        if self._loop is not asyncio.get_running_loop():
            if self._loop is not None and self._loop.is_running():
                with contextlib.suppress(RuntimeError):  # it was closed just now
                    self._loop.call_soon_threadsafe(self._start)
            return
        self._begin(_LAST_PATIENCE)
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_LAST_PATIENCE)
            for task in left:
                task.cancel()

    def _start(self) -> None:
        self._begin(_PATIENCE)

    def _begin(self, patience: float) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        ids, self._waiting = self._waiting, []
        if ids:
            task = detached(asyncio.create_task, self._end(ids, patience))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _end(self, ids: list[Binary], patience: float) -> None:
        client = self._client()
        if client is None:
            return
        try:
            async with deadline(patience):
                for start in range(0, len(ids), _MOST_AT_ONCE):
                    sessions = [{"id": each} for each in ids[start : start + _MOST_AT_ONCE]]
                    await client.admin.command({"endSessions": sessions})
        except PyMongoError:
            pass  # they end by themselves


class Endings:
    """Those of several clients."""

    def __init__(self, most: int, after: float) -> None:
        self._endings = PerClient(lambda client: SessionEnder(client, most, after))

    def of(self, client: Client) -> SessionEnder:
        """Return that of a client."""
        return self._endings.of(client)

    async def flush(self) -> None:
        """End all sessions that wait."""
        for ending in self._endings.all():
            await ending.flush()


def batch_of(value: object) -> int:
    """Return a number of sessions that one command may name."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"batch must be a whole number, not {type(value).__name__}")
    if not 1 <= value <= _MOST_AT_ONCE:
        raise ValueError(f"batch must be from 1 to {_MOST_AT_ONCE:,}, not {value!r}")
    return value
