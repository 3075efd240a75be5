"""Puts our client in the place of PyMongo's asyncio client, for PyMongo's own tests.

It is a pytest plugin of the process that runs them (`test_pymongos`).
"""

import pymongo
from pymongo.asynchronous import mongo_client

from aioretry.pymongo import AsyncRetryClient


class AsyncMongoClient(AsyncRetryClient):  # type: ignore[type-arg]
    """Our client, by the name that PyMongo's tests compare."""


pymongo.AsyncMongoClient = mongo_client.AsyncMongoClient = AsyncMongoClient  # type: ignore[misc]
