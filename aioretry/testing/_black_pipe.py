"""Proxies in front of a deployment of the user's own."""

import re
from dataclasses import dataclass
from typing import Final

from aioretry.testing._admin import CommandFailedError, run_command, split_address
from aioretry.testing._faults import Faults
from aioretry.testing._proxy import Proxy
from aioretry.testing._running import Running
from aioretry.testing._wire import WireError

_URI: Final = re.compile(r"mongodb://(?P<user>[^@/?]*@)?(?P<hosts>[^/?]+)(?P<rest>[/?].*)?")
_TLS: Final = re.compile(r"[?&](tls|ssl)=true(&|$)", re.IGNORECASE)
_DIRECT: Final = re.compile(r"[?&]directConnection=true(&|$)", re.IGNORECASE)
_TIMEOUT: Final = 10.0
_HELLO: Final = {"isMaster": 1}  # every server version knows this name


@dataclass(frozen=True, slots=True)
class PipeMember:
    """A server behind a `BlackPipe`.

    Attributes:
        index: its number, from 0.
        address: host and port that clients know it by: its proxy's.
        direct_address: host and port of the server itself.
    """

    index: int
    address: str
    direct_address: str


class BlackPipe(Running):
    """Proxies in front of the members of a running deployment, to do things wrong on purpose.

    For a replica set, a standalone server or the routers of a cluster that you have already. Every
    member that the first answering host names gets a proxy, and clients with this object's `uri`
    stay on the proxies; with `directConnection=true`, the named host alone::

        async with BlackPipe("mongodb://user:secret@db1,db2/?replicaSet=rs0") as pipe:
            client = RetryClient(pipe.uri)
            pipe.faults.drop_reply("insert")

    Without TLS, which nothing can be seen through; `mongodb+srv` and Unix sockets don't work.

    Args:
        uri: where the deployment is. User, database and options are kept.

    Raises:
        ValueError: such a URI doesn't work.
    """

    def __init__(self, uri: str) -> None:
        match = _URI.fullmatch(uri)
        if match is None or "%2f" in match["hosts"].lower():
            raise ValueError("uri is no mongodb://host:port,... URI, which is needed")
        if _TLS.search(match["rest"] or ""):
            raise ValueError(
                "uri asks for TLS, which no proxy can look into: one without is needed"
            )
        self._user = match["user"] or ""
        self._seeds = match["hosts"].split(",")
        for seed in self._seeds:
            split_address(seed)  # refuses what it can't be
        self._rest = match["rest"] or "/"
        self._proxies: list[Proxy] = []
        self._members: tuple[PipeMember, ...] = ()
        self._faults: Faults | None = None

    def __repr__(self) -> str:
        return f"<BlackPipe {' '.join(map(repr, self._proxies)) or 'not running'}>"

    @property
    def members(self) -> tuple[PipeMember, ...]:
        """Its servers; empty before it is started."""
        return self._members

    @property
    def uri(self) -> str:
        """The URI for a client that goes through the proxies.

        Raises:
            RuntimeError: it was not started.
        """
        addresses = ",".join(member.address for member in self._started())
        return f"mongodb://{self._user}{addresses}{self._rest}"

    @property
    def faults(self) -> Faults:
        """What the proxies can do wrong.

        Raises:
            RuntimeError: it was not started.
        """
        self._started()
        assert self._faults is not None  # noqa: S101  # narrows the type
        return self._faults

    def start(self) -> None:
        """Find the members and put a proxy before each; blocks.

        Raises:
            OSError: none of the hosts answers within ten seconds, or no port is free.
            RuntimeError: it was started before.
        """
        if self._proxies:
            raise RuntimeError("it was started before: it can be started once only")
        names: dict[str, str] = {}  # complete before the first client comes
        servers = self._discover()
        try:
            for server in servers:
                proxy = Proxy(*split_address(server), names=names)
                self._proxies.append(proxy)
                proxy.start()
                names[server] = proxy.address
        except BaseException:
            self.close()
            raise
        self._members = tuple(
            PipeMember(index, proxy.address, server)
            for index, (proxy, server) in enumerate(zip(self._proxies, servers, strict=True))
        )
        self._faults = Faults({proxy.address: proxy.fault_list for proxy in self._proxies})

    def verify(self) -> None:
        """Raise an error if a fault was declared and never struck.

        Raises:
            FaultNotFiredError: a fault was declared and never struck.
        """
        if self._faults is not None:
            self._faults.verify()

    def close(self) -> None:
        """Close every connection; blocks; fine to repeat. The servers stay."""
        for proxy in self._proxies:
            proxy.close()

    def _started(self) -> tuple[PipeMember, ...]:
        if not self._members:
            raise RuntimeError("it was not started: use it in a `with` or `async with` block")
        return self._members

    def _discover(self) -> list[str]:
        if _DIRECT.search(self._rest):
            return self._seeds
        failures = []
        for seed in self._seeds:
            try:
                hello = run_command(*split_address(seed), _HELLO, timeout=_TIMEOUT)
            except (OSError, CommandFailedError, WireError) as exc:
                failures.append(f"{seed}: {exc}")
            else:
                named = [hello.get(key, ()) for key in ("hosts", "passives", "arbiters")]
                return [address for addresses in named for address in addresses] or self._seeds
        raise OSError(f"none of the hosts answers: {'; '.join(failures)}")
