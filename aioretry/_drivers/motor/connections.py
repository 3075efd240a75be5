"""Connections of PyMongo's pools that an event loop uses, for one attempt after the other."""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import weakref
from typing import Any, Protocol

from pymongo import message
from pymongo.errors import ProtocolError, _OperationCancelled

from aioretry._drivers.motor.idle import is_known, is_plain, socket_of, take_idle
from aioretry.deadlines import detached

_HEADER = struct.Struct("<iiii")  # length, request id, the id that it answers, operation code
_READ_SIZE = 64 * 1024
_LARGE_READ_SIZE = 1024 * 1024
_KEPT_FOR = 0.002


class Receiver(Protocol):
    """Who waits for what comes over a connection."""

    def answer(self, data: bytes) -> None:
        """Take the reply, with its header."""
        ...

    def fail(self, error: Exception) -> None:
        """Take what went wrong, in a later turn of the loop than the one of sending."""
        ...


class LoopConnection:
    """A connection that is checked out of its pool, and watched by an event loop.

    Args:
        loop: The event loop.
        pool: The pool.
        connection: PyMongo's own object, which is given back to the pool in the end.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_descriptor",
        "_finalizer",
        "_flags",
        "_interrupt",
        "_is_encrypted",
        "_is_writing",
        "_loop",
        "_process",
        "_receiver",
        "_request_id",
        "_socket",
        "connection",
        "pool",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Any, connection: Any) -> None:
        self.pool = pool
        self.connection: Any = connection
        """PyMongo's own object; None once it was given back."""

        self._loop = loop
        self._socket = socket_of(connection)
        self._descriptor: int = self._socket.fileno()
        self._is_encrypted = isinstance(self._socket, ssl.SSLSocket)
        self._flags = 0 if self._is_encrypted else socket.MSG_DONTWAIT
        self._receiver: Receiver | None = None
        self._request_id = 0
        self._buffer: bytearray | None = None
        self._is_writing = False
        self._process = os.getpid()
        # If the loop is closed in the middle. It outlives the garbage that this is a part of, in
        # which sockets may be looked at first.
        self._finalizer = weakref.finalize(self, connection.close_conn, None)
        self._interrupt = _Interrupt(self)
        with pool.lock:
            pool.active_contexts.add(self._interrupt)
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

    def send(self, request_id: int, data: bytes, receiver: Receiver) -> None:
        """Send a message, and have its reply received."""
        self._request_id = request_id
        self._receiver = receiver
        self._buffer = None  # of what was asked before
        self._write(data)

    def close(self) -> None:
        """Close it; it is still to be given back."""
        self._ignore()
        self.connection.close_conn(None)

    def interrupt(self) -> None:
        """Fail because PyMongo has lost the server; called on any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._fail, _OperationCancelled("operation cancelled"))

    def failure(self, error: Exception) -> Exception:
        """Close it, and return what PyMongo makes of an error of its socket."""
        self._ignore()
        if isinstance(error, OSError):
            try:
                self.connection._raise_connection_failure(error)
            except Exception as exc:  # noqa: BLE001 - it is what is raised
                return exc
        self.connection.close_conn(None)
        return error

    def rest(self) -> None:
        """Take what comes, if anything, for the connection's end."""
        self._receiver = None
        self._buffer = None

    def give_back(self) -> None:
        """Give it back to its pool."""
        self._ignore()
        connection = self.connection
        if connection is None:
            return
        self.connection = None
        self._finalizer.detach()
        with self.pool.lock:
            self.pool.active_contexts.discard(self._interrupt)
        if self._process != os.getpid():
            connection.close_conn(None)
        elif not connection.closed:
            connection.set_conn_timeout(connection.opts.socket_timeout)
        self.pool.checkin(connection)

    def _ignore(self) -> None:
        # While the descriptor is still its own. A forked child shares the parent's selector.
        if self._descriptor >= 0 and self._process == os.getpid():
            self._loop.remove_reader(self._descriptor)
            if self._is_writing:
                self._loop.remove_writer(self._descriptor)
        self._descriptor = -1

    def _write(self, rest: bytes | memoryview) -> None:
        if self._descriptor < 0:
            return
        try:
            count = self._socket.send(rest, self._flags)
            rest = memoryview(rest)[count:] if count < len(rest) else b""
        except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError):
            pass
        except OSError as exc:
            # Whoever sends is not ready for it.
            self._loop.call_soon(self._fail, exc)
            return
        if rest:
            self._is_writing = True
            self._loop.add_writer(self._descriptor, self._write, rest)
        elif self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._descriptor)

    def _read_all(self) -> None:
        self._read()
        # What was decrypted already wakes nobody.
        while self._descriptor >= 0 and self._socket.pending():
            self._read()

    def _read(self) -> None:
        buffer = self._buffer
        size = _READ_SIZE if buffer is None else _LARGE_READ_SIZE
        try:
            data = self._socket.recv(size, self._flags)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return
        except OSError as exc:
            self._fail(exc)
            return
        if not data or self._receiver is None:
            self._fail(OSError("connection closed"))
            return
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
            if self._is_writing:
                self.close()  # half a message was sent
            self._receiver.answer(data if buffer is None else bytes(data))
        elif buffer is None:
            self._buffer = bytearray(data)

    def _fail(self, error: Exception) -> None:
        if self.connection is None:
            return
        receiver, failure = self._receiver, self.failure(error)
        if receiver is not None:
            receiver.fail(failure)

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
    def resting(self) -> Any:
        """PyMongo's own object if nothing is under way over the connection, or None."""
        held = self._connection()
        return None if held is None or held.is_used else held.connection

    def cancel(self) -> None:
        connection = self._connection()
        if connection is not None:
            connection.interrupt()


