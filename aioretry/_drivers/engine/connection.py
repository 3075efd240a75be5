"""A connection that is checked out of its pool and used by an event loop."""

import asyncio
import struct
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol

from pymongo import errors, message
from pymongo.errors import ProtocolError

from aioretry._drivers.engine.calls import ClientCalls

_HEADER = struct.Struct("<iiii")  # length, request id, the id that it answers, operation code


class Receiver(Protocol):
    """Who waits for what comes over a connection."""

    def answer(self, data: bytes) -> None:
        """Take the reply, with its header."""
        ...

    def fail(self, error: Exception) -> None:
        """Take what went wrong, in a later turn of the loop than the one of sending."""
        ...


class LoopConnection(ABC):
    """A connection that is checked out of its pool, and used by an event loop.

    Args:
        loop: The event loop.
        calls: The client.
        pool: The pool.
        connection: PyMongo's own object, which is given back to the pool in the end.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_calls",
        "_interrupt",
        "_loop",
        "_receiver",
        "_request_id",
        "connection",
        "heard",
        "leaves_doubt",
        "pool",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, calls: ClientCalls, pool: Any, connection: Any
    ) -> None:
        self.pool = pool
        self.connection: Any = connection
        """PyMongo's own object; None once it was given back."""

        self._loop = loop
        self._calls = calls
        self._receiver: Receiver | None = None
        self._request_id = 0
        self._buffer: bytearray | None = None
        self.heard = float("-inf")
        """When something came last, in seconds of the monotonic clock."""

        self.leaves_doubt = False
        """Whether a write waits for what comes that must not be given up lightly."""

        self._interrupt = _Interrupt(self)
        with calls.locked(pool):
            pool.active_contexts.add(self._interrupt)

    @property
    def is_fresh(self) -> bool:
        """Whether it can be used once more."""
        connection, pool = self.connection, self.pool
        if connection is None or connection.closed:
            return False
        is_stale: bool = pool.stale_generation(connection.generation, connection.service_id)
        return not is_stale

    @property
    def is_used(self) -> bool:
        """Whether somebody waits for what comes over it."""
        return self._receiver is not None

    def send(
        self, request_id: int, data: bytes, receiver: Receiver, *, leaves_doubt: bool = True
    ) -> None:
        """Send a message, and have its reply received.

        Args:
            request_id: The message's.
            data: The message.
            receiver: Who waits for the reply.
            leaves_doubt: Whether it is a write that must not be given up lightly.
        """
        self.leaves_doubt = leaves_doubt
        self._request_id = request_id
        self._receiver = receiver
        self._buffer = None  # of what was asked before
        self._write(data)

    def close(self) -> None:
        """Close it; it is still to be given back."""
        self._let_go()
        self._calls.close(self.connection)

    @abstractmethod
    def interrupt(self) -> None:
        """Fail because PyMongo has lost the server; called on any thread."""

    @abstractmethod
    def failure(self, error: Exception) -> Exception:
        """Close it, and return what PyMongo makes of an error of its socket."""

    def rest(self) -> None:
        """Take what comes, if anything, for the connection's end."""
        self._receiver = None
        self._buffer = None
        self.leaves_doubt = False

    def give_back(self) -> None:
        """Give it back to its pool."""
        self._let_go()
        connection = self.connection
        if connection is None:
            return
        self.connection = None
        with self._calls.locked(self.pool):
            self.pool.active_contexts.discard(self._interrupt)
        self._make_ready(connection)
        self._calls.check_in(self.pool, connection)

    @abstractmethod
    def _write(self, data: bytes) -> None:
        """Write a message; what does not go out at once goes later."""

    @abstractmethod
    def _is_writing(self) -> bool:
        """Tell whether a part of a message is still to be written."""

    @abstractmethod
    def _let_go(self) -> None:
        """Use what is below the connection no longer."""

    @abstractmethod
    def _make_ready(self, connection: Any) -> None:
        """Leave PyMongo's connection as PyMongo uses it."""

    def _hear(self, data: bytes | bytearray) -> None:
        """Take what has come."""
        if not data or self._receiver is None:
            self._fail(OSError("connection closed"))
            return
        self.heard = time.monotonic()
        buffer = self._buffer
        if buffer is not None:
            buffer += data
            data = buffer
        try:
            is_whole = self._is_whole(data)
        except ProtocolError as exc:
            self.close()
            self._receiver.fail(exc)
            return
        if is_whole:
            if self._is_writing():
                self.close()  # half a message was sent
            self._receiver.answer(bytes(data))
        elif buffer is None:
            self._buffer = bytearray(data)

    def _fail(self, error: Exception) -> None:
        if self.connection is None:
            return
        receiver, failure = self._receiver, self.failure(error)
        if receiver is not None:
            receiver.fail(failure)

    def _cancel(self) -> None:
        self._fail(errors._OperationCancelled("operation cancelled"))

    def _is_whole(self, data: bytes | bytearray) -> bool:
        if len(data) < _HEADER.size:
            return False
        length, _, answered, code = _HEADER.unpack_from(data)
        if answered != self._request_id:
            raise ProtocolError(f"Got response id {answered!r} but expected {self._request_id!r}")
        if code != message._OpMsg.OP_CODE:
            raise ProtocolError(f"Got opcode {code!r} but expected {message._OpMsg.OP_CODE!r}")
        most = self.connection.max_message_size
        if not _HEADER.size < length <= most or len(data) > length:
            raise ProtocolError(
                f"Message length ({length!r}) is not larger than a header ({_HEADER.size}), larger "
                f"than the server's largest ({most!r}), or less than what came ({len(data)})"
            )
        return bool(len(data) == length)


class _Interrupt:
    """Takes a connection's place among those that PyMongo cancels when it loses their server.

    Whoever reads on a thread of PyMongo's looks at its own twice a second.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: LoopConnection) -> None:
        self._connection = weakref.ref(connection)

    @property
    def heard(self) -> float:
        """When something came last."""
        held = self._connection()
        return float("-inf") if held is None else held.heard

    @property
    def spared(self) -> Any:
        """PyMongo's own object if it must not be given up lightly, or None."""
        held = self._connection()
        return held.connection if held is not None and held.leaves_doubt else None

    def cancel(self) -> None:
        connection = self._connection()
        if connection is not None:
            connection.interrupt()


def spared_by_loops(contexts: Iterable[object]) -> set[Any]:
    """Return the connections of PyMongo's over which event loops wait for writes.

    Args:
        contexts: What PyMongo would cancel.
    """
    return {context.spared for context in contexts if isinstance(context, _Interrupt)}
