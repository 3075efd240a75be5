"""The pools of an asynchronous client."""

import asyncio
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from pymongo import errors
from pymongo.asynchronous.pool import Pool

from aioretry._drivers.engine.silence import Uses, given_up

_CONNECT = Pool.connect.__code__


class WatchedPool(Pool):
    """A pool that knows its connections, and tells of their use.

    Args:
        uses: Is told.
        *args: As for PyMongo's.
        **kwargs: As for PyMongo's.
    """

    def __init__(self, uses: Uses, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
            _close_what_it_had(exc)
            raise
        self.opened.add(connection)
        return connection

    def checkout(self, handler: Any = None) -> Any:
        """Take a connection out for a block."""
        if not self.is_sdam:
            self._uses.note()
        return super().checkout(handler)


def _close_what_it_had(exc: asyncio.CancelledError) -> None:
    """Close what PyMongo was connecting, or had connected: it leaves it to the garbage collector.

    It does so wherever it waits without a handler, also for its own locks after the handshake.
    """
    for frame, _ in traceback.walk_tb(exc.__traceback__):
        has = frame.f_locals
        if frame.f_code.co_name == "_async_create_connection" and "sock" in has:
            has["sock"].close()
        elif frame.f_code is _CONNECT and "networking_interface" in has:
            has["networking_interface"].get_conn.close()


def pool_class(uses: Uses) -> Callable[..., WatchedPool]:
    """Return what makes a client's pools, in the place of PyMongo's class.

    Args:
        uses: Is told of the use of their connections.
    """
    return partial(WatchedPool, uses)
