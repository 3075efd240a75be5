"""Spans and metrics in OpenTelemetry's own in-memory exporters, of writes on a real replica set."""

import asyncio
import uuid
from collections import Counter

import pytest
from bson import json_util
from opentelemetry import trace
from opentelemetry.instrumentation.pymongo import CommandTracer
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pymongo import InsertOne, UpdateOne
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DuplicateKeyError,
    WaitQueueTimeoutError,
)
from pymongo.monitoring import CommandListener

from aioretry import RetryClient, __version__, deadline, resolve, transaction
from aioretry._faces import settled
from aioretry.telemetry.opentelemetry import OpenTelemetryHook

SECRET = "hush-hush"
TRANSIENT = "TransientTransactionError"
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


def split(exporter):
    """The spans of operations in their order, and the attempts in each, by its id."""
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
    attempts = {}
    operations = []
    for span in spans:
        if "db.command.name" in span.attributes:
            attempts.setdefault(span.parent.span_id, []).append(span)
        else:
            operations.append(span)
    return operations, {
        each.context.span_id: attempts.get(each.context.span_id, []) for each in spans
    }


def attempts_in(span, exporter):
    """The spans of an operation's attempts."""
    return split(exporter)[1][span.context.span_id]


def texts_of(spans):
    """All that spans say, as one text."""
    return "".join(span.to_json() for span in spans)


def parent_of(span, exporter):
    """The span that another one is in."""
    spans = {each.context.span_id: each for each in exporter.get_finished_spans()}
    return None if span.parent is None else spans[span.parent.span_id]


