"""The pools of an asynchronous client."""

import asyncio
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from pymongo import errors
from pymongo.asynchronous.pool import Pool

from aioretry._drivers.engine import private_names
from aioretry._drivers.engine.silence import Uses, given_up
from aioretry._drivers.pymongo_async.locks import OpenLock

_CONNECT = Pool.connect.__code__
_TURNS_TO_TAKE_ONE = 1 if sys.version_info >= (3, 12) else 3


class WatchedPool(Pool):
    """A pool that knows its connections, and tells of their use.

    Args:
        uses: Is told.
        *args: As for PyMongo's.
        **kwargs: As for PyMongo's.
    """

    def __init__(self, uses: Uses, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not private_names.missing(((self, private_names.OF_WAITING_POOL),)):
            lock: Any = OpenLock()
            self.lock = lock
            self.size_cond = type(self.size_cond)(lock)
            self._max_connecting_cond = type(self._max_connecting_cond)(lock)
        self._uses = uses
        self.opened: WeakSet[Any] = WeakSet()
        self.breaks = 0
        """How many of the connections broke, as far as our attempts have seen."""

        self.doubted_below = 0
        """The first connection that can have been opened after the last break."""

    async def connect(self, handler: Any = None) -> Any:
        """Open a connection."""
        try:
            connection = await super().connect(handler)
        except errors._OperationCancelled as exc:
            raise exc if self.is_sdam else given_up(self.address) from exc
        except asyncio.CancelledError as exc:
            self._forget_what_it_had(exc)
            raise
        self.opened.add(connection)
        return connection

    async def _get_conn(self, *args: Any, **kwargs: Any) -> Any:
        # Whoever gives a connection back and asks for the next one in the same step would have it
        # before those who wait, for ever. PyMongo's lock has had some order in that.
        if getattr(self.size_cond, "_waiters", None):
            for _ in range(_TURNS_TO_TAKE_ONE):
                await asyncio.sleep(0)
        return await super()._get_conn(*args, **kwargs)

    def checkout(self, handler: Any = None) -> Any:
        """Take a connection out for a block."""
        if not self.is_sdam:
            self._uses.note()
        return super().checkout(handler)

    def _forget_what_it_had(self, exc: asyncio.CancelledError) -> None:
        """Close what PyMongo was connecting, or had connected, and count it as in use no more.

        PyMongo does neither wherever it waits without a handler, also for the topology after the
        handshake: whoever watches the server would take it for one that somebody waits for.
        """
        for frame, _ in traceback.walk_tb(exc.__traceback__):
            has = frame.f_locals
            if frame.f_code.co_name == "_async_create_connection" and "sock" in has:
                has["sock"].close()
            elif frame.f_code is _CONNECT and "networking_interface" in has:
                has["networking_interface"].get_conn.close()
                if "conn" in has:
                    self.active_contexts.discard(has["conn"].cancel_context)


def pool_class(uses: Uses) -> Callable[..., WatchedPool]:
    """Return what makes a client's pools, in the place of PyMongo's class.

    Args:
        uses: Is told of the use of their connections.
    """
    return partial(WatchedPool, uses)