class Connections:
    """The connections that an event loop holds.

    One that has done its work is kept for a moment: as a rule the next attempt comes at once, and
    is spared to give it back, take it again and watch it anew.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._kept: list[LoopConnection] = []
        self._taken: weakref.WeakSet[LoopConnection] = weakref.WeakSet()
        """All that there are, for the end of the loop."""

        self._to_give_back = 0
        self._is_known = False
        self.are_unusable = False
        """Whether one was met that an event loop can't use; the client's others will be like it."""

        self._timer: asyncio.TimerHandle | None = None

    def take(
        self, pool: Any, *, has_waited: bool = True, is_awaited: bool = False
    ) -> LoopConnection | None:
        """Return an open connection to a server, without waiting; None if there is none.

        Args:
            pool: The server's pool.
            has_waited: Whether somebody has waited for it in the pool. Who has not leaves the last
                one that the pool may have to those who do.
            is_awaited: Whether somebody is on the way to waiting there.
        """
        for index in range(len(self._kept) - 1, -1, -1):
            kept = self._kept[index]
            if kept.pool is pool:
                del self._kept[index]
                self._to_give_back = min(self._to_give_back, len(self._kept))
                if kept.is_fresh:
                    return kept
                kept.give_back()
        # PyMongo counts those who wait among the operations.
        is_awaited = is_awaited or pool.operation_count > pool.requests
        if is_awaited and not has_waited and pool.requests >= pool.max_pool_size - 1:
            return None
        return self._take_out(pool)

    def _take_out(self, pool: Any) -> LoopConnection | None:
        connection = take_idle(pool)
        if connection is None:
            return None
        self._is_known = self._is_known or is_known(pool, connection)
        if not (self._is_known and is_plain(connection)):
            pool.checkin(connection)
            self.are_unusable = True
            return None
        try:
            taken = LoopConnection(self._loop, pool, connection)
        except BaseException:
            connection.close_conn(None)
            pool.checkin(connection)
            raise
        self._taken.add(taken)
        if taken.is_fresh:
            return taken
        taken.give_back()  # PyMongo has just lost the server
        return None

    def put(self, used: LoopConnection) -> None:
        """Take one back that was used."""
        pool = used.pool
        if pool.requests >= pool.max_pool_size or used.connection.closed:
            used.give_back()  # somebody may wait for it
            return
        used.rest()
        self._kept.append(used)
        if self._timer is None:
            self._timer = detached(self._loop.call_later, _KEPT_FOR, self._sweep)

    def close(self) -> None:
        """Give back those that are kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        for one in kept:
            one.give_back()
        if self._loop.is_closed():  # what was under way never ends
            for one in [*self._taken]:
                if one.connection is not None:
                    one.close()
                    one.give_back()

    def _sweep(self) -> None:
        # The ones that were there at the last look, and have not been taken since, are the first.
        self._timer = None
        old, self._kept = self._kept[: self._to_give_back], self._kept[self._to_give_back :]
        for one in old:
            one.give_back()
        self._to_give_back = len(self._kept)
        if self._kept:
            self._timer = detached(self._loop.call_later, _KEPT_FOR, self._sweep)
