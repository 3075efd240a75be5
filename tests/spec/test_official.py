"""The official tests of MongoDB's specifications, on each kind of deployment."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from tests.lengths import FULL
from tests.spec.data import OfficialTest, official_tests
from tests.spec.deployments import Deployment
from tests.spec.kinds import KINDS, ClientKind
from tests.spec.matching import MismatchError
from tests.spec.runner import Runner
from tests.spec.sdist import FetchError
from tests.spec.unsupported import what_driver_lacks

CLIENT_VARIABLE = "AIORETRY_SPEC_CLIENT"
# Where a test runs in the short form is the first of these that it may run on.
DEPLOYMENTS = {
    "official_set": "replicaset",
    "official_routers": "sharded",
    "official_standalone": "single",
}
# What these are about differs from one deployment to the other; others than the first are slow.
EVERYWHERE = {"retryable-writes", "client-backpressure", "client-side-operations-timeout"}
# Mostly about what the driver does by itself.
SLOW = {"crud"}
# The clients that are tested; stock ones test the runner. In the short form, all but the first one
# are tested with these folders only.
TESTED = os.environ.get(CLIENT_VARIABLE, "aioretry asyncio").split()
FOR_ALL = {"retryable-writes", "transactions-convenient-api", "sessions"}


def cases() -> list[Any]:
    """Each test with the names of the deployments and the clients that it runs on."""
    try:
        tests = official_tests()
    except FetchError as exc:
        skip = pytest.mark.skip(reason=f"no official tests: {exc}")
        return [pytest.param("official_set", None, None, marks=skip)]
    return [
        pytest.param(
            deployment,
            KINDS[kind],
            test,
            id=f"{deployment}-{kind}-{test}",
            marks=[pytest.mark.slow] if is_slow(test, deployment) else [],
        )
        for deployment in DEPLOYMENTS
        for kind in TESTED
        for test in tests
        if deployment in where(test, kind)
    ]


def where(test: OfficialTest, kind: str) -> list[str]:
    """The deployments that a test runs on with a client."""
    is_first = kind == TESTED[0]
    if FULL or (is_first and test.folder in EVERYWHERE):
        return list(DEPLOYMENTS)
    if not is_first and test.folder not in FOR_ALL:
        return []
    allowed = [name for name, topology in DEPLOYMENTS.items() if test.may_run_on(topology)]
    return (allowed or list(DEPLOYMENTS))[:1]


def is_slow(test: OfficialTest, deployment: str) -> bool:
    """Whether it is left to the long run."""
    is_elsewhere = deployment != next(iter(DEPLOYMENTS))
    return test.folder in SLOW or (test.folder in EVERYWHERE and is_elsewhere)


@pytest.fixture(scope="module")
def deployment(request: pytest.FixtureRequest) -> Deployment:
    """One after the other."""
    found: Deployment = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def internal(deployment: Deployment) -> Iterator[Any]:
    """PyMongo's own client of it."""
    with MongoClient(deployment.uri_of_one) as client:
        yield client


@pytest.mark.parametrize(
    ("deployment", "kind", "test"), cases(), indirect=["deployment"], scope="module"
)
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
    driver_lacks = what_driver_lacks(f"{test.folder}/{test.file}", test.content)
    if reason := driver_lacks or deployment.why_not_in_spite(test.content):
        pytest.skip(f"needs {reason}")
    if reason := test.content.get("skipReason"):
        pytest.skip(f"skipped by its authors: {reason}")
    # These give an operation a tenth of a second: on a busy machine a connection alone takes it.
    times = 5 if test.folder == "client-side-operations-timeout" else 1
    for time in range(times):
        record_property("repeated", time)
        try:
            await Runner(test.slowed(2**time), deployment, kind, internal).run()
        except MismatchError:
            if time == times - 1:
                raise
        else:
            return
