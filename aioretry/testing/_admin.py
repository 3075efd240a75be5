"""Sending one command to one server, without a driver: no pool, no monitor, no retry."""

import itertools
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final

from aioretry.testing._wire import HEADER_SIZE, body_of, header_of, request_of

_DEFAULT_PORT: Final = 27017

_request_ids: Final = itertools.count(1)


class CommandFailedError(RuntimeError):
    """A server answered a command with an error.

    Attributes:
        code: the server's error code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run_command(
    host: str,
    port: int,
    command: Mapping[str, Any],
    *,
    database: str = "admin",
    timeout: float,
    tls: ssl.SSLContext | None = None,
) -> dict[str, Any]:
    """Send a command over a connection of its own.

    Args:
        host: where the server listens.
        port: where the server listens.
        command: the command, its name first.
        database: the database that it runs on.
        timeout: seconds for connecting, and again for each part of the answer.
        tls: how to encrypt it; None for not at all.

    Returns:
        The reply.

    Raises:
        CommandFailedError: the server answered with an error.
        OSError: it did not answer; a TimeoutError if it kept silent.
    """
    # As drivers do on a direct connection: without it, secondaries refuse to be read.
    preference = {"$readPreference": {"mode": "primaryPreferred"}}
    request = request_of(next(_request_ids), {**command, "$db": database, **preference})
    with _connect(host, port, timeout, tls) as connection:
        connection.sendall(request)
        head = _receive(connection, HEADER_SIZE)
        reply = body_of(head + _receive(connection, header_of(head).length - HEADER_SIZE))
    if reply.get("ok") != 1:
        message = f"{next(iter(command))} on {host}:{port}: {reply.get('errmsg')}"
        raise CommandFailedError(message, int(reply.get("code", 0)))
    return reply


def split_address(text: str) -> tuple[str, int]:
    """Give host and port of an address as `db1:27017`, `db1` or `[::1]:27017`.

    Raises:
        ValueError: the port is no number.
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):  # an IPv6 address without a port
        return text.strip("[]"), _DEFAULT_PORT
    if not port.isdecimal():
        raise ValueError(f"{text!r} is no address: host or host:port is needed")
    return host.strip("[]"), int(port)


def _connect(host: str, port: int, timeout: float, tls: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection((host, port), timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What can't be encrypted is closed by that.
        return connection if tls is None else tls.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        data += chunk
    return bytes(data)
