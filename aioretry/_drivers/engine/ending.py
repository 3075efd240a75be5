"""Sessions that can't be used any more, ended in batches."""

import asyncio
import contextlib
import weakref
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from aioretry._drivers.engine.calls import ClientCalls
from aioretry.deadlines import detached

_AFTER = 2.0


class SessionEnding(ABC):
    """Has the servers forget sessions that don't go back to PyMongo's pool.

    A session whose question is open is kept as long as somebody may ask once more: by an exception,
    or by an attempt that has not landed. Each takes one of the places that a cluster has for
    sessions.

    Args:
        calls: The client.
        after: How long they are gathered, in seconds.
    """

    def __init__(self, calls: ClientCalls, after: float = _AFTER) -> None:
        self._delegate = calls.delegate
        self._after = after
        # Both are changed by finalizers, which run on any thread, in the middle of anything.
        self._kept: dict[int, weakref.finalize[Any, Any]] = {}
        self._over: deque[Any] = deque()
        self._is_awaited = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the time by an event loop from now on."""
        self._loop = loop
        self._is_awaited = False

    def keep(self, holder: object, server_session: Any) -> None:
        """End a session when nobody can use it any more.

        Args:
            holder: What everybody uses it by.
            server_session: PyMongo's own object.
        """
        finalizer = weakref.finalize(holder, self.add, server_session)
        finalizer.atexit = False
        self._kept[id(server_session)] = finalizer

    def let_go(self, server_session: Any) -> None:
        """Don't end a session: it goes back to the pool after all."""
        finalizer = self._kept.pop(id(server_session), None)
        if finalizer is not None:
            finalizer.detach()

    def close(self) -> None:
        """Leave all of them to PyMongo, which ends its sessions when it is closed."""
        self._loop = None
        while self._kept:
            with contextlib.suppress(KeyError):  # ended by the garbage collector just now
                self._kept.popitem()[1]()
        while self._over:
            server_session = self._over.popleft()
            server_session.dirty = False
            self._delegate._return_server_session(server_session)

    def add(self, server_session: Any) -> None:
        """End a session soon; called on any thread."""
        self._kept.pop(id(server_session), None)
        self._over.append(server_session)
        loop = self._loop
        if loop is not None and not self._is_awaited:
            self._is_awaited = True
            with contextlib.suppress(RuntimeError):  # it was closed
                loop.call_soon_threadsafe(self._wait, loop)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        detached(loop.call_later, self._after, self._start, loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._delegate.topology_description.has_readable_server():
            self._wait(loop)
            return
        self._is_awaited = False
        self._send()

    @abstractmethod
    def _send(self) -> None:
        """End all of them, without waiting for that."""

    def _taken(self) -> list[Any]:
        ids = []
        while self._over:
            ids.append(self._over.popleft().session_id)
        return ids
