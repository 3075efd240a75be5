"""A task that keeps PyMongo looking for a server."""

import asyncio
import contextlib

from aioretry._drivers.pymongo_async.calls import AsyncioCalls

_PROBE_AFTER = 0.1
_PROBE_EVERY = 0.5  # no server is looked at more often


class TaskProber:
    """Opens the topology, and keeps PyMongo looking while somebody waits for a server.

    Args:
        calls: The client.
    """

    def __init__(self, calls: AsyncioCalls) -> None:
        self._calls = calls
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if it has not begun."""
        self._is_wanted = True
        if self._task is None or self._task.done():
            self._task = self._calls.start(self._run())

    def stop(self) -> None:
        """End, in good time."""
        self._is_wanted = False

    async def _run(self) -> None:
        while self._is_wanted:
            # Whatever fails here, the writes that wait tell their callers in the end.
            with contextlib.suppress(Exception):
                topology = await self._calls.delegate._get_topology()
                # Whoever connects for the first time is spared the hurry.
                await asyncio.sleep(_PROBE_AFTER)
                if self._is_wanted:
                    await topology.request_check_all(_PROBE_EVERY)
                continue
            await asyncio.sleep(_PROBE_AFTER)
