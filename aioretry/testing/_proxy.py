"""A wire proxy in front of one server, which does things wrong on purpose."""

import asyncio
from collections.abc import Mapping

from aioretry.testing._conversation import Conversation
from aioretry.testing._fault import FaultList
from aioretry.testing._faults import Faults
from aioretry.testing._link import Links
from aioretry.testing._listening_thread import ListeningThread
from aioretry.testing._running import Running


class Proxy(Running):
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
        self._fault_list = FaultList(self._partitioned)
        self._faults: Faults | None = None  # from the start on
        self._links: Links | None = None  # while the thread runs
        self._thread = ListeningThread("aioretry-proxy", self._make_links)

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
    def faults(self) -> Faults:
        """What it can do wrong.

        Raises:
            RuntimeError: it was not started.
        """
        if self._faults is None:
            raise RuntimeError("the proxy was not started: use it in a `with` block")
        return self._faults

    @property
    def fault_list(self) -> FaultList:
        """The faults that are armed at it."""
        return self._fault_list

    def start(self) -> None:
        """Listen, on a free port.

        Raises:
            OSError: no port was free.
            RuntimeError: it was started before.
        """
        self._thread.start()
        self._faults = Faults({self.address: self._fault_list})

    def close(self) -> None:
        """Close every connection and wait until its thread has ended; fine to repeat."""
        self._thread.close()

    def verify(self) -> None:
        """Raise an error if a fault was declared and never struck.

        Raises:
            FaultNotFiredError: a fault was declared and never struck.
        """
        if self._faults is not None:
            self._faults.verify()

    def _make_links(self) -> Links:
        host, port = self._server

        async def connect(upstream: asyncio.Protocol) -> None:
            await asyncio.get_running_loop().create_connection(lambda: upstream, host, port)

        def converse() -> Conversation:
            names = {f"{host}:{port}": self.address} if self._names is None else self._names
            return Conversation(self._fault_list, names)

        self._links = Links(self._fault_list, converse, connect)
        return self._links

    def _partitioned(self) -> None:
        if self._links is not None:
            self._thread.run(self._links.look_at_partitions)
