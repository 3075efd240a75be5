"""One call of a client: under a deadline, now and then cancelled, now and then resolved."""

import asyncio
import enum
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from pymongo.errors import ConfigurationError, PyMongoError

import aioretry
from aioretry import Outcome
from aioretry.errors import links_of
from aioretry.idempotent import KeyInUseError
from tests.chaos.book import Book, Failed, Statement
from tests.chaos.clients import Side
from tests.chaos.timeline import Timeline

T = TypeVar("T")
Send = Callable[[], Awaitable[Any]]

_RESOLVE_SECONDS = 30.0
FAILURES = (PyMongoError, TimeoutError, asyncio.CancelledError)
"""What a call may raise; anything else ends the run."""


class MadeUpError(PyMongoError):
    """What the load itself raises in a transaction."""


class Way(enum.Enum):
    """A way to cancel a call."""

    TIMEOUT = enum.auto()
    TASK = enum.auto()
    FUTURE = enum.auto()


@dataclass(frozen=True, slots=True)
class Habits:
    """How the callers behave."""

    timeout: float
    """The deadline of each call, in seconds."""

    shortest: float | None = None
    """The shortest deadline, if each call has its own; that one is the longest then."""

    unlimited: float = 0.0
    """How many of the calls have no deadline, and so one retry."""

    cancels: float = 0.1
    """How many of the calls are cancelled, unless they end before that."""

    moments: tuple[float, float] = (0.001, 1.0)
    """When they are, in seconds."""

    ways: Sequence[Way] = tuple(Way)
    """How they are."""

    resolves: float = 0.5
    """How many of the writes of unknown outcome are resolved."""


class Caller:
    """Makes the calls of one client, and notes how they end.

    Args:
        side: The client.
        book: Where it is noted.
        timeline: Where it is noted when.
        habits: How it behaves.
    """

    def __init__(self, side: Side, book: Book, timeline: Timeline, habits: Habits) -> None:
        self._side = side
        self._figures = book.figures
        self._book = book
        self._timeline = timeline
        self._habits = habits

    async def call(self, send: Send, rng: Random) -> Any:
        """Call once, and let it go where it goes.

        Raises:
            BaseException: One of `FAILURES`.
        """
        way = rng.choice(self._habits.ways) if rng.random() < self._habits.cancels else None
        after = _between(self._habits.moments, rng)
        limit = self._limit_of(rng)
        started, began = time.monotonic(), self._timeline.now
        try:
            return await self._sent(send, limit, way, after)
        except FAILURES as exc:
            self._require_not_cancelled()
            self._look_at(exc)
            if way is None and self._habits.shortest is None:
                self._note(exc, began, is_limited=limit is not None)
            raise
        finally:
            self._figures.longest = max(self._figures.longest, time.monotonic() - started)

    async def call_to_the_end(self, send: Send, rng: Random) -> Any:
        """Call once, and resolve the outcome if it is unknown, or leave it at that.

        Raises:
            BaseException: One of `FAILURES`.
        """
        try:
            return await self.call(send, rng)
        except FAILURES as exc:
            resolve = self._side.resolve
            is_unknown = self._side.outcome_of(exc) is Outcome.UNKNOWN
            if resolve is None or not is_unknown or rng.random() >= self._habits.resolves:
                raise
            doubt = exc
        try:
            result = await resolve(doubt, timeout=_RESOLVE_SECONDS)
        except aioretry.ResolveError:
            self._figures.resolved["impossible"] += 1
            raise doubt from None
        except FAILURES as exc:
            self._require_not_cancelled()
            self._look_at(exc)
            outcome = self._side.outcome_of(exc)
            self._figures.resolved["silent" if outcome is None else outcome.value] += 1
            raise
        self._figures.resolved["result"] += 1
        return result

    async def write(self, statement: Statement, send: Send, rng: Random) -> Any:
        """Make a call for one statement, and note it in its ledger; None if it failed."""
        ledger = self._book.ledgers[statement.ledger]
        writing = self.call_to_the_end(send, rng)
        try:
            result = await ledger.write(statement.key, writing)
        except FAILURES as exc:
            self.fail(exc)
            return None
        self.acknowledge(statement.ledger)
        return result

    def acknowledge(self, kind: str) -> None:
        """Note that a call returned."""
        self._figures.acknowledged[kind] += 1
        self._timeline.acknowledge()

    def fail(self, exc: BaseException) -> Outcome:
        """Note that a call raised, and return what that says of the write."""
        outcome = self._side.outcome_of(exc)
        self._figures.failed["no word" if outcome is None else outcome.value] += 1
        self._figures.errors[type(exc).__name__] += 1
        self._timeline.fail()
        for link in links_of(exc):  # the ledger keeps it; its frames hold documents and sockets
            link.__traceback__ = None
        return outcome or Outcome.UNKNOWN

    def _limit_of(self, rng: Random) -> float | None:
        habits = self._habits
        if habits.shortest is not None:
            return _between((habits.shortest, habits.timeout), rng)
        return None if rng.random() < habits.unlimited else habits.timeout

    async def _sent(self, send: Send, limit: float | None, way: Way | None, after: float) -> Any:
        loop = asyncio.get_running_loop()
        match way:
            case None:
                return await self._limited(send, limit)
            case Way.TIMEOUT:
                async with asyncio.timeout(after):
                    return await self._limited(send, limit)
            case Way.TASK:
                running: asyncio.Future[Any] = loop.create_task(self._limited(send, limit))
            case Way.FUTURE:
                with self._until(limit):
                    running = asyncio.ensure_future(send())
        timer = loop.call_later(after, running.cancel)
        try:
            return await running
        finally:
            timer.cancel()

    async def _limited(self, send: Send, limit: float | None) -> Any:
        with self._until(limit):
            return await send()

    def _until(self, limit: float | None) -> AbstractContextManager[object]:
        return nullcontext() if limit is None else self._side.limit(limit)

    def _look_at(self, exc: BaseException) -> None:
        if isinstance(exc, TimeoutError | asyncio.CancelledError):
            self._figures.cancelled += 1
        elif self._side.tells and self._side.outcome_of(exc) is None:
            self._book.find(f"an error without an outcome: {exc!r}")
        if self._side.tells and isinstance(exc, ConfigurationError):
            self._book.find(f"a fault that was taken for the deployment's configuration: {exc!r}")

    def _note(self, exc: BaseException, began: float, *, is_limited: bool) -> None:
        # A key is in use as long as an earlier call's transaction is open whose abort was lost.
        if self._side.tells and not isinstance(exc, MadeUpError | KeyInUseError):
            failed = Failed(began, self._timeline.now, is_limited, repr(exc))
            self._book.failures.append(failed)

    def _require_not_cancelled(self) -> None:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError


def _between(ends: tuple[float, float], rng: Random) -> float:
    """Draw a time; half as many of twice the length."""
    least, most = map(math.log, ends)
    return math.exp(rng.uniform(least, most))
