"""Whoever adds entries and hands them on, in a process of its own, to be killed or frozen."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aioretry import run_transaction
from aioretry.outbox import Entry, Outbox, Relay
from tests.clients import chosen_client

LEASE_SECONDS = 1.0  # so that the next one need not wait for long
ENTRIES = 3


class Letters:
    """A receiver that outlives whoever tells it: a file, with a line for each delivery.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def __call__(self, entry: Entry) -> None:
        """Take an entry."""
        line = {"id": entry.id, "key": entry.key, "fence": entry.fence, **entry.payload}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, object]]:
        """Everything that it got, in order."""
        return [json.loads(line) for line in self._path.read_text().splitlines()]


def firsts(letters: Letters) -> Iterator[dict[str, object]]:
    """What it got, without what it had got already."""
    seen = set()
    for line in letters.lines():
        if line["id"] not in seen:
            seen.add(line["id"])
            yield line


def relay_of(outbox: Outbox, deliver: Callable[..., object]) -> Relay:
    """A relay that waits for nothing long."""
    return Relay(
        outbox,
        deliver,  # type: ignore[arg-type]
        poll_seconds=0.05,
        first_pause=0.01,
        lease_seconds=LEASE_SECONDS,
    )


async def order_and_tell(uri: str, name: str, number: int, path: str) -> None:
    """Place orders, each with an entry of the same transaction; hand them on."""
    async with chosen_client()(uri) as client:
        database = client.aioretry_tests
        outbox = Outbox(database[f"{name}_outbox"])
        for n in range(ENTRIES):
            order = {"_id": f"{number}.{n}"}

            async def place(session: Any, order: dict[str, str] = order) -> None:
                await database[name].insert_one(order, session=session)
                await outbox.add(session, "order", {"order": order["_id"]}, key=str(number))

            await run_transaction(client, place)
        relay = relay_of(outbox, Letters(path))
        task = asyncio.create_task(relay.run())
        while relay.deliveries["order", "delivered"] < ENTRIES and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])


async def hand_on(uri: str, name: str, path: str, gate: str) -> None:
    """Hand entries on, each when there is a file; say that each was begun."""
    letters = Letters(path)
    logging.basicConfig(level=logging.INFO, filename=gate + ".log")

    async def deliver(entry: Entry) -> None:
        Path(gate + ".begun").touch()
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
        await letters(entry)

    async with chosen_client()(uri) as client:
        await relay_of(Outbox(client.aioretry_tests[name]), deliver).run()
