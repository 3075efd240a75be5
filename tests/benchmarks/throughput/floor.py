"""The floor: one blocking socket, and nothing but what the wire asks for.

A bare loop encodes the command with its session and transaction number, writes it, and decodes the
reply: one at a time, without a pool, a topology, events, threads or an event loop.
"""

import socket
import struct
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import bson
from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64

_HEADER = struct.Struct("<iiiiIB")  # of an OP_MSG with one document, its flags and its kind
_LENGTH = struct.Struct("<i")
_OP_MSG = 2013
_CHUNK = 65536


class FloorError(Exception):
    """The server did not say that all went well."""


class Floor:
    """A connection to the primary; a ``with`` block.

    Args:
        address: Host and port of the primary.
        database: Where the commands go.
        w: The write concern.
    """

    def __init__(self, address: tuple[str, int], database: str, w: int | str) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._around = {
            "writeConcern": {"w": w},
            "lsid": {"id": Binary(uuid.uuid4().bytes, UUID_SUBTYPE)},
            "$db": database,
        }
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def call(self, body: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        """Make the call that sends a command, of what makes the command."""
        return lambda: self.write(body())

    def write(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a write, and return its reply.

        Raises:
            FloorError: The write did not go well.
        """
        self._number = number = self._number + 1
        body.update(self._around)
        body["txnNumber"] = Int64(number)
        encoded = bson.encode(body)
        header = _HEADER.pack(_HEADER.size + len(encoded), number, 0, _OP_MSG, 0, 0)
        self._socket.sendall(header + encoded)
        reply = bson.decode(self._receive()[_HEADER.size :])
        if reply["ok"] != 1 or "writeErrors" in reply or "writeConcernError" in reply:
            raise FloorError(reply)
        return reply

    def _receive(self) -> bytes:
        data = self._chunk()
        while len(data) < _LENGTH.size or len(data) < _LENGTH.unpack_from(data)[0]:
            data += self._chunk()
        return data

    def _chunk(self) -> bytes:
        chunk = self._socket.recv(_CHUNK)
        if not chunk:
            raise FloorError("the server has closed the connection")
        return chunk
