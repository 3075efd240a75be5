"""The one look at what the driver knows of its servers, for all on an event loop who want news."""

import asyncio
import contextvars
from typing import Protocol

from aioretry._drivers.port import Driver, TopologyView

_AGAIN_AFTER_ERROR = 0.05


class Onlooker(Protocol):
    """Who wants news of the servers."""

    def look(self, view: TopologyView | None) -> float | None:
        """Look.

        Args:
            view: What is known; None if the driver can't say, because the client was closed or the
                user's server selector raises: whoever asks the driver himself meets the error.

        Returns:
            After how many seconds to look again; None to look no more.
        """
        ...


class Lookout:
    """Looks at what the driver knows as often as the most impatient onlooker wants, or not at all.

    The driver's own events of its servers come late, and a look costs next to nothing.

    Args:
        driver: Knows the servers.
        loop: The event loop.
    """

    def __init__(self, driver: Driver, loop: asyncio.AbstractEventLoop) -> None:
        self._driver = driver
        self._loop = loop
        self._due: dict[Onlooker, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._context = contextvars.Context()  # nobody's

    def add(self, onlooker: Onlooker, after: float) -> None:
        """Have somebody look in some seconds, and as often after that as he says."""
        self._due[onlooker] = self._loop.time() + after
        self._schedule()

    def _schedule(self) -> None:
        if not self._due:
            return
        due = min(self._due.values())
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due  # a timer of uvloop's that is due at once can't say
        self._timer = self._loop.call_at(due, self._look, context=self._context)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        onlookers = [one for one, due in self._due.items() if due <= now]
        # Whatever is raised, also by the user's server selector, nobody stops looking for that.
        self._due.update(dict.fromkeys(onlookers, now + _AGAIN_AFTER_ERROR))
        try:
            view = self._view()
            for onlooker in onlookers:
                after = onlooker.look(view)
                if after is None:
                    del self._due[onlooker]
                else:
                    self._due[onlooker] = now + after
        finally:
            self._schedule()

    def _view(self) -> TopologyView | None:
        try:
            return self._driver.view()
        except Exception:  # noqa: BLE001 - see Onlooker.look()
            return None
