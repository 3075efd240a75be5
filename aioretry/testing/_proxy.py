"""A wire proxy in front of one server, which can lose messages on purpose."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from aioretry.testing._conversation import Conversation
from aioretry.testing._faults import Fault, FaultKind, FaultList, arm
from aioretry.testing._link import Link, Links
from aioretry.testing._listener import Listener
from aioretry.testing._ports import HOST


class Proxy:
    """A proxy on a loopback port, in a thread and an event loop of its own.

    Clients that discover the replica set through it stay on it: the addresses in the server's
    hello replies are rewritten. Its server may die and come back meanwhile.

    Use it in a `with` block, or call `start` and `close`.

    Args:
        host: where the server listens.
        port: where the server listens.
        names: what to call each server (`host:port`) in hello replies; looked at for each reply.
            By default this server alone, by the proxy's address.
    """

    def __init__(self, host: str, port: int, *, names: Mapping[str, str] | None = None) -> None:
        self._server = (host, port)
        self._names = names
        self._faults = FaultList()
        self._port = 0
        # Filled by the thread with what stops it; called once, by whoever takes the thread.
        self._started: Future[Callable[[], object]] = Future()
        self._lock = threading.Lock()  # guards the thread
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        host, port = self._server
        return f"<Proxy {self.address if self._port else 'not running'} to {host}:{port}>"

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before it was started."""
        return self._port

    @property
    def address(self) -> str:
        """Host and port that it listens on."""
        return f"{HOST}:{self._port}"

    @property
    def faults(self) -> FaultList:
        """The faults that are armed at it."""
        return self._faults

    def start(self) -> None:
        """Listen, on a free port.

        Raises:
            OSError: no port was free.
            RuntimeError: it was started before.
        """
        with self._lock:
            if self._thread is not None or self._started.done():
                raise RuntimeError("a proxy can be started once only")
            self._thread = threading.Thread(target=self._run, name="aioretry-proxy", daemon=True)
            self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every connection and wait until its thread has ended; fine to repeat."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._started.exception() is None:
            self._started.result()()
        thread.join()

    def drop_reply(
        self,
        *commands: str,
        times: int | None = 1,
        namespace: str | None = None,
        app_name: str | None = None,
    ) -> Fault:
        """Lose the server's answer to a command: it is run, and the client never hears of it.

        The client's connection is closed when the answer arrives.

        Args:
            commands: names of commands.
            times: how often; None for every time.
            namespace: only on this collection, as `metrics.events`.
            app_name: only for clients with this application name.

        Returns:
            The fault, armed already; a `with` or `async with` block of it disarms it at its end.

        Raises:
            ValueError: no command is named, or it would never strike.
        """
        return arm(
            FaultKind.DROP_REPLY,
            [self._faults],
            commands,
            times=times,
            namespace=namespace,
            app_name=app_name,
        )

    def drop_request(
        self,
        *commands: str,
        times: int | None = 1,
        namespace: str | None = None,
        app_name: str | None = None,
    ) -> Fault:
        """Lose a command before it reaches the server, and close the client's connection.

        Args:
            commands: names of commands.
            times: how often; None for every time.
            namespace: only on this collection, as `metrics.events`.
            app_name: only for clients with this application name.

        Returns:
            The fault, armed already; a `with` or `async with` block of it disarms it at its end.

        Raises:
            ValueError: no command is named, or it would never strike.
        """
        return arm(
            FaultKind.DROP_REQUEST,
            [self._faults],
            commands,
            times=times,
            namespace=namespace,
            app_name=app_name,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            # Without asyncio's debug mode, which the tests around it may run in.
            with asyncio.Runner(debug=False) as runner:
                runner.run(self._serve())
        except OSError as exc:
            if self._started.done():
                raise
            self._started.set_exception(exc)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        links = Links()
        listener = Listener(lambda: self._link(links).client)
        self._port = listener.port
        stopped = asyncio.Event()
        self._started.set_result(lambda: loop.call_soon_threadsafe(stopped.set))
        await stopped.wait()
        await listener.close()
        await links.abort()

    def _link(self, links: Links) -> Link:
        host, port = self._server
        names = {f"{host}:{port}": self.address} if self._names is None else self._names
        return Link(self._server, Conversation(self._faults, names), links)
