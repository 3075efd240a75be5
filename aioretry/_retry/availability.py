"""Since when no server takes writes, as far as is known without asking one."""

import asyncio

from aioretry._drivers.port import Driver, TopologyView
from aioretry._retry.lookout import Lookout
from aioretry._retry.server_selection import Selection
from aioretry.deadlines import detached

_LOOK_EVERY = 1.0
_LOOKED_AFTER = 90.0  # a probe that comes less often than this is an error of whoever configured it
_SEARCH = 10.0


class Availability:
    """Remembers when a server last took writes, as long as somebody asks now and then.

    Args:
        driver: Knows the servers.
        loop: The event loop.
        lookout: Looks at what the driver knows.
    """

    def __init__(self, driver: Driver, loop: asyncio.AbstractEventLoop, lookout: Lookout) -> None:
        self._driver = driver
        self._loop = loop
        self._lookout = lookout
        self._selection = Selection(driver, loop, lookout)
        self._search: asyncio.Task[bool] | None = None
        self._is_looking = False
        self._asked_at = 0.0
        self._last_there: float | None = None

    def seconds_without(self) -> float | None:
        """Return for how many seconds no server has taken writes; None if none ever has.

        Raises:
            InvalidOperation: The client was closed.
            Exception: What the user's server selector raises.
        """
        self._asked_at = now = self._loop.time()
        if not self._is_looking:
            self._is_looking = True
            self._lookout.add(self, _LOOK_EVERY)
        if self._note(self._driver.view()):
            return 0.0
        self._search_now()
        return None if self._last_there is None else now - self._last_there

    def look(self, view: TopologyView | None) -> float | None:
        """Take note of whether there is one now."""
        if view is not None:
            self._note(view)
        self._is_looking = self._loop.time() - self._asked_at < _LOOKED_AFTER
        return _LOOK_EVERY if self._is_looking else None

    def _note(self, view: TopologyView) -> bool:
        is_there = bool(view.writable)
        if is_there:
            self._last_there = self._loop.time()
        return is_there

    def _search_now(self) -> None:
        # Whom nobody asks for anything the driver does not connect, and hardly looks after.
        if self._search is None or self._search.done():
            until = self._loop.time() + _SEARCH
            search = self._selection.wait_for_server(until)
            self._search = detached(self._loop.create_task, search)
