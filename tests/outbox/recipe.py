"""Whoever adds entries and hands them on, in a process of its own, to be killed or frozen."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from aioretry import run_transaction
from aioretry.outbox import Entry, Outbox, OutboxStatus, Relay
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


def relay_of(outbox: Outbox, deliver: Callable[..., object], **other: float) -> Relay:
    """A relay that waits for nothing long."""
    quick = {"poll_seconds": 0.05, "first_pause": 0.01, "lease_seconds": LEASE_SECONDS}
    return Relay(outbox, deliver, **quick | other)  # type: ignore[arg-type]


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


class StoppedOutbox(Outbox):
    """An outbox that keeps its process from all else when a page was read, until there is a file.

    Args:
        collection: Where its entries are.
        gate: The file.
    """

    def __init__(self, collection: Any, gate: str) -> None:
        super().__init__(collection)
        self._gate = gate

    async def pending(self, without: Collection[str], limit: int) -> dict[str, list[Entry]]:
        """Read a page."""
        found = await super().pending(without, limit)
        if found:
            Path(self._gate + ".begun").touch()
        while found and not Path(self._gate).exists():
            time.sleep(0.01)
        return found

    async def status(self) -> OutboxStatus:
        """Ask nobody, who could say that there was no time left to read the page."""
        return OutboxStatus(0, 0, 0.0)


async def hand_on(uri: str, name: str, path: str, gate: str, *, stops: bool) -> None:
    """Hand entries on, each when there is a file; say that each was begun.

    Args:
        uri: Of the servers.
        name: Of the outbox's collection.
        path: Of the letters.
        gate: The file.
        stops: Whether to stand still when a page was read, and not in the delivery.
    """
    letters = Letters(path)
    logging.basicConfig(level=logging.INFO, filename=gate + ".log")

    async def deliver(entry: Entry) -> None:
        Path(gate + ".begun").touch()
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
        await letters(entry)

    async with chosen_client()(uri) as client:
        entries = client.aioretry_tests[name]
        outbox = StoppedOutbox(entries, gate) if stops else Outbox(entries)
        # It reads no more, so that nothing but its lease tells it how late it is.
        await relay_of(outbox, deliver, poll_seconds=60.0, lease_seconds=2 * LEASE_SECONDS).run()
