"""The shop of the examples, on PyMongo's own asynchronous client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aioretry.pymongo import AsyncRetryClient
from examples.shop.app import URI, app, keys


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[dict[str, Any]]:
    client = AsyncRetryClient[dict[str, Any]](URI, w="majority", journal=True)
    async with client, keys:
        yield {"mongodb": client, "mongodb_keys": keys}


app.router.lifespan_context = lifespan
