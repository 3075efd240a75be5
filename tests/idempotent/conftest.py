"""Fixtures of the tests that know each driver, on a replica set and on a standalone server."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pymongo import MongoClient

from aioretry.testing import ReplicaSet, Standalone
from tests.clients import for_both
from tests.idempotent.drivers import DATABASE, DRIVERS, collection_of
from tests.lengths import FULL

# What both clients are tested with in the short form, too.
FOR_BOTH = {
    "test_a_commit_that_was_not_confirmed",
    "test_of_calls_at_once",
    "test_the_same_key_applies_once",
}


# Each driver, and each kind of server, is in the short form, too.
SHORT = {("aioretry", "replica_set"), ("motor", "standalone"), ("pymongo", "replica_set")}


def pytest_generate_tests(metafunc):
    """Test with both clients: in full length all, and some in the short form."""
    for_both(metafunc, FOR_BOTH)


def pytest_collection_modifyitems(config, items):
    """Leave every driver with every kind of server to the full length."""
    left = [item for item in items if not _is_short(item)]
    if FULL:
        for item in left:
            item.add_marker("long")
    elif left:
        items[:] = filter(_is_short, items)
        config.hook.pytest_deselected(items=left)


def _is_short(item):
    given = getattr(getattr(item, "callspec", None), "params", {})
    here = Path(__file__).parent in item.path.parents
    return not (here and {"driver", "servers"} <= given.keys()) or (
        (given["driver"], given["servers"]) in SHORT
    )


@pytest.fixture(scope="module")
def shared_standalone(server_version: str | None) -> Iterator[Standalone]:
    """A standalone server behind a proxy, for the tests of one file."""
    with Standalone(version=server_version, faults=True) as server:
        yield server


@pytest.fixture
async def standalone(shared_standalone: Standalone) -> AsyncIterator[Standalone]:
    """The same; what a test breaks is healed after it."""
    yield shared_standalone
    await shared_standalone.heal()


@pytest.fixture(params=["replica_set", "standalone"])
def servers(request: pytest.FixtureRequest) -> ReplicaSet | Standalone:
    """The one, and the other."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """The name of a driver."""
    return request.param


@pytest.fixture
def name() -> str:
    """The name of a collection of the test's own."""
    return f"c{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def things(driver: str, servers: ReplicaSet | Standalone, name: str) -> AsyncIterator[object]:
    """The collection, by a driver."""
    async with collection_of(driver, servers.uri, name) as collection:
        yield collection


@pytest.fixture
def seen(servers: ReplicaSet | Standalone, name: str) -> Iterator[object]:
    """The collection, to look at what is stored; no fault strikes it."""
    with MongoClient(servers.uri) as client:
        yield client[DATABASE][name]


@pytest.fixture
def own_collection(shared_standalone: Standalone, name: str) -> Iterator[object]:
    """A collection by PyMongo, on the standalone server."""
    with MongoClient(shared_standalone.uri) as client:
        yield client[DATABASE][name]
