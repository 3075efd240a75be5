"""The floor: one blocking socket, and nothing but what the wire asks for.

A bare loop encodes the command with its session and transaction number, writes it, and decodes the
reply: one at a time, without a pool, a topology, events, threads or an event loop.
"""

import socket
import struct
import uuid
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


def around(database: str, w: int | str) -> dict[str, Any]:
    """Return what a command is sent with: its concern, a session of its own, and its database."""
    return {
        "writeConcern": {"w": w},
        "lsid": {"id": Binary(uuid.uuid4().bytes, UUID_SUBTYPE)},
        "$db": database,
    }


def message(body: dict[str, Any], number: int) -> bytes:
    """Return a command as it goes over the wire."""
    encoded = bson.encode(body)
    return _HEADER.pack(_HEADER.size + len(encoded), number, 0, _OP_MSG, 0, 0) + encoded


def is_whole(data: bytes) -> bool:
    """Tell whether a reply has come to its end."""
    return len(data) >= _LENGTH.size and len(data) >= _LENGTH.unpack_from(data)[0]


def reply_in(data: bytes) -> dict[str, Any]:
    """Return the reply that came.

    Raises:
        FloorError: The write did not go well.
    """
    reply = bson.decode(data[_HEADER.size :])
    if reply["ok"] != 1 or "writeErrors" in reply or "writeConcernError" in reply:
        raise FloorError(reply)
    return reply


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
        self._around = around(database, w)
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

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a read, and return its reply.

        Raises:
            FloorError: It did not go well.
        """
        fields = {name: self._around[name] for name in ("lsid", "$db")}
        return self._send({**body, **fields})

    def write(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a write, and return its reply.

        Raises:
            FloorError: The write did not go well.
        """
        return self._send({**body, **self._around, "txnNumber": Int64(self._number + 1)})

    def _send(self, body: dict[str, Any]) -> dict[str, Any]:
        self._number = number = self._number + 1
        self._socket.sendall(message(body, number))
        data = self._chunk()
        while not is_whole(data):
            data += self._chunk()
        return reply_in(data)

    def _chunk(self) -> bytes:
        chunk = self._socket.recv(_CHUNK)
        if not chunk:
            raise FloorError("the server has closed the connection")
        return chunk
