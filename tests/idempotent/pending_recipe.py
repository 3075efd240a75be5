"""One update and one clean-up, for processes that are killed while they run them."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient

from aioretry.idempotent import PendingUpdates
from tests.clients import chosen_client
from tests.idempotent.points import APP_NAME

DATABASE = "pending_tests"
LIFETIME = 60.0
INCREMENT = {"$inc": {"n": 1}, "$push": {"log": "x"}}


@asynccontextmanager
async def opened(uri: str, name: str, **options: Any) -> AsyncIterator[PendingUpdates]:
    """The updates of a collection, through aioretry."""
    async with chosen_client()(uri) as client:
        yield PendingUpdates(client[DATABASE][name], lifetime=LIFETIME, **options)


async def apply(uri: str, name: str, id: int, token: str | None = None) -> None:
    """Apply one update."""
    async with opened(uri, name) as updates:
        given = None if token is None else ObjectId(token)
        await updates.apply(id, INCREMENT, token=given, upsert=True, timeout=30.0)


async def clean_up(uri: str, name: str) -> None:
    """Finish what was left."""
    async with opened(uri, name) as updates:
        await updates.clean_up(older_than=0, timeout=30.0)


@asynccontextmanager
async def named(servers: Any, name: str, kind: str) -> AsyncIterator[PendingUpdates]:
    """The updates of a collection, through a client that faults are for."""
    joint = "&" if "?" in servers.uri else "/?"
    uri = f"{servers.uri.removesuffix('/')}{joint}appName={APP_NAME}"
    if kind == "aioretry":
        async with chosen_client()(uri) as client:
            yield PendingUpdates(client[DATABASE][name], lifetime=LIFETIME)
    else:
        async with AsyncMongoClient(uri) as client:
            yield PendingUpdates(client[DATABASE][name], lifetime=LIFETIME)


def new_name() -> str:
    """A name for a collection."""
    return f"c{uuid.uuid4().hex[:12]}"


def tokens_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens of a document that are not finished."""
    return [element for element in document.get("pending", []) if "d" not in element]


def documents_in(servers: Any, name: str) -> dict[Any, dict[str, Any]]:
    """What is stored, by its id, as PyMongo's own client reads it."""
    with MongoClient(servers.uri) as client:
        return {document["_id"]: document for document in client[DATABASE][name].find()}
