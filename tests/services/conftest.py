"""Fixtures: services, and HTTP clients of them."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp.test_utils import TestServer
from starlette.applications import Starlette

from aioretry.testing import Faults
from tests.clients import for_both
from tests.services.apps import DATABASE, Scene, aiohttp_app, fastapi_app, starlette_app

# What both clients are tested with in the short form, too.
FOR_BOTH = {
    "test_another_request",
    "test_client_and_databases",
    "test_client_and_keys",
    "test_two_workers",
    "test_write_that_hangs",
}


def pytest_generate_tests(metafunc):
    """Test with both clients: in full length all, and some in the short form."""
    for_both(metafunc, FOR_BOTH)


@asynccontextmanager
async def asgi_client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a FastAPI or Starlette application, by ASGI."""
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(with_state, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            yield client


@asynccontextmanager
async def aiohttp_client(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an aiohttp application, by a socket."""
    async with (
        TestServer(app) as server,
        httpx.AsyncClient(base_url=str(server.make_url("/")), timeout=120) as client,
    ):
        yield client


@pytest.fixture
def scene(servers_of_test, client_class) -> Scene:
    """What the services of a test do: work that inserts a document, and answers by a new number."""

    async def work(collection, session):
        number = uuid.uuid4().hex
        await collection.insert_one({"number": number}, session=session)
        return {"number": number}

    name = f"c{uuid.uuid4().hex[:12]}"
    options = {"w": "majority", "journal": True}
    return Scene(name, work, servers_of_test.uri, client_class, options)


@pytest.fixture
def stored(scene, plain):
    """The collection of the services, read by PyMongo."""
    return plain[DATABASE][scene.collection]


@pytest.fixture
def faults(replica_set) -> Iterator[Faults]:
    """The faults of the shared set, disarmed after the test."""
    yield replica_set.faults
    replica_set.faults.clear()


@pytest.fixture(params=["fastapi", "aiohttp", "starlette"])
async def start(request, replica_set, scene):
    """Start the service, once or more; each has clients and keys of its own, as a process has."""
    async with AsyncExitStack() as stack:

        async def start() -> httpx.AsyncClient:
            if request.param == "fastapi":
                return await stack.enter_async_context(asgi_client(fastapi_app(scene)))
            if request.param == "starlette":
                return await stack.enter_async_context(asgi_client(starlette_app(scene)))
            return await stack.enter_async_context(aiohttp_client(aiohttp_app(scene)))

        yield start


@pytest.fixture
async def service(start) -> httpx.AsyncClient:
    """A client of the service."""
    return await start()
