"""A port that is served by an event loop in a thread of its own.

A test that blocks its own loop does not stop it.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol

from aioretry.testing._listener import Listener
from aioretry.testing._ports import HOST

_ENOUGH: Final = 10.0  # seconds for a loop to do something that takes no time


class Service(Protocol):
    """What serves the connections; made and used on the thread's event loop alone."""

    def accept(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        ...

    async def close(self) -> None:
        """Close every connection, and wait until they are closed."""
        ...


class ListeningThread:
    """A thread that listens on a loopback port; it can be started once.

    Args:
        name: the thread's name.
        make_service: makes what serves the connections; called on the thread's event loop.
        tls: how the connections are encrypted; None for not at all.
    """

    def __init__(
        self, name: str, make_service: Callable[[], Service], tls: ssl.SSLContext | None = None
    ) -> None:
        self._name: Final = name
        self._make_service = make_service
        self._tls = tls
        self._port = 0
        # Filled by the thread with its loop and what stops it; stopped by whoever takes the thread.
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._lock = threading.Lock()  # guards the thread
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port; 0 before it was started."""
        return self._port

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self._port}"

    def start(self) -> None:
        """Listen, on a free port.

        Raises:
            OSError: no port was free.
            RuntimeError: it was started before.
        """
        with self._lock:
            if self._thread is not None or self._started.done():
                raise RuntimeError(f"{self._name} was started before: it can be started once only")
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every connection and wait until the thread has ended; fine to repeat."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._started.exception() is None:
            loop, stopped = self._started.result()
            loop.call_soon_threadsafe(stopped.set)
        thread.join()

    def run(self, callback: Callable[[], None]) -> None:
        """Run something on the event loop, and wait until it is done; nothing if it doesn't run."""
        if threading.current_thread() is self._thread:
            callback()
            return
        with self._lock:
            if self._thread is None or not self._started.done():
                return
            loop, _ = self._started.result()
            done = threading.Event()
            loop.call_soon_threadsafe(callback)
            loop.call_soon_threadsafe(done.set)
            done.wait(_ENOUGH)

    def _run(self) -> None:
        try:
            # Neither in asyncio's debug mode nor on another library's loop, which the tests around
            # it may run on: the links live by what asyncio's own transports do.
            with asyncio.Runner(debug=False, loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
        except Exception as exc:
            if self._started.done():
                raise
            self._started.set_exception(exc)  # for whoever waits for the start

    async def _serve(self) -> None:
        service = self._make_service()
        listener = Listener(service.accept, self._tls)
        self._port = listener.port
        stopped = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()
        await listener.close()
        await service.close()
