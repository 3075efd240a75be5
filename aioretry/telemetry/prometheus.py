"""Prometheus: metrics of writes, and of what carries them."""

from collections import Counter as CountOf
from collections.abc import Callable, Iterable

from aioretry import AttemptEnded, Event, OperationEnded, RetryScheduled
from aioretry._faces import Client
from aioretry.events import name_of
from aioretry.outbox import Relay
from aioretry.telemetry._describing import (
    BUCKETS,
    WAIT_BUCKETS,
    Clients,
    Observed,
    is_first_told,
    outcome_of_event,
    reason_of,
    waited_in_vain,
)

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as _missing:
    raise ImportError(
        "aioretry.telemetry.prometheus needs prometheus-client: "
        "pip install 'aioretry-mongo[telemetry]'"
    ) from _missing

__all__ = ["PrometheusHook"]

_WHERE = ("namespace", "operation")


class PrometheusHook:
    """A hook that keeps metrics: ``RetryClient(uri, hooks=[PrometheusHook()])``.

    One hook may serve several clients; a registry takes one hook.

    Args:
        registry: Where the metrics are registered; by default the library's own.
        namespace: Returns the label for a namespace, such as ``shop.orders``: for collections whose
            names have no end, a metric of each is kept for ever. By default the namespace itself.

    Raises:
        ValueError: The registry has one already.
    """

    wants_every_event = True
    wants_beginnings = False

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        namespace: Callable[[str], str] = str,
    ) -> None:
        self._label_of = namespace
        self._duration = Histogram(
            "aioretry_operation_duration_seconds",
            "How long writes took, by outcome.",
            (*_WHERE, "outcome"),
            buckets=(*BUCKETS, 30.0, 60.0),  # and failovers
            registry=registry,
        )
        self._operations = Counter(
            "aioretry_operations_total",
            "Writes that ended, by outcome and error.",
            (*_WHERE, "outcome", "error"),
            registry=registry,
        )
        self._retries = Counter(
            "aioretry_retries_total",
            "Retries, by the error before them.",
            (*_WHERE, "reason"),
            registry=registry,
        )
        self._waits = Histogram(
            "aioretry_server_wait_seconds",
            "How long writes waited for a server, of those that did.",
            _WHERE,
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._connection_waits = Histogram(
            "aioretry_connection_wait_seconds",
            "How long attempts waited for a connection.",
            ("server",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._connection_timeouts = Counter(
            "aioretry_connection_timeouts_total",
            "Attempts for which no connection was free in time.",
            registry=registry,
        )
        # To find those of labels takes as long as to count.
        self._of_ends: dict[tuple[str, ...], tuple[Histogram, Counter]] = {}
        self._of_servers: dict[tuple[str, int | None], Histogram] = {}
        self._clients = Clients()
        self._relays: Observed[Relay] = Observed()
        registry.register(_Pools(self._clients))
        registry.register(_Outboxes(self._relays))

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case AttemptEnded() if is_first_told(event, self):
                waited, server = event.command.connection_wait, event.address
                if waited is not None and server is not None:
                    waits = self._of_servers.get(server)
                    if waits is None:
                        waits = self._connection_waits.labels(name_of(server))
                        self._of_servers[server] = waits
                    waits.observe(waited)
                if waited_in_vain(event):
                    self._connection_timeouts.inc()
            case OperationEnded():
                where = self._where(event)
                duration, number = self._of_end(*where, outcome_of_event(event), reason_of(event))
                duration.observe(event.duration)
                number.inc()
                if event.server_wait > 0:
                    self._waits.labels(*where).observe(event.server_wait)
            case RetryScheduled():
                self._retries.labels(*self._where(event), reason_of(event)).inc()
            case _:
                pass

    def observe(self, client: Client) -> None:
        """Tell of a client's connections and threads too, whenever metrics are read.

        Args:
            client: The client; it is not kept alive by this.

        Raises:
            TypeError: It is a client of another class.
        """
        self._clients.add(client)

    def observe_relay(self, relay: Relay) -> None:
        """Tell of a relay's deliveries and of its outbox too, whenever metrics are read.

        Args:
            relay: The relay; it is not kept alive by this.

        Raises:
            TypeError: It is none.
        """
        if not isinstance(relay, Relay):
            raise TypeError(f"relay must be a Relay, not {relay!r}")
        self._relays.add(relay)

    def _of_end(self, *labels: str) -> tuple[Histogram, Counter]:
        found = self._of_ends.get(labels)
        if found is None:
            found = self._duration.labels(*labels[:-1]), self._operations.labels(*labels)
            self._of_ends[labels] = found
        return found

    def _where(self, event: OperationEnded | RetryScheduled) -> tuple[str, str]:
        return self._label_of(event.namespace), event.operation


class _Pools(Collector):
    """Gauges of clients, read when they are asked for."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def describe(self) -> Iterable[Metric]:
        """Return the gauges without figures."""
        return _gauges()

    def collect(self) -> Iterable[Metric]:
        """Return the gauges with their figures of now."""
        connections, most, threads, queued = _gauges()
        for server, count in self._clients.most_connections().items():
            most.add_metric([server], count)
        for labels, count in self._clients.connections().items():
            connections.add_metric(labels, count)
        for state, count in self._clients.threads().items():
            threads.add_metric([state], count)
        queued.add_metric([], self._clients.queued())
        return connections, most, threads, queued


def _gauges() -> tuple[GaugeMetricFamily, ...]:
    return (
        GaugeMetricFamily(
            "aioretry_connections", "Connections, by server and state.", labels=["server", "state"]
        ),
        GaugeMetricFamily(
            "aioretry_connections_max", "Connections that there may be.", labels=["server"]
        ),
        GaugeMetricFamily(
            "aioretry_threads", "Threads that carry attempts, by state.", labels=["state"]
        ),
        GaugeMetricFamily(
            "aioretry_queued_attempts", "Attempts that wait for a connection or a thread."
        ),
    )


class _Outboxes(Collector):
    """What relays have done, and how their outboxes were a while ago."""

    def __init__(self, relays: Observed[Relay]) -> None:
        self._relays = relays

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without figures."""
        return _of_outboxes()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their figures of now."""
        deliveries, entries, oldest = _of_outboxes()
        counts: CountOf[tuple[str, str, str]] = CountOf()
        for relay in self._relays.all():
            outbox = relay.outbox.full_name
            for (kind, result), count in dict(relay.deliveries).items():  # it grows meanwhile
                counts[outbox, kind, result] += count
            if relay.status is not None:  # of all relays, that is so of the one at work
                entries.add_metric([outbox, "pending"], relay.status.pending)
                entries.add_metric([outbox, "dead"], relay.status.dead)
                oldest.add_metric([outbox], relay.status.oldest_seconds)
        for labels, count in counts.items():
            deliveries.add_metric(labels, count)
        return deliveries, entries, oldest


def _of_outboxes() -> tuple[CounterMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    return (
        CounterMetricFamily(
            "aioretry_outbox_deliveries",
            "Calls of the function that delivers, by kind and result.",
            labels=["outbox", "kind", "result"],
        ),
        GaugeMetricFamily(
            "aioretry_outbox_entries",
            "Entries that are to be handed on, or were given up.",
            labels=["outbox", "state"],
        ),
        GaugeMetricFamily(
            "aioretry_outbox_oldest_seconds",
            "For how long the oldest entry that is to be handed on has waited.",
            labels=["outbox"],
        ),
    )