class TestSpans:
    async def test_a_write(self, traced, exporter, replica_set):
        """What the specification for drivers and the conventions want, and nothing else."""
        await traced.update_one({"_id": SECRET}, {"$set": {"n": SECRET}}, upsert=True)
        [span], _ = split(exporter)
        primary = await replica_set.primary()
        [attempt] = attempts_in(span, exporter)
        where = {"db.namespace": traced.database.name, "db.collection.name": traced.name}
        server = {"server.address": primary.host, "server.port": primary.port}
        assert (f"update {traced.full_name}", SpanKind.CLIENT) == (span.name, span.kind)
        assert {
            "db.system.name": "mongodb",
            **where,
            **server,
            "db.operation.name": "update",
            "db.operation.summary": span.name,
            "aioretry.operation": "update_one",
            "aioretry.outcome": "applied",
            "aioretry.attempts": 1,
            "aioretry.server_wait": span.attributes["aioretry.server_wait"],
        } == dict(span.attributes)
        assert ("update", SpanKind.CLIENT) == (attempt.name, attempt.kind)
        told = dict(attempt.attributes)
        assert uuid.UUID(told.pop("db.mongodb.lsid")).version == 4
        for name in ("driver_connection_id", "server_connection_id"):
            assert told.pop(f"db.mongodb.{name}") > 0
        assert {
            "db.system.name": "mongodb",
            **where,
            **server,
            "db.command.name": "update",
            "db.query.summary": f"update {traced.full_name}",
            "db.mongodb.txn_number": 1,
            "network.transport": "tcp",
            "aioretry.attempt.number": 1,
            "aioretry.attempt.sent": True,
            "aioretry.server_wait": told["aioretry.server_wait"],
        } == told
        for each in (span, attempt):
            assert StatusCode.UNSET is each.status.status_code
            assert ("aioretry", __version__) == (
                each.instrumentation_scope.name,
                each.instrumentation_scope.version,
            )
            assert each.instrumentation_scope.schema_url.startswith("https://opentelemetry.io/")
        assert SECRET not in texts_of([span, attempt])

    async def test_a_lost_reply(self, replica_set, traced, exporter):
        """Each attempt is a span in that of the operation, with the same transaction number."""
        with replica_set.faults.drop_reply("insert", namespace=traced.full_name):
            await traced.insert_one({"_id": SECRET})
        [span], _ = split(exporter)
        first, second = attempts_in(span, exporter)
        assert ("AutoReconnect", "AutoReconnect", StatusCode.ERROR, 1) == (
            first.attributes["error.type"],
            first.attributes["exception.type"],
            first.status.status_code,
            first.attributes["aioretry.attempt.number"],
        )
        assert "error.type" not in second.attributes
        assert 2 == second.attributes["aioretry.attempt.number"]
        for name in ("db.mongodb.lsid", "db.mongodb.txn_number"):
            assert first.attributes[name] == second.attributes[name]
        own = "db.mongodb.driver_connection_id"
        assert first.attributes[own] != second.attributes[own]
        assert first.end_time <= second.start_time
        assert ("applied", 2) == (
            span.attributes["aioretry.outcome"],
            span.attributes["aioretry.attempts"],
        )
        assert SECRET not in texts_of([span, first, second])

    async def test_an_unknown_outcome(self, replica_set, traced, exporter):
        """The span says so and is an error; resolving it is a span of its own."""
        with replica_set.faults.drop_reply("insert", times=2, namespace=traced.full_name):
            with pytest.raises(AutoReconnect) as caught:
                await traced.insert_one({"_id": SECRET})
        await resolve(caught.value)
        (lost, resolved), _ = split(exporter)
        assert (StatusCode.ERROR, "unknown", "AutoReconnect", 2) == (
            lost.status.status_code,
            lost.attributes["aioretry.outcome"],
            lost.attributes["error.type"],
            len(attempts_in(lost, exporter)),
        )
        assert ("resolve", "applied", 1) == (
            resolved.attributes["db.operation.name"],
            resolved.attributes["aioretry.outcome"],
            len(attempts_in(resolved, exporter)),
        )
        assert SECRET not in texts_of([lost, resolved])

    async def test_errors_that_quote_documents(self, traced, exporter):
        """An error's code is told; its text, which holds values, is not."""
        await traced.insert_one({"_id": SECRET})
        with pytest.raises(DuplicateKeyError, match=SECRET):
            await traced.insert_one({"_id": SECRET})
        with pytest.raises(BulkWriteError):
            await traced.bulk_write([InsertOne({"_id": 1}), InsertOne({"_id": SECRET})])
        (_, one, many), _ = split(exporter)
        assert ("11000", "11000", "not_applied") == (
            one.attributes["error.type"],
            one.attributes["db.response.status_code"],
            one.attributes["aioretry.outcome"],
        )
        assert ("bulkWrite", "11000", "partial", 2) == (
            many.attributes["db.operation.name"],
            many.attributes["error.type"],
            many.attributes["aioretry.outcome"],
            many.attributes["db.operation.batch.size"],
        )
        assert SECRET not in texts_of(exporter.get_finished_spans())

    async def test_batches(self, traced, exporter):
        """Only what has more than one statement has a size; a command that has, its own."""
        await traced.insert_many([{}])
        await traced.insert_many([{}, {}, {}])
        await traced.bulk_write([InsertOne({}), InsertOne({}), UpdateOne({}, {"$set": {"n": 1}})])
        operations, _ = split(exporter)
        size = "db.operation.batch.size"
        assert [None, 3, 3] == [span.attributes.get(size) for span in operations]
        assert [[None], [3], [2, None]] == [
            [each.attributes.get(size) for each in attempts_in(span, exporter)]
            for span in operations
        ]

    async def test_those_that_travel_together(self, replica_set, traced, exporter):
        """Their command is one span, in that of the first, and it has links to the others."""
        view = traced.coalesced()
        async with replica_set.faults.hang("insert", namespace=traced.full_name) as hang:
            before = view.insert_one({"_id": 0})
            await hang.wait_until_fired()
            inserts = [view.insert_one({"_id": n}) for n in (1, 2, 3)]
        await asyncio.gather(before, *inserts)
        (_, first, *others), _ = split(exporter)
        [shared] = attempts_in(first, exporter)
        assert 3 == shared.attributes["db.operation.batch.size"]
        assert [each.context.span_id for each in others] == [
            link.context.span_id for link in shared.links
        ]
        assert [[], []] == [attempts_in(each, exporter) for each in others]
        assert {1} == {each.attributes["aioretry.attempts"] for each in others}
        assert all("db.operation.batch.size" not in each.attributes for each in (first, *others))

    async def test_reads(self, traced, exporter):
        """They are named as the specification names them, and their commands as the server does."""
        await traced.find_one({"_id": SECRET})
        await traced.count_documents({})
        await traced.estimated_document_count()
        await traced.distinct("x")
        operations, _ = split(exporter)
        assert [
            ("find", "find"),
            ("aggregate", "aggregate"),
            ("estimatedDocumentCount", "count"),
            ("distinct", "distinct"),
        ] == [
            (span.attributes["db.operation.name"], attempt.attributes["db.command.name"])
            for span in operations
            for attempt in attempts_in(span, exporter)
        ]

    async def test_texts_of_queries(
        self, replica_set, collection, provider, exporter, client_class
    ):
        """They are told only where they are asked for, up to a length, and without the session."""
        for length in (1000, 20):
            hook = OpenTelemetryHook(provider, metrics=False, query_text_max_length=length)
            async with client_class(replica_set.uri, hooks=[hook]) as client:
                mine = client[collection.database.name][collection.name]
                await mine.insert_many([{"_id": f"{SECRET}{length}"}, {}])
        operations, _ = split(exporter)
        whole, short = (
            attempts_in(span, exporter)[0].attributes["db.query.text"] for span in operations
        )
        sent = json_util.loads(whole)
        assert f"{SECRET}1000" == sent["documents"][0]["_id"]
        assert {"lsid", "$db", "$clusterTime", "signature"}.isdisjoint(sent)
        assert ("insert", 1) == (next(iter(sent)), sent["txnNumber"])
        assert whole[:12] == short[:12]
        assert 20 == len(short)

    async def test_texts_by_the_environment(self, monkeypatch):
        """It is taken from the variable of the specification; what is no length is refused."""
        name = "OTEL_PYTHON_INSTRUMENTATION_MONGODB_QUERY_TEXT_MAX_LENGTH"
        for value in ("0", "12", ""):
            monkeypatch.setenv(name, value)
            OpenTelemetryHook()
        monkeypatch.setenv(name, "long")
        with pytest.raises(ValueError, match=f"{name} must be .* from 0, not 'long'"):
            OpenTelemetryHook()
        for bad in (-1, True, 1.5):
            with pytest.raises(ValueError, match="query_text_max_length must be"):
                OpenTelemetryHook(query_text_max_length=bad)

    async def test_without_a_connection(
        self, replica_set, collection, provider, exporter, client_class
    ):
        """An attempt that found none in time is a span too, which says that nothing was sent."""
        options = {"maxPoolSize": 1, "waitQueueTimeoutMS": 50, "retryWrites": False}
        hook = OpenTelemetryHook(provider, metrics=False)
        async with client_class(replica_set.uri, hooks=[hook], **options) as client:
            mine = client[collection.database.name][collection.name]
            async with replica_set.faults.hang("insert", namespace=mine.full_name) as hang:
                first = mine.insert_one({})
                await hang.wait_until_fired()
                with pytest.raises(WaitQueueTimeoutError):
                    await mine.insert_one({})
            await first
        (_, second), _ = split(exporter)
        [attempt] = attempts_in(second, exporter)
        assert ("WaitQueueTimeoutError", False) == (
            attempt.attributes["error.type"],
            attempt.attributes["aioretry.attempt.sent"],
        )
        assert "db.mongodb.lsid" not in attempt.attributes


