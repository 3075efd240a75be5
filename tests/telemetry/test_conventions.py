"""The table of docs/telemetry-reference.md, against what spans of a real replica set say."""

import re
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pymongo.errors import DuplicateKeyError

from aioretry import transaction
from aioretry.telemetry.opentelemetry import OpenTelemetryHook

PAGE = Path(__file__).parents[2] / "docs" / "telemetry-reference.md"
NAME = re.compile(r"`([a-z_]+\.[a-z_.]+)`")


def told_in_docs():
    """The attributes of operations and of attempts that the table says are there."""
    table = PAGE.read_text().partition("## Conventions")[2].partition("## Metrics")[0]
    operations, attempts = set(), set()
    for line in table.splitlines():
        if line.startswith("| `"):
            _, names, *cells, _ = (cell.strip() for cell in line.split("|"))
            for cell, found in zip(cells, (operations, attempts), strict=False):
                if cell not in {"", "no"}:
                    found.update(NAME.findall(names))
    return operations, attempts


@pytest.mark.parametrize("kind", ["operation", "attempt"])
async def test_attributes(kind, replica_set, collection, client_class):
    """Each row holds, and there is no attribute without one."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hook = OpenTelemetryHook(provider, metrics=False, query_text_max_length=100)
    busy = replica_set.fail_point(
        "failCommand",
        {"times": 1},
        {
            "failCommands": ["update"],
            "errorCode": 462,
            "errorLabels": ["RetryableError", "SystemOverloadedError"],
            "namespace": collection.full_name,
        },
    )
    async with client_class(replica_set.uri, hooks=[hook]) as client:
        mine = client[collection.database.name][collection.name]
        await mine.insert_many([{"_id": 1}, {"_id": 2}])
        with pytest.raises(DuplicateKeyError):
            await mine.insert_one({"_id": 1})
        async with busy:
            await mine.update_one({"_id": 1}, {"$set": {"n": 1}})
        async with transaction(client) as session:
            await mine.insert_one({"_id": 3}, session=session)
    spans = [dict(span.attributes) for span in exporter.get_finished_spans()]
    provider.shutdown()
    of_attempts = [names for names in spans if "db.command.name" in names]
    seen = {
        "operation": set().union(*(names for names in spans if names not in of_attempts)),
        "attempt": set().union(*of_attempts),
    }
    expected = dict(zip(("operation", "attempt"), told_in_docs(), strict=True))
    assert expected[kind] == seen[kind]
    assert len(expected[kind]) > 10
