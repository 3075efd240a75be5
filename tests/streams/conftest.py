"""What the tests of streams need: documents with images, and their aggregates."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from pymongo import MongoClient

from aioretry import RetryClient, RetryMotorCollection
from aioretry.streams import Aggregator
from tests.clients import for_both
from tests.conftest import MAJORITY
from tests.streams.tagging import IMAGES, aggregated, counted, of_change_stream

# What both clients are tested with in the short form, too.
FOR_BOTH = {
    "test_at_random",
    "test_from_the_beginning",
    "test_json",
    "test_the_session_of_a_reader_that_fails",
    "test_while_it_follows",
}


def pytest_generate_tests(metafunc):
    """Test with both clients: in full length all, and some in the short form."""
    for_both(metafunc, FOR_BOTH)


@pytest.fixture(autouse=True)
def _needs_images(request: pytest.FixtureRequest, server_version: str | None) -> None:
    """Skip what the servers under test are too old for."""
    module = request.module.__name__.rpartition(".")[2]
    oldest = {"test_stream_parts": "4.2", "test_stream_sources": "5.0"}.get(module, "6.0")
    if server_version is not None and _numbers(server_version) < _numbers(oldest):
        pytest.skip(f"needs servers from {oldest} on")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


@pytest.fixture
async def documents(collection: RetryMotorCollection) -> RetryMotorCollection:
    """A collection that keeps images."""
    await collection.database.create_collection(collection.name, **IMAGES)
    return collection


@pytest.fixture
def target(client: RetryClient, collection: RetryMotorCollection) -> RetryMotorCollection:
    """Where the aggregates go."""
    name = f"{collection.name}_tags"
    return client.aioretry_tests.get_collection(name, write_concern=MAJORITY)


@pytest.fixture
def aggregator(documents: RetryMotorCollection, target: RetryMotorCollection) -> Aggregator:
    """What follows the documents."""
    return of_change_stream(documents, target)


@pytest.fixture
def fresh(stored):
    """Count all documents anew."""
    return lambda: counted(stored)


@pytest.fixture
def tags(plain: MongoClient, target: RetryMotorCollection):
    """Read the aggregates."""
    return lambda: aggregated(plain[target.database.name][target.name])


@pytest.fixture
def until_equal(tags, fresh):
    """Wait until the aggregates equal a full count."""

    async def until_equal() -> None:
        async with asyncio.timeout(60.0):
            while tags() != fresh():
                await asyncio.sleep(0.02)

    return until_equal


@pytest.fixture
async def following() -> AsyncIterator:
    """Have aggregators followed in the background, until the test ends."""
    tasks: list[asyncio.Task] = []

    def follow(aggregator: Aggregator, part: int = 0) -> asyncio.Task:
        tasks.append(asyncio.create_task(aggregator.run(part)))
        return tasks[-1]

    yield follow
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
