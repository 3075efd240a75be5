"""OpenTelemetry: a span for each operation, one for each attempt in it, and metrics."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bson import json_util

from aioretry import (
    AttemptBegan,
    AttemptEnded,
    Event,
    OperationBegan,
    OperationEnded,
    RetryScheduled,
    SentCommand,
    __version__,
)
from aioretry._faces import Client
from aioretry.events import name_of
from aioretry.telemetry._describing import (
    BUCKETS,
    WAIT_BUCKETS,
    Clients,
    command_of,
    is_first_told,
    outcome_of_event,
    reason_of,
    waited_in_vain,
)

try:
    from opentelemetry import context, trace
    from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context
    from opentelemetry.metrics import (
        CallbackOptions,
        Meter,
        MeterProvider,
        Observation,
        get_meter_provider,
    )
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ModuleNotFoundError as _missing:
    raise ImportError(
        "aioretry.telemetry.opentelemetry needs opentelemetry-api: "
        "pip install 'aioretry-mongo[telemetry]'"
    ) from _missing

__all__ = ["OpenTelemetryHook"]

Attributes = dict[str, str | int | float | bool]

_NAME: Final = "aioretry"
_SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
_LENGTH_VARIABLE: Final = "OTEL_PYTHON_INSTRUMENTATION_MONGODB_QUERY_TEXT_MAX_LENGTH"
_SYSTEM: Final = {"db.system.name": "mongodb"}
_TRANSACTION: Final = "transaction"
_NOT_IN_TEXT: Final = frozenset({"lsid", "$db", "$clusterTime", "signature"})


class OpenTelemetryHook:
    """A hook that makes spans and metrics: ``RetryClient(uri, hooks=[OpenTelemetryHook()])``.

    Each operation is one CLIENT span, a child of the span that is current where it is called, or of
    the transaction's that it is a part of. Each attempt is a CLIENT span in it, current while the
    attempt is made: to instrumentations that listen to commands, those of aioretry are suppressed,
    so that no command has two spans. Names and attributes follow MongoDB's specification for
    drivers (open-telemetry, "Instrumenting Driver Operations" and "Instrumenting Server Commands")
    and OpenTelemetry's semantic conventions; what is beyond them begins with ``aioretry.``. One
    hook may serve several clients.

    Args:
        tracer_provider: Makes the tracer; None for the global one.
        meter_provider: Makes the meter; None for the global one.
        spans: Whether to make spans.
        metrics: Whether to make metrics.
        query_text_max_length: How many characters of a command ``db.query.text`` may have, which
            holds what the user gave; 0 for none of it. None takes it from the environment variable
            ``OTEL_PYTHON_INSTRUMENTATION_MONGODB_QUERY_TEXT_MAX_LENGTH``; without that it is 0.

    Raises:
        ValueError: The length is no whole number, or is negative.
    """

    wants_every_event = True

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        spans: bool = True,
        metrics: bool = True,
        query_text_max_length: int | None = None,
    ) -> None:
        length = _length(query_text_max_length)
        tracer = trace.get_tracer(_NAME, __version__, tracer_provider, _SCHEMA) if spans else None
        self._spans = None if tracer is None else _Spans(tracer, length)
        provider = meter_provider or get_meter_provider()
        meter = provider.get_meter(_NAME, __version__, _SCHEMA) if metrics else None
        self._metrics = None if meter is None else _Metrics(meter)

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        spans, metrics = self._spans, self._metrics
        match event:
            case OperationBegan() if spans is not None:
                spans.begin(event)
            case AttemptBegan() if spans is not None:
                spans.begin_attempt(event)
            case AttemptEnded() if is_first_told(event, self):
                if metrics is not None:
                    metrics.add_attempt(event)
                if spans is not None:
                    spans.end_attempt(event)
            case RetryScheduled():
                if metrics is not None:
                    metrics.add_retry(event)
                if spans is not None:
                    spans.schedule(event)
            case OperationEnded():
                self._end(event)
            case _:
                pass

    def observe(self, client: Client) -> None:
        """Tell of a client's connections and threads too, whenever metrics are read.

        Args:
            client: The client; it is not kept alive by this.

        Raises:
            TypeError: It is a client of another class.
        """
        if self._metrics is not None:
            self._metrics.clients.add(client)

    def _end(self, event: OperationEnded) -> None:
        spans = self._spans
        span = None if spans is None else spans.of(event.notes)
        try:
            if span is not None:
                _conclude(span, event)
            if self._metrics is not None:
                self._metrics.add_operation(event, span)
        finally:
            if span is not None:
                span.end()


class _Spans:
    """Keeps each operation's span in its notes, and each attempt's in those of the attempt."""

    def __init__(self, tracer: trace.Tracer, length: int) -> None:
        self._tracer = tracer
        self._length = length

    def of(self, notes: Mapping[Any, Any]) -> Span | None:
        """Return the span of an operation or an attempt, if it has one."""
        span: Span | None = notes.get(self)
        return span

    def begin(self, event: OperationBegan) -> None:
        """Begin that of an operation."""
        transaction = None if event.within is None else self.of(event.within)
        name = summary = _summary(command_of(event.operation), event.namespace)
        attributes: Attributes = {**_SYSTEM}
        if event.operation == _TRANSACTION:  # open-telemetry, "Transactions"
            name = _TRANSACTION
        else:
            attributes |= _attributes(event)
            attributes["db.operation.summary"] = summary
        event.notes[self] = self._tracer.start_span(
            name, _within(transaction), SpanKind.CLIENT, attributes
        )

    def begin_attempt(self, event: AttemptBegan) -> None:
        """Begin that of an attempt, if it has not begun before, and have it be current."""
        span = self.of(event.attempt_notes) or self._start(
            event.notes, event.attempt_notes, event.command, event.namespace, event.sharing
        )
        # The context is the attempt's own, and is left with it.
        context.attach(
            context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True, trace.set_span_in_context(span))
        )

    def schedule(self, event: RetryScheduled) -> None:
        """Have the attempt that comes next tell how long it was put off."""
        if event.wait > 0:
            event.notes[self, "wait"] = event.wait

    def end_attempt(self, event: AttemptEnded) -> None:
        """End that of an attempt; of one that found no connection, it begins only now."""
        command = event.command
        span = self.of(event.attempt_notes) or self._start(
            event.notes, event.attempt_notes, command.name, event.namespace
        )
        if span.is_recording():
            span.set_attributes(_sent(command) | _server(event.address))
            if event.address is not None:
                span.set_attribute("network.transport", "tcp" if event.address[1] else "unix")
            span.set_attribute("aioretry.attempt.number", event.attempt)
            span.set_attribute("aioretry.attempt.sent", event.sent)
            span.set_attribute("aioretry.server_wait", event.server_wait)
            wait = event.notes.pop((self, "wait"), None)
            if wait is not None:
                span.set_attribute("aioretry.backoff", wait)
            if self._length and event.sent:
                span.set_attribute("db.query.text", self._text(command))
            _fail(span, event)
        span.end()

    def _start(
        self,
        notes: Mapping[Any, Any],
        attempt_notes: dict[Any, Any],
        command: str,
        namespace: str,
        sharing: Iterable[Mapping[Any, Any]] = (),
    ) -> Span:
        others = [span for span in map(self.of, sharing) if span is not None]
        attributes = _SYSTEM | _where(namespace)
        attributes["db.command.name"] = command
        attributes["db.query.summary"] = _summary(command, namespace)
        span = attempt_notes[self] = self._tracer.start_span(
            command,
            _within(self.of(notes)),
            SpanKind.CLIENT,
            attributes,
            [Link(other.get_span_context()) for other in others],
        )
        return span

    def _text(self, command: SentCommand) -> str:
        document = command.document()
        shown = {name: value for name, value in document.items() if name not in _NOT_IN_TEXT}
        return json_util.dumps(shown)[: self._length]


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
            "aioretry.client.operations", "{operation}", "Operations that ended, by outcome."
        )
        self._retries = meter.create_counter(
            "aioretry.client.retries", "{retry}", "Retries, by the error before them."
        )
        self._waits = meter.create_histogram(
            "aioretry.client.server_wait",
            "s",
            "Time that an operation spent waiting for a server, of those that did.",
            explicit_bucket_boundaries_advisory=WAIT_BUCKETS,
        )
        self._connection_waits = meter.create_histogram(
            "db.client.connection.wait_time",
            "s",
            "The time it took to obtain an open connection from the pool.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._connection_timeouts = meter.create_counter(
            "db.client.connection.timeouts",
            "{timeout}",
            "Attempts for which no connection was free in time.",
        )
        for name, unit, what, observe in (
            ("db.client.connection.count", "{connection}", "in a state", self._observe_connections),
            ("db.client.connection.max", "{connection}", "allowed", self._observe_most),
            (
                "db.client.connection.pending_requests",
                "{request}",
                "waited for",
                self._observe_pending,
            ),
        ):
            meter.create_observable_up_down_counter(
                name, [observe], unit, f"The number of connections that are {what}."
            )
        meter.create_observable_up_down_counter(
            "aioretry.client.threads",
            [self._observe_threads],
            "{thread}",
            "The number of threads that carry attempts, by state.",
        )

    def add_attempt(self, event: AttemptEnded) -> None:
        """Count what an attempt had to wait for."""
        pool = {} if event.address is None else _pool(name_of(event.address))
        if event.command.connection_wait is not None:
            self._connection_waits.record(event.command.connection_wait, pool)
        if waited_in_vain(event):
            self._connection_timeouts.add(1, pool)

    def add_operation(self, event: OperationEnded, span: Span | None) -> None:
        """Count an operation that ended."""
        where = _SYSTEM | _attributes(event)
        attributes = where | {"aioretry.outcome": outcome_of_event(event)} | _error(event)
        attributes |= _server(event.address)
        current = None if span is None else trace.set_span_in_context(span)
        self._duration.record(event.duration, attributes, current)
        self._operations.add(1, attributes, current)
        if event.server_wait > 0:
            self._waits.record(event.server_wait, where, current)

    def add_retry(self, event: RetryScheduled) -> None:
        """Count a retry."""
        attributes = _SYSTEM | _attributes(event) | _error(event) | _server(event.address)
        self._retries.add(1, attributes)

    def _observe_connections(self, _: CallbackOptions) -> Iterable[Observation]:
        for (server, state), count in self.clients.connections().items():
            yield Observation(count, {**_pool(server), "db.client.connection.state": state})

    def _observe_most(self, _: CallbackOptions) -> Iterable[Observation]:
        for server, count in self.clients.most_connections().items():
            yield Observation(count, _pool(server))

    def _observe_pending(self, _: CallbackOptions) -> Iterable[Observation]:
        for servers, count in self.clients.pending().items():
            yield Observation(count, _pool(servers))

    def _observe_threads(self, _: CallbackOptions) -> Iterable[Observation]:
        for state, count in self.clients.threads().items():
            yield Observation(count, {"aioretry.thread.state": state})


def _length(given: int | None) -> int:
    source, value = "query_text_max_length", given
    if value is None:
        source, text = _LENGTH_VARIABLE, os.environ.get(_LENGTH_VARIABLE) or "0"
        value = int(text) if text.isdecimal() else None
        given = text  # type: ignore[assignment]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{source} must be a whole number from 0, not {given!r}")
    return value


def _conclude(span: Span, event: OperationEnded) -> None:
    if event.operation != _TRANSACTION:
        span.set_attributes(
            {
                "aioretry.outcome": outcome_of_event(event),
                "aioretry.attempts": event.attempts,
                "aioretry.server_wait": event.server_wait,
            }
        )
        span.set_attributes(_server(event.address))
        is_batch = event.operation in {"insert_many", "bulk_write"}
        if is_batch and event.attempts and event.sent_statements != 1:
            span.set_attribute("db.operation.batch.size", event.sent_statements)
        _fail(span, event)
    elif event.error_class is not None:
        span.set_status(Status(StatusCode.ERROR, event.error_class))


def _fail(span: Span, event: AttemptEnded | OperationEnded) -> None:
    if event.error_class is not None:
        # Without the error's text, which may hold values of documents.
        span.set_attributes(_error(event))
        span.set_attribute("exception.type", event.error_class)
        span.set_status(Status(StatusCode.ERROR, event.error_class))


def _within(span: Span | None) -> Context | None:
    return None if span is None else trace.set_span_in_context(span)


def _summary(command: str, namespace: str) -> str:
    return f"{command} {namespace}"


def _where(namespace: str) -> Attributes:
    database, _, collection = namespace.partition(".")
    where: Attributes = {"db.namespace": database}
    if collection:
        where["db.collection.name"] = collection
    return where


def _attributes(event: OperationBegan | RetryScheduled | OperationEnded) -> Attributes:
    return {
        **_where(event.namespace),
        "db.operation.name": command_of(event.operation),
        "aioretry.operation": event.operation,
    }


def _sent(command: SentCommand) -> Attributes:
    known = {
        "db.mongodb.lsid": command.session_id,
        "db.mongodb.txn_number": command.transaction_number,
        "db.mongodb.driver_connection_id": command.connection_id,
        "db.mongodb.server_connection_id": command.server_connection_id,
        "db.operation.batch.size": command.statements if command.statements > 1 else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _server(address: tuple[str, int | None] | None) -> Attributes:
    if address is None:
        return {}
    host, port = address
    return (
        {"server.address": host} if port is None else {"server.address": host, "server.port": port}
    )


def _pool(name: str) -> Attributes:
    return {"db.client.connection.pool.name": name}


def _error(event: AttemptEnded | RetryScheduled | OperationEnded) -> Attributes:
    if event.error_class is None:
        return {}
    attributes: Attributes = {"error.type": reason_of(event)}
    if event.error_code is not None:
        attributes["db.response.status_code"] = str(event.error_code)
    return attributes
