"""A member of a replica set, as a user of the test kit sees it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from anyio import to_thread

from aioretry.testing._ports import HOST
from aioretry.testing._proxy import Proxy
from aioretry.testing._server import MemberState, Server


class Member:
    """One server; the same object for as long as its deployment runs, through any restart.

    Args:
        server: the server itself.
        proxy: the proxy before it, if it has one.
    """

    def __init__(self, server: Server, proxy: Proxy | None) -> None:
        self._server = server
        self._proxy = proxy

    def __repr__(self) -> str:
        return f"<Member {self.index} {self.address} pid={self.pid} {self.state.value}>"

    @property
    def index(self) -> int:
        """Its number, from 0."""
        return self._server.index

    @property
    def host(self) -> str:
        """The host that clients know it by."""
        return HOST

    @property
    def port(self) -> int:
        """The port that clients know it by; its proxy's, if it has one."""
        return self._server.port if self._proxy is None else self._proxy.port

    @property
    def address(self) -> str:
        """Host and port that clients know it by, as ``127.0.0.1:20001``."""
        return f"{self.host}:{self.port}"

    @property
    def direct_address(self) -> str:
        """Host and port of the server process itself, past any proxy."""
        return self._server.address

    @property
    def direct_uri(self) -> str:
        """A URI for this server alone, past any proxy."""
        return f"mongodb://{self.direct_address}/?directConnection=true"

    @property
    def proxy(self) -> Proxy | None:
        """The proxy before it, if it has one."""
        return self._proxy

    @property
    def pid(self) -> int:
        """Its process id; another one after each restart."""
        return self._server.pid

    @property
    def state(self) -> MemberState:
        """What was done to it last."""
        return self._server.state

    @property
    def log(self) -> Path:
        """Its log file, which goes when the deployment is closed."""
        return self._server.log

    async def command(
        self,
        command: Mapping[str, Any],
        *,
        database: str = "admin",
        timeout: float = 10.0,  # noqa: ASYNC109  # of the socket
    ) -> dict[str, Any]:
        """Send it a command over a connection of its own, past any proxy.

        Args:
            command: the command, its name first.
            database: the database that it runs on.
            timeout: seconds to wait for the answer.

        Returns:
            The reply.

        Raises:
            CommandFailedError: it answered with an error.
            OSError: it did not answer.
        """
        return await to_thread.run_sync(
            partial(self._server.command, command, database=database, timeout=timeout),
            abandon_on_cancel=True,
        )
