"""For how long no server has taken writes, as far as is known without asking one."""

import asyncio

from aioretry._drivers.port import Driver, ServerKind, TopologyView
from aioretry._retry.lookout import Lookout
from aioretry._retry.server_selection import Selection
from aioretry.deadlines import detached

_LOOK_EVERY = 1.0
_LONGEST_GAP = 5.0  # what was longer nobody has seen: the process may have been stopped
_LOOKED_AFTER = 90.0  # after the last question
_SEARCH = 10.0
_UNATTENDED_AGAIN = 1.0


class Availability:
    """Adds up for how long no server has taken writes, as long as somebody asks now and then.

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
        self._asked_at = self._looked_at = 0.0
        self._without: float | None = None
        self._unattended_since: float | None = None

    def seconds_without(self) -> float | None:
        """Return for how many seconds no server has taken writes; None if none ever has.

        Raises:
            InvalidOperation: The client was closed.
            Exception: What the user's server selector raises.
        """
        self._asked_at = self._loop.time()
        if not self._is_looking:
            self._is_looking = True
            self._lookout.add(self, _LOOK_EVERY)
        if not self._note(self._driver.view()):
            self.search_now()
        return self._without

    def is_unattended(self) -> bool:
        """Tell whether nobody looks after the servers, as was so some time ago already.

        A process that was stopped finds that all is late, and has to be let go on.
        """
        now = self._loop.time()
        if self._driver.unattended() is None:
            self._unattended_since = None
            return False
        if self._unattended_since is None:
            self._unattended_since = now
        return now - self._unattended_since >= _UNATTENDED_AGAIN

    def look(self, view: TopologyView | None) -> float | None:
        """Take note of whether there is one now."""
        if view is not None:
            self._note(view)
        self._is_looking = self._loop.time() - self._asked_at < _LOOKED_AFTER
        return _LOOK_EVERY if self._is_looking else None

    def _note(self, view: TopologyView) -> bool:
        now = self._loop.time()
        seen, self._looked_at = min(now - self._looked_at, _LONGEST_GAP), now
        if self._is_there(view):
            self._without = 0.0
        elif self._without is not None:
            self._without += max(seen, 0.001)  # 0 is that one is there
        return self._without == 0.0

    def _is_there(self, view: TopologyView) -> bool:
        if view.takers:
            return True
        balancers = [
            address
            for address, server in view.writable.items()
            if server.kind is ServerKind.LOAD_BALANCER
        ]
        # Nobody asks those: what is known is whether they hold connections.
        counts = self._driver.connections() if balancers else {}
        return any(
            counts[each].used + counts[each].idle > 0 for each in balancers if each in counts
        )

    def search_now(self) -> None:
        """Have the driver look for a server for a while, though nobody waits for one."""
        # Whom nobody asks for anything the driver does not connect, and hardly looks after.
        if self._search is None or self._search.done():
            until = self._loop.time() + _SEARCH
            search = self._selection.wait_for_server(until)
            self._search = detached(self._loop.create_task, search)
