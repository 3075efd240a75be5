"""PyMongo's own asynchronous client, whose writes survive failovers.

``from aioretry.pymongo import AsyncRetryClient``: a subclass of ``pymongo.AsyncMongoClient`` with
everything that :class:`~aioretry.RetryClient` adds to Motor's. It needs no Motor.
"""

from aioretry.pymongo._client import AsyncRetryClient
from aioretry.pymongo._collection import AsyncRetryCollection
from aioretry.pymongo._database import AsyncRetryDatabase
from aioretry.pymongo._session import AsyncRetryClientSession

__all__ = [
    "AsyncRetryClient",
    "AsyncRetryClientSession",
    "AsyncRetryCollection",
    "AsyncRetryDatabase",
]
