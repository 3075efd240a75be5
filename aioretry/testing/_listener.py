"""Accepting connections on an event loop."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

from aioretry.testing._ports import HOST, ReservedPort

_PORT_TRIES: Final = 5
_BACKLOG: Final = 128
_HANDSHAKE: Final = 10.0  # seconds to agree on the encryption


class Listener:
    """A listening socket that loses no connection when it is closed.

    `asyncio.Server` (of Python 3.11) neither serves nor closes a connection that comes just before
    it is closed.

    Args:
        make_protocol: makes the protocol of a new connection.
        tls: how the connections are encrypted; None for not at all.

    Raises:
        OSError: no port is free.
    """

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None
    ) -> None:
        self._make_protocol = make_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._accepting: set[asyncio.Task[object]] = set()
        self._socket = _listen()
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._accept)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._socket.getsockname()[1]
        return port

    async def close(self) -> None:
        """Listen no more, and wait until every accepted connection has its protocol."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._accepting:
            await asyncio.wait(self._accepting)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # it was given up by the other end
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # the same, a moment later
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._serve(connection))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other end does not take the encryption
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE,
            )


def _listen() -> socket.socket:
    for _ in range(_PORT_TRIES - 1):
        try:
            return _listen_once()
        except OSError:
            continue  # somebody was quicker
    return _listen_once()


def _listen_once() -> socket.socket:
    with contextlib.closing(ReservedPort()) as port:
        return socket.create_server((HOST, port.number), backlog=_BACKLOG)
