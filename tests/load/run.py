"""One load run: servers, a service before them, clients before that, and faults in the middle."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from pymongo import MongoClient

from aioretry.testing import ReplicaSet
from aioretry.testing._ports import ReservedPort
from tests.examples.services import PATIENCE, Process, answers, running
from tests.load.accounting import (
    Books,
    Delivered,
    Figures,
    Handed,
    Stored,
    compare,
    figures_of,
    handed_on,
)
from tests.load.shoppers import Shopping, Told

Say = Callable[[str], None]

STOCK = {f"sku-{number}": 1_000_000 for number in range(500)}
_AT_ONCE = 20
_SHORTEST_ABSENCE = 5.0
_LONGEST_BACKLOG = 120.0  # until all entries are handed on, in seconds


@dataclass(frozen=True, slots=True)
class Side:
    """One of the services."""

    name: str
    app: str
    """Where uvicorn finds it."""

    relay: str | None = None
    """Who hands on the entries of its outbox, for ``python -m aioretry outbox``."""

    uses_motor: bool = True


OURS = Side("aioretry", "examples.shop.app:app")
ASYNCIO = Side("asyncio", "tests.load.asyncio_shop:app", uses_motor=False)
MOTOR = Side("Motor", "tests.load.motor_shop:app")
OUTBOX = Side("with outbox", "tests.load.outbox_shop:app", "tests.load.outbox_shop:relay")
ASYNCIO_OUTBOX = replace(OUTBOX, uses_motor=False)
WITHOUT = replace(OUTBOX, name="without outbox", relay=None)
ASYNCIO_WITHOUT = replace(WITHOUT, uses_motor=False)


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is like."""

    folder: Path
    """For the services' logs."""

    seconds: float = 120.0
    connections: int = 200
    processes: int = 2
    """Of the service."""

    deadline: float = 5.0
    """The seconds that each request asks for."""

    grace: float = 2.0
    """How much longer an answer may take to arrive, in seconds; the service's own one is 1."""

    settle: float = 60.0
    """How long clients repeat undecided requests at the end, in seconds."""

    freezes: bool = True
    server: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to."""

    name: str
    figures: Figures
    books: Books
    handed: Handed | None = None

    @property
    def kept_the_rules(self) -> bool:
        """Whether each order is there once, and nobody got a broken or a late answer."""
        is_true = self.books.is_true and (self.handed is None or self.handed.is_true)
        return is_true and not (self.figures.broken or self.figures.late)


async def run(side: Side, options: Options, say: Say) -> Result:
    """Load a service on a replica set of its own.

    Args:
        side: The service.
        options: What the run is like.
        say: Told what happens when.
    """
    async with ReplicaSet(version=options.server) as servers:
        async with AsyncExitStack() as stack:
            ports = [
                stack.enter_context(closing(ReservedPort())).number
                for _ in range(options.processes)
            ]
            started = [
                await stack.enter_async_context(service(side, options.folder, servers.uri, port))
                for port in ports
            ]
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            await _prepare(urls, started)
            await fill(urls[0], STOCK)
            told = Told(closes=options.seconds)
            shopping = Shopping(
                urls,
                options.connections,
                options.settle,
                [options.deadline],
                tuple(STOCK),
            )
            relays = [
                await stack.enter_async_context(_relay(side, options.folder, servers.uri))
                for _ in range(0 if side.relay is None else 2)
            ]
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(shopping.run(told))
                tasks.create_task(_break(servers, options, told, say))
                if relays:
                    tasks.create_task(_kill(relays, options, told, say))
            await servers.heal()
            if relays:
                await asyncio.to_thread(_until_handed, servers.uri)
                say(f"{told.now:6.1f} s: all entries are handed on")
        stored, stock = await asyncio.to_thread(read, servers.uri)
    figures = figures_of(
        told.answers, seconds=options.seconds, deadline=options.deadline, grace=options.grace
    )
    books = compare(told.asked, stored, STOCK, stock)
    handed = None
    if side.relay is not None:
        handed = handed_on(stored, _delivered(options.folder))
    return Result(side.name, figures, books, handed)


def service(
    side: Side, folder: Path, uri: str, port: int, *flags: str
) -> AbstractAsyncContextManager[Process]:
    """Run a process of a service.

    Args:
        side: The service.
        folder: For what it prints and logs.
        uri: Of the servers.
        port: Where it listens.
        flags: What else uvicorn is told; else it has no access log.
    """
    return running(
        folder,
        *("-m", "uvicorn", side.app, "--port", str(port)),
        # Else it closes connections that clients are just about to use.
        *("--timeout-keep-alive", "300", *(flags or ["--no-access-log"])),
        **_environment(side, uri),
    )


def _relay(side: Side, folder: Path, uri: str) -> AbstractAsyncContextManager[Process]:
    command = "-m", "aioretry", "outbox", "run", str(side.relay)
    return running(folder, *command, **_environment(side, uri), TOLD=str(_told(folder)))


def _environment(side: Side, uri: str) -> dict[str, str]:
    motor = "yes" if side.uses_motor else "no"
    secrets_of_all = dict.fromkeys(["SHOP_SECRET", "BOX_OFFICE_SECRET"], _SECRET)
    told = "no" if side.relay is None else "yes"
    return {"MONGODB_URI": uri, "MOTOR_SHOP": motor, "OUTBOX": told, **secrets_of_all}


def _told(folder: Path) -> Path:
    return folder / "told.jsonl"


def _delivered(folder: Path) -> list[Delivered]:
    told = _told(folder)
    lines = told.read_text().splitlines() if told.exists() else []
    return [Delivered(**json.loads(line)) for line in lines]


_SECRET = secrets.token_hex(32)


async def _prepare(urls: list[str], started: list[Process]) -> None:
    """Wait until all processes are ready."""
    async with aiohttp.ClientSession() as session:
        for url, process in zip(urls, started, strict=True):
            async with asyncio.timeout(PATIENCE):
                while not await answers(session, f"{url}/readyz"):
                    assert not process.has_ended, process.log
                    await asyncio.sleep(0.05)


async def fill(url: str, stock: Mapping[str, int]) -> None:
    """Have a service fill the shelves."""
    async with aiohttp.ClientSession() as session:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def put(sku: str, quantity: int) -> None:
            async with (
                limit,
                session.put(f"{url}/stock/{sku}", json={"quantity": quantity}) as response,
            ):
                response.raise_for_status()

        async with asyncio.TaskGroup() as tasks:
            for sku, quantity in stock.items():
                tasks.create_task(put(sku, quantity))


async def _break(servers: ReplicaSet, options: Options, told: Told, say: Say) -> None:
    """Kill a primary after a third of the time, and freeze one after two thirds."""
    await asyncio.sleep(options.seconds / 3)
    victim = await servers.wait_for_primary()
    say(f"{told.now:6.1f} s: the primary {victim.address} is killed (SIGKILL)")
    await servers.kill(victim)
    await asyncio.sleep(max(_SHORTEST_ABSENCE, options.seconds / 12))
    await servers.restart(victim)
    say(f"{told.now:6.1f} s: it is back")
    if not options.freezes:
        return
    await asyncio.sleep(max(0.0, options.seconds * 2 / 3 - told.now))
    victim = await servers.wait_for_primary()
    say(f"{told.now:6.1f} s: the primary {victim.address} is frozen (SIGSTOP)")
    await servers.freeze(victim)
    await asyncio.sleep(max(_SHORTEST_ABSENCE, options.seconds / 8))
    await servers.thaw(victim)
    say(f"{told.now:6.1f} s: it goes on (SIGCONT)")


async def _kill(relays: list[Process], options: Options, told: Told, say: Say) -> None:
    """Kill the relay that is at work, at half time or when it has told the first order."""
    await asyncio.sleep(options.seconds / 2)
    async with asyncio.timeout(PATIENCE):
        while not (delivered := _delivered(options.folder)):
            await asyncio.sleep(0.05)
    await next(relay for relay in relays if relay.pid == delivered[-1].by).kill()
    say(f"{told.now:6.1f} s: the relay is killed (SIGKILL), and another one takes over")


def _until_handed(uri: str) -> None:
    client: MongoClient[dict[str, Any]] = MongoClient(uri, readConcernLevel="majority")
    with client:
        ends = time.monotonic() + _LONGEST_BACKLOG
        while client.shop.outbox.find_one({"state": "pending"}) is not None:
            assert time.monotonic() < ends, "entries are not handed on"
            time.sleep(0.1)


def read(uri: str) -> tuple[list[Stored], Mapping[str, int]]:
    """Read all orders and the stock, as the majority has them."""
    client: MongoClient[dict[str, Any]] = MongoClient(uri, readConcernLevel="majority")
    with client:
        orders = [
            Stored(str(order["_id"]), order["sku"], order["quantity"])
            for order in client.shop.orders.find()
        ]
        stock = {article["_id"]: article["quantity"] for article in client.shop.stock.find()}
    return orders, stock
