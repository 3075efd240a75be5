"""A wire proxy in front of one server, which does things wrong on purpose."""

import asyncio
import ssl
from collections.abc import Mapping

from aioretry.testing._conversation import Conversation
from aioretry.testing._faults import Faults
from aioretry.testing._faulty import Faulty
from aioretry.testing._piped import Piped


class Proxy(Piped, Faulty):
    """A proxy on a loopback port, in a thread and an event loop of its own.

    Clients that discover the replica set through it stay on it: the addresses in the server's
    hello replies are rewritten. Its server may die and come back meanwhile.

    Use it in a `with` block, or call `start` and `close`.

    Args:
        host: where the server listens.
        port: where the server listens.
        names: what to call each server (`host:port`) in hello replies; looked at for each reply.
            By default this server alone, by the proxy's address.
        tls: how to encrypt what goes to the server; None for not at all.
        client_tls: the server's side of TLS, with a certificate, for what comes from clients; None
            for connections without.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        names: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__("aioretry-proxy", client_tls)
        self._server = (host, port)
        self._names = names
        self._tls = tls

    def __repr__(self) -> str:
        host, port = self._server
        return f"<Proxy {self.address if self.port else 'not running'} to {host}:{port}>"

    def start(self) -> None:
        """Listen, on a free port.

        Raises:
            OSError: no port was free.
            RuntimeError: it was started before.
        """
        super().start()
        self._faults = Faults({self.address: self._fault_list})

    def _converse(self) -> Conversation:
        host, port = self._server
        names = {f"{host}:{port}": self.address} if self._names is None else self._names
        return Conversation(self._fault_list, names, port=port)

    async def _connect(self, upstream: asyncio.Protocol) -> None:
        host, port = self._server
        await asyncio.get_running_loop().create_connection(
            lambda: upstream, host, port, ssl=self._tls
        )
