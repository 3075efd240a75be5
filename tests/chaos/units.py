"""Writes that are applied all or none: transactions that gather theirs, and work done once."""

import asyncio
import enum
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from pymongo.errors import InvalidOperation, PyMongoError

from aioretry import Outcome, outcome_of
from aioretry.idempotent import IdempotencyConflict, Keys
from tests.chaos.book import Book, Unit, document_of
from tests.chaos.calls import FAILURES, Caller, Habits, MadeUpError
from tests.chaos.clients import Side
from tests.chaos.timeline import Timeline

_FEWEST, _MOST = 2, 5  # documents of a run
_LATEST = 0.02  # seconds after which a write begins
_MOST_CALLS = 3  # with one key
_TRANSIENT = "TransientTransactionError"
_UNKNOWN = "UnknownTransactionCommitResult"


class Course(enum.Enum):
    """How a run goes."""

    WELL = enum.auto()
    LATE = enum.auto()
    """One write is left running when the run ends."""

    RAISES = enum.auto()
    """One of what is gathered raises, while the others go on."""

    RAISES_AGAIN = enum.auto()
    """The same, and everything is run again."""


_COURSES = {Course.WELL: 6, Course.LATE: 2, Course.RAISES: 1, Course.RAISES_AGAIN: 2}


class Units:
    """The transactions of one client.

    Args:
        side: The client's kind.
        collection: What they write to.
        book: Where it is noted what was told.
        timeline: Where it is noted when.
        habits: How the callers behave.
        keys: For work that is done once, or None.
    """

    def __init__(
        self,
        side: Side,
        collection: Any,
        book: Book,
        timeline: Timeline,
        habits: Habits,
        keys: Keys | None,
    ) -> None:
        self._side = side
        self._collection = collection
        self._book = book
        self._caller = Caller(
            replace(side, outcome_of=outcome_of_unit, resolve=None), book, timeline, habits
        )
        self._keys = keys

    async def transact(self, rng: Random) -> None:
        """Run one transaction."""
        unit = self._book.unit("transactions", rng.randint(_FEWEST, _MOST))
        work = _Work(unit, self._book, self._collection, rng)

        def send() -> asyncio.Future[Any]:
            client = self._collection.database.client
            return asyncio.ensure_future(self._side.transact(client, work))

        await self._call(unit, send, rng)

    async def do_once(self, rng: Random) -> None:
        """Do some work under a key, some times."""
        keys = self._keys
        if keys is None:
            raise AssertionError("there are no keys")
        unit = self._book.unit("done once", rng.randint(_FEWEST, _MOST))
        work = _Work(unit, self._book, self._collection, rng)
        database = self._collection.database

        async def once() -> Any:
            answer = await keys.once(f"unit {unit.number}", work, database=database)
            return answer.value

        for _ in range(rng.randint(1, _MOST_CALLS)):
            await self._call(unit, lambda: asyncio.ensure_future(once()), rng)
            await asyncio.sleep(rng.uniform(0.0, 1.0))

    async def _call(self, unit: Unit, send: Callable[[], asyncio.Future[Any]], rng: Random) -> None:
        try:
            answer = await self._caller.call(send, rng)
        except FAILURES as exc:
            if isinstance(exc, IdempotencyConflict):
                self._book.find(f"{unit.kind}: {exc!r}")
            unit.told.add(self._caller.fail(exc))
            return
        self._caller.acknowledge(unit.kind)
        unit.told.add(Outcome.APPLIED)
        if unit.run not in {None, answer["run"]}:
            self._book.find(f"two answers to {unit}: {answer}")
        unit.run = answer["run"]


class _Work:
    """The callback of a transaction: it gathers its inserts."""

    def __init__(self, unit: Unit, book: Book, collection: Any, rng: Random) -> None:
        self._unit = unit
        self._book = book
        self._collection = collection
        self._rng = rng
        self._late: set[asyncio.Task[None]] = set()

    async def __call__(self, session: Any) -> dict[str, int]:
        run = self._book.number("run")
        (course,) = self._rng.choices([*_COURSES], [*_COURSES.values()])
        parts = [str(part) for part in range(self._unit.parts)]
        if course is Course.LATE:
            late = asyncio.create_task(self._insert(session, run, "late"))
            self._late.add(late)
            late.add_done_callback(self._forget)
        writes = [self._insert(session, run, part) for part in parts]
        try:
            await asyncio.gather(*writes, *self._raising(course))
        except (asyncio.CancelledError, TimeoutError):
            self._book.abandoned += 1
            raise
        finally:
            server_session = getattr(session, "delegate", session)._server_session
            self._book.sessions[id(server_session)] = server_session
        return {"run": run}

    def _raising(self, course: Course) -> Sequence[Any]:
        if course is Course.RAISES:
            return [self._raise(MadeUpError("made up"))]
        if course is Course.RAISES_AGAIN:
            return [self._raise(MadeUpError("made up", [_TRANSIENT]))]
        return []

    async def _raise(self, exc: MadeUpError) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, _LATEST))
        raise exc

    async def _insert(self, session: Any, run: int, part: str) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, _LATEST))
        document = document_of(self._unit, run, part)
        try:
            await self._collection.insert_one({"_id": document}, session=session)
        except InvalidOperation as exc:
            if outcome_of(exc) is Outcome.NOT_APPLIED:
                self._unit.refused.add(document)
            raise

    def _forget(self, late: "asyncio.Task[None]") -> None:
        self._late.discard(late)
        if not late.cancelled():
            late.exception()


def outcome_of_unit(exc: BaseException) -> Outcome:
    """Tell what an error says of a transaction, as the docs have it.

    Args:
        exc: The error.
    """
    if isinstance(exc, PyMongoError) and not exc.has_error_label(_UNKNOWN):
        return Outcome.NOT_APPLIED
    return Outcome.UNKNOWN
