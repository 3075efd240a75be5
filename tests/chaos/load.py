"""The writers: concurrent tasks with a mixed load."""

import asyncio
import itertools
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from pymongo import DeleteOne, InsertOne, ReturnDocument, UpdateOne

from aioretry import Outcome
from aioretry.idempotent import Keys
from tests.chaos.book import (
    COUNTERS,
    TICKET,
    Book,
    Statement,
    coalesced,
    delete,
    increment,
    insert,
    push,
)
from tests.chaos.calls import FAILURES, Caller, Habits, Send, Way
from tests.chaos.clients import Side
from tests.chaos.keyed import KeyedPushes
from tests.chaos.timeline import Timeline
from tests.chaos.units import Units

_SMALLEST, _LARGEST = 5, 20  # bulks, and bursts of single inserts
_HASTY: Mapping[str, Any] = {
    "cancels": 0.6,
    "moments": (0.001, 0.012),
    "ways": (Way.TIMEOUT,),
    "resolves": 1.0,
}
_SHORT: Mapping[str, Any] = {"shortest": 0.05, "timeout": 3.0}


@dataclass(frozen=True, slots=True)
class Load:
    """How much is written."""

    seed: int
    habits: Habits
    writers: int = 40
    beat: float = 0.2
    """The time from one call of a writer to its next, in seconds, or longer where that lasts."""

    seconds: float = 0.0
    """How long it lasts."""

    @property
    def victims(self) -> int:
        """How many documents there are to delete; less than one in two calls takes one."""
        return 1000 + int(0.5 * self.seconds * self.writers / self.beat)


