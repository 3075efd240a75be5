"""Whole messages over asyncio's streams, where speed doesn't matter."""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Any, Final

from aioretry.testing._wire import HEADER_SIZE, WireError, body_of, header_of, request_of

_ASK_TIMEOUT: Final = 2.0


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """Read a message.

    Raises:
        EOFError: the connection was closed.
        OSError: it broke.
        WireError: what came is no message.
    """
    head = await reader.readexactly(HEADER_SIZE)
    return head + await reader.readexactly(header_of(head).length - HEADER_SIZE)


async def ask(
    host: str, port: int, command: Mapping[str, Any], tls: ssl.SSLContext | None = None
) -> dict[str, Any] | None:
    """Send a server a command over a connection of its own.

    Args:
        host: where the server listens.
        port: where the server listens.
        command: the command, with `$db`.
        tls: how to encrypt it; None for not at all.

    Returns:
        The reply; None if there is none within two seconds.
    """
    with contextlib.suppress(OSError, EOFError, WireError):  # a TimeoutError is an OSError
        async with asyncio.timeout(_ASK_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                writer.write(request_of(1, command))
                return body_of(await read_message(reader))
            finally:
                writer.transport.abort()
    return None
