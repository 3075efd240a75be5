"""Writes with idempotency keys, under deadlines that are often too short, and their repetitions."""

import asyncio
from random import Random
from typing import Any

from aioretry import Outcome
from aioretry.idempotent import IdempotencyConflict, IdempotencyKey, Keys
from tests.chaos.book import Book, Statement, keyed, together
from tests.chaos.calls import FAILURES, Caller

_MOST_CALLS = 4  # with one key


class KeyedPushes:
    """Pushes to arrays, each under a key of its own.

    Args:
        collection: What they write to.
        book: Where it is noted what was told.
        caller: Makes the calls.
        keys: Makes the keys.
    """

    def __init__(self, collection: Any, book: Book, caller: Caller, keys: Keys) -> None:
        self._collection = collection
        self._book = book
        self._caller = caller
        self._keys = keys

    async def push(self, rng: Random) -> None:
        """Push a number, and repeat it some times, whatever came of it."""
        statement = keyed(self._book.number("keyed"))
        key = self._keys(f"push {statement.key}")
        told: set[Outcome] = set()
        for _ in range(rng.randint(1, _MOST_CALLS)):
            told.add(await self._call(key, statement, rng))
            await asyncio.sleep(rng.uniform(0.0, 1.0))
        self._book.ledgers[statement.ledger].record(statement.key, together(told))

    async def _call(self, key: IdempotencyKey, statement: Statement, rng: Random) -> Outcome:
        try:
            result = await self._caller.call(
                lambda: asyncio.ensure_future(self._push(key, statement)), rng
            )
        except FAILURES as exc:
            if isinstance(exc, IdempotencyConflict):
                self._book.find(f"{statement}: {exc!r}")
            return self._caller.fail(exc)
        self._caller.acknowledge(statement.ledger)
        if (result.matched_count, result.modified_count) != (1, 1):
            self._book.find(f"a wrong result of {statement}")
        return Outcome.APPLIED

    async def _push(self, key: IdempotencyKey, statement: Statement) -> Any:
        async with self._collection.operation(key=key) as op:
            change = {"$push": {"marks": statement.key}}
            return await op.update_one({"_id": statement.document}, change)
