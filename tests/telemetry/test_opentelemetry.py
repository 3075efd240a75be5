"""Spans and metrics in OpenTelemetry's own in-memory exporters, of writes on a real replica set."""

import asyncio

import pytest
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pymongo import InsertOne
from pymongo.errors import AutoReconnect, BulkWriteError, DuplicateKeyError

from aioretry import deadline, resolve
from aioretry.telemetry.opentelemetry import OpenTelemetryHook

SECRET = "hush-hush"
WRITERS = 50


@pytest.fixture
def exporter():
    """Where spans go that have ended."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    """Makes tracers."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


@pytest.fixture
def reader():
    """Where metrics are read."""
    return InMemoryMetricReader()


@pytest.fixture
def hook(provider, reader):
    """The hook that is tested."""
    meters = MeterProvider([reader])
    yield OpenTelemetryHook(provider, meters)
    meters.shutdown()


@pytest.fixture
async def traced(replica_set, collection, hook, client_class):
    """The test's collection, of a client with the hook."""
    async with client_class(replica_set.uri, hooks=[hook]) as client:
        hook.observe(client)
        mine = client[collection.database.name]
        yield mine.get_collection(collection.name, write_concern=collection.write_concern)


def points(reader):
    """What was measured: by name, each data point's attributes and the point."""
    data = reader.get_metrics_data()
    found = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = [(dict(p.attributes), p) for p in metric.data.data_points]
    return found


def attempts_in(span):
    """The attributes of a span's attempts."""
    return [dict(e.attributes) for e in span.events if e.name == "aioretry.attempt"]


def texts_of(spans):
    """All that spans say, as one text."""
    return "".join(span.to_json() for span in spans)


class TestSpans:
    async def test_a_write(self, traced, exporter):
        """One CLIENT span with the standard attributes, and one attempt in it."""
        await traced.update_one({"_id": SECRET}, {"$set": {"n": SECRET}}, upsert=True)
        [span] = exporter.get_finished_spans()
        [attempt] = attempts_in(span)
        assert (f"update {traced.full_name}", SpanKind.CLIENT) == (span.name, span.kind)
        expected = {
            "db.system.name": "mongodb",
            "db.namespace": traced.database.name,
            "db.collection.name": traced.name,
            "db.operation.name": "update",
            "server.address": attempt["server.address"],
            "server.port": attempt["server.port"],
            "aioretry.operation": "update_one",
            "aioretry.outcome": "applied",
            "aioretry.attempts": 1,
            "aioretry.server_wait": span.attributes["aioretry.server_wait"],
        }
        assert expected == dict(span.attributes)
        assert ("127.0.0.1", StatusCode.UNSET) == (
            attempt["server.address"],
            span.status.status_code,
        )
        assert SECRET not in texts_of([span])

    async def test_a_lost_reply(self, replica_set, traced, exporter):
        """Both attempts and the retry between them are in one span."""
        with replica_set.faults.drop_reply("insert", namespace=traced.full_name):
            await traced.insert_one({"_id": SECRET})
        [span] = exporter.get_finished_spans()
        names = ["aioretry.attempt", "aioretry.retry", "aioretry.attempt"]
        assert names == [event.name for event in span.events]
        assert ["AutoReconnect", None] == [a.get("error.type") for a in attempts_in(span)]
        assert ("applied", 2) == (
            span.attributes["aioretry.outcome"],
            span.attributes["aioretry.attempts"],
        )
        assert SECRET not in texts_of([span])

    async def test_an_unknown_outcome(self, replica_set, traced, exporter):
        """The span says so and is an error; resolving it is a span of its own."""
        with replica_set.faults.drop_reply("insert", times=2, namespace=traced.full_name):
            with pytest.raises(AutoReconnect) as caught:
                await traced.insert_one({"_id": SECRET})
        await resolve(caught.value)
        lost, resolved = exporter.get_finished_spans()
        assert (StatusCode.ERROR, "unknown", "AutoReconnect", 2) == (
            lost.status.status_code,
            lost.attributes["aioretry.outcome"],
            lost.attributes["error.type"],
            len(attempts_in(lost)),
        )
        assert ("resolve", "applied") == (
            resolved.attributes["db.operation.name"],
            resolved.attributes["aioretry.outcome"],
        )
        assert SECRET not in texts_of([lost, resolved])

    async def test_errors_that_quote_documents(self, traced, exporter):
        """An error's code is told; its text, which holds values, is not."""
        await traced.insert_one({"_id": SECRET})
        with pytest.raises(DuplicateKeyError, match=SECRET):
            await traced.insert_one({"_id": SECRET})
        with pytest.raises(BulkWriteError):
            await traced.bulk_write([InsertOne({"_id": 1}), InsertOne({"_id": SECRET})])
        _, one, many = exporter.get_finished_spans()
        assert ("11000", "11000", "not_applied") == (
            one.attributes["error.type"],
            one.attributes["db.response.status_code"],
            one.attributes["aioretry.outcome"],
        )
        assert ("bulkWrite", "11000", "partial") == (
            many.attributes["db.operation.name"],
            many.attributes["error.type"],
            many.attributes["aioretry.outcome"],
        )
        assert SECRET not in texts_of(exporter.get_finished_spans())

    @pytest.mark.usefixtures("three_members")
    async def test_many_writers_through_a_kill(
        self, replica_set, collection, traced, provider, exporter, reader, stored
    ):
        """Each write is one span under its own parent, with all its attempts, and written once."""
        tracer = provider.get_tracer("test")
        under_way = asyncio.Event()
        killed = asyncio.Event()

        async def write(me):
            await traced.update_one({"_id": me}, {"$inc": {"n": 1}}, upsert=True)
            with tracer.start_as_current_span(f"writer {me}"):
                async with deadline(60):
                    if me == WRITERS - 1:
                        under_way.set()
                    while not killed.is_set():
                        await traced.update_one({"_id": me}, {"$inc": {"n": 1}})
                    await traced.update_one({"_id": me}, {"$inc": {"n": 1}})

        async with asyncio.TaskGroup() as group:
            for me in range(WRITERS):
                group.create_task(write(me))
            await under_way.wait()
            await replica_set.kill(await replica_set.primary())
            killed.set()
        spans = exporter.get_finished_spans()
        parents = {s.context.span_id: s.name for s in spans if s.name.startswith("writer")}
        writes = [span for span in spans if span.kind is SpanKind.CLIENT]
        children = [span for span in writes if span.parent is not None]
        assert WRITERS == len(parents)
        assert set(parents) == {span.parent.span_id for span in children}
        assert sum(document["n"] for document in stored.find()) == len(writes)
        assert {"applied"} == {span.attributes["aioretry.outcome"] for span in writes}
        for span in writes:
            assert span.attributes["aioretry.attempts"] == len(attempts_in(span))
            assert "error.type" not in attempts_in(span)[-1]
        assert any(len(attempts_in(span)) > 1 for span in children)
        [(_, waits), *_] = points(reader)["aioretry.client.server_wait"]
        assert waits.count > 0

    async def test_it_costs_no_write_when_it_fails(
        self, replica_set, collection, caplog, client_class
    ):
        """A provider that raises is logged, and the write goes on."""

        class Broken(TracerProvider):
            """Its tracers raise."""

            def get_tracer(self, *args, **kwargs):
                return self

            def start_span(self, *args, **kwargs):
                raise ZeroDivisionError

        broken = Broken()
        hook = OpenTelemetryHook(broken, metrics=False)
        async with client_class(replica_set.uri, hooks=[hook]) as client:
            await client[collection.database.name][collection.name].insert_one({})
        assert "a hook failed" in caplog.text
        broken.shutdown()

    async def test_a_span_ends_where_metrics_fail(
        self, replica_set, collection, provider, exporter, caplog, client_class
    ):
        """Else nobody would ever see it."""

        class Broken(NoOpMeter):
            """Its histograms raise."""

            def create_histogram(self, *args, **kwargs):
                return self

            def record(self, *args, **kwargs):
                raise ZeroDivisionError

        class Meters(NoOpMeterProvider):
            """Makes such meters."""

            def get_meter(self, *args, **kwargs):
                return Broken("broken")

        hook = OpenTelemetryHook(provider, Meters())
        async with client_class(replica_set.uri, hooks=[hook]) as client:
            await client[collection.database.name][collection.name].insert_one({})
        assert ["applied"] == [
            span.attributes["aioretry.outcome"] for span in exporter.get_finished_spans()
        ]
        assert "a hook failed" in caplog.text

    async def test_without_an_sdk(self, replica_set, collection, client_class):
        """Where no SDK is set up, nothing happens."""
        async with client_class(replica_set.uri, hooks=[OpenTelemetryHook()]) as client:
            await client[collection.database.name][collection.name].insert_one({})