class Current(CommandListener):
    """Keeps which span is current while a command is shown, and what is suppressed."""

    def __init__(self):
        self.seen = []

    def started(self, event):
        """A command is about to be sent."""
        self.seen.append((event.command_name, trace.get_current_span(), is_suppressed()))

    succeeded = failed = started


def is_suppressed():
    """Whether instrumentations make no spans here."""
    return not is_instrumentation_enabled()


class TestBesideListeners:
    @pytest.mark.parametrize("may_block", [False, True])
    async def test_the_current_span(
        self, replica_set, collection, provider, exporter, may_block, client_class
    ):
        """That of the attempt is current while it is made, and to nobody else."""
        if may_block and client_class is not RetryClient:
            pytest.skip("asyncio's client has no such option")
        listener, hook = Current(), OpenTelemetryHook(provider, metrics=False)
        options = {"listeners_may_block": True} if may_block else {}
        options |= {"hooks": [hook], "event_listeners": [listener]}
        async with client_class(replica_set.uri, **options) as client:
            mine = client[collection.database.name][collection.name]
            with provider.get_tracer("test").start_as_current_span("request") as request:
                with replica_set.faults.drop_reply("insert", namespace=mine.full_name):
                    await mine.insert_one({})
                assert (request, False) == (trace.get_current_span(), is_suppressed())
                listener.seen, inserts = [], listener.seen
                await mine.find({}).to_list(None)
        *_, insert = (e for e in split(exporter)[0] if e.name.startswith("insert"))
        attempts = [each.context.span_id for each in attempts_in(insert, exporter)]
        shown = [span.get_span_context().span_id for name, span, _ in inserts if name == "insert"]
        assert [attempts[0], attempts[0], attempts[1], attempts[1]] == shown
        assert all(suppressed for name, _, suppressed in inserts if name == "insert")
        assert ("find", request, False) in listener.seen  # the driver's own

    async def test_pymongos_instrumentor(
        self, replica_set, collection, provider, exporter, client_class
    ):
        """No command has two spans, and what is the driver's own has one."""
        tracer = CommandTracer(provider.get_tracer("pymongo"))
        hook = OpenTelemetryHook(provider, metrics=False)
        options = {"hooks": [hook], "event_listeners": [tracer]}
        async with client_class(replica_set.uri, **options) as client:
            mine = client[collection.database.name][collection.name]
            await mine.insert_one({"_id": 1})
            await mine.bulk_write([InsertOne({}), UpdateOne({}, {"$set": {"n": 1}})])
            await mine.find_one({})
            await mine.coalesced().insert_one({})
            await mine.find({}).to_list(None)
            spans = exporter.get_finished_spans()
        by = {each: Counter() for each in ("aioretry", "pymongo")}
        for span in spans:
            name = span.attributes.get("db.command.name", span.name)
            is_command = "db.command.name" in span.attributes or "." in name
            if is_command and span.attributes.get("db.operation.name") is None:
                by[span.instrumentation_scope.name][name] += 1
        assert {"insert": 3, "update": 1, "find": 1} == by["aioretry"]
        assert {f"{collection.database.name}.find": 1} == by["pymongo"]


