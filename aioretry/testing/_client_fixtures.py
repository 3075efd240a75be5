"""Clients in fixtures, each on the event loop of the test that it is for, and a test's database.

A client lives on one event loop. Who runs the test has the loop, pytest-asyncio or anyio's plugin,
and an async fixture is of one of them; so what a test asks for is a plain fixture that chooses.
"""

import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final

import anyio
import pymongo
import pytest

from aioretry.testing._black_pipe import BlackPipe
from aioretry.testing._replica_set import ReplicaSet

_CLIENTS: Final = ("mongo_client", "motor_client")
_SCOPES: Final = ("function", "class", "module", "package", "session")
_NAME_LENGTH: Final = 20  # of a test's name in its database's, which has 63 bytes at most

Servers = ReplicaSet | BlackPipe


@pytest.fixture(scope="session")
def mongo_client_options() -> dict[str, Any]:
    """Arguments of the clients that the fixtures make; to be overridden in a `conftest.py`."""
    return {}


@pytest.fixture
def mongo_database_name(
    request: pytest.FixtureRequest, mongo_replica_set: Servers
) -> Iterator[str]:
    """A name of a database that no other test has, in whatever process; dropped after the test."""
    test = re.sub(r"\W", "_", request.node.name, flags=re.ASCII)[:_NAME_LENGTH]
    name = f"{test}_{uuid.uuid4().hex}"
    yield name
    for fault in mongo_replica_set.faults.declared:
        fault.disarm()
    if isinstance(mongo_replica_set, ReplicaSet):
        anyio.run(mongo_replica_set.heal)  # at once where nothing is broken
    with pymongo.MongoClient[Any](mongo_replica_set.uri) as client:
        client.drop_database(name)


@pytest.fixture
def mongo_database(mongo_client: Any, mongo_database_name: str) -> Any:
    """The database `mongo_database_name` of `mongo_client`."""
    return mongo_client[mongo_database_name]


def opened_by(plugin: str, fixture: Callable[[str], Callable[[Any], Any]]) -> dict[str, Any]:
    """Make the async fixtures of one plugin: every client for every scope.

    Args:
        plugin: what their names begin with.
        fixture: makes a decorator that makes fixtures of a scope.
    """
    return {
        f"_{plugin}_{scope}_{name}": fixture(scope)(_opened(name))
        for scope in _SCOPES
        for name in _CLIENTS
    }


def _opened(name: str) -> Callable[..., AsyncIterator[Any]]:
    async def client(
        mongo_replica_set: Servers, mongo_client_options: Mapping[str, Any]
    ) -> AsyncIterator[Any]:
        async with _class_of(name)(mongo_replica_set.uri, **mongo_client_options) as client:
            yield client

    return client


def _class_of(name: str) -> Any:
    if name == "motor_client":
        from aioretry import RetryClient  # noqa: PLC0415  # Motor may not be installed

        return RetryClient
    from aioretry.pymongo import AsyncRetryClient  # noqa: PLC0415  # most runs need no client

    return AsyncRetryClient


def _chosen(scope: str, name: str) -> Any:
    def client(
        request: pytest.FixtureRequest,
        mongo_replica_set: Servers,  # noqa: ARG001  # for its marker
    ) -> Any:
        return request.getfixturevalue(f"_{_owner(request)}_{name}")

    kind = "a `RetryClient`" if name == "motor_client" else "an `AsyncRetryClient`"
    loop = "the test's" if scope == "function" else f"the {scope}'s"
    client.__doc__ = f"Of `mongo_replica_set`, {kind} on {loop} event loop."
    return pytest.fixture(scope=scope)(client)  # type: ignore[call-overload]


def _owner(request: pytest.FixtureRequest) -> str:
    """Say which async fixture is on the loop that is wanted: the plugin and the scope."""
    if "anyio_backend" in request.fixturenames:
        return f"anyio_{request.scope}"
    if not hasattr(request.config.option, "asyncio_mode"):
        pytest.fail(
            f"{request.fixturename} needs an event loop: pip install pytest-asyncio, or mark the "
            "test with pytest.mark.anyio",
            pytrace=False,
        )
    if request.scope != "function":
        return f"asyncio_{request.scope}"
    marker = request.node.get_closest_marker("asyncio")
    named = marker.kwargs.get("loop_scope") if marker else None
    return f"asyncio_{named or request.config.getini('asyncio_default_test_loop_scope')}"


globals().update(opened_by("anyio", lambda scope: pytest.fixture(scope=scope)))  # type: ignore[call-overload]
globals().update(
    {
        name if scope == "function" else f"{scope}_{name}": _chosen(scope, name)
        for scope in _SCOPES
        for name in _CLIENTS
    }
)
