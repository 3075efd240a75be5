"""One run: servers, clients, one phase for each fault, and the counting at the end."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from anyio import CancelScope

from aioretry import RetryScheduled
from aioretry.testing import Mongod, ReplicaSet
from examples.demo.counting import Tally, tally
from examples.demo.database import Truth
from examples.demo.faults import EXISTING_SET, OWN_SET, Fault, Scene
from examples.demo.state import Cell, State
from examples.demo.strategies import (
    DATABASE,
    Client,
    SentCommands,
    Strategy,
    strategies,
)
from examples.demo.writers import Writers

_LOGGER = "aioretry"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: one cell, told and counted."""

    fault: Fault
    strategy: Strategy
    tally: Tally
    sent: int
    """Commands that left the client."""

    retries: int
    longest_pause: float
    error_classes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to."""

    skipped: Sequence[Fault]
    lines: Sequence[Line]


@dataclass(slots=True)
class _Run:
    state: State
    uri: str
    truth: Truth
    servers: ReplicaSet | None
    faults: Sequence[Fault]
    ways: Sequence[Strategy]
    sent: SentCommands = field(default_factory=SentCommands)
    clients: dict[str, Client] = field(default_factory=dict)
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)


async def run(state: State, where: str | Mongod) -> Result:
    """Run the demo.

    Args:
        state: The run; what is seen of it meanwhile.
        where: The URI of an existing set, to which nothing is done, or the program to start a set
            of our own with.

    Returns:
        What was counted.

    Raises:
        MongodStartError: A server did not start.
        DatabaseInUseError: The existing set has a database of the demo's name already.
        PyMongoError: The existing set can't be written to.
    """
    _silence_log()
    ways = strategies(state.plan)
    async with AsyncExitStack() as stack:
        if isinstance(where, str):
            current = _Run(state, where, _existing(where), None, EXISTING_SET, ways)
        else:
            state.say("start three servers")
            servers = await stack.enter_async_context(ReplicaSet(faults=True, mongod=where))
            current = _Run(state, servers.uri, _past_proxies(servers), servers, OWN_SET, ways)
            state.members = lambda: _conditions(servers)
        await _prepare(current, stack)
        for number in range(len(current.faults)):
            await _run_phase(current, number)
        state.phase = "counting"
        state.say("read what the database counted")
        skipped = [fault for fault in OWN_SET if fault not in current.faults]
        return Result(skipped, await _count(current))


async def _prepare(current: _Run, stack: AsyncExitStack) -> None:
    state = current.state
    for strategy in current.ways:
        for fault in current.faults:
            current.cells[fault.key, strategy.key] = Cell(fault.key, strategy.key)
    version = await current.truth.prepare(cell.collection for cell in current.cells.values())
    if current.servers is None:
        stack.push_async_callback(_drop, current.truth)
    state.about = f"MongoDB {version}"
    for strategy in current.ways:
        client = strategy.open_client(
            current.uri, state.plan, current.sent, lambda event: _note_retry(current, event)
        )
        stack.push_async_callback(_close, client)
        current.clients[strategy.key] = client
    state.say("connect")
    await asyncio.gather(*(client.admin.command("ping") for client in current.clients.values()))


async def _run_phase(current: _Run, number: int) -> None:
    state, fault = current.state, current.faults[number]
    shares = sum(later.share for later in current.faults[number:])
    until = state.plan.phase_end(state.elapsed, fault.share, shares)
    cells = {strategy.key: current.cells[fault.key, strategy.key] for strategy in current.ways}
    state.begin_phase(f"{number + 1} of {len(current.faults)}: {fault.title}", cells)
    crowd = [
        Writers(
            state,
            strategy,
            current.clients[strategy.key],
            cells[strategy.key],
            some_fail=fault.some_fail,
        )
        for strategy in current.ways
    ]
    scene = Scene(state, [cell.collection for cell in cells.values()], until)
    async with asyncio.TaskGroup() as tasks:
        for cell, writers in zip(cells.values(), crowd, strict=True):
            cell.start()
            tasks.create_task(writers.run())
        if fault.happen is None or current.servers is None:
            await scene.rest()
        else:
            await fault.happen(scene, current.servers)
        for writers in crowd:
            writers.stop()
        state.doing = "wait for the writes that are under way"
    if current.servers is not None:
        await current.servers.heal()


async def _count(current: _Run) -> list[Line]:
    cells = current.cells
    counted = await current.truth.count(cell.collection for cell in cells.values())
    lines: list[Line] = []
    for fault in current.faults:
        for strategy in current.ways:
            cell = cells[fault.key, strategy.key]
            truth = counted[cell.collection]
            lines.append(
                Line(
                    fault,
                    strategy,
                    tally(cell.told, truth.times, truth.counter, must_tell=strategy.is_ours),
                    current.sent[cell.collection],
                    cell.retries,
                    cell.longest_pause,
                    dict(cell.error_classes),
                )
            )
    return lines


def _note_retry(current: _Run, event: RetryScheduled) -> None:
    collection = event.namespace.removeprefix(f"{DATABASE}.")
    for cell in current.cells.values():
        if cell.collection == collection:
            cell.retries += 1


def _past_proxies(servers: ReplicaSet) -> Truth:
    async def find_uri() -> str:
        return (await servers.wait_for_primary()).direct_uri

    return Truth(find_uri)


def _existing(uri: str) -> Truth:
    async def find_uri() -> str:
        return uri

    return Truth(find_uri)


async def _close(client: Client) -> None:
    closing = client.close()
    if closing is not None:  # Motor's waits by itself
        await closing


async def _drop(truth: Truth) -> None:
    with CancelScope(shield=True):
        await truth.drop()


def _conditions(servers: ReplicaSet) -> list[tuple[str, str]]:
    return [(member.address, member.state.value) for member in servers.members]


def _silence_log() -> None:
    # The number of retries is on the display; the log's lines would tear it.
    logger = logging.getLogger(_LOGGER)
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
