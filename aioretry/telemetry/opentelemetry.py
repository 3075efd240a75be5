"""OpenTelemetry: a span for each write, with its attempts in it, and metrics."""

from collections.abc import Iterable
from typing import Final

from aioretry import (
    AttemptEnded,
    Event,
    OperationBegan,
    OperationEnded,
    RetryScheduled,
    __version__,
)
from aioretry._faces import Client
from aioretry.telemetry._describing import (
    BUCKETS,
    WAIT_BUCKETS,
    Clients,
    command_of,
    outcome_of_event,
    reason_of,
)

try:
    from opentelemetry import trace
    from opentelemetry.metrics import (
        CallbackOptions,
        Meter,
        MeterProvider,
        Observation,
        get_meter_provider,
    )
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
except ModuleNotFoundError as exc:
    raise ImportError(
        "aioretry.telemetry.opentelemetry needs opentelemetry-api: "
        "pip install 'aioretry-mongo[telemetry]'"
    ) from exc

__all__ = ["OpenTelemetryHook"]

Attributes = dict[str, str | int | float | bool]

_NAME: Final = "aioretry"


class OpenTelemetryHook:
    """A hook that makes spans and metrics: ``RetryClient(uri, hooks=[OpenTelemetryHook()])``.

    Each write is one CLIENT span, a child of the span that is current where the write is called,
    with an event for each attempt and each retry. Names and attributes follow OpenTelemetry's
    semantic conventions for MongoDB; what is beyond them begins with ``aioretry.``. One hook may
    serve several clients.

    Args:
        tracer_provider: Makes the tracer; None for the global one.
        meter_provider: Makes the meter; None for the global one.
        spans: Whether to make spans.
        metrics: Whether to make metrics.
    """

    wants_every_event = True

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        spans: bool = True,
        metrics: bool = True,
    ) -> None:
        self._tracer = trace.get_tracer(_NAME, __version__, tracer_provider) if spans else None
        provider = meter_provider or get_meter_provider()
        self._metrics = _Metrics(provider.get_meter(_NAME, __version__)) if metrics else None

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case OperationBegan():
                self._begin(event)
            case AttemptEnded():
                self._add_attempt(event)
            case RetryScheduled():
                self._add_retry(event)
            case OperationEnded():
                self._end(event)

    def observe(self, client: Client) -> None:
        """Tell of a client's connections and threads too, whenever metrics are read.

        Args:
            client: The client; it is not kept alive by this.
        """
        if self._metrics is not None:
            self._metrics.clients.add(client)

    def _begin(self, event: OperationBegan) -> None:
        if self._tracer is not None:
            event.notes[self] = self._tracer.start_span(
                f"{command_of(event.operation)} {event.namespace}",
                kind=SpanKind.CLIENT,
                attributes=_attributes(event),
            )

    def _add_attempt(self, event: AttemptEnded) -> None:
        span: Span | None = event.notes.get(self)
        if span is None or not span.is_recording():
            return
        server = _server(event.address)
        span.set_attributes(server)
        attributes: Attributes = {
            "aioretry.attempt.number": event.attempt,
            "aioretry.attempt.duration": event.duration,
            "aioretry.attempt.sent": event.sent,
            "aioretry.server_wait": event.server_wait,
        }
        span.add_event("aioretry.attempt", attributes | server | _error(event))

    def _add_retry(self, event: RetryScheduled) -> None:
        span: Span | None = event.notes.get(self)
        if span is not None and span.is_recording():
            attributes: Attributes = {
                "aioretry.attempt.number": event.attempt,
                "aioretry.backoff": event.wait,
            }
            span.add_event("aioretry.retry", attributes | _server(event.address) | _error(event))
        if self._metrics is not None:
            self._metrics.add_retry(event)

    def _end(self, event: OperationEnded) -> None:
        span: Span | None = event.notes.pop(self, None)
        try:
            if span is not None:
                _conclude(span, event)
            if self._metrics is not None:
                self._metrics.add_operation(event, span)
        finally:
            if span is not None:
                span.end()


