"""Deployments for the official tests; what they start is gone when their module is done."""

from collections.abc import Iterator

import pytest

from aioretry.testing import FakeMongoses, ReplicaSet, Standalone
from tests.spec.deployments import Deployment, describe


@pytest.fixture(scope="session")
def official_set(shared_set: ReplicaSet) -> Deployment:
    """A replica set."""
    return describe("replicaset", shared_set.uri)


@pytest.fixture(scope="module")
def official_routers(shared_set: ReplicaSet) -> Iterator[Deployment]:
    """Two fake mongoses before the replica set."""
    with FakeMongoses(shared_set) as cluster:
        one = cluster.mongoses[0].address
        yield describe("sharded", cluster.uri, f"mongodb://{one}/")


@pytest.fixture(scope="module")
def official_standalone(server_version: str | None) -> Iterator[Deployment]:
    """A server that is no member of a replica set."""
    with Standalone(server_version) as server:
        yield describe("single", server.uri)
