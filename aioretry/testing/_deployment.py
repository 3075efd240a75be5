"""What every kind of deployment can do: starting, ending and breaking its servers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from anyio import to_thread

from aioretry.testing._cluster import Cluster, Settings
from aioretry.testing._fail_points import FailPoint, Mode, fail_command_data
from aioretry.testing._faults import Faults
from aioretry.testing._faulty import Faulty
from aioretry.testing._member import Member
from aioretry.testing._server import Server

_ONCE: Final[Mapping[str, float]] = {"times": 1}


class Deployment(Faulty):
    """What replica sets and standalones have in common.

    It holds nothing of an event loop: one object may serve any number of loops, one after the
    other or at once.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cluster = Cluster(settings)
        self._members: tuple[Member, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' '.join(map(repr, self._members)) or 'not running'}>"

    @property
    def members(self) -> tuple[Member, ...]:
        """Its servers; empty before it is started."""
        return self._members

    @property
    def uri(self) -> str:
        """The URI for a client of it.

        Raises:
            RuntimeError: it was not started.
        """
        if not self._members:
            raise RuntimeError("it was not started: use it in a `with` or `async with` block")
        addresses = ",".join(member.address for member in self._members)
        name = self._settings.set_name
        return f"mongodb://{addresses}/" + (f"?replicaSet={name}" if name else "")

    def start(self) -> None:
        """Start it and wait until it is ready; blocks.

        Raises:
            MongodNotFoundError: there is no mongod.
            MongodStartError: a server did not start; the message has the end of its log.
            RuntimeError: it was started or closed before.
        """
        self._cluster.start()
        proxies = self._cluster.proxies
        self._members = tuple(
            Member(server, proxies[server.index] if proxies else None)
            for server in self._cluster.servers
        )
        if proxies:
            peers = {
                member.address: (server.port, proxy.fault_list)
                for member, server, proxy in zip(
                    self._members,
                    self._cluster.servers,
                    self._cluster.member_proxies,
                    strict=False,  # there may be no such proxies
                )
            }
            self._faults = Faults({proxy.address: proxy.fault_list for proxy in proxies}, peers)

    def close(self) -> None:
        """Kill every server and remove every file; blocks; fine to repeat."""
        self._cluster.close()

    async def kill(self, member: Member) -> None:
        """Kill a server with SIGKILL and wait until it is gone; fine if it is dead or frozen."""
        await to_thread.run_sync(self._server(member).kill)

    async def restart(self, member: Member) -> None:
        """Start a server again on the same port and data, and wait until it is ready.

        A server that still runs is killed first.

        Raises:
            MongodStartError: it did not start, or did not get ready within a minute.
        """
        await to_thread.run_sync(self._cluster.restart, self._server(member))

    async def shut_down(self, member: Member) -> None:
        """Ask a server to shut down, as an operator would, and wait until it is gone.

        A primary steps down first. One that is dead is left so; a frozen one has to be thawed
        before.

        Raises:
            CommandFailedError: it refused.
            MongodStartError: it did not end within a minute.
            OSError: it did not answer.
        """
        await to_thread.run_sync(self._server(member).stop)

    async def freeze(self, member: Member) -> None:
        """Stop a server with SIGSTOP: its connections stay open, and nothing answers.

        Raises:
            RuntimeError: it is dead.
        """
        await to_thread.run_sync(self._server(member).freeze)

    async def thaw(self, member: Member) -> None:
        """Let a frozen server go on.

        Raises:
            RuntimeError: it is dead.
        """
        await to_thread.run_sync(self._server(member).thaw)

    async def heal(self) -> None:
        """Thaw and restart whatever is frozen or dead, and wait until every server is ready.

        For the end of a test, where later tests use the same servers.

        Raises:
            MongodStartError: a server did not start, or did not get ready within a minute.
            NoPrimaryError: none became primary within a minute.
        """
        await to_thread.run_sync(self._cluster.heal)

    def fail_point(
        self, name: str, mode: Mode, data: Mapping[str, Any], *, member: Member | None = None
    ) -> FailPoint:
        """Describe a fail point; `async with` turns it on, and off at the end.

        Args:
            name: the server's name for it, as `onPrimaryTransactionalWrite`.
            mode: `"alwaysOn"`, `{"times": n}` or `{"skip": n}`.
            data: its options.
            member: the server; by default the primary at the time that it is turned on.
        """
        return FailPoint(name, mode, data, self._finder(member))

    def fail_command(
        self,
        commands: Sequence[str] | str,
        *,
        mode: Mode = _ONCE,
        error_code: int | None = None,
        error_labels: Sequence[str] | None = None,
        close_connection: bool = False,
        write_concern_error: Mapping[str, Any] | None = None,
        block_ms: int | None = None,
        app_name: str | None = None,
        member: Member | None = None,
    ) -> FailPoint:
        """Describe commands that a server fails; `async with` makes it do so inside the block.

        Args:
            commands: one or more names of commands.
            mode: `{"times": n}`, `{"skip": n}` or `"alwaysOn"`; by default once.
            error_code: the code of the error to answer with, without running the command.
            error_labels: the labels of that error, instead of the server's own; needs 4.4.
            close_connection: close the connection, without running the command.
            write_concern_error: run the command, and put this error into the answer.
            block_ms: hold the command up for so many milliseconds first; needs 4.4.
            app_name: only for clients with this application name; needs 4.4.
            member: the server; by default the primary at the time that it is turned on.

        Raises:
            ValueError: there is nothing to do, or the servers are too old for it.
        """
        data = fail_command_data(
            self._cluster.servers[0].release if self._cluster.servers else None,
            (commands,) if isinstance(commands, str) else tuple(commands),
            error_code=error_code,
            error_labels=None if error_labels is None else tuple(error_labels),
            close_connection=close_connection,
            write_concern_error=write_concern_error,
            block_ms=block_ms,
            app_name=app_name,
        )
        return FailPoint("failCommand", mode, data, self._finder(member))

    def _why_no_faults(self) -> str:
        return "there are no proxies: it was not started, or not with faults=True"

    def _find_server(self) -> Server:
        """The server that is meant where none is named."""
        return self._cluster.servers[0]

    def _finder(self, member: Member | None) -> Callable[[], Awaitable[Server]]:
        async def find() -> Server:
            if member is not None:
                return self._server(member)
            return await to_thread.run_sync(self._find_server)

        return find

    def _server(self, member: Member) -> Server:
        if member not in self._members:
            raise ValueError(f"{member!r} belongs to another deployment")
        return self._cluster.servers[member.index]
