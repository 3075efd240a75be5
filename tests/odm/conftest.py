"""What the tests of both ODMs need: a client to hand in, a database, and writers in a failover."""

import asyncio
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import MongoClient
from pymongo.database import Database

from aioretry import RetryClient, deadline
from aioretry.testing import ReplicaSet

WRITERS = 20
SECONDS = 60.0
OPTIONS = {"w": "majority", "journal": True, "serverSelectionTimeoutMS": 1000 * SECONDS}


class Rounds:
    """Writers that play one round after the other, until they are told to stop."""

    def __init__(self, play: Callable[[int, int], Awaitable[None]]):
        self.play = play
        self.done = [0] * WRITERS
        self.stopped = False
        self.progress = asyncio.Event()

    async def write(self, me):
        """Play rounds as one of the writers."""
        while not self.stopped:
            async with deadline(SECONDS):
                await self.play(me, self.done[me])
            self.done[me] += 1
            self.progress.set()

    async def get_on(self):
        """Wait until every writer has begun and ended a round since now."""
        target = [number + 2 for number in self.done]
        while any(number < wanted for number, wanted in zip(self.done, target, strict=True)):
            self.progress.clear()
            await self.progress.wait()


@pytest.fixture
def name() -> str:
    """The name of the test's own database, and of its client."""
    return f"odm_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client_class() -> type[Any]:
    """What the ODM takes, if it is Motor's."""
    return RetryClient


@pytest.fixture
async def client(replica_set: ReplicaSet, name: str, client_class: type[Any]) -> AsyncIterator[Any]:
    """The client that the ODM is given."""
    async with client_class(replica_set.uri, appname=name, **OPTIONS) as client:
        yield client


@pytest.fixture
def stock_options(replica_set: ReplicaSet, name: str) -> dict[str, Any]:
    """The arguments of a driver's own client that sends every write once."""
    return {"host": replica_set.uri, "appname": name, "retryWrites": False, **OPTIONS}


@pytest.fixture
def stock_client(stock_options: dict[str, Any]) -> Iterator[AsyncIOMotorClient]:
    """A client of Motor's that sends every write once."""
    with warnings.catch_warnings():
        # Motor says that it is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        client = AsyncIOMotorClient(**stock_options)
    yield client
    client.close()


@pytest.fixture
def stored(plain: MongoClient, name: str) -> Database:
    """The test's database, read by PyMongo on the primary."""
    return plain[name]


@pytest.fixture
def contents(plain: MongoClient):
    """A function that gives all documents of a database, by collection."""

    def read(database: str):
        return {
            name: list(plain[database][name].find(projection={"revision_id": 0}).sort("_id"))
            for name in sorted(plain[database].list_collection_names())
        }

    return read


@pytest.fixture
def through_failovers(replica_set: ReplicaSet):
    """A function that plays rounds through a kill and a step-down, and says how many each had."""

    async def run(play: Callable[[int, int], Awaitable[None]]) -> list[int]:
        rounds = Rounds(play)
        async with asyncio.TaskGroup() as group:
            for me in range(WRITERS):
                group.create_task(rounds.write(me))
            await rounds.get_on()
            primary = await replica_set.wait_for_primary()
            await replica_set.kill(primary)
            await rounds.get_on()
            await replica_set.restart(primary)
            await replica_set.wait_for_primary()
            await replica_set.step_down()
            await rounds.get_on()
            rounds.stopped = True
        return rounds.done

    return run
