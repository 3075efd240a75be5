"""What a service pays that is watched: update_one under OpenTelemetry's and Sentry's listeners."""

import argparse
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import sentry_sdk
from opentelemetry.instrumentation.pymongo import CommandTracer
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from rich.console import Console
from rich.table import Table
from sentry_sdk.integrations.pymongo import CommandTracer as SentryTracer
from sentry_sdk.integrations.pymongo import PyMongoIntegration

from aioretry.testing import ReplicaSet
from tests.benchmarks.figures import Spread, ratios, shown
from tests.benchmarks.throughput.clients import DATABASE, OURS, PEERS, TITLES, make
from tests.benchmarks.throughput.compare import Say
from tests.benchmarks.throughput.operations import Call
from tests.benchmarks.throughput.rounds import Sample, Series, measure, take_turns
from tests.clients import close

Within = Callable[[], AbstractContextManager[object]]
Watched = dict[tuple[str, str], Series]
"""What was measured, by who watches and the client."""

NOBODY, OPENTELEMETRY, SENTRY = "nobody", "OpenTelemetry", "Sentry"
UPDATES = 10  # of each request

_UPDATE = {"$inc": {"n": 1}}


class _Nowhere(SpanExporter):
    """Leaves out what sending costs."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        del spans
        return SpanExportResult.SUCCESS


@contextmanager
def _unwatched() -> Iterator[None]:
    yield


@contextmanager
def _in_sentrys_transaction() -> Iterator[None]:
    with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name="a request"):
        yield


def _request(collection: Any, me: int, within: Within) -> Call:
    async def call() -> None:
        with within():
            for _ in range(UPDATES):
                await collection.update_one({"_id": me}, _UPDATE, upsert=True)

    return call


def _init_sentry() -> None:
    # Its listeners are given to clients singly: those it registers are for all that are made later.
    PyMongoIntegration.setup_once = staticmethod(lambda: None)  # type: ignore[method-assign]
    sentry_sdk.init(
        dsn="http://nobody@127.0.0.1:9/1",
        default_integrations=False,
        auto_enabling_integrations=False,
        integrations=[PyMongoIntegration()],
        traces_sample_rate=1.0,
        before_send_transaction=lambda *_: None,
    )


async def measure_watched(options: argparse.Namespace, say: Say) -> Watched:
    """Measure on a replica set of its own: requests of ten updates, each request in a span."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_Nowhere()))
    tracer = provider.get_tracer("benchmark")
    _init_sentry()
    kinds: dict[str, tuple[list[Any], Within]] = {
        NOBODY: ([], _unwatched),
        OPENTELEMETRY: (
            [CommandTracer(tracer)],
            partial(tracer.start_as_current_span, "a request"),
        ),
        SENTRY: ([SentryTracer()], _in_sentrys_transaction),
    }
    [writers, *_], [w, *_] = options.writers, options.w
    clients = []
    measures: dict[tuple[str, str], Callable[[float], Awaitable[Sample]]] = {}
    async with ReplicaSet(options.members, options.server) as servers:
        say(f"instrumented, w: {w}, {writers} at once ...")
        try:
            for who, (listeners, within) in kinds.items():
                for key in (OURS, *PEERS):
                    client = make(key, servers.uri, w, event_listeners=listeners)
                    clients.append(client)
                    collection = client[DATABASE][f"{key}{who}"]
                    calls = [_request(collection, me, within) for me in range(writers)]
                    measures[who, key] = partial(measure, calls)
            return await take_turns(measures, options.rounds, options.seconds)
        finally:
            for client in clients:
                await close(client)


def _by(watched: Watched, who: str, peer: str) -> Spread:
    return Spread.of(ratios(watched[who, OURS].cpu_us, watched[who, peer].cpu_us))


def show(console: Console, watched: Watched) -> None:
    """Print a table."""
    title = f"requests of {UPDATES} updates, and who watches"
    table = Table("watched by", "client", title=title)
    for heading in ("requests/s", "CPU us/request", "CPU, aioretry by it"):
        table.add_column(heading, justify="right")
    for (who, key), series in watched.items():
        medians = series.medians()
        ratio = "" if key == OURS else str(_by(watched, who, key))
        figures = shown(medians["per_second"]), shown(medians["cpu_us"])
        table.add_row(who, TITLES[key], *figures, ratio)
    console.print(table)


def data(watched: Watched) -> list[dict[str, Any]]:
    """The medians, as data."""
    return [
        {
            "watched_by": who,
            "client": key,
            **series.medians(),
            **({} if key == OURS else {"cpu_by_it": _by(watched, who, key).middle}),
        }
        for (who, key), series in watched.items()
    ]
