"""How the public names look to type checkers; checked, never run."""

from collections.abc import Awaitable
from typing import Any, assert_type

from motor.motor_asyncio import (
    AsyncIOMotorClient,
    AsyncIOMotorClientSession,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
)
from pymongo import InsertOne, UpdateMany
from pymongo.results import (
    BulkWriteResult,
    DeleteResult,
    InsertManyResult,
    InsertOneResult,
    UpdateResult,
)

from aioretry import (
    Attempt,
    Deadline,
    Event,
    EventHook,
    Hook,
    Operation,
    OperationKey,
    Outcome,
    PartialResult,
    RetryClient,
    RetryMotorClientSession,
    RetryMotorCollection,
    RetryMotorDatabase,
    RetryScheduled,
    attempts_of,
    deadline,
    every_event,
    outcome_of,
    partial_result_of,
)
from aioretry.idempotent import Keys
from aioretry.telemetry.opentelemetry import OpenTelemetryHook
from aioretry.telemetry.prometheus import PrometheusHook


def hook(event: RetryScheduled) -> None:
    """A hook is any callable of one event."""


def event_hook(event: Event) -> None:
    """So is one of every event."""


@every_event
def decorated(event: Event) -> None:
    """Or of that, by the decorator."""


def hooks() -> RetryClient[dict[str, Any]]:
    """Hooks of all kinds can be given together."""
    telemetry: list[EventHook] = [OpenTelemetryHook(), PrometheusHook()]
    made: RetryClient[dict[str, Any]] = RetryClient(
        "mongodb://x", hooks=[hook, event_hook, decorated, every_event(event_hook), *telemetry]
    )
    return made


async def client() -> None:
    """The client is Motor's, and its databases and collections are ours."""
    as_hook: Hook = hook
    made: RetryClient[dict[str, Any]] = RetryClient("mongodb://x", hooks=[as_hook, hook])
    async with made as entered:
        database = entered.db
        as_motor: AsyncIOMotorClient[dict[str, Any]] = entered
        assert_type(database, RetryMotorDatabase[dict[str, Any]])
        assert_type(entered["db"], RetryMotorDatabase[dict[str, Any]])
        motor_database: AsyncIOMotorDatabase[dict[str, Any]] = database
        assert_type(database.things, RetryMotorCollection[dict[str, Any]])
        assert_type(database["things"], RetryMotorCollection[dict[str, Any]])
        assert_type(database.things.sub, RetryMotorCollection[dict[str, Any]])
        motor_collection: AsyncIOMotorCollection[dict[str, Any]] = database.things
    del as_motor, motor_database, motor_collection


async def writes(things: RetryMotorCollection[dict[str, Any]]) -> None:
    """The writes give PyMongo's results, and are awaitable at any time."""
    assert_type(await things.insert_one({"_id": 1}), InsertOneResult)
    assert_type(await things.update_one({}, {"$set": {"x": 1}}, upsert=True), UpdateResult)
    assert_type(await things.update_one({}, [{"$set": {"x": 1}}]), UpdateResult)
    assert_type(await things.replace_one({}, {"x": 1}, hint=[("x", 1)]), UpdateResult)
    assert_type(await things.delete_one({}, hint="x_1"), DeleteResult)
    assert_type(await things.insert_many([{"_id": 1}]), InsertManyResult)
    assert_type(await things.insert_many({"_id": n} for n in range(3)), InsertManyResult)
    assert_type(await things.bulk_write([InsertOne({}), UpdateMany({}, {})]), BulkWriteResult)
    assert_type(await things.update_many({}, {"$set": {"x": 1}}), UpdateResult)
    assert_type(await things.delete_many({}), DeleteResult)
    document = await things.find_one_and_update({}, {"$inc": {"n": 1}}, sort=[("n", -1)])
    later: Awaitable[InsertOneResult] = things.insert_one({})
    await later
    view = things.coalesced(max_documents=100, max_bytes=2**20)
    assert_type(view, RetryMotorCollection[dict[str, Any]])
    assert_type(await view.insert_one({"_id": 1}), InsertOneResult)
    del document


async def transfer(session: RetryMotorClientSession) -> int:
    """A callback of a transaction."""
    await session.client.db.things.insert_one({}, session=session)
    return 1


async def transfer_with(session: RetryMotorClientSession, amount: int) -> int:
    """A callback with more arguments."""
    return amount


async def transfer_as_with_motor(session: AsyncIOMotorClientSession) -> str:
    """A callback that was written for Motor."""
    return str(session)


async def sessions(client: RetryClient[dict[str, Any]]) -> None:
    """Sessions are ours, and give what the callback returns."""
    async with await client.start_session() as session:
        assert_type(session, RetryMotorClientSession)
        assert_type(await session.with_transaction(transfer), int)
        assert_type(await session.with_transaction(transfer_as_with_motor), str)
        assert_type(await session.with_transaction(lambda s: transfer_with(s, 2)), int)
        await client.db.things.insert_one({}, session=session)
        as_motor: AsyncIOMotorClientSession = session
    del as_motor


async def operations(things: RetryMotorCollection[dict[str, Any]]) -> None:
    """An operation has the same writes and a history."""
    async with things.operation(timeout=1.5) as op:
        assert_type(op, Operation)
        assert_type(await op.insert_one({}), InsertOneResult)
    assert_type(op.attempts, tuple[Attempt, ...])
    async with Keys(b"sixteen bytes or more", "shop") as keys:
        key: OperationKey = keys("order-42", durable=True)
        async with things.operation(key=key) as keyed:
            assert_type(await keyed.insert_one({}), InsertOneResult)
        async with things.operation(5, key=keys(b"order-42")) as keyed:
            await keyed.delete_one({})
        assert_type(keyed.replayed, bool | None)


async def limits() -> None:
    """Deadlines work with both kinds of `with`."""
    async with deadline(5) as limit:
        assert_type(limit, Deadline | None)
    with deadline(None):
        pass


def errors(exc: BaseException) -> None:
    """What is asked of an exception."""
    assert_type(outcome_of(exc), Outcome | None)
    assert_type(attempts_of(exc), tuple[Attempt, ...])
    assert_type(partial_result_of(exc), PartialResult | None)
