"""What instrumentations that only listen to PyMongo's commands tell of the same writes.

Each is played in a process of its own, since they register themselves for the whole process.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import DeleteMany, InsertOne, UpdateOne

from aioretry._faces import settled
from tests.clients import chosen_client

DATABASE = "instrumented"
NOT_COMPARED = ("lsid", "txnNumber", "$clusterTime")

Within = Callable[[str], AbstractContextManager[object]]
Span = tuple[str, str, Any]
"""The span around it, its own name, and what it says of the command."""

WRITES: dict[str, Callable[[Any], Awaitable[object]]] = {
    "insert_one": lambda c: c.insert_one({"_id": 1, "name": "ann", "tags": ["x", {"deep": 1}]}),
    "insert_many": lambda c: c.insert_many([{"_id": 2, "name": "bob"}, {"_id": 3, "at": None}]),
    "update_one": lambda c: c.update_one({"_id": 1}, {"$set": {"name": "cid"}}, upsert=True),
    "update_many": lambda c: c.update_many({"_id": {"$gt": 1}}, [{"$set": {"age": 7}}]),
    "replace_one": lambda c: c.replace_one({"_id": 2}, {"name": "dan"}),
    "find_one_and_update": lambda c: c.find_one_and_update(
        {"_id": 1}, {"$set": {"tags.$[tag]": "y"}}, array_filters=[{"tag": "x"}], sort=[("_id", 1)]
    ),
    "find_one_and_replace": lambda c: c.find_one_and_replace({"_id": 2}, {"name": "eve"}),
    "find_one_and_delete": lambda c: c.find_one_and_delete({"_id": 3}, projection=["name"]),
    "bulk_write": lambda c: c.bulk_write(
        [InsertOne({"_id": 4}), UpdateOne({"_id": 4}, {"$inc": {"n": 1}}), DeleteMany({"n": 2})]
    ),
    "delete_one": lambda c: c.delete_one({"_id": 1}),
    "delete_many": lambda c: c.delete_many({}),
}


def opentelemetry(who: str, uri: str) -> None:
    """Print the spans of OpenTelemetry's instrumentation of PyMongo."""
    from opentelemetry.instrumentation.pymongo import PymongoInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    PymongoInstrumentor().instrument(tracer_provider=provider, capture_statement=True)
    asyncio.run(_play(who, uri, provider.get_tracer("test").start_as_current_span))

    def spans() -> Iterator[Span]:
        finished = exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in finished if span.context}
        for span in finished:
            if span.name not in WRITES:
                statement = (span.attributes or {}).get("db.statement")
                yield names[span.parent.span_id] if span.parent else "", span.name, statement

    print(json.dumps(sorted(spans())))


def sentry(who: str, uri: str) -> None:
    """Print the spans of Sentry's integration of PyMongo."""
    import sentry_sdk
    from sentry_sdk.integrations.pymongo import PyMongoIntegration

    spans: list[Span] = []

    def keep(event: Any, _: Any) -> None:
        for span in event["spans"]:
            command = json.loads(span["description"])
            shown = {name: command[name] for name in sorted(command) if name not in NOT_COMPARED}
            own = event["contexts"]["trace"]["span_id"] == span["parent_span_id"]
            spans.append((event["transaction"] if own else "", span["op"], shown))

    @contextmanager
    def within(name: str) -> Iterator[None]:
        with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name=name):
            yield

    sentry_sdk.init(
        dsn="http://nobody@127.0.0.1:9/1",
        default_integrations=False,
        auto_enabling_integrations=False,
        integrations=[PyMongoIntegration()],
        traces_sample_rate=1.0,
        before_send_transaction=keep,
    )
    asyncio.run(_play(who, uri, within))
    print(json.dumps(spans))


async def _play(who: str, uri: str, within: Within) -> None:
    client = (AsyncIOMotorClient if who == "Motor" else chosen_client())(uri, w="majority")
    try:
        await client.drop_database(DATABASE)
        collection = client[DATABASE]["people"]
        await collection.insert_one({"_id": 0})  # there is no span around it
        if who == "coalesced":
            collection = collection.coalesced()
        for name, write in WRITES.items():
            with within(name):
                await write(collection)
    finally:
        await settled(client.close())
