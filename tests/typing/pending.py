"""How pending updates look to type checkers; checked, never run."""

from typing import Any, assert_type

from bson import ObjectId
from bson.binary import Binary
from motor.motor_asyncio import AsyncIOMotorCollection
from pymongo.asynchronous.collection import AsyncCollection

from aioretry import RetryMotorCollection
from aioretry.idempotent import (
    AppliedUpdate,
    CleanUpReport,
    PendingStatus,
    PendingUpdates,
    UpdateInterruptedError,
)


async def use(
    ours: RetryMotorCollection[dict[str, Any]],
    motors: AsyncIOMotorCollection[dict[str, Any]],
    pymongos: AsyncCollection[dict[str, Any]],
) -> None:
    """Collections of all three drivers do."""
    for updates in (PendingUpdates(ours), PendingUpdates(motors), PendingUpdates(pymongos)):
        assert_type(updates, PendingUpdates)
        try:
            result = await updates.apply(1, {"$inc": {"n": 1}}, token=ObjectId(), timeout=5)
        except UpdateInterruptedError as exc:
            assert_type(exc.token, ObjectId | Binary)
            assert_type(exc.will_be_applied, bool)
            result = await updates.resolve(exc)
        assert_type(result, AppliedUpdate)
        assert_type(await updates.clean_up(on_progress=print), CleanUpReport)
        assert_type(await updates.status(), PendingStatus)
