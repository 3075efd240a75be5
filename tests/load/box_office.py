"""The box office of the examples, which prints its metrics."""

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

from examples.reservations.app import app

__all__ = ["app"]

_printed = PeriodicExportingMetricReader(ConsoleMetricExporter(), export_interval_millis=1000)
metrics.set_meter_provider(MeterProvider([_printed]))
