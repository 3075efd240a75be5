"""Real servers for tests: a replica set, or a standalone."""

from collections.abc import Mapping

from anyio import to_thread

from aioretry.testing._cluster import Settings
from aioretry.testing._deployment import Deployment
from aioretry.testing._election import NoPrimaryError, find_primary, find_secondaries
from aioretry.testing._member import Member
from aioretry.testing._mongod import Mongod
from aioretry.testing._server import Server


class ReplicaSet(Deployment):
    """A replica set of real servers on this machine, in a temporary folder.

    Use it in a `with` or an `async with` block: both start it, wait until every member is ready,
    and leave neither a process nor a file behind, even if this process gets killed inside.
    Secondaries copy from the primary alone (`chainingAllowed: false`)::

        async with ReplicaSet() as servers:
            client = RetryClient(servers.uri)

    Args:
        members: how many servers, 1 to 7.
        version: as `6.0`; see `find_mongod`.
        faults: put a proxy before each server, which can do things wrong (`ReplicaSet.faults`).
        member_proxies: put another one before each server, for the other members, so that they
            can be parted (`Faults.isolate`); implies `faults`.
        name: the name of the set.
        election_timeout_ms: how long secondaries miss their primary before they elect another, in
            milliseconds.
        heartbeat_interval_ms: how often members look at each other, in milliseconds.
        parameters: server parameters (`--setParameter`).
        mongod: the program; by default what `find_mongod` finds.

    Raises:
        ValueError: no set has so many members.
    """

    def __init__(
        self,
        members: int = 3,
        version: str | None = None,
        *,
        faults: bool = False,
        member_proxies: bool = False,
        name: str = "rs0",
        election_timeout_ms: int = 2000,
        heartbeat_interval_ms: int = 500,
        parameters: Mapping[str, str] | None = None,
        mongod: Mongod | None = None,
    ) -> None:
        super().__init__(
            Settings(
                members,
                mongod,
                version,
                name,
                faults or member_proxies,
                member_proxies,
                {
                    "electionTimeoutMillis": election_timeout_ms,
                    "heartbeatIntervalMillis": heartbeat_interval_ms,
                    # In a new set, a secondary that looks at another one as its source may find its
                    # oplog to begin too late, and then shuns it for a minute, even as the primary:
                    # after a kill, no write would reach a majority.
                    "chainingAllowed": False,
                },
                parameters or {},
            )
        )

    async def primary(self) -> Member:
        """Ask the members which one is the primary.

        Dead and frozen ones don't hold it up.

        Raises:
            NoPrimaryError: none is at the moment.
        """
        server = await to_thread.run_sync(self._find_server, abandon_on_cancel=True)
        return self._member(server)

    async def secondaries(self) -> tuple[Member, ...]:
        """Ask the members which ones are secondaries at the moment."""
        servers = await to_thread.run_sync(
            find_secondaries, self._cluster.servers, abandon_on_cancel=True
        )
        return tuple(map(self._member, servers))

    async def wait_for_primary(
        self,
        timeout: float = 30.0,  # noqa: ASYNC109  # waiting is what it is for
        *,
        other_than: Member | None = None,
    ) -> Member:
        """Wait until a member is the primary.

        Args:
            timeout: seconds.
            other_than: a member that doesn't count, as one that was just killed.

        Raises:
            NoPrimaryError: none became primary in time.
        """
        server = await to_thread.run_sync(
            self._cluster.wait_for_primary,
            timeout,
            None if other_than is None else self._server(other_than),
            abandon_on_cancel=True,
        )
        return self._member(server)

    async def step_down(self, *, seconds: float = 10.0) -> Member:
        """Make the primary step down, even if no secondary is ready to take over.

        Args:
            seconds: how long it must not become primary again; rounded up to whole ones.

        Returns:
            The member that was the primary.

        Raises:
            NoPrimaryError: there is none.
        """
        return self._member(await to_thread.run_sync(self._cluster.step_down, seconds))

    async def rolling_restart(self) -> None:
        """Restart every member, as for an upgrade: a clean shutdown each, the primary last.

        The primary steps down first. A one-member set is away meanwhile.

        Raises:
            MongodStartError: a server did not end or start, or did not get ready within a minute.
            NoPrimaryError: none became primary within a minute.
        """
        await to_thread.run_sync(self._cluster.rolling_restart)

    def _find_server(self) -> Server:
        primary = find_primary(self._cluster.servers)
        if primary is None:
            raise NoPrimaryError("no member is primary")
        return primary

    def _member(self, server: Server) -> Member:
        return self._members[server.index]


class Standalone(Deployment):
    """A real server that is no member of a replica set, on this machine, in a temporary folder.

    Used and cleaned up like a `ReplicaSet`.

    Args:
        version: as `6.0`; see `find_mongod`.
        faults: put a proxy before it, which can do things wrong (`Standalone.faults`).
        parameters: server parameters (`--setParameter`).
        mongod: the program; by default what `find_mongod` finds.
    """

    def __init__(
        self,
        version: str | None = None,
        *,
        faults: bool = False,
        parameters: Mapping[str, str] | None = None,
        mongod: Mongod | None = None,
    ) -> None:
        super().__init__(Settings(1, mongod, version, None, faults, parameters=parameters or {}))

    @property
    def member(self) -> Member:
        """The server.

        Raises:
            RuntimeError: it was not started.
        """
        if not self._members:
            raise RuntimeError("it was not started: use it in a `with` or `async with` block")
        return self._members[0]
