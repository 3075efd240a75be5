"""The floor for many writes at once: their sockets, and one selector.

A socket that ends is opened again, and its command sent once more: the least that a lost reply
costs anybody.
"""

import gc
import selectors
import socket
import time
from typing import Any

from bson.int64 import Int64

from tests.benchmarks.process import cpu_seconds
from tests.benchmarks.throughput.floor import around, is_whole, message, reply_in
from tests.benchmarks.throughput.operations import Body
from tests.benchmarks.throughput.rounds import Sample

_CHUNK = 65536
_HELLO = {"hello": 1, "$db": "admin"}


class FloorAtOnce:
    """Writers that send one command after the other, each over a connection of its own.

    Args:
        address: Host and port of the primary.
        database: Where the commands go.
        w: The write concern.
        bodies: Make their commands.
    """

    def __init__(
        self, address: tuple[str, int], database: str, w: int | str, bodies: list[Body]
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._writers = [
            _Writer(self._selector, address, around(database, w), body) for body in bodies
        ]

    def close(self) -> None:
        """Close the connections."""
        for writer in self._writers:
            writer.close()
        self._selector.close()

    def measure(self, seconds: float) -> Sample:
        """Have each of them write for a while; the last write of each begins before it is over."""
        latencies: list[float] = []
        gc.collect()
        cpu, started = cpu_seconds(), time.perf_counter()
        until = started + seconds
        writing = len(self._writers)
        for writer in self._writers:
            writer.begin()
        while writing:
            for key, _ in self._selector.select():
                writer = key.data
                if not writer.is_done():
                    continue
                now = time.perf_counter()
                latencies.append(now - writer.begun)
                if now < until:
                    writer.begin()
                else:
                    writing -= 1
        return Sample.of(latencies, time.perf_counter() - started, cpu_seconds() - cpu)


class _Writer:
    """A writer, and its connection."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        address: tuple[str, int],
        around: dict[str, Any],
        body: Body,
    ) -> None:
        self.begun = 0.0
        self._selector = selector
        self._address = address
        self._around = around
        self._body = body
        self._number = 0
        self._request = b""
        self._connect()

    def begin(self) -> None:
        """Send another command; once the connection is there, if it is not."""
        self.begun = time.perf_counter()
        self._number = number = self._number + 1
        body = {**self._body(), **self._around, "txnNumber": Int64(number)}
        self._request = message(body, number)
        if not self._greets:
            self._socket.send(self._request)

    def is_done(self) -> bool:
        """Take what came, and tell whether it ends the write."""
        try:
            chunk = self._socket.recv(_CHUNK)
        except OSError:
            chunk = b""
        if not chunk:
            self._reconnect()
            return False
        self._data += chunk
        if not is_whole(self._data):
            return False
        reply_in(self._data)
        self._data = b""
        if self._greets:
            self._greets = False
            if self._request:
                self._socket.send(self._request)
            return False
        self._request = b""
        return True

    def close(self) -> None:
        """Close the connection."""
        self._selector.unregister(self._socket)
        self._socket.close()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._data = b""
        self._greets = True
        self._socket.send(message(_HELLO, 0))
        self._selector.register(self._socket, selectors.EVENT_READ, self)

    def _reconnect(self) -> None:
        self.close()
        self._connect()
