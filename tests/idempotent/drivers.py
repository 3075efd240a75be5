"""The same collection by each driver that recipes work with."""

import contextlib
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pymongo
import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.write_concern import WriteConcern

from tests.clients import chosen_client
from tests.idempotent.points import APP_NAME

MAJORITY = WriteConcern(w="majority", j=True)
DATABASE = "aioretry_idempotent"

# Before 4.13, PyMongo's asynchronous client blocks the event loop.
DRIVERS = [
    "aioretry",
    "motor",
    pytest.param(
        "pymongo",
        marks=pytest.mark.skipif(pymongo.version_tuple < (4, 13), reason="it blocks the loop"),
    ),
]


@contextlib.asynccontextmanager
async def collection_of(
    driver: str, uri: str, name: str, *, write_concern: WriteConcern = MAJORITY, **options: Any
) -> AsyncIterator[Any]:
    """A collection of a client that the faults strike; Motor's and PyMongo's retry no write."""
    options.setdefault("appname", APP_NAME)
    if driver == "aioretry":
        async with chosen_client()(uri, **options) as client:
            yield client[DATABASE].get_collection(name, write_concern=write_concern)
    elif driver == "motor":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Mm]otor.*", category=DeprecationWarning)
            motor = AsyncIOMotorClient(uri, retryWrites=False, **options)
        with contextlib.closing(motor):
            yield motor[DATABASE].get_collection(name, write_concern=write_concern)
    else:
        async with pymongo.AsyncMongoClient(uri, retryWrites=False, **options) as plain:
            yield plain[DATABASE].get_collection(name, write_concern=write_concern)
