"""What the tests of versioned documents share, and what they run in processes to be killed."""

import contextlib
import warnings
from collections.abc import AsyncIterator
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient
from pymongo.write_concern import WriteConcern

from aioretry.idempotent import VersionedDocuments
from tests.clients import chosen_client

DURABLE = WriteConcern(w="majority", j=True)
DRIVERS = ["aioretry", "motor", "pymongo"]


@contextlib.asynccontextmanager
async def opened(driver: str, uri: str, **options: Any) -> AsyncIterator[Any]:
    """Open a client of one of the three drivers."""
    if driver == "aioretry":
        async with chosen_client()(uri, **options) as client:
            yield client
    elif driver == "motor":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            client = AsyncIOMotorClient(uri, **options)
        with contextlib.closing(client):
            yield client
    else:
        async with AsyncMongoClient(uri, **options) as client:
            yield client


def collection_of(client: Any, name: str) -> Any:
    """A collection whose writes survive what the tests do."""
    return client.get_database("aioretry_tests").get_collection(name, write_concern=DURABLE)


def increment(document: dict[str, Any]) -> None:
    """A change."""
    document["n"] += 1


async def create(uri: str, name: str, content: dict[str, Any]) -> None:
    """Create a document."""
    async with chosen_client()(uri) as client:
        await VersionedDocuments(collection_of(client, name)).create(content, timeout=60.0)


async def save(uri: str, name: str, document: dict[str, Any], key: str) -> None:
    """Save a document that was read before."""
    async with chosen_client()(uri) as client:
        await VersionedDocuments(collection_of(client, name)).save(document, key=key, timeout=60.0)


async def update(uri: str, name: str, id: str, key: str) -> None:
    """Count by one."""
    async with chosen_client()(uri) as client:
        docs = VersionedDocuments(collection_of(client, name))
        await docs.update(id, increment, key=key, timeout=60.0)


async def delete(uri: str, name: str, document: dict[str, Any]) -> None:
    """Delete a document that was read before."""
    async with chosen_client()(uri) as client:
        await VersionedDocuments(collection_of(client, name)).delete(document, timeout=60.0)
