"""Pending updates on a server that is no member of a set, which is killed and started again."""

import asyncio
from collections import Counter

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from aioretry import RetryClient
from aioretry.idempotent import PendingUpdates, UpdateInterruptedError
from aioretry.testing import Standalone
from tests.idempotent.pending_recipe import DATABASE, documents_in, new_name, tokens_in
from tests.lengths import in_full

COUNTERS, WRITERS, KILLS = 3, 8, in_full(4, otherwise=2)
BETWEEN_KILLS = 60  # updates
INCREMENT = {"$inc": {"n": 1}}


class Writing:
    """Writers that count what they were told of their updates."""

    def __init__(self, updates: PendingUpdates, timeout: float | None):
        self.updates = updates
        self.timeout = timeout
        self.applied: Counter[int] = Counter()
        self.interrupted: list[UpdateInterruptedError] = []
        self.stopped = False
        self.changed = asyncio.Condition()

    async def write(self, counter: int) -> None:
        """Apply updates one after the other."""
        while not self.stopped:
            try:
                await self.updates.apply(counter, INCREMENT, timeout=self.timeout)
            except UpdateInterruptedError as exc:
                self.interrupted.append(exc)
                self.applied[counter] += exc.will_be_applied
            except PyMongoError:  # nothing was sent
                await asyncio.sleep(0.05)
            else:
                self.applied[counter] += 1
            async with self.changed:
                self.changed.notify_all()

    async def find_out(self) -> None:
        """Go on with every update that may not have been begun."""
        for exc in self.interrupted:
            if not exc.will_be_applied:
                result = await self.updates.resolve(exc, timeout=60)
                assert result.matched
                self.applied[exc.id] += 1

    async def some_more(self) -> None:
        """Wait until there is progress."""
        goal = self.applied.total() + BETWEEN_KILLS
        async with self.changed:
            await self.changed.wait_for(lambda: self.applied.total() >= goal)


@pytest.mark.sample(5)
@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "timeout"),
    [
        (RetryClient, None),
        (RetryClient, 1.0),
        (RetryClient, 60.0),
        (AsyncMongoClient, None),
        (AsyncMongoClient, 1.0),
        # On a busy machine, PyMongo's own monitor may wait for minutes for a hello.
        pytest.param(AsyncMongoClient, 60.0, marks=pytest.mark.matrix),
    ],
)
async def test_kill_and_restart(server_version, make, timeout):
    """After kill -9 and restart, again and again, counters are exact and no token is left."""
    name = new_name()
    with Standalone(server_version) as server:
        options = "/?serverSelectionTimeoutMS=1000" if timeout is None else "/"
        async with make(server.uri.removesuffix("/") + options) as client:
            collection = client[DATABASE][name]
            await collection.insert_many([{"_id": key, "n": 0} for key in range(COUNTERS)])
            writing = Writing(PendingUpdates(collection, lifetime=600), timeout)
            async with asyncio.TaskGroup() as group:
                for number in range(WRITERS):
                    group.create_task(writing.write(number % COUNTERS))
                for _ in range(KILLS):
                    await writing.some_more()
                    await server.kill(server.members[0])
                    await server.restart(server.members[0])
                await writing.some_more()
                writing.stopped = True
            await writing.find_out()
            report = await writing.updates.clean_up(older_than=0, timeout=60)
            status = await writing.updates.status()
        documents = documents_in(server, name)
    assert report.finished == report.found
    assert (0, None) == (status.tokens, status.oldest)
    assert writing.applied == {key: document["n"] for key, document in documents.items()}
    assert not [document for document in documents.values() if tokens_in(document)]
