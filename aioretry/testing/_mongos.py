"""Fake mongoses: proxies that a driver takes for the routers of a sharded cluster."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from anyio import to_thread
from bson import ObjectId

from aioretry.testing._admin import split_address
from aioretry.testing._conversation import Conversation
from aioretry.testing._fault import FaultList
from aioretry.testing._faults import Faults
from aioretry.testing._link import Links
from aioretry.testing._listening_thread import ListeningThread
from aioretry.testing._router import Router, Shard
from aioretry.testing._running import Running


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


class FakeMongos:
    """One fake mongos; made by `FakeMongoses`.

    Args:
        index: its number, from 0.
        shard: the set behind it.
    """

    def __init__(self, index: int, shard: Shard) -> None:
        self._index = index
        self._shard = shard
        self._process = ObjectId()
        self._fault_list = FaultList(self._partitioned)
        self._links: Links | None = None  # while the thread runs
        self._thread = ListeningThread("aioretry-mongos", self._make_links)

    def __repr__(self) -> str:
        return f"<FakeMongos {self.index} {self.address}>"

    @property
    def index(self) -> int:
        """Its number, from 0."""
        return self._index

    @property
    def host(self) -> str:
        """The host that it listens on."""
        return self._thread.address.partition(":")[0]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._thread.port

    @property
    def address(self) -> str:
        """Host and port that it listens on."""
        return self._thread.address

    @property
    def fault_list(self) -> FaultList:
        """The faults that are armed at it."""
        return self._fault_list

    def start(self) -> None:
        """Listen, on a free port.

        Raises:
            OSError: no port was free.
        """
        self._thread.start()

    def close(self) -> None:
        """Close every connection and the port, as if it had died; fine to repeat."""
        self._thread.close()

    def _make_links(self) -> Links:
        async def connect(upstream: asyncio.Protocol) -> None:
            Router(upstream, self._shard, self._process)

        def converse() -> Conversation:
            return Conversation(self._fault_list, {}, is_mongos=True)

        self._links = Links(self._fault_list, converse, connect)
        return self._links

    def _partitioned(self) -> None:
        if self._links is not None:
            self._thread.run(self._links.look_at_partitions)


class FakeMongoses(Running):
    """Two or more proxies before one replica set that a driver takes for a sharded cluster.

    Each answers `hello` as a mongos does, and routes everything else to the present primary. While
    there is none, commands wait for one, for up to 20 seconds. An answer that tells of a state
    change of the primary, or its loss, becomes error 6, HostUnreachable, with the labels that a
    mongos gives. Reads go to the primary, whatever their read preference; there are no chunks, no
    commands of a cluster's administration, and no authentication.

    Use it in a `with` or an `async with` block, inside that of the set.

        async with ReplicaSet() as servers, FakeMongoses(servers) as cluster:
            client = RetryClient(cluster.uri)

    Args:
        deployed: a running replica set: a `ReplicaSet`, with or without faults of its own, or a
            `BlackPipe`.
        count: how many mongoses.

    Raises:
        ValueError: there is to be none of them.
    """

    def __init__(self, deployed: Deployed, count: int = 2) -> None:
        if count < 1:
            raise ValueError(f"count is {count!r}: a number from 1 on is needed")
        self._deployed = deployed
        self._count = count
        self._mongoses: tuple[FakeMongos, ...] = ()
        self._faults: Faults | None = None

    def __repr__(self) -> str:
        return f"<FakeMongoses {' '.join(map(repr, self._mongoses)) or 'not running'}>"

    @property
    def mongoses(self) -> tuple[FakeMongos, ...]:
        """The mongoses; empty before they are started."""
        return self._mongoses

    @property
    def uri(self) -> str:
        """The URI for a client of them.

        Raises:
            RuntimeError: they were not started.
        """
        if not self._mongoses:
            raise RuntimeError("they were not started: use them in a `with` or `async with` block")
        return f"mongodb://{','.join(mongos.address for mongos in self._mongoses)}/"

    @property
    def faults(self) -> Faults:
        """What the mongoses can do wrong; each of them can be named as the `member`.

        Raises:
            RuntimeError: they were not started.
        """
        if self._faults is None:
            raise RuntimeError("they were not started: use them in a `with` or `async with` block")
        return self._faults

    def start(self) -> None:
        """Listen; blocks.

        Raises:
            OSError: no port was free.
            RuntimeError: they were started before, or the set was not.
        """
        if self._mongoses:
            raise RuntimeError("they were started before: they can be started once only")
        servers = [member.direct_address for member in self._deployed.members]
        if not servers:
            raise RuntimeError("the replica set was not started")
        shard = Shard([split_address(server) for server in servers])
        self._mongoses = tuple(FakeMongos(index, shard) for index in range(self._count))
        try:
            for mongos in self._mongoses:
                mongos.start()
        except BaseException:
            self.close()
            raise
        self._faults = Faults({mongos.address: mongos.fault_list for mongos in self._mongoses})

    def verify(self) -> None:
        """Raise an error if a fault was declared and never struck.

        Raises:
            FaultNotFiredError: a fault was declared and never struck.
        """
        if self._faults is not None:
            self._faults.verify()

    def close(self) -> None:
        """End all of them; blocks; fine to repeat."""
        for mongos in self._mongoses:
            mongos.close()

    async def kill(self, mongos: FakeMongos) -> None:
        """End one for good: its connections are closed, and nobody listens on its port.

        Args:
            mongos: one of these.
        """
        await to_thread.run_sync(mongos.close)
