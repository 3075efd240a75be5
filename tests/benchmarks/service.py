"""A watched service: FastAPI under Sentry's and OpenTelemetry's instrumentations, on each client.

A request counts a visit: an update, a read and an insert. Each service is a process of its own,
and they take turns. What counts is the ratio of each round.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import sentry_sdk
import uvicorn
from fastapi import FastAPI, Request
from opentelemetry.instrumentation.pymongo import PymongoInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from rich.console import Console
from rich.table import Table
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from aioretry.testing import ReplicaSet
from tests.benchmarks.figures import Spread, ratios, shown
from tests.benchmarks.process import cpu_seconds
from tests.benchmarks.throughput.clients import DATABASE, OURS, PEERS, TITLES, make
from tests.benchmarks.throughput.rounds import Sample, Series, take_turns
from tests.clients import CHOSEN, close
from tests.clients import OURS as CLIENTS

_PATIENCE = 60.0


class _Nowhere(SpanExporter):
    """Leaves out what sending costs."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        del spans
        return SpanExportResult.SUCCESS


class _Dropped(Transport):
    """Leaves out what sending costs."""

    def capture_envelope(self, envelope: Envelope) -> None:
        """Do nothing with it."""


def serve(key: str, uri: str, socket: str, *, is_watched: bool) -> None:
    """Serve on a client until the process is ended."""
    span: Any = None
    if is_watched:
        sentry_sdk.init(
            dsn="http://nobody@127.0.0.1:9/1", traces_sample_rate=1.0, transport=_Dropped
        )
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_Nowhere()))
        PymongoInstrumentor().instrument(tracer_provider=provider)
        span = provider.get_tracer("service").start_as_current_span
    uvicorn.run(
        app_of(key, uri, span),
        uds=socket,
        log_level="warning",
        timeout_keep_alive=86400,  # through the others' turns
    )


def app_of(key: str, uri: str, span: Any) -> FastAPI:
    """The service; ``span`` begins the span of a request, unless it is None."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        client = make(key, uri, "1")
        app.state.pages, app.state.visits = client[DATABASE].pages, client[DATABASE].visits
        yield
        await close(client)

    app = FastAPI(lifespan=lifespan)

    async def count(pages: Any, visits: Any, page: int) -> dict[str, int]:
        await pages.update_one({"_id": page}, {"$inc": {"visits": 1}}, upsert=True)
        found = await pages.find_one({"_id": page})
        await visits.insert_one({"page": page, "number": found["visits"]})
        return {"page": page, "visits": found["visits"]}

    @app.post("/pages/{page}")
    async def visit(page: int, request: Request) -> dict[str, int]:
        state = request.app.state
        if span is None:
            return await count(state.pages, state.visits, page)
        with span("POST /pages/{page}"):
            return await count(state.pages, state.visits, page)

    @app.get("/cpu")
    async def cpu() -> float:
        return cpu_seconds()

    return app


class Service:
    """A service in a process of its own, and connections to it; an ``async with`` block."""

    def __init__(self, key: str, uri: str, socket: Path, connections: int, *watching: str) -> None:
        self._command = [sys.executable, "-m", __spec__.name, *watching]
        self._command += ["--serve", key, uri, str(socket)]
        self._socket = socket
        self._count = connections
        self._stack = AsyncExitStack()
        self._connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            process = await asyncio.create_subprocess_exec(*self._command)
            stack.push_async_callback(process.wait)
            stack.callback(_end, process)
            async with asyncio.timeout(_PATIENCE):
                while len(self._connections) < self._count:
                    if process.returncode is not None:
                        raise ChildProcessError(f"{self._command} has ended")
                    try:
                        reader, writer = await asyncio.open_unix_connection(self._socket)
                    except (FileNotFoundError, ConnectionRefusedError):  # it does not listen yet
                        await asyncio.sleep(0.05)
                    else:
                        stack.callback(writer.close)
                        self._connections.append((reader, writer))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def measure(self, seconds: float) -> Sample:
        """Have each connection ask one time after the other for so long."""
        loop = asyncio.get_running_loop()
        cpu, started = float(await self._ask(0, "GET /cpu")), loop.time()
        until, latencies = started + seconds, list[float]()

        async def visit(number: int) -> None:
            while (begun := loop.time()) < until:
                await self._ask(number, f"POST /pages/{number}")
                latencies.append(loop.time() - begun)

        await asyncio.gather(*map(visit, range(self._count)))
        elapsed = loop.time() - started
        return Sample.of(latencies, elapsed, float(await self._ask(0, "GET /cpu")) - cpu)

    async def _ask(self, number: int, what: str) -> bytes:
        reader, writer = self._connections[number]
        writer.write(f"{what} HTTP/1.1\r\nhost: service\r\ncontent-length: 0\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"{what}: {head!r}")
        length = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
        return await reader.readexactly(int(length.partition(b":")[2]))


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()


async def compare(options: argparse.Namespace, folder: Path) -> dict[str, Series]:
    """Measure all services, on a replica set of the benchmark's own."""
    watching = ["--unwatched"] if options.unwatched else []
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(ReplicaSet(options.members))
        measures: dict[str, Callable[[float], Any]] = {}
        for key in (OURS, *PEERS):
            socket = folder / key
            service = Service(key, servers.uri, socket, options.connections, *watching)
            measures[key] = (await stack.enter_async_context(service)).measure
        return await take_turns(measures, options.rounds, options.seconds)


def show(console: Console, found: dict[str, Series], title: str) -> None:
    """Print a table."""
    table = Table("client", title=title)
    for heading in ("requests/s", "p50 ms", "CPU us/request", "requests/s, aioretry by it", "CPU"):
        table.add_column(heading, justify="right")
    own = found[OURS]
    for key, series in found.items():
        columns = (series.per_second, series.p50_ms, series.cpu_us)
        figures = [shown(statistics.median(column)) for column in columns]
        pairs = ((own.per_second, series.per_second), (own.cpu_us, series.cpu_us))
        by = ["" if key == OURS else str(Spread.of(ratios(*pair))) for pair in pairs]
        table.add_row(TITLES[key], *figures, *by)
    console.print(table)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.service", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11, help="that count; one more warms up")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each service in a round")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--members", type=int, default=1, help="of the replica set")
    parser.add_argument("--unwatched", action="store_true", help="without the instrumentations")
    parser.add_argument("--client", choices=CLIENTS, help="which of aioretry's")
    parser.add_argument("--serve", nargs=3, metavar=("CLIENT", "URI", "SOCKET"), help="be one")
    return parser.parse_args(arguments)


def main() -> None:
    """Compare what the command line says."""
    options = parse(sys.argv[1:])
    if options.client is not None:
        os.environ[CHOSEN] = options.client
    warnings.filterwarnings("ignore", message=".*[Mm]otor.*", category=DeprecationWarning)
    if options.serve is not None:
        serve(*options.serve, is_watched=not options.unwatched)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(compare(options, Path(folder)))
    title = f"{options.connections} connections{', nobody watches' if options.unwatched else ''}"
    show(Console(width=120, highlight=False), found, title)


if __name__ == "__main__":
    main()
