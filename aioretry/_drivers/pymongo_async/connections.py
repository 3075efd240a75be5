"""A connection of an asynchronous client, over whose transport an event loop sends and receives."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pymongo import pool_shared

from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.connection import LoopConnection
from aioretry._drivers.engine.connections import Connections
from aioretry.deadlines import detached

_READ_SIZE = 64 * 1024


class TransportConnection(LoopConnection, asyncio.BufferedProtocol):
    """A connection that has this protocol in the place of PyMongo's while it is checked out.

    PyMongo's own protocol makes two tasks and a wait of every reply.

    Args:
        loop: The event loop.
        calls: The client.
        pool: The pool.
        connection: PyMongo's own object, which is given back to the pool in the end.
        space: What is read goes there first; shared, since nothing stays in it.
    """

    __slots__ = ("_is_ours", "_protocol", "_shared", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: ClientCalls,
        pool: Any,
        connection: Any,
        space: memoryview,
    ) -> None:
        super().__init__(loop, calls, pool, connection)
        self._shared = space
        self._transport, self._protocol = connection.conn.conn
        self._is_ours = True
        self._transport.set_protocol(self)
        # In nobody's context: it is used for one user's write after the other.
        if not self._transport.is_reading():
            detached(self._transport.resume_reading)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Say where what is read goes."""
        space = self._space()
        return self._shared if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        if self._reply is None:
            self._hear(bytes(self._shared[:nbytes]))
        else:
            self._hear_more(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the connection's end."""
        self._protocol.connection_lost(exc)  # somebody may wait for it
        self._fail(exc or OSError("connection closed"))

    def interrupt(self) -> None:
        """Fail because PyMongo has lost the server."""
        self._loop.call_soon(self._cancel)

    def failure(self, error: Exception) -> Exception:
        """Close it, and return what PyMongo makes of an error of its transport."""
        connection = self.connection
        self.close()
        if isinstance(error, OSError):
            try:
                shared: Any = pool_shared
                details = shared._get_timeout_details(connection.opts)
                shared._raise_connection_failure(connection.address, error, timeout_details=details)
            except Exception as exc:  # noqa: BLE001 - it is what is raised
                return exc
        return error

    def _make_ready(self, connection: Any) -> None:
        """It is so once its protocol is back."""

    def _let_go(self) -> None:
        if not self._is_ours:
            return
        self._is_ours = False
        # Whoever closes the connection waits for its own protocol to be told.
        self._transport.set_protocol(self._protocol)
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def _is_writing(self) -> bool:
        return bool(self._transport.get_write_buffer_size())

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        if not self._is_ours:
            return
        if self._transport.is_closing():
            # Whoever sends is not ready for it.
            self._loop.call_soon(self._fail, OSError("connection closed"))
        else:
            for part in parts:
                self._transport.write(part)


class TransportConnections(Connections):
    """The connections of an asynchronous client that its event loop holds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: ClientCalls) -> None:
        super().__init__(loop, calls)
        self._space = memoryview(bytearray(_READ_SIZE))

    def _is_plain(self, connection: Any) -> bool:
        is_known = isinstance(getattr(connection.conn, "conn", None), tuple)
        return is_known and connection.compression_context is None

    def _over(self, pool: Any, connection: Any) -> LoopConnection:
        return TransportConnection(self._loop, self._calls, pool, connection, self._space)
