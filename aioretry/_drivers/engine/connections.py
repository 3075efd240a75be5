"""Connections of PyMongo's pools that an event loop uses, for one attempt after the other."""

import asyncio
import weakref
from abc import ABC, abstractmethod
from typing import Any

from aioretry._drivers.engine import private_names
from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.connection import LoopConnection
from aioretry._drivers.engine.idle import take_idle
from aioretry.deadlines import detached

_KEPT_FOR = 0.002


class Connections(ABC):
    """The connections that an event loop holds.

    One that has done its work is kept for a moment: as a rule the next attempt comes at once, and
    is spared to give it back, take it again and watch it anew.

    Args:
        loop: The event loop.
        calls: The client.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: ClientCalls) -> None:
        self._loop = loop
        self._calls = calls
        self._kept: list[LoopConnection] = []
        self._taken: weakref.WeakSet[LoopConnection] = weakref.WeakSet()
        """All that there are, for the end of the loop."""

        self._to_give_back = 0
        self._is_closed = False
        self._is_known = False
        self.are_unusable = False
        """Whether one was met that an event loop can't use; the client's others will be like it."""

        self._timer: asyncio.TimerHandle | None = None

    def take(
        self, pool: Any, *, has_waited: bool = True, is_awaited: bool = False
    ) -> LoopConnection | None:
        """Return an open connection to a server, without waiting; None if there is none.

        Args:
            pool: The server's pool.
            has_waited: Whether somebody has waited for it in the pool. Who has not leaves the last
                one that the pool may have to those who do.
            is_awaited: Whether somebody is on the way to waiting there.
        """
        for index in range(len(self._kept) - 1, -1, -1):
            kept = self._kept[index]
            if kept.pool is pool:
                del self._kept[index]
                self._to_give_back = min(self._to_give_back, len(self._kept))
                if kept.is_fresh:
                    return kept
                kept.give_back()
        # PyMongo counts those who wait among the operations.
        is_awaited = is_awaited or pool.operation_count > pool.requests
        if is_awaited and not has_waited and pool.requests >= pool.max_pool_size - 1:
            return None
        return self._take_out(pool)

    def hold(self, pool: Any, connection: Any) -> None:
        """Hold a connection that was checked out for whoever takes the next one, as if given back.

        Args:
            pool: The server's pool.
            connection: PyMongo's own object.
        """
        held = self._taken_over(pool, connection)
        if held is not None and self._is_closed:
            held.give_back()
        elif held is not None:
            self._keep(held)

    @abstractmethod
    def _is_plain(self, connection: Any) -> bool:
        """Tell whether an event loop can use a connection."""

    @abstractmethod
    def _over(self, pool: Any, connection: Any) -> LoopConnection:
        """Return a connection for the event loop's use."""

    def _take_out(self, pool: Any) -> LoopConnection | None:
        connection = take_idle(self._calls, pool)
        return None if connection is None else self._taken_over(pool, connection)

    def _taken_over(self, pool: Any, connection: Any) -> LoopConnection | None:
        self._is_known = self._is_known or self._has_names(pool, connection)
        if not (self._is_known and self._is_plain(connection)):
            self._calls.check_in(pool, connection)
            self.are_unusable = True
            return None
        try:
            taken = self._over(pool, connection)
        except BaseException:
            self._calls.close(connection)
            self._calls.check_in(pool, connection)
            raise
        self._taken.add(taken)
        if taken.is_fresh:
            return taken
        taken.give_back()  # PyMongo has just lost the server
        return None

    def _has_names(self, pool: Any, connection: Any) -> bool:
        """Tell whether this PyMongo's objects have all that is used of them."""
        return not private_names.missing(
            (
                (pool, private_names.OF_POOL),
                (connection, private_names.OF_CONNECTION),
                (self._calls.topology(), private_names.OF_TOPOLOGY),
            )
        )

    def put(self, used: LoopConnection) -> None:
        """Take one back that was used."""
        pool = used.pool
        # Somebody may wait for it, and once all is closed nobody would give it back in time.
        if self._is_closed or pool.requests >= pool.max_pool_size or used.connection.closed:
            used.give_back()
            return
        used.rest()
        self._keep(used)

    def _keep(self, one: LoopConnection) -> None:
        if self._timer is None:
            self._timer = detached(self._loop.call_later, _KEPT_FOR, self._sweep)
        self._kept.append(one)

    def close(self) -> None:
        """Give back those that are kept, and keep none any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        for one in kept:
            one.give_back()
        if self._loop.is_closed():  # what was under way never ends
            for one in [*self._taken]:
                if one.connection is not None:
                    one.close()
                    one.give_back()

    def _sweep(self) -> None:
        # The ones that were there at the last look, and have not been taken since, are the first.
        self._timer = None
        old, self._kept = self._kept[: self._to_give_back], self._kept[self._to_give_back :]
        for one in old:
            one.give_back()
        self._to_give_back = len(self._kept)
        if self._kept:
            self._timer = detached(self._loop.call_later, _KEPT_FOR, self._sweep)
