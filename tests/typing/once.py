"""How inserting once, and updating and deleting many, look to type checkers; never run."""

from typing import Any, assert_type

from motor.motor_asyncio import AsyncIOMotorCollection
from pymongo.asynchronous.collection import AsyncCollection

from aioretry import RetryMotorCollection
from aioretry.idempotent import (
    DeleteManyResult,
    InsertConflict,
    InsertOnceResult,
    NotIdempotentError,
    UpdateManyResult,
    delete_many,
    insert_once,
    update_many,
)

Doc = dict[str, Any]


async def each_driver(
    ours: RetryMotorCollection[Doc],
    motors: AsyncIOMotorCollection[Doc],
    pymongos: AsyncCollection[Doc],
) -> None:
    """Collections of each driver are taken."""
    assert_type(await insert_once(ours, {"_id": 1}, timeout=5.0), InsertOnceResult)
    assert_type(await insert_once(motors, {"_id": 1}), InsertOnceResult)
    assert_type(await insert_once(pymongos, {"_id": 1}), InsertOnceResult)
    assert_type(await update_many(ours, {}, {"$set": {"a": 1}}), UpdateManyResult)
    assert_type(await update_many(motors, {}, [{"$set": {"a": 1}}]), UpdateManyResult)
    assert_type(await update_many(pymongos, {}, {"$set": {"a": 1}}), UpdateManyResult)
    assert_type(await delete_many(ours, {}, hint="a_1"), DeleteManyResult)
    assert_type(await delete_many(motors, {}), DeleteManyResult)
    assert_type(await delete_many(pymongos, {}, timeout=5), DeleteManyResult)


def errors(conflict: InsertConflict, refused: NotIdempotentError) -> None:
    """What errors know."""
    assert_type(conflict.existing["a"], Any)
    assert_type(refused.operators, tuple[str, ...])
