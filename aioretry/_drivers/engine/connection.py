"""A connection that is checked out of its pool and used by an event loop."""

import asyncio
import struct
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from pymongo import errors, message
from pymongo.errors import ProtocolError

from aioretry._drivers.engine.calls import ClientCalls

_HEADER = struct.Struct("<iiii")  # length, request id, the id that it answers, operation code
_MOST_AT_ONCE = 1024 * 1024


class Receiver(Protocol):
    """Who waits for what comes over a connection."""

    def answer(self, data: bytes | memoryview) -> None:
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
        "_begun",
        "_calls",
        "_filled",
        "_interrupt",
        "_loop",
        "_receiver",
        "_reply",
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
        self._begun = b""  # of a reply's header
        self._reply: memoryview | None = None  # that is too long to come at once
        self._filled = 0
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
        self,
        request_id: int,
        data: Sequence[bytes],
        receiver: Receiver,
        *,
        leaves_doubt: bool = True,
    ) -> None:
        """Send a message, and have its reply received.

        Args:
            request_id: The message's.
            data: The message, in parts.
            receiver: Who waits for the reply.
            leaves_doubt: Whether it is a write that must not be given up lightly.
        """
        self.leaves_doubt = leaves_doubt
        self._request_id = request_id
        self._receiver = receiver
        self._forget()  # what was asked before
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
        self._forget()
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
    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
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

    def _forget(self) -> None:
        self._begun, self._reply = b"", None

    def _space(self) -> memoryview | None:
        """Return where the rest of a reply goes whose beginning has come; None if none has."""
        if self._reply is None:
            return None
        return self._reply[self._filled : self._filled + _MOST_AT_ONCE]

    def _hear_more(self, count: int) -> None:
        """Take so many bytes that have come into that space."""
        reply, receiver = self._reply, self._receiver
        if not count or reply is None or receiver is None:
            self._fail(OSError("connection closed"))
            return
        self.heard = time.monotonic()
        self._filled += count
        if self._filled == len(reply):
            self._reply = None
            self._answer(receiver, reply)

    def _hear(self, data: bytes) -> None:
        """Take what has come."""
        receiver = self._receiver
        if not data or receiver is None:
            self._fail(OSError("connection closed"))
            return
        self.heard = time.monotonic()
        if self._begun:
            data = self._begun + data
        try:
            length = self._length_in(data)
        except ProtocolError as exc:
            self.close()
            receiver.fail(exc)
            return
        if length == len(data):
            self._answer(receiver, data)
        elif not length:
            self._begun = data
        else:
            # What is large is not copied, but for what is here already.
            self._reply, self._filled = memoryview(bytearray(length)), len(data)
            self._reply[: self._filled] = data

    def _answer(self, receiver: Receiver, data: bytes | memoryview) -> None:
        if self._is_writing():
            self.close()  # half a message was sent
        receiver.answer(data)

    def _fail(self, error: Exception) -> None:
        if self.connection is None:
            return
        receiver, failure = self._receiver, self.failure(error)
        if receiver is not None:
            receiver.fail(failure)

    def _cancel(self) -> None:
        self._fail(errors._OperationCancelled("operation cancelled"))

    def _length_in(self, data: bytes) -> int:
        """Return how long the reply is whose beginning this is, or 0 if it does not say that yet.

        Raises:
            ProtocolError: It is not the one that is awaited.
        """
        if len(data) < _HEADER.size:
            return 0
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
        return int(length)


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