class Writers:
    """The writers of one client.

    Args:
        side: The client's kind.
        collection: What they write to.
        book: Where they note what they were told.
        timeline: Where they note when.
        load: How much they write.
        keys: For writes that have one, or None.
    """

    def __init__(
        self,
        side: Side,
        collection: Any,
        book: Book,
        timeline: Timeline,
        load: Load,
        keys: Keys | None,
    ) -> None:
        self._side = side
        self._collection = collection
        self._book = book
        self._load = load
        self._caller = Caller(side, book, timeline, load.habits)
        self._coalesced = side.coalesced(collection)
        self._hasty = Caller(side, book, timeline, replace(load.habits, **_HASTY))
        self._stop = asyncio.Event()
        self._ways: dict[Callable[[Random], Awaitable[None]], int] = {
            self._increment: 25,
            self._insert: 20,
            self._push: 15,
            self._take_ticket: 15,
            self._delete: 10,
            self._insert_many: 7,
            self._bulk_write: 8,
            self._insert_coalesced: 5,
        }
        # Without a deadline, a key is waited for as long as a lost transaction with it is open.
        limited = replace(load.habits, unlimited=0.0)
        units = Units(side, collection, book, timeline, limited, keys)
        self._ways[units.transact] = 6
        if keys is not None:
            short = Caller(side, book, timeline, replace(load.habits, **_SHORT))
            self._ways[units.do_once] = 4
            self._ways[KeyedPushes(collection, book, short, keys).push] = 8

    async def run(self) -> None:
        """Write until stopped; a writer that raises something unexpected stops all."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._load.writers):
                group.create_task(self._write(number), name=f"writer {number}")

    def stop(self) -> None:
        """Begin no further call."""
        self._stop.set()

    async def _write(self, number: int) -> None:
        rng = Random(f"{self._load.seed}/{number}")
        loop = asyncio.get_running_loop()
        await asyncio.sleep(rng.uniform(0.0, self._load.beat))
        while not self._stop.is_set():
            next_one = loop.time() + self._load.beat
            (way,) = rng.choices([*self._ways], [*self._ways.values()])
            try:
                await way(rng)
            except Exception:  # noqa: BLE001 - it ends the run
                self._book.find(f"a call raised what it should not:\n{traceback.format_exc()}")
                self.stop()
            await asyncio.sleep(max(0.0, next_one - loop.time()))

    async def _increment(self, rng: Random) -> None:
        statement = increment(rng.randrange(COUNTERS))
        await self._update(statement, {"$inc": {"n": 1}}, rng)

    async def _push(self, rng: Random) -> None:
        statement = push(self._book.number("push"))
        await self._update(statement, {"$push": {"marks": statement.key}}, rng)

    async def _update(self, statement: Statement, change: dict[str, Any], rng: Random) -> None:
        result = await self._caller.write(
            statement,
            lambda: self._collection.update_one({"_id": statement.document}, change),
            rng,
        )
        if result is not None:
            self._require(statement, (result.matched_count, result.modified_count) == (1, 1))

    async def _insert(self, rng: Random) -> None:
        statement = insert(self._book.number("insert"))
        result = await self._caller.write(
            statement, lambda: self._collection.insert_one({"_id": statement.document}), rng
        )
        if result is not None:
            self._require(statement, result.inserted_id == statement.document)

    async def _insert_coalesced(self, rng: Random) -> None:
        burst = [Random(rng.random()) for _ in range(rng.randint(_SMALLEST, _LARGEST))]
        await asyncio.gather(*map(self._insert_one_coalesced, burst))

    async def _insert_one_coalesced(self, rng: Random) -> None:
        statement = coalesced(self._book.number("coalesced"))
        result = await self._hasty.write(
            statement, lambda: self._coalesced.insert_one({"_id": statement.document}), rng
        )
        if result is not None:
            self._require(statement, result.inserted_id == statement.document)

    async def _delete(self, rng: Random) -> None:
        if (number := self._victim()) is None:
            return
        statement = delete(number)
        result = await self._caller.write(
            statement, lambda: self._collection.delete_one({"_id": statement.document}), rng
        )
        if result is not None:
            self._require(statement, result.deleted_count == 1)

    def _victim(self) -> int | None:
        number = self._book.number("delete")
        return number if number < self._load.victims else None

    async def _take_ticket(self, rng: Random) -> None:
        def send() -> asyncio.Future[Any]:
            return self._collection.find_one_and_update(
                {"_id": TICKET}, {"$inc": {"n": 1}}, return_document=ReturnDocument.AFTER
            )

        tickets = self._book.tickets
        try:
            document = await self._caller.call_to_the_end(send, rng)
        except FAILURES as exc:
            tickets.outcomes[self._caller.fail(exc)] += 1
        else:
            tickets.given.append(document["n"])
            self._caller.acknowledge("tickets")

    async def _insert_many(self, rng: Random) -> None:
        count = rng.randint(_SMALLEST, _LARGEST)
        statements = [insert(self._book.number("insert")) for _ in range(count)]
        documents = [{"_id": statement.document} for statement in statements]
        ordered = rng.random() < 0.5
        result = await self._bulk(
            "insert_many",
            statements,
            lambda: self._collection.insert_many(documents, ordered=ordered),
            rng,
        )
        if result is not None:
            self._require(statements[0], len(result.inserted_ids) == count)

    async def _bulk_write(self, rng: Random) -> None:
        pairs = [*itertools.islice(self._mixed(rng), rng.randint(_SMALLEST, _LARGEST))]
        statements = [statement for statement, _ in pairs]
        requests = [request for _, request in pairs]
        ordered = rng.random() < 0.5
        result = await self._bulk(
            "bulk_write",
            statements,
            lambda: self._collection.bulk_write(requests, ordered=ordered),
            rng,
        )
        if result is not None:
            counts = result.inserted_count, result.modified_count, result.deleted_count
            self._require(statements[0], sum(counts) == len(requests))

    def _mixed(self, rng: Random) -> Any:
        while True:
            match rng.randrange(4):
                case 0:
                    one = insert(self._book.number("insert"))
                    yield one, InsertOne({"_id": one.document})
                case 1:
                    one = increment(rng.randrange(COUNTERS))
                    yield one, UpdateOne({"_id": one.document}, {"$inc": {"n": 1}})
                case 2:
                    one = push(self._book.number("push"))
                    yield one, UpdateOne({"_id": one.document}, {"$push": {"marks": one.key}})
                case _:
                    if (number := self._victim()) is not None:
                        one = delete(number)
                        yield one, DeleteOne({"_id": one.document})

    async def _bulk(
        self, kind: str, statements: Sequence[Statement], send: Send, rng: Random
    ) -> Any:
        """Make a call for several statements; None if it failed."""
        result, error = None, None
        outcomes: Sequence[Outcome] = [Outcome.APPLIED] * len(statements)
        try:
            result = await self._caller.call(send, rng)
        except FAILURES as exc:
            error = exc
            partial = self._side.partial_result_of(exc)
            shared = self._caller.fail(exc)
            outcomes = [shared] * len(statements)
            if partial is not None:  # those that were never looked at are not in it
                never = len(statements) - len(partial.outcomes)
                outcomes = (*partial.outcomes, *[Outcome.NOT_APPLIED] * never)
        else:
            self._caller.acknowledge(kind)
        for statement, outcome in zip(statements, outcomes, strict=True):
            self._book.ledgers[statement.ledger].record(statement.key, outcome, error)
        return result

    def _require(self, statement: Statement, is_right: bool) -> None:
        if not is_right:
            self._book.find(f"a wrong result of {statement}")
