"""Attempts raced against the topology: a deposed server's are given up while they hang."""

import asyncio
import contextvars

from aioretry._drivers.port import Driver, ServerView, TopologyView
from aioretry._retry.command_execution import Flight

_LOOK_EVERY = 0.05
# How long an attempt may go on at a server that takes no more writes: its answer may be on its way.
_GRACE = 0.1
# The same as long as no other server takes writes, so that nothing is gained by giving it up: one
# broken connection makes the driver doubt a server until it has asked it again.
_GRACE_ALONE = 1.0


class Race:
    """Looks after the attempts that are under way. Bound to one event loop.

    Nobody looks while nothing is under way, nor at single attempts while the topology is the same.
    """

    def __init__(self, driver: Driver, loop: asyncio.AbstractEventLoop) -> None:
        self._driver = driver
        self._loop = loop
        self._flights: dict[Flight, None] = {}
        self._doubted: dict[Flight, float] = {}
        self._seen: object = None
        self._was_news = False
        self._is_closed = False
        self._context = contextvars.Context()  # nobody's
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} flights={len(self._flights)} doubted={len(self._doubted)}>"

    def add(self, flight: Flight) -> None:
        """Look after an attempt from now on."""
        self._flights[flight] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_EVERY, self._look, context=self._context)

    def remove(self, flight: Flight) -> None:
        """Look after it no longer."""
        self._flights.pop(flight, None)

    def close(self, patience: float) -> None:
        """Give up what is not sent yet now, and the rest some seconds after the first call."""
        if self._is_closed:
            return
        self._is_closed = True
        for flight in list(self._flights):
            flight.close(patience)

    def _look(self) -> None:
        self._timer = None
        if not self._flights:
            self._doubted.clear()
            return
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look, context=self._context)
        try:
            view = self._driver.view()
        except Exception:  # noqa: BLE001 - closed, or of the user's server selector
            return
        # An attempt that began with the view before is met by a second look.
        is_news = view.source is not self._seen
        if is_news or self._was_news or self._doubted:
            self._judge(view)
        self._seen, self._was_news = view.source, is_news

    def _judge(self, view: TopologyView) -> None:
        now = self._loop.time()
        doubted = {
            flight: self._doubted.get(flight, now)
            for flight in self._flights
            if flight.server is not None and has_lost(view, flight.server)
        }
        is_alone = not view.writable
        grace = _GRACE_ALONE if is_alone else _GRACE
        for flight, since in doubted.items():
            if now - since >= grace and (flight.numbered or not is_alone):
                flight.lose_server()
        self._doubted = {flight: doubted[flight] for flight in doubted if flight in self._flights}


def has_lost(view: TopologyView, server: ServerView) -> bool:
    """Tell whether a server takes no more writes as the one that it was."""
    known = view.writable.get(server.address)
    if known is None:
        return True
    if known.topology_version is None or server.topology_version is None:
        return False
    return known.topology_version[0] != server.topology_version[0]
