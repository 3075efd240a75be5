"""How what stands above the clients looks with either of them; checked, never run."""

from collections.abc import Mapping
from typing import Any, assert_type

from aiohttp import web
from fastapi import FastAPI

from aioretry import (
    RetryClient,
    RetryMotorClientSession,
    RetryMotorCollection,
    RetryMotorDatabase,
    run_transaction,
)
from aioretry.aiohttp import ASYNCIO_CLIENT, CLIENT, mongodb_ctx
from aioretry.fastapi import AsyncioClient, AsyncioDatabase, CallerKey, Client, Database
from aioretry.fastapi import mongodb_lifespan as lifespan
from aioretry.idempotent import Keys, OnceAnswer, PendingUpdates, insert_once
from aioretry.pymongo import (
    AsyncRetryClient,
    AsyncRetryClientSession,
    AsyncRetryCollection,
    AsyncRetryDatabase,
)
from aioretry.streams import Aggregator, ChangeKind, ChangeStreamSource, QueueSource, append
from aioretry.telemetry.opentelemetry import OpenTelemetryHook
from aioretry.telemetry.prometheus import PrometheusHook
from aioretry.testing import Ledger

Doc = dict[str, Any]
URI = "mongodb://db1"


async def of_motor(session: RetryMotorClientSession) -> Mapping[str, Any]:
    """Work that knows Motor's sessions."""
    return {"of": session.session_id}


async def of_pymongo(session: AsyncRetryClientSession) -> Mapping[str, Any]:
    """Work that knows PyMongo's."""
    return {"of": session.session_id}


async def motors(database: RetryMotorDatabase[Doc], session: RetryMotorClientSession) -> None:
    """With Motor's client."""
    things: RetryMotorCollection[Doc] = database.things
    keys = Keys(b"sixteen bytes or more", "shop")
    async with things.operation(key=keys("order-42")) as op:
        await op.insert_one({})
    assert_type(await keys.once("order-42", of_motor, database=database), OnceAnswer)
    await insert_once(things, {"_id": 1})
    PendingUpdates(things)
    Aggregator("tags", ChangeStreamSource(things), lambda _: (), database.tags)
    Aggregator("tags", QueueSource(things, documents=things), lambda _: (), database.tags)
    await append(things, ChangeKind.INSERT, 1, after={}, session=session)
    await Ledger().check_marks(things)


async def pymongos(database: AsyncRetryDatabase[Doc], session: AsyncRetryClientSession) -> None:
    """The same with PyMongo's."""
    things: AsyncRetryCollection[Doc] = database.things
    keys = Keys(b"sixteen bytes or more", "shop")
    async with things.operation(key=keys("order-42")) as op:
        await op.insert_one({})
    assert_type(await keys.once("order-42", of_pymongo, database=database), OnceAnswer)
    await insert_once(things, {"_id": 1})
    PendingUpdates(things)
    Aggregator("tags", ChangeStreamSource(things), lambda _: (), database.tags)
    Aggregator("tags", QueueSource(things, documents=things), lambda _: (), database.tags)
    await append(things, ChangeKind.INSERT, 1, after={}, session=session)
    await Ledger().check_marks(things)


async def clients(motors: RetryClient[Doc], pymongos: AsyncRetryClient[Doc]) -> None:
    """Both are looked at, and run transactions."""
    for hook in (OpenTelemetryHook(), PrometheusHook()):
        hook.observe(motors)
        hook.observe(pymongos)
    assert_type(await run_transaction(motors, of_motor), Mapping[str, Any])
    assert_type(await run_transaction(pymongos, of_pymongo), Mapping[str, Any])


async def in_fastapi(motors: Client, its: Database, pymongos: AsyncioClient) -> None:
    """The dependencies are of one class each."""
    assert_type(motors, RetryClient[Doc])
    assert_type(its, RetryMotorDatabase[Doc])
    assert_type(pymongos, AsyncRetryClient[Doc])


async def keyed(key: CallerKey, database: AsyncioDatabase) -> None:
    """The work of a request's key, too."""
    assert_type(database, AsyncRetryDatabase[Doc])
    await key.once(of_motor)
    await key.once(of_pymongo)


def applications() -> None:
    """An application says which class its client is of."""
    FastAPI(lifespan=lifespan(URI))
    FastAPI(lifespan=lifespan(URI, client=AsyncRetryClient, w="majority"))
    app = web.Application()
    app.cleanup_ctx.append(mongodb_ctx(URI, client=RetryClient))
    app.cleanup_ctx.append(mongodb_ctx(URI, client=AsyncRetryClient[Doc]))
    assert_type(app[CLIENT], RetryClient[Doc])
    assert_type(app[ASYNCIO_CLIENT], AsyncRetryClient[Doc])


def wrong(things: Mapping[str, Any]) -> None:
    """What is no collection of either is refused."""
    ChangeStreamSource(things)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def without_a_type(
    motor: RetryMotorDatabase, asyncio_database: AsyncRetryDatabase
) -> dict[str, Any] | None:
    """What is not said is a dict of anything."""
    assert_type(RetryClient(), RetryClient[dict[str, Any]])
    assert_type(AsyncRetryClient(), AsyncRetryClient[dict[str, Any]])
    assert_type(await motor.things.find_one(), dict[str, Any] | None)
    return await asyncio_database.things.find_one()