class TestTransactions:
    async def test_one(self, traced, exporter):
        """All of it is in its span, which has the one attribute that the specification gives it."""
        await traced.insert_one({"_id": 0})
        exporter.clear()
        async with transaction(traced.database.client) as session:
            await traced.insert_one({"_id": SECRET}, session=session)
            await traced.find_one({"_id": 0}, session=session)
        (whole, *parts), _ = split(exporter)
        assert ("transaction", {"db.system.name": "mongodb"}) == (
            whole.name,
            dict(whole.attributes),
        )
        names = [
            f"insert {traced.full_name}",
            f"find {traced.full_name}",
            "commitTransaction admin",
        ]
        assert names == [each.name for each in parts]
        assert {whole.context.span_id} == {each.parent.span_id for each in parts}
        assert "db.collection.name" not in parts[-1].attributes
        attempts = [attempt for each in parts for attempt in attempts_in(each, exporter)]
        assert 3 == len(attempts)
        for name in ("db.mongodb.lsid", "db.mongodb.txn_number"):
            assert 1 == len({attempt.attributes[name] for attempt in attempts})
        assert StatusCode.UNSET is whole.status.status_code
        assert whole.end_time >= parts[-1].end_time

    async def test_one_that_is_aborted(self, traced, exporter):
        """It ends with its abort; what its block raised is none of its own errors."""
        await traced.insert_one({"_id": 0})
        exporter.clear()

        async def fail():
            async with transaction(traced.database.client) as session:
                await traced.insert_one({}, session=session)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        (whole, *parts), _ = split(exporter)
        assert ["insert", "abortTransaction"] == [
            each.attributes["db.operation.name"] for each in parts
        ]
        assert {whole.context.span_id} == {each.parent.span_id for each in parts}

    async def test_runs(self, replica_set, traced, exporter, reader):
        """Each run is a transaction of its own in the call's span, and each rerun is counted."""
        await traced.insert_one({"_id": 0})
        exporter.clear()
        session = await settled(traced.database.client.start_session())

        async def insert(session):
            await traced.insert_one({"n": 1}, session=session)

        fault = replica_set.fail_point(
            "failCommand",
            {"times": 3},
            {"failCommands": ["insert"], "errorCode": 251, "errorLabels": [TRANSIENT]},
        )
        async with session, fault:
            await session.with_transaction(insert)
        (call, *rest), _ = split(exporter)
        runs = [each for each in rest if each.name == "transaction"]
        assert ("withTransaction admin", "applied") == (
            call.name,
            call.attributes["aioretry.outcome"],
        )
        assert 4 == len(runs)
        assert {call.context.span_id} == {each.parent.span_id for each in runs}
        found = points(reader)
        [reruns] = [
            point.value
            for attributes, point in found["aioretry.client.retries"]
            if attributes["aioretry.operation"] == "with_transaction"
        ]
        ends = {
            (a["db.operation.name"], a["aioretry.outcome"]): point.value
            for a, point in found["aioretry.client.operations"]
        }
        assert 3 == reruns
        assert (3, 1, 1) == (
            ends["transaction", "not_applied"],
            ends["transaction", "applied"],
            ends["withTransaction", "applied"],
        )

    async def test_a_repeated_commit(self, replica_set, traced, exporter):
        """Both are attempts of the one commit, in the transaction's span."""
        await traced.insert_one({"_id": 0})
        exporter.clear()
        with replica_set.faults.drop_reply("commitTransaction"):
            async with transaction(traced.database.client) as session:
                await traced.insert_one({}, session=session)
        (whole, _, commit), _ = split(exporter)
        assert whole is parent_of(commit, exporter)
        assert ["AutoReconnect", None] == [
            each.attributes.get("error.type") for each in attempts_in(commit, exporter)
        ]

    async def test_a_lost_commit(self, replica_set, traced, exporter):
        """The transaction's span is an error; the next one on the session has a span of its own."""
        await traced.insert_one({"_id": 0})
        exporter.clear()
        session = await settled(traced.database.client.start_session())
        async with session:
            await settled(session.start_transaction())
            await traced.insert_one({"_id": 1}, session=session)
            with (
                replica_set.faults.drop_reply("commitTransaction", times=2),
                pytest.raises(AutoReconnect),
            ):
                await session.commit_transaction()
            await session.commit_transaction()
            await settled(session.start_transaction())
            await session.abort_transaction()
        wholes = [each for each in split(exporter)[0] if each.name == "transaction"]
        assert [StatusCode.ERROR, StatusCode.UNSET] == [each.status.status_code for each in wholes]
        commits = [each for each in split(exporter)[0] if each.name == "commitTransaction admin"]
        assert [wholes[0].context.span_id] * 2 == [each.parent.span_id for each in commits]


