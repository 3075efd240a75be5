"""Waiting on the event loop for a server that takes writes. Holds no thread and no session."""

import asyncio
import contextlib
import itertools
import math
import random
from typing import Protocol

import anyio

from aioretry._drivers.port import Address, Driver, ServerView, TopologyView
from aioretry.deadlines import detached

_LOOK_EVERY = 0.005
_WOKEN_AT_ONCE = 64
_SETTLE_FOR = 0.1
_SETTLE_LOOK_EVERY = 0.002


class Load(Protocol):
    """What is under way."""

    def at(self, address: Address) -> int:
        """Return how many attempts are under way at a server."""
        ...


def choose(
    view: TopologyView, deprioritized: frozenset[Address], load: Load | None = None
) -> ServerView | None:
    """Choose the server to write to (server-selection, "Server Selection Algorithm").

    Args:
        view: What is known of the deployment.
        deprioritized: The addresses that are used only if nothing else can be.
        load: What is under way, whether or not a connection is used for it yet; None if nothing is.

    Returns:
        Of two random ones among the nearest, the less busy; None if no server takes writes.
    """
    servers = list(view.writable.values())
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
    view: TopologyView, chosen: ServerView, deprioritized: frozenset[Address]
) -> list[ServerView]:
    """Return the servers that will do if the one that was chosen has no room, the nearest first.

    Args:
        view: What is known of the deployment.
        chosen: The server that was chosen.
        deprioritized: The addresses that come last.
    """
    if len(view.writable) == 1:
        return []
    limit = chosen.round_trip_time + view.latency_window
    return sorted(
        (
            server
            for server in view.writable.values()
            if server is not chosen and server.round_trip_time <= limit
        ),
        key=lambda server: (server.address in deprioritized, server.round_trip_time),
    )


class Selection:
    """Who waits for a server, and the one task that looks for it. Bound to one event loop."""

    def __init__(self, driver: Driver, loop: asyncio.AbstractEventLoop) -> None:
        self._driver = driver
        self._loop = loop
        # In the order in which they came.
        self._waiting: dict[asyncio.Future[bool], None] = {}
        self._watcher: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} waiting={len(self._waiting)}>"

    def has_server(self) -> bool:
        """Tell whether a server takes writes now."""
        return bool(self._driver.view().writable)

    async def wait_for_server(self, until: float) -> bool:
        """Wait until a server takes writes.

        Args:
            until: When to end waiting, in seconds of the event loop's clock; infinity waits without
                end. Those who wait in vain fail in the order of these.

        Returns:
            False if the time was over first.

        Raises:
            InvalidOperation: The client was closed.
        """
        woken: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[woken] = None
        timer = None if math.isinf(until) else self._loop.call_at(until, _end, woken)
        try:
            self._ensure_watcher()
            return await woken
        finally:
            self._waiting.pop(woken, None)
            if timer is not None:
                timer.cancel()

    async def still_takes_writes(self, server: ServerView) -> bool:
        """Let the driver catch up with what an attempt has just learnt of a server.

        The driver marks no server on a failure to connect, so that a retry at once would meet the
        same dead server.

        Args:
            server: The server as it was known before the attempt.

        Returns:
            Whether the server still takes writes, for all that is known.
        """
        with anyio.move_on_after(_SETTLE_FOR):
            while not self._has_news_of(server):  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(_SETTLE_LOOK_EVERY)
        return server.address in self._driver.view().writable

    def _has_news_of(self, server: ServerView) -> bool:
        known = self._driver.view().writable.get(server.address)
        return known is None or known.source is not server.source

    def _ensure_watcher(self) -> None:
        if self._watcher is None or self._watcher.done():
            create = self._loop.create_task
            self._watcher = detached(create, self._watch(), name="aioretry-selection")

    async def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # no thread to be had; the driver looks by itself
            self._driver.start_probing()
        try:
            while self._waiting:
                if self._should_wake():
                    # Thousands that wake at once would hold up everybody else.
                    for woken in list(itertools.islice(self._waiting, _WOKEN_AT_ONCE)):
                        del self._waiting[woken]
                        _end(woken, found=True)
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(_LOOK_EVERY)
        finally:
            self._driver.stop_probing()

    def _should_wake(self) -> bool:
        try:
            return self.has_server()
        except Exception:  # noqa: BLE001 - whoever waits meets it too, and can raise it
            return True


def _end(woken: asyncio.Future[bool], *, found: bool = False) -> None:
    if not woken.done():
        woken.set_result(found)
