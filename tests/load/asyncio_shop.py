"""The shop of the examples, on PyMongo's own asynchronous client."""

from aioretry.fastapi import mongodb_lifespan
from aioretry.pymongo import AsyncRetryClient
from examples.shop.app import URI, app, hook, keys

app.router.lifespan_context = mongodb_lifespan(
    URI, client=AsyncRetryClient, keys=keys, hooks=[hook], w="majority", journal=True
)
