"""What the tests of outboxes need: one with entries, and relays that are at work on it."""

import asyncio
import contextlib
from collections import Counter

import pytest

from aioretry import ClientDraining, run_transaction
from aioretry.outbox import Entry, Outbox, Relay
from tests.clients import for_both

# What both clients are tested with in the short form, too.
FOR_BOTH = {
    "test_a_drain",
    "test_cancelled_at_any_moment",
    "test_each_kill",
    "test_in_order",
    "test_only_in_a_transaction",
}

QUICK = {"first_pause": 0.01, "longest_pause": 0.05, "poll_seconds": 0.02, "lease_seconds": 1.0}
"""A relay that waits for nothing long."""


def pytest_generate_tests(metafunc):
    """Test with both clients: in full length all, and some in the short form."""
    for_both(metafunc, FOR_BOTH)


class Receiver:
    """Whoever gets the entries; what is ``wrong`` it refuses as often as is said."""

    def __init__(self) -> None:
        self.got: list[Entry] = []
        self.wrong: Counter[str] = Counter()
        self.error: BaseException = ValueError("no")

    async def __call__(self, entry: Entry) -> None:
        """Take an entry."""
        self.got.append(entry)
        if self.wrong[entry.payload["what"]] > 0:
            self.wrong[entry.payload["what"]] -= 1
            raise self.error

    def what(self) -> list[str]:
        """What it got, in order."""
        return [entry.payload["what"] for entry in self.got]


@pytest.fixture
def outbox(collection):
    """An outbox in the test's collection."""
    return Outbox(collection)


@pytest.fixture
def receiver():
    """Whoever gets the entries."""
    return Receiver()


@pytest.fixture
def relay(outbox, receiver):
    """A relay that hands them to the receiver."""
    return Relay(outbox, receiver, **QUICK)


@pytest.fixture
def add(client, outbox):
    """Add entries in one transaction: texts such as ``a1``, whose key is their first letter."""

    async def add(*whats):
        async def add_all(session):
            return [
                await outbox.add(session, "tell", {"what": what}, key=what[0]) for what in whats
            ]

        return await run_transaction(client, add_all)

    return add


@pytest.fixture
async def at_work():
    """Run relays until the test ends."""
    tasks = []

    def start(relay):
        tasks.append(asyncio.create_task(relay.run()))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ClientDraining):
            await task


async def until(condition):
    """Wait until something is so."""
    while not condition():
        await asyncio.sleep(0.005)


async def emptied(outbox):
    """Wait until nothing is to be handed on."""
    while (await outbox.status()).pending:
        await asyncio.sleep(0.01)