class _Metrics:
    """The instruments."""

    def __init__(self, meter: Meter) -> None:
        self.clients = Clients()
        self._duration = meter.create_histogram(
            "db.client.operation.duration",
            "s",
            "Duration of database client operations.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._operations = meter.create_counter(
            "aioretry.client.operations", "{operation}", "Writes that ended, by outcome."
        )
        self._retries = meter.create_counter(
            "aioretry.client.retries", "{retry}", "Retries, by the error before them."
        )
        self._waits = meter.create_histogram(
            "aioretry.client.server_wait",
            "s",
            "Time that a write spent waiting for a server, of those that did.",
            explicit_bucket_boundaries_advisory=WAIT_BUCKETS,
        )
        meter.create_observable_up_down_counter(
            "db.client.connection.count",
            [self._observe_connections],
            "{connection}",
            "The number of connections that are in a state.",
        )
        meter.create_observable_up_down_counter(
            "aioretry.client.threads",
            [self._observe_threads],
            "{thread}",
            "The number of threads that carry attempts, by state.",
        )
        meter.create_observable_up_down_counter(
            "aioretry.client.queued_attempts",
            [self._observe_queued],
            "{attempt}",
            "The number of attempts that wait for a connection or a thread.",
        )

    def add_operation(self, event: OperationEnded, span: Span | None) -> None:
        """Count an operation that ended."""
        where = _attributes(event)
        attributes = where | {"aioretry.outcome": outcome_of_event(event)} | _error(event)
        context = None if span is None else trace.set_span_in_context(span)
        self._duration.record(event.duration, attributes, context)
        self._operations.add(1, attributes, context)
        if event.server_wait > 0:
            self._waits.record(event.server_wait, where, context)

    def add_retry(self, event: RetryScheduled) -> None:
        """Count a retry."""
        self._retries.add(1, _attributes(event) | _error(event))

    def _observe_connections(self, _: CallbackOptions) -> Iterable[Observation]:
        for (server, state), count in self.clients.connections().items():
            names = {"db.client.connection.pool.name": server, "db.client.connection.state": state}
            yield Observation(count, names)

    def _observe_threads(self, _: CallbackOptions) -> Iterable[Observation]:
        for state, count in self.clients.threads().items():
            yield Observation(count, {"aioretry.thread.state": state})

    def _observe_queued(self, _: CallbackOptions) -> Iterable[Observation]:
        yield Observation(self.clients.queued())


def _conclude(span: Span, event: OperationEnded) -> None:
    span.set_attributes(
        {
            "aioretry.outcome": outcome_of_event(event),
            "aioretry.attempts": event.attempts,
            "aioretry.server_wait": event.server_wait,
        }
    )
    if event.error_class is not None:
        # Without the error's text, which may hold values of documents.
        span.set_attributes(_error(event))
        span.set_status(Status(StatusCode.ERROR, event.error_class))


def _attributes(event: OperationBegan | RetryScheduled | OperationEnded) -> Attributes:
    database, _, collection = event.namespace.partition(".")
    return {
        "db.system.name": "mongodb",
        "db.namespace": database,
        "db.collection.name": collection,
        "db.operation.name": command_of(event.operation),
        "aioretry.operation": event.operation,
    }


def _server(address: tuple[str, int | None] | None) -> Attributes:
    if address is None:
        return {}
    host, port = address
    return (
        {"server.address": host} if port is None else {"server.address": host, "server.port": port}
    )


def _error(event: AttemptEnded | RetryScheduled | OperationEnded) -> Attributes:
    if event.error_class is None:
        return {}
    attributes: Attributes = {"error.type": reason_of(event)}
    if event.error_code is not None:
        attributes["db.response.status_code"] = str(event.error_code)
    return attributes
