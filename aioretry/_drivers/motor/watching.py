"""Servers watched by a thread, and asked on others."""

import contextlib
import socket
import threading
import weakref
from functools import partial
from typing import Any

from pymongo.errors import InvalidOperation
from pymongo.lock import _create_lock

from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.silence import LOOK_EVERY, ServerWatch
from aioretry._drivers.motor.connections import socket_of
from aioretry._drivers.port import Address
from aioretry._drivers.threads import Job, ThreadPool
from aioretry.deadlines import detached

# Each asks one server at a time, and waits as long as it is silent.
_MOST_THREADS = 16


class ThreadWatch(ServerWatch):
    """Watches by a thread: nobody knows on which loops or threads somebody waits.

    Args:
        calls: The client.
        limit: How long a server may be silent, in seconds.
    """

    def __init__(self, calls: ClientCalls, limit: float) -> None:
        super().__init__(calls, limit)
        self._threads = ThreadPool(_MOST_THREADS, "aioretry-asking")
        self._closed = threading.Event()
        # Guards who looks, and what was learnt; whole again in a forked child.
        self._lock = _create_lock()
        self._looker: threading.Thread | None = None

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._threads.close()
        with self._lock:
            self._end()

    def _is_looking(self) -> bool:
        return self._looker is not None and self._looker.is_alive()

    def _begin(self) -> None:
        with self._lock:
            if self._is_looking() or self._closed.is_set():
                return
            look = partial(_look, weakref.ref(self), self._closed)
            self._looker = threading.Thread(target=look, name="aioretry-watch", daemon=True)
            with contextlib.suppress(RuntimeError):  # there are no threads to be had
                detached(self._looker.start)

    def look(self) -> bool:
        """Look once; return whether it is worth to go on."""
        with self._lock:
            if self._look():
                return True
            self._looker = None
            self._end()
        if self._is_noted:  # by somebody who saw that there was a looker
            self._begin()
        return False

    def _ask(self, address: Address, pool: Any) -> None:
        try:
            self._threads.submit(Job(partial(self._hear, address, pool)))
        except RuntimeError as exc:  # closed just now, or there are no threads to be had
            self._told(address, exc)

    def _hear(self, address: Address, pool: Any) -> None:
        error = None
        try:
            with pool.checkout() as connection:
                connection.hello()
        except Exception as exc:  # noqa: BLE001 - whatever it is, it tells something
            error = exc
        with self._lock:
            self._told(address, error)

    def _cut(self, connection: Any) -> None:
        # Below the encryption, which another thread uses.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(socket_of(connection), socket.SHUT_RDWR)

    def _close(self, pool: Any) -> None:
        pool.reset(interrupt_connections=True)
        pool.close()  # for who is about to open a connection


def _look(watch: "weakref.ref[ThreadWatch]", closed: threading.Event) -> None:
    while not closed.wait(LOOK_EVERY):
        alive = watch()
        try:
            if alive is None or not alive.look():
                return
        except InvalidOperation:  # the client was closed just now
            return
        del alive
