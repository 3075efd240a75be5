"""Has every alert of examples/grafana fire in a real Prometheus, and draws the dashboard of it.

``python -m tests.telemetry.alerts [docs/telemetry-dashboard.svg]``
"""

import asyncio
import itertools
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
from prometheus_client import CollectorRegistry, start_http_server
from pymongo.errors import PyMongoError

from aioretry import RetryClient, deadline
from aioretry.telemetry.prometheus import PrometheusHook
from aioretry.testing import ReplicaSet
from aioretry.testing._ports import ReservedPort
from tests import svg

EXAMPLE = Path(__file__).parents[2] / "examples" / "grafana"
PROMETHEUS = shutil.which("prometheus")
# So that it takes seconds what takes minutes in a service: the times of the rules, shortened.
WINDOW, PATIENCE = "10s", 90.0
_TIMES = re.compile(r"\[5m\]|offset 5m|for: \dm|> 18")
_FIELD = re.compile(r"\{\{(\w+)\}\}")
_NAME = re.compile(r"alert: (\w+)")
_COLOURS = ("#2f6f9f", "#c0392b", "#e0a030", "#17a2c8", "#7f8c8d")
_WIDTH, _HEIGHT, _GAP, _TOP = 440, 150, 20, 48


def rules() -> str:
    """The rules with short times."""
    text = (EXAMPLE / "alerts.yml").read_text(encoding="utf-8")
    short = {"[5m]": f"[{WINDOW}]", "offset 5m": f"offset {WINDOW}", "> 18": "> 5"}
    return _TIMES.sub(lambda found: short.get(found[0], "for: 1s"), text)


def names() -> list[str]:
    """The names of the alerts, in the order of the file."""
    return _NAME.findall(rules())


@dataclass(slots=True)
class Run:
    """What was seen.

    Attributes:
        began: When the load began, in seconds since the epoch.
        ended: When it ended.
        fired: After how many seconds of its situation each alert fired.
        marks: What was done when.
        panels: What the dashboard's panels showed: title, and its lines by their legends.
    """

    began: float = 0.0
    ended: float = 0.0
    fired: dict[str, float] = field(default_factory=dict)
    marks: list[tuple[float, str]] = field(default_factory=list)
    panels: list[tuple[str, dict[str, list[tuple[float, float]]]]] = field(default_factory=list)


class Prometheus:
    """A server that reads the metrics of one process.

    Args:
        url: Where it listens.
        session: What it is asked by.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def _get(self, path: str, **params: str) -> Any:
        async with self._session.get(f"{self._url}/{path}", params=params) as response:
            response.raise_for_status()
            return (await response.json())["data"]

    async def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        found = (await self._get("api/v1/alerts"))["alerts"]
        return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}

    async def until_firing(self, name: str) -> float:
        """Wait until an alert fires; return how many seconds that took."""
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            while name not in await self.firing():
                await asyncio.sleep(0.2)
        return time.monotonic() - began

    async def until_ready(self) -> None:
        """Wait until it has read the metrics."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(aiohttp.ClientError):
                    if (await self._get("api/v1/query", query="aioretry_threads"))["result"]:
                        return
                await asyncio.sleep(0.1)

    async def over(self, query: str, run: Run) -> list[tuple[Mapping[str, str], Any]]:
        """What a query gives over a run: labels and values."""
        data = await self._get(
            "api/v1/query_range",
            query=query.replace("$__rate_interval", "5s"),
            start=str(run.began),
            end=str(run.ended),
            step="0.5",
        )
        return [(each["metric"], each["values"]) for each in data["result"]]


