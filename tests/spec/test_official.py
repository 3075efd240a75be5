"""The official tests of MongoDB's specifications, on each kind of deployment."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from tests.spec.data import VARIABLE, OfficialTest, official_tests
from tests.spec.deployments import Deployment
from tests.spec.kinds import KINDS, ClientKind
from tests.spec.matching import MismatchError
from tests.spec.runner import Runner

CLIENT_VARIABLE = "AIORETRY_SPEC_CLIENT"
TESTS = official_tests() or [
    pytest.param(None, marks=pytest.mark.skip(reason=f"no official tests: set {VARIABLE}"))
]


@pytest.fixture(scope="session")
def kind() -> ClientKind:
    """The client that is tested; another one tests the runner."""
    return KINDS[os.environ.get(CLIENT_VARIABLE, "aioretry")]


@pytest.fixture(scope="module", params=["official_set", "official_routers", "official_standalone"])
def deployment(request: pytest.FixtureRequest) -> Deployment:
    """One after the other."""
    found: Deployment = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def internal(deployment: Deployment) -> Iterator[Any]:
    """PyMongo's own client of it."""
    with MongoClient(deployment.uri_of_one) as client:
        yield client


@pytest.mark.parametrize("test", TESTS, ids=str)
async def test_official(
    test: OfficialTest,
    deployment: Deployment,
    kind: ClientKind,
    internal: Any,
    record_property: Callable[[str, object], None],
) -> None:
    """It passes wherever its requirements are met."""
    for requirements in test.requirements:
        reason = deployment.why_not(requirements)
        if reason is not None:
            pytest.skip(f"needs {reason}")
    # These give an operation a tenth of a second: on a busy machine a connection alone takes it.
    times = 3 if test.folder == "client-side-operations-timeout" else 1
    for time in range(times):
        record_property("repeated", time)
        try:
            await Runner(test, deployment, kind, internal).run()
        except MismatchError:
            if time == times - 1:
                raise
        else:
            return
