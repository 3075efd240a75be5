"""The clients that the official tests can be run with."""

import inspect
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pymongo
from gridfs import AsyncGridFSBucket
from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorGridFSBucket
from pymongo.errors import BulkWriteError

from aioretry import RetryClient, deadline, partial_result_of
from aioretry.pymongo import AsyncRetryClient


@dataclass(frozen=True)
class ClientKind:
    """A client, and how an operation of it is given a ``timeoutMS`` of its own.

    Attributes:
        name: Its name.
        make: Makes one, of a URI and options.
        limit: A block for one operation, with its seconds; None if it has none of its own.
        partial_result: What a bulk operation that raised has done, if that is told.
        make_bucket: Makes a bucket of GridFS, of a database.
    """

    name: str
    make: Callable[..., Any]
    limit: Callable[[float | None], AbstractAsyncContextManager[None]]
    partial_result: Callable[[Exception], Mapping[str, Any] | None]
    make_bucket: Callable[[Any], Any] = AsyncIOMotorGridFSBucket


async def awaited(result: Any) -> Any:
    """What a method gives; Motor's and PyMongo's clients differ in what has to be awaited."""
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def _deadline(seconds: float | None) -> AsyncIterator[None]:
    if seconds is None:
        yield
    else:
        async with deadline(seconds):
            yield


@asynccontextmanager
async def _pymongos_timeout(seconds: float | None) -> AsyncIterator[None]:
    if seconds is None:
        yield
    else:
        with pymongo.timeout(0 if math.isinf(seconds) else seconds):
            yield


def _told_result(error: Exception) -> Mapping[str, Any] | None:
    partial = partial_result_of(error)
    return None if partial is None else partial.result.bulk_api_result


def _details(error: Exception) -> Mapping[str, Any] | None:
    return error.details if isinstance(error, BulkWriteError) else None


KINDS = {
    kind.name: kind
    for kind in (
        ClientKind("aioretry", RetryClient, _deadline, _told_result),
        ClientKind("asyncio", AsyncRetryClient, _deadline, _told_result, AsyncGridFSBucket),
        ClientKind("motor", AsyncIOMotorClient, _pymongos_timeout, _details),
    )
}
