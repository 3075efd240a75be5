"""What PyMongo knows of a deployment, as the port's plain values."""

import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pymongo.server_description import ServerDescription
from pymongo.server_selectors import any_server_selector
from pymongo.server_type import SERVER_TYPE
from pymongo.topology_description import TOPOLOGY_TYPE, TopologyDescription

from aioretry._commands.command import CommandLimits
from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.port import Address, ConnectionCounts, ServerKind, ServerView, TopologyView

ServerSelector = Callable[[Sequence[ServerDescription]], Sequence[ServerDescription]]

_MISSED_LOOKS = 3
_LEAST_SILENCE = 90.0  # names may take long to be resolved, and a process may have been stopped

_KINDS = {
    SERVER_TYPE.Standalone: ServerKind.STANDALONE,
    SERVER_TYPE.RSPrimary: ServerKind.PRIMARY,
    SERVER_TYPE.Mongos: ServerKind.MONGOS,
    SERVER_TYPE.LoadBalancer: ServerKind.LOAD_BALANCER,
}
_WITH_SECONDARIES = {
    TOPOLOGY_TYPE.ReplicaSetWithPrimary,
    TOPOLOGY_TYPE.ReplicaSetNoPrimary,
}


class _Known(weakref.ref[TopologyDescription]):
    """A description, for whoever compares it or tells it.

    It has the servers' latest errors, whose frames would keep alive what was sent.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(self())


class Views:
    """Looks at a client's deployment.

    Args:
        calls: The client.
    """

    def __init__(self, calls: ClientCalls) -> None:
        self._calls = calls
        options: Any = calls.delegate.options
        self._selector: ServerSelector = options.server_selector
        self._latency_window: float = options.local_threshold_ms / 1000
        self.are_users = self._selector is not any_server_selector
        """Whether a function of the user's has a part in them."""

        self._untold: Collection[Address] = ()
        self._known: _Known | None = None
        self._latest = TopologyView({}, self._latency_window, source=None)

    def look(self) -> TopologyView:
        """Return what is known now.

        Raises:
            ConfigurationError: A server is too old or too new for the driver.
        """
        calls, known = self._calls, self._known
        description = calls.delegate.topology_description
        is_same = known is not None and description is known() and calls.untold is self._untold
        if not is_same or self.are_users:
            description.check_compatible()
            self._known = known = _Known(description)
            self._untold = calls.untold
            self._latest = self._view_of(description, known)
        return self._latest

    def unattended(self) -> float | None:
        """Return for how many seconds no server was looked at, if that is too long; or None."""
        options, description = (
            self._calls.delegate.options,
            self._calls.delegate.topology_description,
        )
        servers = description.server_descriptions().values()
        looked_at = [each for each in servers if each.is_server_type_known or each.error]
        connecting = options.pool_options.connect_timeout
        if not looked_at or not connecting or options.load_balanced:
            return None
        silence = time.monotonic() - max(each.last_update_time for each in looked_at)
        most = max(_MISSED_LOOKS * (options.heartbeat_frequency + connecting), _LEAST_SILENCE)
        return silence if silence > most else None

    def _view_of(self, description: TopologyDescription, known: _Known) -> TopologyView:
        servers = list(description.server_descriptions().values())
        if description.topology_type in {TOPOLOGY_TYPE.Single, TOPOLOGY_TYPE.LoadBalanced}:
            taking = [server for server in servers if server.is_server_type_known]
        else:
            taking = list(self._selector([server for server in servers if server.is_writable]))
        readable = None
        if description.topology_type in _WITH_SECONDARIES:
            readable = partial(self._readable, known, self._untold)
        views = self._views_of(taking, self._untold)
        return TopologyView(views, self._latency_window, known, readable)

    def _readable(
        self, known: _Known, untold: Collection[Address], preference: Any
    ) -> Mapping[Address, ServerView]:
        description = known() or self._calls.delegate.topology_description
        select: Any = description.apply_selector
        return self._views_of(select(preference, custom_selector=self._selector), untold)

    def _views_of(
        self, servers: Iterable[ServerDescription], untold: Collection[Address]
    ) -> dict[Address, ServerView]:
        return {
            server.address: self._server_view_of(server)
            for server in servers
            if server.address not in untold
        }

    def _server_view_of(self, server: ServerDescription) -> ServerView:
        version = server.topology_version
        kind = _KINDS.get(server.server_type, ServerKind.OTHER)
        timeout = server.logical_session_timeout_minutes
        return ServerView(
            address=server.address,
            kind=kind,
            max_wire_version=server.max_wire_version,
            # Nobody asks a load balancer; the servers behind it have sessions.
            has_sessions=timeout is not None or kind is ServerKind.LOAD_BALANCER,
            topology_version=None if not version else (version["processId"], version["counter"]),
            round_trip_time=server.round_trip_time or 0.0,
            limits=CommandLimits(
                server.max_bson_size, server.max_message_size, server.max_write_batch_size
            ),
            operation_count=partial(self._operation_count, server.address),
            source=server,
            hosts=server.all_hosts,
            session_minutes=timeout,
        )

    def _operation_count(self, address: Address) -> int:
        server: Any = self._calls.topology().get_server_by_address(address)
        return 0 if server is None else int(server.pool.operation_count)


def connection_counts(delegate: Any) -> Mapping[Address, ConnectionCounts]:
    """Return how many connections a client's pools have; no lock.

    Args:
        delegate: The client.
    """
    return {
        address: ConnectionCounts(
            pool.active_sockets, len(pool.conns), pool.opts.max_pool_size or 0
        )
        for address, pool in pools_of(delegate)
    }


def pools_of(delegate: Any) -> Iterator[tuple[Address, Any]]:
    """Return the pools of a client's servers; no lock."""
    topology: Any = delegate._topology
    if topology is None:  # nobody has looked up its servers yet
        return
    for address in topology.description.server_descriptions():
        server: Any = topology.get_server_by_address(address)
        if server is not None:
            yield address, server.pool