class TestManyWriters:
    @pytest.mark.slow
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
        writes, attempts = split(exporter)
        writes = [span for span in writes if span.kind is SpanKind.CLIENT]
        children = [span for span in writes if span.parent is not None]
        assert WRITERS == len(parents)
        assert set(parents) == {span.parent.span_id for span in children}
        assert sum(document["n"] for document in stored.find()) == len(writes)
        assert {"applied"} == {span.attributes["aioretry.outcome"] for span in writes}
        for span in writes:
            mine = attempts[span.context.span_id]
            assert span.attributes["aioretry.attempts"] == len(mine)
            assert "error.type" not in mine[-1].attributes
        assert any(len(attempts[span.context.span_id]) > 1 for span in children)
        [(_, waits), *_] = points(reader)["aioretry.client.server_wait"]
        assert waits.count > 0


class TestFailures:
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
        assert ["applied"] == [span.attributes["aioretry.outcome"] for span in split(exporter)[0]]
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
        primary = await replica_set.primary()
        where |= {"server.address": primary.host, "server.port": primary.port}
        good = where | {"aioretry.outcome": "applied"}
        bad = where | {
            "aioretry.outcome": "not_applied",
            "error.type": "11000",
            "db.response.status_code": "11000",
        }
        durations = found["db.client.operation.duration"]
        assert [good, bad] == [attributes for attributes, _ in durations]
        assert [1, 1] == [point.count for _, point in durations]
        advised = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10]
        assert advised == list(durations[0][1].explicit_bounds)
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
        [(attributes, pending)] = found["db.client.connection.pending_requests"]
        pool = "db.client.connection.pool.name"
        servers = {a[pool] for a, _ in connections}
        assert (",".join(sorted(servers)), 0) == (attributes[pool], pending.value)
        most = found["db.client.connection.max"]
        assert {(server, 100) for server in servers} == {(a[pool], p.value) for a, p in most}
        [(attributes, waits)] = found["db.client.connection.wait_time"]
        assert 5 == waits.count
        assert attributes[pool] in servers

    async def test_of_waiting_for_connections(
        self, replica_set, collection, hook, reader, client_class
    ):
        """Those who wait are counted, and those who have waited in vain."""
        options = {"maxPoolSize": 1, "waitQueueTimeoutMS": 200, "retryWrites": False}
        async with client_class(replica_set.uri, hooks=[hook], **options) as client:
            hook.observe(client)
            mine = client[collection.database.name][collection.name]
            async with replica_set.faults.hang("insert", namespace=mine.full_name) as hang:
                first = mine.insert_one({})
                await hang.wait_until_fired()
                second = mine.insert_one({})
                [(_, pending)] = points(reader)["db.client.connection.pending_requests"]
                with pytest.raises(WaitQueueTimeoutError):
                    await second
            await first
        [(_, timeouts)] = points(reader)["db.client.connection.timeouts"]
        assert (1, 1) == (pending.value, timeouts.value)

    async def test_after_the_client(self, replica_set, collection, hook, reader, client_class):
        """A client that was closed can still be looked at, and is not kept alive."""
        client = client_class(replica_set.uri)
        hook.observe(client)
        async with client:
            await client[collection.database.name][collection.name].insert_one({})
        assert "aioretry.client.threads" in points(reader)
