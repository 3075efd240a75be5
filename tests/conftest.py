"""Fixtures of the whole suite: one real replica set, and what each test needs of it.

``AIORETRY_TEST_SERVER`` names the servers' version, ``AIORETRY_TEST_LOOP`` may be ``uvloop``, and
``AIORETRY_TEST_CLIENT`` may be ``asyncio``: PyMongo's own client, where a test does not say which.
``AIORETRY_TEST_URI`` names a deployment that these fixtures give instead of starting one.
"""

import asyncio
import gc
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry import RetryClient, RetryMotorCollection
from aioretry.testing import ReplicaSet
from aioretry.testing._ports import ReservedPort
from tests.clients import CHOSEN, chosen_client
from tests.existing import URI, ExistingSet
from tests.lengths import FULL

# Tests are never timed: a busy machine takes its time.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

MAJORITY = WriteConcern(w="majority", j=True)


pytest_plugins = [
    "tests.plugins.limits",
    "tests.plugins.samples",
    "tests.plugins.servers",
    "tests.plugins.signals",
    "tests.plugins.sockets",
    "tests.plugins.times",
    "tests.plugins.unhandled",
]


def pytest_configure() -> None:
    """Choose what makes event loops."""
    if os.environ.get("AIORETRY_TEST_LOOP") == "uvloop":
        import uvloop

        from tests.plugins.unhandled import note

        class Loop(uvloop.Loop):
            def default_exception_handler(self, context: dict[str, Any]) -> None:
                note(context)
                super().default_exception_handler(context)

        class Policy(uvloop.EventLoopPolicy):
            def _loop_factory(self) -> asyncio.AbstractEventLoop:
                return Loop()

        asyncio.set_event_loop_policy(Policy())


def pytest_collection_finish() -> None:
    """Spare each collection of garbage the thousands of tests and what they import."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def server_version() -> str | None:
    """The servers' version; None for the newest."""
    return os.environ.get("AIORETRY_TEST_SERVER")


@pytest.fixture(scope="session")
def three_members(server_version: str | None) -> Iterator[ReplicaSet]:
    """A set behind proxies, for tests of elections, replication and reads of secondaries."""
    ours = ExistingSet(3) if URI else ReplicaSet(version=server_version, faults=True)
    with ours as replica_set:
        yield replica_set


@pytest.fixture(scope="session")
def shared_set(request: pytest.FixtureRequest, server_version: str | None) -> Iterator[ReplicaSet]:
    """A set behind a proxy, for the other tests; in full, it is the one of three members, too."""
    if FULL:
        yield request.getfixturevalue("three_members")
        return
    ours = ExistingSet(1) if URI else ReplicaSet(members=1, version=server_version, faults=True)
    with ours as replica_set:
        yield replica_set


@pytest.fixture
def servers_of_test(request: pytest.FixtureRequest) -> ReplicaSet:
    """The set of three members, where the test uses that fixture in whatever way."""
    names = request.fixturenames
    return request.getfixturevalue("three_members" if "three_members" in names else "shared_set")


@pytest.fixture
async def replica_set(servers_of_test: ReplicaSet) -> AsyncIterator[ReplicaSet]:
    """The test's set; what the test kills or freezes is healed after it."""
    yield servers_of_test
    await servers_of_test.heal()


@pytest.fixture
def client_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """Motor's client, or PyMongo's asynchronous one where a test is for both."""
    if hasattr(request, "param"):
        monkeypatch.setenv(CHOSEN, request.param)
    return chosen_client()


@pytest.fixture
async def client(replica_set: ReplicaSet, client_class: type[Any]) -> AsyncIterator[Any]:
    """A client of the test's set, closed after the test."""
    async with client_class(replica_set.uri) as client:
        yield client


@pytest.fixture
def collection(client: RetryClient) -> RetryMotorCollection:
    """A collection of the test's own, acknowledged by the majority's journals."""
    name = f"c{uuid.uuid4().hex[:12]}"
    return client.aioretry_tests.get_collection(name, write_concern=MAJORITY)


@pytest.fixture
def plain(servers_of_test: ReplicaSet) -> Iterator[MongoClient]:
    """PyMongo's own client of the same set, to look at what was written."""
    with MongoClient(servers_of_test.uri, readConcernLevel="majority") as client:
        yield client


@pytest.fixture
def open_transactions(plain: MongoClient) -> Callable[[], set[bytes]]:
    """The sessions that have a transaction in progress, and had none before the test."""
    admin = plain.get_database("admin", read_concern=ReadConcern("local"))
    look = [
        {"$currentOp": {"allUsers": True, "idleSessions": True}},
        {"$match": {"transaction.parameters.autocommit": False}},
    ]

    def now() -> set[bytes]:
        return {found["lsid"]["id"] for found in admin.aggregate(look)}

    others = now()
    return lambda: now() - others


@pytest.fixture
def short_transactions(replica_set: ReplicaSet) -> Iterator[None]:
    """The servers abort what a dead process has left open after a second, and not after sixty."""

    def set_all(seconds: int) -> None:
        for member in replica_set.members:
            with MongoClient(member.address, directConnection=True) as client:
                client.admin.command(
                    {"setParameter": 1, "transactionLifetimeLimitSeconds": seconds}
                )

    set_all(1)
    yield
    set_all(60)


@pytest.fixture
def stored(collection: RetryMotorCollection, plain: MongoClient):
    """The test's collection, read by PyMongo on the primary."""
    return plain[collection.database.name][collection.name]


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nobody listens on."""
    with closing(ReservedPort()) as port:
        yield port.number
