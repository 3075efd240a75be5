"""Draws the trace of a request whose transaction lives through a failover, as the page shows it.

``python -m tests.telemetry.picture docs/telemetry-trace.svg`` plays it on a real replica set.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aioretry import RetryClient
from aioretry.telemetry.opentelemetry import OpenTelemetryHook
from aioretry.testing import ReplicaSet
from tests import svg

_WIDTH, _NAMES, _RIGHT, _TOP, _ROW = 900, 330, 60, 48, 22
REQUEST, OPERATION, ATTEMPT, FAILED = "#7f8c8d", "#2f6f9f", "#17a2c8", "#c0392b"


async def play() -> Sequence[ReadableSpan]:
    """The spans of a request whose primary is killed between two writes of its transaction."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hook = OpenTelemetryHook(provider, metrics=False)
    async with ReplicaSet(members=3) as servers:
        async with RetryClient(servers.uri, hooks=[hook], w="majority") as client:
            orders, stock = client.shop.orders, client.shop.stock
            await stock.insert_one({"_id": "tea", "left": 10})
            await orders.insert_one({"_id": "the first one"})
            exporter.clear()
            is_first = True

            async def order(session: Any) -> None:
                nonlocal is_first
                await stock.update_one({"_id": "tea"}, {"$inc": {"left": -1}}, session=session)
                if is_first:
                    is_first = False
                    await servers.kill(await servers.primary())
                await orders.insert_one({"item": "tea"}, session=session)

            with provider.get_tracer("shop").start_as_current_span("POST /orders"):
                async with await client.start_session() as session:
                    await session.with_transaction(order, timeout=60)
            spans = exporter.get_finished_spans()
    provider.shutdown()
    return spans


def in_order(spans: Sequence[ReadableSpan]) -> list[tuple[int, ReadableSpan]]:
    """The spans with their depths, each before those that are in it."""
    inside: dict[int | None, list[ReadableSpan]] = {}
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        inside.setdefault(span.parent.span_id if span.parent else None, []).append(span)

    def below(parent: int | None, depth: int) -> list[tuple[int, ReadableSpan]]:
        found = []
        for span in inside.get(parent, []):
            context = span.context
            found.append((depth, span))
            found += below(context.span_id if context else None, depth + 1)
        return found

    return below(None, 0)


def draw(spans: Sequence[ReadableSpan]) -> str:
    """The trace as a picture."""
    rows = in_order(spans)
    root = svg.picture(_WIDTH, _TOP + _ROW * len(rows) + 16, "A transaction through a failover")
    svg.text(root, 12, 24, "A request with a transaction, whose primary is killed", weight="bold")
    begin = min(span.start_time or 0 for span in spans)
    length = max(span.end_time or 0 for span in spans) - begin
    scale = (_WIDTH - _NAMES - _RIGHT) / length
    for place, (depth, span) in enumerate(rows):
        y = _TOP + _ROW * place
        start, end = (span.start_time or 0) - begin, (span.end_time or 0) - begin
        attributes = span.attributes or {}
        error, is_attempt = attributes.get("error.type"), "db.command.name" in attributes
        name = f"{span.name} → :{attributes['server.port']}" if is_attempt else span.name
        svg.text(root, 12 + 14 * depth, y + 14, name)
        fill = FAILED if error else ATTEMPT if is_attempt else OPERATION if depth else REQUEST
        x, width = _NAMES + start * scale, max(1.5, (end - start) * scale)
        svg.rect(root, x, y + 4, width, 13, fill, opacity=0.85)
        took = f"{(end - start) / 1e6:,.0f} ms" if end - start >= 1e6 else "< 1 ms"
        told = f"{took}: {error}" if error else took
        is_left = x + width > _WIDTH - 170
        at = x - 6 if is_left else x + width + 6
        if width > 170:
            at, is_left = x + 6, False
        svg.text(root, at, y + 14, told, size=10, anchor="end" if is_left else "start")
    return svg.text_of(root)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(asyncio.run(play())), encoding="utf-8")
