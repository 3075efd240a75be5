"""Waiting on the event loop for a server that takes writes. Holds no thread and no session."""

import asyncio
import contextlib
import itertools
import math
import random
from collections.abc import Mapping
from typing import Protocol

import anyio

from aioretry._commands.command import Reading
from aioretry._drivers.port import Address, Driver, ServerView, TopologyView
from aioretry._retry.lookout import Lookout

_LOOK_EVERY = 0.005
_WOKEN_AT_ONCE = 64
_NEWS_WITHIN = 0.1
_NEWS_EVERY = 0.002


class Load(Protocol):
    """What is under way."""

    def at(self, address: Address) -> int:
        """Return how many attempts are under way at a server."""
        ...


def choose(
    view: TopologyView,
    deprioritized: frozenset[Address],
    load: Load | None = None,
    reading: Reading | None = None,
) -> ServerView | None:
    """Choose the server to send to (server-selection, "Server Selection Algorithm").

    Args:
        view: What is known of the deployment.
        deprioritized: The addresses that are used only if nothing else can be.
        load: What is under way, whether or not a connection is used for it yet; None if nothing is.
        reading: How a command reads; None if it writes.

    Returns:
        Of two random ones among the nearest, the less busy; None if there is none.
    """
    servers = list(view.servers_for(reading).values())
    if len(servers) <= 1:
        return servers[0] if servers else None
    servers = [server for server in servers if server.address not in deprioritized] or servers
    limit = min(server.round_trip_time for server in servers) + view.latency_window
    near = [server for server in servers if server.round_trip_time <= limit]
    if len(near) == 1:
        return near[0]
    return min(random.sample(near, 2), key=lambda server: _business(server, load))


def _business(server: ServerView, load: Load | None) -> int:
    own = 0 if load is None else load.at(server.address)
    return max(own, server.operation_count())  # with that of others who use the client


def others(
    view: TopologyView,
    chosen: ServerView,
    deprioritized: frozenset[Address],
    reading: Reading | None = None,
) -> list[ServerView]:
    """Return the servers that will do if the one that was chosen has no room, the nearest first.

    Args:
        view: What is known of the deployment.
        chosen: The server that was chosen.
        deprioritized: The addresses that come last.
        reading: How a command reads; None if it writes.
    """
    servers = view.servers_for(reading)
    if len(servers) <= 1:
        return []
    limit = chosen.round_trip_time + view.latency_window
    return sorted(
        (
            server
            for server in servers.values()
            if server.address != chosen.address and server.round_trip_time <= limit
        ),
        key=lambda server: (server.address in deprioritized, server.round_trip_time),
    )


class Selection:
    """Who waits for a server that takes writes, or some kind of reads. Bound to one event loop.

    Args:
        driver: Knows the servers, and looks for one while somebody waits.
        loop: The event loop.
        lookout: Looks at what the driver knows.
        reading: How reads would read; None for writes.
    """

    def __init__(
        self,
        driver: Driver,
        loop: asyncio.AbstractEventLoop,
        lookout: Lookout,
        reading: Reading | None = None,
    ) -> None:
        self._driver = driver
        self._reading = reading
        self._loop = loop
        self._lookout = lookout
        # In the order in which they came.
        self._waiting: dict[asyncio.Future[bool], None] = {}
        self._is_looking = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} waiting={len(self._waiting)}>"

    async def wait_for_server(self, until: float) -> bool:
        """Wait until a server takes writes.

        Args:
            until: When to end waiting, in seconds of the event loop's clock; infinity waits without
                end. Those who wait in vain fail in the order of these.

        Returns:
            False if the time was over first.
        """
        woken: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[woken] = None
        timer = None if math.isinf(until) else self._loop.call_at(until, _end, woken)
        try:
            self._begin_looking()
            return await woken
        finally:
            self._waiting.pop(woken, None)
            if timer is not None:
                timer.cancel()
            if not self._waiting:
                self._driver.stop_probing()

    def look(self, view: TopologyView | None) -> float | None:
        """Wake those who wait if there is a server, or an error that each of them meets."""
        if not self._waiting:
            self._is_looking = False
            return None
        if view is not None and _servers_in(view, self._reading) == {}:
            self._start_probing()  # who waited for others, and has what he wanted, has ended it
            return _LOOK_EVERY
        # Thousands that wake at once would hold up everybody else.
        for woken in list(itertools.islice(self._waiting, _WOKEN_AT_ONCE)):
            del self._waiting[woken]
            _end(woken, found=True)
        return 0.0

    async def still_takes_writes(self, server: ServerView, seconds: float = math.inf) -> bool:
        """Let the driver catch up with what an attempt has just learnt of a server.

        The driver marks no server on a failure to connect, so that a retry at once would meet the
        same dead server.

        Args:
            server: The server as it was known before the attempt.
            seconds: How long there is time for it.

        Returns:
            Whether the server still takes writes, for all that is known.

        Raises:
            InvalidOperation: The client was closed.
        """
        news = _News(server, self._loop.create_future(), self._reading)
        if not news.are_in(self._driver.view()):
            self._lookout.add(news, _NEWS_EVERY)
            with anyio.move_on_after(max(0.0, min(_NEWS_WITHIN, seconds))):
                await news.told
        return server.address in self._driver.view().servers_for(self._reading)

    def _start_probing(self) -> None:
        with contextlib.suppress(RuntimeError):  # no thread to be had; the driver looks by itself
            self._driver.start_probing()

    def _begin_looking(self) -> None:
        self._start_probing()
        if not self._is_looking:
            self._is_looking = True
            self._lookout.add(self, 0.0)


class _News:
    """What the driver hears of a server after a moment.

    Args:
        server: The server as it was known then.
        told: Is done once there are any.
        reading: How a command reads; None if it writes.
    """

    def __init__(
        self, server: ServerView, told: asyncio.Future[None], reading: Reading | None
    ) -> None:
        self._server = server
        self._reading = reading
        self.told = told

    def are_in(self, view: TopologyView) -> bool:
        known = (_servers_in(view, self._reading) or {}).get(self._server.address)
        return known is None or known.source is not self._server.source

    def look(self, view: TopologyView | None) -> float | None:
        if self.told.done():
            return None
        if view is None or self.are_in(view):
            self.told.set_result(None)
            return None
        return _NEWS_EVERY


def _servers_in(view: TopologyView, reading: Reading | None) -> Mapping[Address, ServerView] | None:
    """Return the servers that a command may go to; None if that is an error of whoever asks."""
    try:
        return view.servers_for(reading)
    except Exception:  # noqa: BLE001 - such as maxStalenessSeconds that are too few
        return None


def _end(woken: asyncio.Future[bool], *, found: bool = False) -> None:
    if not woken.done():
        woken.set_result(found)
