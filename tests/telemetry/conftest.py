"""Fixtures of the tests of events and telemetry."""

from importlib.util import find_spec

import pytest

from aioretry import every_event
from tests.clients import for_both

# What both clients are tested with in the short form, too.
FOR_BOTH = {
    "test_a_lost_reply",
    "test_connections_and_threads",
    "test_several_of_one_operation",
}


def pytest_generate_tests(metafunc):
    """Test with both clients: in full length all, and some in the short form."""
    for_both(metafunc, FOR_BOTH)


def is_there(name):
    """Whether a module can be imported; where a package of its is missing, asking raises."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


# Not every environment of the matrix has the libraries that these need.
NEEDS = {
    "test_opentelemetry.py": ["opentelemetry.sdk", "opentelemetry.instrumentation.pymongo"],
    "test_alerts.py": ["aiohttp", "prometheus_client", "yaml"],
    "test_conventions.py": ["opentelemetry.sdk"],
    "test_prometheus.py": ["prometheus_client"],
    "test_imports.py": ["opentelemetry", "prometheus_client"],
}
collect_ignore = [file for file, names in NEEDS.items() if not all(map(is_there, names))]


@pytest.fixture
def events():
    """What the hook of the watched client is told, in order."""
    return []


@pytest.fixture
async def watched(replica_set, collection, events, client_class):
    """The test's collection, of a client whose hook wants every event."""
    async with client_class(replica_set.uri, hooks=[every_event(events.append)]) as client:
        mine = client[collection.database.name]
        yield mine.get_collection(collection.name, write_concern=collection.write_concern)
