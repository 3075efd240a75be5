"""How the ledger of the test kit looks to type checkers; checked, never run."""

from typing import Any, assert_type

from motor.motor_asyncio import AsyncIOMotorCollection
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.results import InsertOneResult

from aioretry import Outcome, RetryMotorCollection
from aioretry.testing import Entry, Ledger, LedgerError, LedgerReport


def judge(exc: BaseException) -> Outcome | None:
    """A judge is any callable of one exception."""
    return Outcome.NOT_APPLIED if isinstance(exc, ValueError) else None


async def collections(
    ours: RetryMotorCollection[dict[str, Any]],
    motors: AsyncIOMotorCollection[dict[str, Any]],
    pymongos: AsyncCollection[dict[str, Any]],
) -> None:
    """Collections of all three drivers can be written through and checked."""
    ledger = Ledger(outcome=judge)
    assert_type(await ledger.write("a", ours.insert_one({"_id": "a"})), InsertOneResult)
    await ledger.write(2, motors.insert_one({"_id": 2}))
    await ledger.write((3, "c"), pymongos.insert_one({"_id": 3}))
    assert_type(await ledger.check_marks(ours), LedgerReport)
    await ledger.check_marks(motors, "marks", durable=True)
    await ledger.check_counters(pymongos, "n")


def mappings() -> None:
    """What was found may come from anywhere."""
    ledger = Ledger()
    ledger.record("a", Outcome.APPLIED, ValueError())
    counted: dict[str, int] = {"a": 1}
    assert_type(ledger.check(counted, durable=False), LedgerReport)
    assert_type(ledger.entries, tuple[Entry, ...])
    assert_type(ledger.unchecked, tuple[Entry, ...])
    error: AssertionError = LedgerError(ledger.check({}))
    del error
