"""The connections of a scripted server, on its event loop."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from aioretry.testing._scripted_request import ScriptedRequest
from aioretry.testing._wire import HEADER_SIZE, WireError, header_of


class ScriptedService:
    """The connections of a scripted server that runs; of one event loop."""

    def __init__(
        self,
        connected: Callable[[], Callable[[ScriptedRequest], None]],
        call: Callable[[Callable[[], None]], None],
    ) -> None:
        self.connected: Final = connected  # gives what is told of a new connection's commands
        self.call: Final = call  # runs something on the event loop, from any thread
        self._connections: set[_Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def accept(self) -> asyncio.Protocol:
        return _Connection(self)

    async def close(self) -> None:
        # What has reached this host is looked at still: nothing is to be overlooked.
        for _ in range(10):
            await asyncio.sleep(0)
        for connection in tuple(self._connections):
            connection.abort()
        await self._empty.wait()

    def add(self, connection: "_Connection") -> None:
        self._connections.add(connection)
        self._empty.clear()

    def discard(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()


class _Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, service: ScriptedService) -> None:
        self._service = service
        self._arrived = service.connected()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._service.add(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while message := self._next_message():
                self._arrived(ScriptedRequest(message, self._send_soon))
        except WireError:
            self._send(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - given by the loop
        self._buffer.clear()
        self._service.discard(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _next_message(self) -> bytes | None:
        if len(self._buffer) < HEADER_SIZE:
            return None
        length = header_of(self._buffer).length
        if len(self._buffer) < length:
            return None
        message = bytes(self._buffer[:length])
        del self._buffer[:length]
        return message

    def _send_soon(self, message: bytes | None) -> None:
        self._service.call(lambda: self._send(message))

    def _send(self, message: bytes | None) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if message is None:
            self._transport.close()
        else:
            self._transport.write(message)
