"""A connection of a blocking client, over whose socket an event loop sends and receives."""

import asyncio
import contextlib
import os
import socket
import ssl
import weakref
from collections.abc import Sequence
from typing import Any

from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.connection import LoopConnection
from aioretry._drivers.engine.connections import Connections
from aioretry.deadlines import detached

_READ_SIZE = 64 * 1024


class SocketConnection(LoopConnection):
    """A connection whose socket is watched by an event loop.

    Args:
        loop: The event loop.
        calls: The client.
        pool: The pool.
        connection: PyMongo's own object, which is given back to the pool in the end.
    """

    __slots__ = (
        "_descriptor",
        "_finalizer",
        "_flags",
        "_is_encrypted",
        "_is_waiting_to_write",
        "_process",
        "_socket",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, calls: ClientCalls, pool: Any, connection: Any
    ) -> None:
        self._socket = socket_of(connection)
        self._descriptor: int = self._socket.fileno()
        self._is_encrypted = isinstance(self._socket, ssl.SSLSocket)
        self._flags = 0 if self._is_encrypted else socket.MSG_DONTWAIT
        self._is_waiting_to_write = False
        self._process = os.getpid()
        # If the loop is closed in the middle. It outlives the garbage that this is a part of, in
        # which sockets may be looked at first.
        self._finalizer = weakref.finalize(self, connection.close_conn, None)
        super().__init__(loop, calls, pool, connection)
        # A socket with a timeout waits for it, whatever flags it is told; an encrypted one takes
        # none.
        connection.set_conn_timeout(0 if self._is_encrypted else None)
        # In nobody's context: it is used for one user's write after the other.
        read = self._read_all if self._is_encrypted else self._read
        # Somebody may have closed a socket of this number, and left it to be watched.
        for forget in (loop.remove_reader, loop.remove_writer):
            with contextlib.suppress(OSError):  # that it is not watched any more
                forget(self._descriptor)
        detached(loop.add_reader, self._descriptor, read)

    def interrupt(self) -> None:
        """Fail because PyMongo has lost the server; called on any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._cancel)

    def failure(self, error: Exception) -> Exception:
        """Close it, and return what PyMongo makes of an error of its socket."""
        self._let_go()
        if isinstance(error, OSError):
            try:
                self.connection._raise_connection_failure(error)
            except Exception as exc:  # noqa: BLE001 - it is what is raised
                return exc
        self.connection.close_conn(None)
        return error

    def _make_ready(self, connection: Any) -> None:
        self._finalizer.detach()
        if self._process != os.getpid():
            connection.close_conn(None)
        elif not connection.closed:
            connection.set_conn_timeout(connection.opts.socket_timeout)

    def _let_go(self) -> None:
        # While the descriptor is still its own. A forked child shares the parent's selector.
        if self._descriptor >= 0 and self._process == os.getpid():
            self._loop.remove_reader(self._descriptor)
            if self._is_waiting_to_write:
                self._loop.remove_writer(self._descriptor)
        self._descriptor = -1

    def _is_writing(self) -> bool:
        return self._is_waiting_to_write

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        if self._descriptor < 0:
            return
        for number, part in enumerate(parts, 1):
            count = 0
            try:
                count = self._socket.send(part, self._flags)
            except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError):
                pass
            except OSError as exc:
                # Whoever sends is not ready for it.
                self._loop.call_soon(self._fail, exc)
                return
            if count < len(part):
                self._is_waiting_to_write = True
                rest = [memoryview(part)[count:], *parts[number:]]
                self._loop.add_writer(self._descriptor, self._write, rest)
                return
        if self._is_waiting_to_write:
            self._is_waiting_to_write = False
            self._loop.remove_writer(self._descriptor)

    def _read_all(self) -> None:
        self._read()
        # What was decrypted already wakes nobody.
        while self._descriptor >= 0 and self._socket.pending():
            self._read()

    def _read(self) -> None:
        space = self._space()
        try:
            if space is None:
                data, count = self._socket.recv(_READ_SIZE, self._flags), 0
            else:
                data, count = b"", self._socket.recv_into(space, 0, self._flags)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return
        except OSError as exc:
            self._fail(exc)
            return
        if space is None:
            self._hear(data)
        else:
            self._hear_more(count)


class SocketConnections(Connections):
    """The connections of a blocking client that an event loop holds."""

    def _is_plain(self, connection: Any) -> bool:
        is_standard = type(socket_of(connection)) in {socket.socket, ssl.SSLSocket}
        return is_standard and connection.compression_context is None

    def _over(self, pool: Any, connection: Any) -> LoopConnection:
        return SocketConnection(self._loop, self._calls, pool, connection)


def socket_of(connection: Any) -> Any:
    """Return the socket of a connection."""
    return getattr(connection.conn, "sock", connection.conn)