class TestMetrics:
    async def test_of_operations(self, replica_set, traced, reader):
        """Durations, outcomes and retries, by what the conventions and the outcome say."""
        with replica_set.faults.drop_reply("insert", namespace=traced.full_name):
            await traced.insert_one({"_id": SECRET})
        with pytest.raises(DuplicateKeyError):
            await traced.insert_one({"_id": SECRET})
        found = points(reader)
        where = {
            "db.system.name": "mongodb",
            "db.namespace": traced.database.name,
            "db.collection.name": traced.name,
            "db.operation.name": "insert",
            "aioretry.operation": "insert_one",
        }
        good = where | {"aioretry.outcome": "applied"}
        bad = where | {
            "aioretry.outcome": "not_applied",
            "error.type": "11000",
            "db.response.status_code": "11000",
        }
        durations = found["db.client.operation.duration"]
        assert [good, bad] == [attributes for attributes, _ in durations]
        assert [1, 1] == [point.count for _, point in durations]
        assert (0.001, 60.0) == (
            durations[0][1].explicit_bounds[0],
            durations[0][1].explicit_bounds[-1],
        )
        counted = found["aioretry.client.operations"]
        assert [(good, 1), (bad, 1)] == [(a, point.value) for a, point in counted]
        [(attributes, retries)] = found["aioretry.client.retries"]
        assert (where | {"error.type": "AutoReconnect"}, 1) == (attributes, retries.value)

    async def test_of_connections_and_threads(self, traced, reader):
        """How many there are, of the client that is observed."""
        await asyncio.gather(*(traced.insert_one({}) for _ in range(5)))
        found = points(reader)
        connections = found["db.client.connection.count"]
        keys = {"db.client.connection.pool.name", "db.client.connection.state"}
        assert all(keys == set(attributes) for attributes, _ in connections)
        assert {"used", "idle"} == {a["db.client.connection.state"] for a, _ in connections}
        assert sum(point.value for _, point in connections) > 0
        states = {a["aioretry.thread.state"] for a, _ in found["aioretry.client.threads"]}
        assert {"busy", "idle", "abandoned"} == states
        [(_, queued)] = found["aioretry.client.queued_attempts"]
        assert 0 == queued.value

    async def test_after_the_client(self, replica_set, collection, hook, reader, client_class):
        """A client that was closed can still be looked at, and is not kept alive."""
        client = client_class(replica_set.uri)
        hook.observe(client)
        async with client:
            await client[collection.database.name][collection.name].insert_one({})
        assert "aioretry.client.threads" in points(reader)
