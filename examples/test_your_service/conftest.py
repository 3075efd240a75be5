from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--service", default="service", help="the module to test")


@pytest.fixture
def service(pytestconfig: pytest.Config) -> Any:
    return import_module(pytestconfig.getoption("service"))


@pytest.fixture
async def collection(service: Any, mongo_replica_set: Any) -> AsyncIterator[Any]:
    client = service.connect(mongo_replica_set.uri)
    await client.polls.votes.drop()  # what the test before left there
    yield client.polls.votes
    client.close()
