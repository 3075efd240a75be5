"""Fake mongoses: proxies that a driver takes for the routers of a sharded cluster."""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Protocol

from anyio import to_thread
from bson import ObjectId

from aioretry.testing._admin import split_address
from aioretry.testing._checks import require, whole
from aioretry.testing._conversation import Conversation
from aioretry.testing._faults import Faults
from aioretry.testing._faulty import Faulty
from aioretry.testing._listening_thread import Service
from aioretry.testing._mongos_fail_points import MongosFailPoint
from aioretry.testing._piped import Piped
from aioretry.testing._router import Address, Router, Shard
from aioretry.testing._scram import Login, User


class Backend(Protocol):
    """A server of the set behind fake mongoses."""

    @property
    def direct_address(self) -> str:
        """Host and port of the server itself, past any proxy."""
        ...


class Deployed(Protocol):
    """A running set that fake mongoses can stand before: a `ReplicaSet`, a `BlackPipe`."""

    @property
    def members(self) -> Sequence[Backend]:
        """Its servers."""
        ...


class FakeMongos(Piped):
    """One fake mongos; made by `FakeMongoses`.

    Args:
        index: its number, from 0.
        servers: host and port of each member of the set behind it.
        shards: the set as the running mongoses of its cluster see it; of each its own `Shard`.
        tls: how to speak to the members; None for connections without.
        user: who may log in; None to leave that to the members.
    """

    def __init__(
        self,
        index: int,
        servers: Sequence[Address],
        shards: list[Shard],
        tls: ssl.SSLContext | None,
        user: User | None,
    ) -> None:
        super().__init__("aioretry-mongos")
        self._index = index
        self._servers = servers
        self._shards = shards
        self._tls = tls
        self._user = user
        self._shard: Shard | None = None  # from the thread's start on
        self._process = ObjectId()
        self._fail_point = MongosFailPoint()

    def __repr__(self) -> str:
        return f"<FakeMongos {self.index} {self.address}>"

    @property
    def index(self) -> int:
        """Its number, from 0."""
        return self._index

    @property
    def host(self) -> str:
        """The host that it listens on."""
        return self.address.partition(":")[0]

    def _make_service(self) -> Service:
        self._shard = Shard(self._servers, self._shards, self._tls)
        return _Service(super()._make_service(), self._shard)

    def _converse(self) -> Conversation:
        return Conversation(self._fault_list, {}, is_mongos=True)

    async def _connect(self, upstream: asyncio.Protocol) -> None:
        if self._shard is not None:
            login = Login(self._user)
            Router(upstream, self._shard, self._process, self._fail_point, login)


class _Service:
    """The connections of a fake mongos, and its view of the set."""

    def __init__(self, links: Service, shard: Shard) -> None:
        self._links = links
        self._shard = shard

    def accept(self) -> asyncio.Protocol:
        return self._links.accept()

    async def close(self) -> None:
        await self._links.close()
        await self._shard.close()


class FakeMongoses(Faulty):
    """Two or more proxies before one replica set that a driver takes for a sharded cluster.

    Each answers `hello` as a mongos does, and routes everything else to the present primary. While
    there is none, commands wait for one, for up to 20 seconds. The loss of the primary under a
    command, its replacement (as when it is frozen), or an answer that tells of its state change
    becomes error 6, HostUnreachable, with the labels that a mongos gives; after that no mongos
    routes to this server until it says again that it is the primary. There are no chunks, and no
    commands of a cluster's administration. Servers of a `BlackPipe` with TLS are spoken to over it,
    and clients come without.

    Reads go to the primary, whatever their read preference. It gets to see that preference: one
    that was deposed a moment ago may still answer a read that allows a secondary.

    Each has the fail point `failCommand` of its own, which `configureFailPoint` sets as at a real
    one: over this mongos, for the commands that clients send over it, without a word to the servers
    behind. It takes the modes `"off"`, `"alwaysOn"`, `{"times": n}` and `{"skip": n}`, and the
    options `failCommands`, `errorCode`, `errorLabels`, `closeConnection`, `writeConcernError`,
    `blockConnection` with `blockTimeMS`, `appName` and `namespace`; everything else is refused.

    Use it in a `with` or an `async with` block, inside that of the set::

        async with ReplicaSet() as servers, FakeMongoses(servers) as cluster:
            client = RetryClient(cluster.uri)

    Args:
        deployed: a running replica set: a `ReplicaSet`, with or without faults of its own, or a
            `BlackPipe`.
        count: how many mongoses.
        user: name and password of the only one who may log in at the mongoses, with SCRAM-SHA-256
            and at the database `admin`; nobody else is served. None: a login is passed on to the
            primary, and is lost with it.

    Raises:
        TypeError: the count is no whole number.
        ValueError: there is to be none of them.
    """

    def __init__(
        self, deployed: Deployed, count: int = 2, *, user: tuple[str, str] | None = None
    ) -> None:
        whole("count", count, 1)
        self._deployed = deployed
        self._count = count
        self._user = User(*user) if user else None
        self._mongoses: tuple[FakeMongos, ...] = ()

    def __repr__(self) -> str:
        return f"<FakeMongoses {' '.join(map(repr, self._mongoses)) or 'not running'}>"

    @property
    def mongoses(self) -> tuple[FakeMongos, ...]:
        """The mongoses; empty before they are started."""
        return self._mongoses

    @property
    def uri(self) -> str:
        """The URI for a client of them.

        It has a `localThresholdMS` of a minute: by default a driver ignores a mongos that answers
        15 ms later than the nearest one on average, as one of them does for long on a busy machine;
        a fault at this one would never strike.

        Raises:
            RuntimeError: they were not started.
        """
        if not self._mongoses:
            raise RuntimeError(self._why_no_faults())
        addresses = ",".join(mongos.address for mongos in self._mongoses)
        user = self._user.in_uri if self._user else ""
        return f"mongodb://{user}{addresses}/?localThresholdMS=60000"

    def start(self) -> None:
        """Listen; blocks.

        Raises:
            OSError: no port was free.
            RuntimeError: they were started before, or the set was not.
        """
        if self._mongoses:
            raise RuntimeError("they were started before: they can be started once only")
        servers = [split_address(member.direct_address) for member in self._deployed.members]
        if not servers:
            raise RuntimeError("the replica set was not started")
        tls = getattr(self._deployed.members[0], "tls", None)  # a set has it everywhere
        shards: list[Shard] = []
        self._mongoses = tuple(
            FakeMongos(index, servers, shards, tls, self._user) for index in range(self._count)
        )
        try:
            for mongos in self._mongoses:
                mongos.start()
        except BaseException:
            self.close()
            raise
        self._faults = Faults({mongos.address: mongos.fault_list for mongos in self._mongoses})

    def close(self) -> None:
        """End all of them; blocks; fine to repeat."""
        for mongos in self._mongoses:
            mongos.close()

    async def kill(self, mongos: FakeMongos) -> None:
        """End one for good: its connections are closed, and nobody listens on its port.

        Args:
            mongos: one of these.

        Raises:
            ValueError: it is not.
        """
        require(mongos in self._mongoses, "mongos", mongos, f"one of {self._mongoses!r}")
        await to_thread.run_sync(mongos.close)

    def _why_no_faults(self) -> str:
        return "they were not started: use them in a `with` or `async with` block"
