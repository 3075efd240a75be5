"""Work that is done once for a key: its writes and its answer in one transaction."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio
import bson
from pymongo.errors import DocumentTooLarge, DuplicateKeyError, OperationFailure, PyMongoError

from aioretry import (
    DeadlineExceeded,
    RetryClient,
    RetryMotorClientSession,
    RetryMotorCollection,
    RetryMotorDatabase,
    deadline,
)
from aioretry.idempotent._errors import IdempotencyConflict, KeyInUseError
from aioretry.idempotent._keys_derived import Names
from aioretry.idempotent._keys_records import MAJORITY, Records

Work: TypeAlias = Callable[[RetryMotorClientSession], Awaitable[Mapping[str, Any]]]

_PAUSE = 0.05
_MOST_BYTES = 15 * 2**20
_WRITE_CONFLICT = 112
_UNKNOWN = "UnknownTransactionCommitResult"
# How long an error about the deadline is waited for that says more.
_GRACE = 0.5
_IN_USE = "another call with this key has not ended yet; repeat this one later"


@dataclass(frozen=True, slots=True)
class OnceAnswer:
    """What work that is done once has given."""

    value: Mapping[str, Any]
    """What the work returned when it was done, as BSON keeps it."""

    replayed: bool
    """Whether another call has done the work."""


class Turns:
    """Lets some calls work at once, and of those with the same key one.

    What many transactions at once do is to get in each other's way.

    Args:
        at_once: How many.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._places: WeakKeyDictionary[RetryClient[Any], asyncio.Semaphore] = WeakKeyDictionary()
        self._keys: WeakValueDictionary[tuple[int, bytes], asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, client: RetryClient[Any], key: bytes) -> AsyncIterator[None]:
        """Wait for a turn, as long as the surrounding deadline allows.

        Raises:
            KeyInUseError: Another call with the key has not ended in time.
            DeadlineExceeded: Other calls have not ended in time.
        """
        place = self._places.setdefault(client, asyncio.Semaphore(self._at_once))
        own = self._keys.setdefault((id(client), key), asyncio.Lock())
        async with _before_deadline(own, KeyInUseError(_IN_USE)):
            late = DeadlineExceeded("the deadline is over; too many calls were before this one")
            async with _before_deadline(place, late):
                yield


@asynccontextmanager
async def _before_deadline(
    lock: asyncio.Lock | asyncio.Semaphore, late: Exception
) -> AsyncIterator[None]:
    with deadline(None) as limit:
        left = None if limit is None or not limit.is_limited else limit.remaining()
    try:
        async with asyncio.timeout(left):
            await lock.acquire()
    except TimeoutError:
        raise late from None
    try:
        yield
    finally:
        lock.release()


_running: set["asyncio.Task[OnceAnswer]"] = set()


def _forget(task: "asyncio.Task[OnceAnswer]") -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # the caller has it, or does not care any more


class _TakenError(Exception):
    """Another call has committed the record; never leaves this module."""


class OnceCall:
    """One call for work that is done once.

    Args:
        names: What follows from the key.
        database: Where the record is kept.
        records: Its collection.
        turns: Says when.
        payload: What the key stands for.
        work: Does it, with the transaction's session.
    """

    def __init__(
        self,
        names: Names,
        database: RetryMotorDatabase[Any],
        records: Records,
        turns: Turns,
        payload: bytes,
        work: Work,
    ) -> None:
        self._id = names.record_id()
        self._fingerprint = names.fingerprint(0, {"payload": payload})
        self._database = database
        self._records = records
        self._turns = turns
        self._work = work
        self._is_blocked = False
        self._is_committing = False

    async def run(self) -> OnceAnswer:
        """Do the work and store its answer, or give the answer that is stored."""
        with deadline(None) as limit:
            timeout = limit.remaining() + _GRACE if limit and limit.is_limited else None
        # In a task of its own, because aborting a transaction takes its time where servers hang.
        task = asyncio.create_task(self._run())
        _running.add(task)
        task.add_done_callback(_forget)
        try:
            await asyncio.wait({task}, timeout=timeout)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        raise self._late()

    async def _run(self) -> OnceAnswer:
        records = await self._records.of(self._database)
        client = cast(RetryClient[Any], self._database.client)
        try:
            async with self._turns.turn(client, self._id):
                return OnceAnswer(await self._execute(records), replayed=False)
        except _TakenError:
            return OnceAnswer(await self._stored(records), replayed=True)

    def _late(self) -> PyMongoError:
        if self._is_blocked:
            return KeyInUseError(_IN_USE)
        labels = [_UNKNOWN] if self._is_committing else []
        return DeadlineExceeded("the deadline of once() is over", {"errorLabels": labels})

    async def _execute(self, records: RetryMotorCollection[dict[str, Any]]) -> Mapping[str, Any]:
        async def serve(session: RetryMotorClientSession) -> bytes:
            self._is_committing = False
            await self._claim(records, session)
            answer = bson.encode(await self._work(session))
            if len(answer) > _MOST_BYTES:
                raise DocumentTooLarge(
                    f"an answer that is stored must not have more than {_MOST_BYTES} bytes: "
                    f"{len(answer)}; nothing is applied"
                )
            await records.update_one(
                {"_id": self._id},
                {
                    "$set": {"payload": self._fingerprint, "answer": answer},
                    "$currentDate": {"at": True},
                },
                session=session,
            )
            self._is_committing = True
            return answer

        try:
            async with await self._database.client.start_session() as session:
                return bson.decode(await session.with_transaction(serve, write_concern=MAJORITY))
        except PyMongoError as exc:
            if exc.timeout and self._is_blocked:
                raise KeyInUseError(_IN_USE) from exc
            raise

    async def _claim(
        self, records: RetryMotorCollection[dict[str, Any]], session: RetryMotorClientSession
    ) -> None:
        # A write conflict says that another call has the record and is not done.
        try:
            await records.insert_one({"_id": self._id}, session=session)
        except DuplicateKeyError:
            raise _TakenError from None
        except OperationFailure as exc:
            self._is_blocked = exc.code == _WRITE_CONFLICT
            raise
        self._is_blocked = False

    async def _stored(self, records: RetryMotorCollection[dict[str, Any]]) -> Mapping[str, Any]:
        while True:
            record = await records.find_one({"_id": self._id})
            if record is not None:
                break
            await anyio.sleep(_PAUSE)  # it is not visible to the majority yet
        if record["payload"] != self._fingerprint:
            raise IdempotencyConflict("this key was used with another payload before")
        return bson.decode(record["answer"])


def at_once_of(value: object) -> int:
    """Return how many may be at work at once."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"at_once must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"at_once must be at least 1, not {value!r}")
    return value
