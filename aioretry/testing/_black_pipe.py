"""Proxies in front of a deployment of the user's own."""

import re
import ssl
from dataclasses import dataclass
from typing import Final

from aioretry.testing._admin import CommandFailedError, run_command, split_address
from aioretry.testing._faults import Faults
from aioretry.testing._faulty import Faulty
from aioretry.testing._proxy import Proxy
from aioretry.testing._target import Target, TargetURI
from aioretry.testing._wire import WireError

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
        tls: how the server itself is spoken to over TLS; None for not at all.
    """

    index: int
    address: str
    direct_address: str
    tls: ssl.SSLContext | None = None


class BlackPipe(Faulty):
    """Proxies in front of the members of a running deployment, to do things wrong on purpose.

    For a replica set, a standalone server or the routers of a cluster that you have already. Every
    member that the first answering host names gets a proxy, and clients with this object's `uri`
    stay on the proxies; with `directConnection=true`, the named host alone::

        async with BlackPipe("mongodb://user:secret@db1,db2/?replicaSet=rs0") as pipe:
            client = RetryClient(pipe.uri)
            pipe.faults.drop_reply("insert")

    With TLS, and with `mongodb+srv`, the proxies speak TLS to the servers by the options of the
    URI; Unix sockets don't work.

    Args:
        uri: where the deployment is. User, database and options are kept, but for those of TLS.
        client_tls: the server's side of TLS, with a certificate for 127.0.0.1, for clients of the
            proxies; None for connections without.

    Raises:
        ValueError: such a URI doesn't work.
    """

    def __init__(self, uri: str, *, client_tls: ssl.SSLContext | None = None) -> None:
        self._target_uri = TargetURI(uri)
        self._client_tls = client_tls
        self._target: Target | None = None
        self._proxies: list[Proxy] = []
        self._members: tuple[PipeMember, ...] = ()

    def __repr__(self) -> str:
        return f"<BlackPipe {' '.join(map(repr, self._proxies)) or 'not running'}>"

    @property
    def members(self) -> tuple[PipeMember, ...]:
        """Its servers; empty before it is started."""
        return self._members

    @property
    def uri(self) -> str:
        """The URI for a client that goes through the proxies.

        With `client_tls`, the client is to be told whom to trust, as by `tlsCAFile`.

        Raises:
            RuntimeError: it was not started.
        """
        addresses = ",".join(member.address for member in self._started())
        assert self._target is not None  # noqa: S101  # narrows the type
        rest = self._target.rest
        if self._client_tls is not None:
            rest += f"{'&' if '?' in rest else '?'}tls=true"
        return f"mongodb://{self._target_uri.user}{addresses}{rest}"

    def start(self) -> None:
        """Find the members and put a proxy before each; blocks.

        Raises:
            OSError: none of the hosts answers within ten seconds, no port is free, or a file of TLS
                can't be read.
            RuntimeError: it was started before.
            ValueError: the URI has `tlsCRLFile`, which no proxy minds.
            pymongo.errors.PyMongoError: DNS has no record of that name, or an option is wrong.
        """
        if self._proxies:
            raise RuntimeError("it was started before: it can be started once only")
        names: dict[str, str] = {}  # complete before the first client comes
        self._target = target = self._target_uri.find()
        servers = _discover(target)
        try:
            for server in servers:
                proxy = Proxy(
                    *split_address(server),
                    names=names,
                    tls=target.tls,
                    client_tls=self._client_tls,
                )
                self._proxies.append(proxy)
                proxy.start()
                names[server] = proxy.address
        except BaseException:
            self.close()
            raise
        self._members = tuple(
            PipeMember(index, proxy.address, server, target.tls)
            for index, (proxy, server) in enumerate(zip(self._proxies, servers, strict=True))
        )
        self._faults = Faults({proxy.address: proxy.fault_list for proxy in self._proxies})

    def close(self) -> None:
        """Close every connection; blocks; fine to repeat. The servers stay."""
        for proxy in self._proxies:
            proxy.close()

    def _started(self) -> tuple[PipeMember, ...]:
        if not self._members:
            raise RuntimeError(self._why_no_faults())
        return self._members


def _discover(target: Target) -> tuple[str, ...]:
    if _DIRECT.search(target.rest):
        return target.hosts
    failures = []
    for host in target.hosts:
        try:
            hello = run_command(*split_address(host), _HELLO, timeout=_TIMEOUT, tls=target.tls)
        except (OSError, CommandFailedError, WireError) as exc:
            failures.append(f"{host}: {exc}")
        else:
            named = [hello.get(key, ()) for key in ("hosts", "passives", "arbiters")]
            return tuple(address for addresses in named for address in addresses) or target.hosts
    raise OSError(f"none of the hosts answers: {'; '.join(failures)}")
