"""Spans and metrics of writes, for OpenTelemetry and for Prometheus.

``aioretry.telemetry.opentelemetry`` has :class:`OpenTelemetryHook`, and
``aioretry.telemetry.prometheus`` has :class:`PrometheusHook`. Each needs its own library only; both
come with the extra ``telemetry``. No document, filter or credential is part of what they tell.
"""