@asynccontextmanager
async def prometheus(target: str) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that reads the metrics of a process, with the rules."""
    assert PROMETHEUS is not None
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "rules.yml").write_text(rules(), encoding="utf-8")
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "shop", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # is YAML
        port = stack.enter_context(closing(ReservedPort())).number
        address = f"127.0.0.1:{port}"
        process = await asyncio.create_subprocess_exec(
            PROMETHEUS,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            server = Prometheus(f"http://{address}", session)
            await server.until_ready()
            yield server
        finally:
            process.terminate()
            await process.wait()


class Play:
    """A service's load, and what befalls it.

    Args:
        servers: The deployment, with proxies.
        client: Of the service.
        small: Another one, with few connections.
    """

    def __init__(
        self, servers: ReplicaSet, client: RetryClient[Any], small: RetryClient[Any]
    ) -> None:
        self.servers = servers
        self.things = client.shop.things
        self.small = small.shop.others

    async def load(self) -> None:
        """Write, and run transactions, as long as nobody cancels it."""

        async def one(session: Any) -> None:
            await self.things.insert_one({}, session=session)

        while True:
            with suppress(PyMongoError):
                async with deadline(30):
                    await self.things.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
                    await self.small.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
                    async with await self.things.database.client.start_session() as session:
                        await session.with_transaction(one)
            await asyncio.sleep(0.02)

    async def _lose_answers(self) -> None:
        with self.servers.faults.drop_reply("findAndModify", times=2):
            with suppress(PyMongoError):
                await self.things.find_one_and_update({"_id": 2}, {"$inc": {"n": 1}}, upsert=True)
        await _for_ever()

    async def _lose_the_majority(self) -> None:
        while True:
            lost = [await self.servers.primary()]
            lost.append(next(each for each in self.servers.members if each not in lost))
            for member in lost:
                await self.servers.kill(member)
            await asyncio.sleep(9)
            for member in lost:
                await self.servers.restart(member)
            await self.things.find_one({})
            async with deadline(60):
                await self.things.update_one({"_id": 1}, {"$inc": {"n": 1}})

    async def _lose_every_other(self) -> None:
        while True:
            with (
                self.servers.faults.drop_request("delete", must_fire=False),
                suppress(PyMongoError),
            ):
                async with deadline(10):
                    await self.things.delete_one({"_id": 0})

    async def _conflict(self) -> None:
        async def both(session: Any) -> None:
            await self.things.update_one({"_id": 3}, {"$inc": {"n": 1}}, session=session)
            await asyncio.sleep(0.05)

        async def again() -> None:
            while True:
                async with await self.things.database.client.start_session() as session:
                    with suppress(PyMongoError):
                        await session.with_transaction(both)

        await self.things.update_one({"_id": 3}, {"$set": {"n": 0}}, upsert=True)
        await asyncio.gather(*(again() for _ in range(10)))

    async def _hold(self) -> None:
        async def write() -> None:
            while True:
                with suppress(PyMongoError):
                    await self.small.insert_one({})

        async with self.servers.faults.delay(
            3.0, "insert", namespace="shop.others", times=None, must_fire=False
        ):
            await asyncio.gather(*(write() for _ in range(6)))

    async def _answer_late(self) -> None:
        async with self.servers.faults.delay(2.0, "delete", times=None, must_fire=False):
            while True:
                with suppress(PyMongoError):
                    await self.things.delete_one({"_id": 0})

    situations: ClassVar[Mapping[str, Callable[["Play"], Awaitable[None]]]] = {
        "WritesOfUnknownOutcome": _lose_answers,
        "FailoversTakeLong": _lose_the_majority,
        "RetriesGoOn": _lose_every_other,
        "TransactionsRunAgain": _conflict,
        "ConnectionsUsedUp": _hold,
        "AttemptsWaitForConnections": _hold,
        "NoConnectionInTime": _hold,
        "WritesAreSlow": _answer_late,
    }


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def _stop(task: asyncio.Future[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def play(say: Callable[[str], None]) -> Run:
    """Have every alert fire, each in its situation; before that none may."""
    run, registry = Run(), CollectorRegistry()
    hook = PrometheusHook(registry)
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(ReplicaSet(faults=True))
        client = await stack.enter_async_context(RetryClient(servers.uri, hooks=[hook]))
        small = await stack.enter_async_context(
            RetryClient(servers.uri, hooks=[hook], maxPoolSize=2, waitQueueTimeoutMS=1500)
        )
        hook.observe(small)  # in the gauges of both, its few connections would be lost
        port = stack.enter_context(closing(ReservedPort())).number
        web, thread = start_http_server(port, "127.0.0.1", registry)
        stack.callback(thread.join)
        stack.callback(web.server_close)
        stack.callback(web.shutdown)
        server = await stack.enter_async_context(prometheus(f"127.0.0.1:{port}"))
        playing = Play(servers, client, small)
        load = asyncio.create_task(playing.load())
        stack.push_async_callback(_stop, load)
        run.began = time.time()
        while time.time() < run.began + 15:
            assert not await server.firing(), "nothing is wrong yet"
            await asyncio.sleep(0.5)
        for name in names():
            run.marks.append((time.time(), name))
            situation = asyncio.ensure_future(playing.situations[name](playing))
            try:
                run.fired[name] = await server.until_firing(name)
            finally:
                await _stop(situation)
                await servers.heal()
                await servers.wait_for_primary()
            say(f"{name} fired after {run.fired[name]:.1f} s")
        run.ended = time.time()
        await servers.heal()
        run.panels = [(panel["title"], await lines(server, panel, run)) for panel in panels()]
    return run


def panels() -> list[Mapping[str, Any]]:
    """The panels of the dashboard."""
    text = (EXAMPLE / "dashboard.json").read_text(encoding="utf-8")
    return list(json.loads(text)["panels"])


async def lines(
    server: Prometheus, panel: Mapping[str, Any], run: Run
) -> dict[str, list[tuple[float, float]]]:
    """What a panel shows."""
    found = {}
    for target in panel["targets"]:
        for labels, values in await server.over(target["expr"], run):
            legend = _FIELD.sub(partial(_label, labels), target["legendFormat"])
            found[legend] = [(at, float(value)) for at, value in values if value != "NaN"]
    return found


def _label(labels: Mapping[str, str], name: re.Match[str]) -> str:
    return labels.get(name[1], "")


def draw(run: Run) -> str:
    """The dashboard as a picture."""
    rows = (len(run.panels) + 1) // 2
    width, height = 2 * (_WIDTH + _GAP) + _GAP, _TOP + rows * (_HEIGHT + 2 * _GAP) + _GAP
    root = svg.picture(width, height, "The dashboard in a run in which everything went wrong")
    svg.text(root, _GAP, 24, "aioretry: a run in which each alert was made to fire", weight="bold")
    for place, (title, shown) in enumerate(run.panels):
        left = _GAP + (place % 2) * (_WIDTH + _GAP)
        _draw_panel(root, left, _TOP + (place // 2) * (_HEIGHT + 2 * _GAP), title, shown, run)
    return svg.text_of(root)


def _draw_panel(
    root: Any,
    left: float,
    top: float,
    title: str,
    shown: Mapping[str, list[tuple[float, float]]],
    run: Run,
) -> None:
    most = max((value for line in shown.values() for _, value in line), default=0) or 1.0
    bottom, seconds = top + _HEIGHT, run.ended - run.began

    def x(at: float) -> float:
        return left + (at - run.began) / seconds * _WIDTH

    svg.text(root, left, top + 10, title, weight="bold")
    svg.text(root, left + _WIDTH, top + 10, f"up to {most:.3g}", size=10, anchor="end")
    for at, _ in run.marks:
        svg.line(root, x(at), top + 30, x(at), bottom, svg.FAINT)
    svg.line(root, left, bottom, left + _WIDTH, bottom, svg.INK)
    at = left
    for colour, (legend, line) in zip(_COLOURS * 3, sorted(shown.items()), strict=False):
        svg.rect(root, at, top + 17, 9, 9, colour)
        svg.text(root, at + 12, top + 25, legend, size=10)
        at += 24 + 6 * len(legend)
        points = [(x(when), bottom - value / most * (_HEIGHT - 34)) for when, value in line]
        for (x1, y1), (x2, y2) in itertools.pairwise(points):
            if x2 - x1 < 3 * _WIDTH / seconds:
                svg.line(root, x1, y1, x2, y2, colour, width=1.5)


if __name__ == "__main__":
    seen = asyncio.run(play(print))
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(draw(seen), encoding="utf-8")
