"""The servers of one deployment, and the proxies before them; all blocking."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aioretry.testing._admin import CommandFailedError
from aioretry.testing._election import (
    NoPrimaryError,
    depose,
    find_primary,
    initiate,
    no_primary_error,
    wait_until_ready,
    wait_until_settled,
)
from aioretry.testing._mongod import Mongod, find_mongod
from aioretry.testing._ports import HOST
from aioretry.testing._processes import Processes
from aioretry.testing._proxy import Proxy
from aioretry.testing._server import PAUSE, START_TIMEOUT, MemberState, MongodStartError, Server

_MOST_MEMBERS: Final = 7  # more can't all vote
_NOT_PRIMARY: Final = 10107
_AWAY: Final = 10.0  # seconds that a primary leaves to the others before its restart


@dataclass(frozen=True, slots=True)
class Settings:
    """What to start.

    As the arguments of `ReplicaSet`; a standalone has no `set_name`.
    """

    members: int
    mongod: Mongod | None
    version: str | None
    set_name: str | None
    faults: bool
    member_proxies: bool = False
    set_settings: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


class Cluster:
    """Running servers.

    Everything that it starts is under one keeper process, which ends it all when this process
    ends.

    Raises:
        ValueError: no replica set has so many members.
    """

    def __init__(self, settings: Settings) -> None:
        if not 1 <= settings.members <= _MOST_MEMBERS:
            raise ValueError(f"a replica set has 1 to {_MOST_MEMBERS} members")
        self.servers: list[Server] = []
        self._settings = settings
        self.proxies: list[Proxy] = []  # one a server, or none
        self.member_proxies: list[Proxy] = []  # the same
        self._lock = threading.Lock()  # guards the two below
        self._processes: Processes | None = None
        self._closed = False

    def start(self) -> None:
        """Start everything and wait until it is ready; on any failure nothing is left.

        Raises:
            MongodNotFoundError: there is no mongod.
            MongodStartError: a server did not start.
            RuntimeError: it was started or closed before.
        """
        mongod = self._settings.mongod or find_mongod(self._settings.version)
        processes = self._begin()
        try:
            self._start(mongod, processes)
        except BaseException as exc:
            closed = self._closed
            self.close()
            if closed and isinstance(exc, Exception):  # whatever it met when its servers ended
                raise RuntimeError("it was closed before it had started") from exc
            raise

    def close(self) -> None:
        """End everything and remove every file; fine to repeat, and while it is starting."""
        with self._lock:
            self._closed = True
            processes = self._processes
        for proxy in (*self.proxies, *self.member_proxies):
            proxy.close()
        if processes is not None:
            processes.close()
        for server in self.servers:
            server.leave()

    def restart(self, server: Server) -> None:
        """Start a server again on its port and data, killing it first where it still runs.

        Raises:
            MongodStartError: it did not start, or did not become primary or secondary.
        """
        deadline = time.monotonic() + START_TIMEOUT
        if server.state is not MemberState.DEAD:
            server.kill()
        server.launch()
        server.wait_until_up(may_move=False)
        if self._settings.set_name is not None:
            wait_until_ready(server, deadline)

    def rolling_restart(self) -> None:
        """Shut down and start every member again, the primary last, after it has stepped down.

        Raises:
            MongodStartError: a server did not end or start, or get ready.
            NoPrimaryError: none is primary within a minute.
        """
        left = list(self.servers)
        while left:
            primary = self.wait_for_primary(START_TIMEOUT, None)
            server = next((one for one in left if one is not primary), primary)
            if server is primary and len(self.servers) > 1 and not self._hand_over(primary):
                continue
            self._shut_down_and_start(server)
            left.remove(server)
        self.wait_for_primary(START_TIMEOUT, None)

    def _hand_over(self, primary: Server) -> bool:
        """Say whether another one is primary now; not if this one was none any more."""
        try:
            depose(primary, _AWAY, alone=False)
        except CommandFailedError as exc:
            if exc.code != _NOT_PRIMARY:
                raise
            return False
        self.wait_for_primary(START_TIMEOUT, primary)
        return True

    def _shut_down_and_start(self, server: Server) -> None:
        if server.state is MemberState.RUNNING:
            server.stop()
        self.restart(server)

    def heal(self) -> None:
        """Thaw and restart whatever is frozen or dead, and wait until all follow one primary.

        Raises:
            MongodStartError: a server did not start, or did not follow a primary.
            NoPrimaryError: none became primary within a minute.
        """
        deadline = time.monotonic() + START_TIMEOUT
        try:
            self._wake(deadline)
        except MongodStartError:  # one has died by itself, or does so now
            self._wake(deadline)

    def _wake(self, deadline: float) -> None:
        for server in self.servers:
            server.wake()
        if self._settings.set_name is None:
            for server in self.servers:
                server.wait_until_up(may_move=False)
        else:
            wait_until_settled(self.servers, deadline)

    def wait_for_primary(self, timeout: float, other_than: Server | None) -> Server:
        """Wait until a member is primary.

        Args:
            timeout: seconds.
            other_than: a member that doesn't count.

        Raises:
            NoPrimaryError: none became primary in time.
        """
        deadline = time.monotonic() + timeout
        others = [server for server in self.servers if server is not other_than]
        while True:
            primary = find_primary(others)
            if primary is not None:
                return primary
            if time.monotonic() > deadline or self._closed:
                raise no_primary_error(self.servers, timeout)
            time.sleep(PAUSE)

    def step_down(self, seconds: float) -> Server:
        """Make the primary step down.

        Args:
            seconds: how long it must not become primary again.

        Returns:
            The server that was the primary.

        Raises:
            NoPrimaryError: there is none.
            CommandFailedError: it refused.
        """
        while True:
            primary = find_primary(self.servers)
            if primary is None:
                raise NoPrimaryError("no member is primary")
            running = [server for server in self.servers if server.state is MemberState.RUNNING]
            try:
                depose(primary, seconds, alone=len(running) == 1)
            except CommandFailedError as exc:
                if exc.code != _NOT_PRIMARY:  # else it was deposed by itself meanwhile
                    raise
            else:
                return primary

    def _begin(self) -> Processes:
        with self._lock:
            if self._closed or self._processes is not None:
                raise RuntimeError("it was started or closed before: it can be started once only")
            self._processes = Processes()
            return self._processes

    def _start(self, mongod: Mongod, processes: Processes) -> None:
        settings = self._settings
        self.servers += [
            Server(
                processes,
                mongod,
                index,
                set_name=settings.set_name,
                parameters=settings.parameters,
            )
            for index in range(settings.members)
        ]
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_until_up(may_move=True)
        if settings.member_proxies:
            self._start_proxies(self.member_proxies, {})
        known = [one.address for one in self.member_proxies or self.servers]  # to each other
        if settings.set_name is not None:
            initiate(self.servers, known, settings.set_name, settings.set_settings)
        if settings.faults:
            names: dict[str, str] = {}  # complete before the first client comes
            self._start_proxies(self.proxies, names)
            names.update(zip(known, (proxy.address for proxy in self.proxies), strict=True))
        if self._closed:
            raise RuntimeError("it was closed")

    def _start_proxies(self, proxies: list[Proxy], names: Mapping[str, str]) -> None:
        for server in self.servers:
            proxies.append(Proxy(HOST, server.port, names=names))
            proxies[-1].start()
