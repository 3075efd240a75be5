"""A wire proxy in front of one server, which can lose messages on purpose."""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from aioretry.testing._conversation import Conversation
from aioretry.testing._faults import Fault, FaultKind, FaultList, arm
from aioretry.testing._link import Link, Links
from aioretry.testing._listening_thread import ListeningThread


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
        self._thread = ListeningThread("aioretry-proxy", self._make_service)

    def __repr__(self) -> str:
        host, port = self._server
        return f"<Proxy {self.address if self.port else 'not running'} to {host}:{port}>"

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before it was started."""
        return self._thread.port

    @property
    def address(self) -> str:
        """Host and port that it listens on."""
        return self._thread.address

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
        self._thread.start()

    def close(self) -> None:
        """Close every connection and wait until its thread has ended; fine to repeat."""
        self._thread.close()

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

    def _make_service(self) -> "_Service":
        return _Service(self._link)

    def _link(self, links: Links) -> Link:
        host, port = self._server
        names = {f"{host}:{port}": self.address} if self._names is None else self._names
        return Link(self._server, Conversation(self._faults, names), links)


class _Service:
    """The links of a proxy that runs."""

    def __init__(self, make_link: Callable[[Links], Link]) -> None:
        self._make_link = make_link
        self._links = Links()

    def accept(self) -> asyncio.Protocol:
        return self._make_link(self._links).client

    async def close(self) -> None:
        await self._links.abort()
