"""Work that is done once for a key: its writes and its answer in one transaction."""

import asyncio
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import anyio
import bson
from bson.codec_options import CodecOptions
from pymongo import ReadPreference
from pymongo.errors import (
    DocumentTooLarge,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
)
from pymongo.read_concern import ReadConcern

from aioretry import Deadline, DeadlineExceeded, Outcome, deadline, run_transaction
from aioretry._faces import Client, Collection, Database, Session
from aioretry.errors import attach, own_report_of, refusal
from aioretry.idempotent._errors import IdempotencyConflict, KeyInUseError
from aioretry.idempotent._keys_derived import Names
from aioretry.idempotent._keys_rate import Places
from aioretry.idempotent._keys_records import MAJORITY, Records

Work: TypeAlias = Callable[[Session], Awaitable[Mapping[str, Any]]]

# Between looks at a key that another process has: a random part, growing, of at most the second.
_PAUSE = 0.05
_LONGEST_PAUSE = 0.5
# For how many seconds another process is waited for where there is no deadline.
_PATIENCE = 120.0
_MOST_BYTES = 15 * 2**20
_WRITE_CONFLICT = 112
_NO_SUCH_TRANSACTION = 251
_TRANSIENT = "TransientTransactionError"
_UNKNOWN = "UnknownTransactionCommitResult"
# How long an error about the deadline is waited for that says more, and then for the abort.
_GRACE = 0.5
# A failover loses one transaction; what loses several in a row is the work.
_MOST_LOST = 3
_IN_USE = "another call with this key has not ended yet; repeat this one later"
_LOST = (
    f"the server had aborted the transaction {_MOST_LOST} times in a row before its work was done, "
    "and nothing is applied: the work must let the errors of its commands out, and must not take "
    "longer than transactionLifetimeLimitSeconds"
)

_ENDED = (
    "the work of once() has committed or aborted its transaction itself, so that no answer can be "
    "stored with it: leave that to once()"
)
_SPOILED = (
    "an earlier call with this key has done its work and stored no answer, because the work has "
    "committed its transaction itself; the key is of no use before its record is removed, after "
    "30 days"
)


@dataclass(frozen=True, slots=True)
class OnceAnswer:
    """What work that is done once has given."""

    value: Mapping[str, Any]
    """What the work returned when it was done, as BSON and the database's codec options keep it."""

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
        # By identity: clients of the same servers are equal, also those of two event loops.
        self._places: dict[int, Places] = {}
        self._keys: weakref.WeakValueDictionary[tuple[int, bytes], asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    @asynccontextmanager
    async def turn(self, client: Client, key: bytes, caller: str) -> AsyncIterator[None]:
        """Wait for a turn, as long as the surrounding deadline allows.

        Raises:
            KeyInUseError: Another call with the key has not ended in time.
            NoTurnError: Other calls have not ended in time.
        """
        with deadline(None) as limit:
            left = None if limit is None or not limit.is_limited else limit.remaining()
        own = self._keys.setdefault((id(client), key), asyncio.Lock())
        try:
            async with asyncio.timeout(left):
                await own.acquire()
        except TimeoutError:
            raise _in_use() from None
        try:
            async with self._places_of(client).place(limit, caller):
                yield
        finally:
            own.release()

    def _places_of(self, client: Client) -> Places:
        number = id(client)
        if number not in self._places:
            self._places[number] = Places(self._at_once)
            weakref.finalize(client, self._places.pop, number)
        return self._places[number]


_running: set["asyncio.Task[OnceAnswer]"] = set()


class _AtWork:
    """A call whose work runs, as those know it whom the work has started; they may outlive it."""

    __slots__ = ("is_running",)

    def __init__(self) -> None:
        self.is_running = False


_around: ContextVar[_AtWork | None] = ContextVar("aioretry_around_once", default=None)


def _forget(task: "asyncio.Task[OnceAnswer]") -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # the caller has it, or does not care any more


class _TakenError(Exception):
    """Another call has committed the record; never leaves this module."""


class _BlockedError(Exception):
    """Another call has written the record and not committed it; never leaves this module."""


class OnceCall:
    """One call for work that is done once.

    Args:
        names: What follows from the key.
        database: Where the record is kept, and in whose codec options its answer.
        records: Its collection; None keeps none.
        turns: Says when.
        payload: What the key stands for.
        work: Does it, with the transaction's session.
        caller: Whose turn it takes.
    """

    def __init__(
        self,
        names: Names,
        database: Database,
        records: Records | None,
        turns: Turns,
        payload: bytes,
        work: Work,
        caller: str,
    ) -> None:
        self._id = names.record_id()
        self._fingerprint = names.fingerprint(0, {"payload": payload})
        self._database = database
        self._codec_options: CodecOptions[Any] = database.codec_options
        self._records = records
        self._turns = turns
        self._work = work
        self._caller = caller
        self._at_work = _AtWork()
        self._is_blocked = False
        self._is_committing = False
        self._lost = 0
        self._patience: Deadline | None = None
        self._pause = _PAUSE

    async def run(self) -> OnceAnswer:
        """Do the work and store its answer, or give the answer that is stored."""
        around = _around.get()
        if around is not None and around.is_running:
            raise InvalidOperation(
                "once() can't be used in the work of another once(): it is no part of that "
                "transaction, and the two could wait for each other"
            )
        with deadline(None) as limit:
            timeout = limit.remaining() + _GRACE if limit and limit.is_limited else None
        # In a task of its own, because aborting a transaction takes its time where servers hang.
        task = asyncio.create_task(self._run())
        _running.add(task)
        task.add_done_callback(_forget)
        try:
            await asyncio.wait({task}, timeout=timeout)
            if task.done():
                return task.result()
            task.cancel()  # of work that does not obey the deadline
            await asyncio.wait({task}, timeout=_GRACE)
        except asyncio.CancelledError as exc:
            if self._is_committing:
                attach(exc, Outcome.UNKNOWN, [])
            task.cancel()
            raise
        if task.done() and not task.cancelled():
            return task.result()
        raise self._late(is_over=task.done())

    async def _run(self) -> OnceAnswer:
        records = None if self._records is None else await self._records.of(self._database)
        client = cast(Client, self._database.client)
        while True:
            try:
                async with self._turns.turn(client, self._id, self._caller):
                    return OnceAnswer(await self._execute(records), replayed=False)
            except _TakenError:
                # It may not be visible to the majority yet; or it is gone by now, or never will be.
                stored = None if records is None else await self._find(records)
                if stored is not None:
                    return OnceAnswer(stored, replayed=True)
            except _BlockedError:
                pass
            self._is_blocked = True
            await self._wait()

    async def _wait(self) -> None:
        # Without a turn or a transaction: the other call may have died, which is noticed late.
        if self._patience is None:
            with deadline(None) as limit:
                limited = limit is not None and limit.is_limited
            self._patience = limit if limit and limited else Deadline.after(_PATIENCE)
        left = self._patience.remaining()
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE)
        await anyio.sleep(min(pause, left))
        if pause >= left:
            raise _in_use()

    def _late(self, *, is_over: bool) -> PyMongoError:
        if self._is_blocked:
            return _in_use()
        # Work that does not mind being cancelled goes on, and may be committed.
        in_doubt = self._is_committing or not is_over
        labels = [_UNKNOWN] if in_doubt else []
        error = DeadlineExceeded("the deadline of once() is over", {"errorLabels": labels})
        attach(error, Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED, [])
        return error

    async def _execute(self, records: Collection | None) -> Mapping[str, Any]:
        async def serve(session: Session) -> Mapping[str, Any]:
            self._is_committing = False
            if records is not None:
                await self._claim(records, session)
            try:
                answer = await self._answer(session)
                value = self._decoded(answer)  # not later: it may raise
                if records is not None:
                    await self._store(records, answer, session)
            except (PyMongoError, ExceptionGroup) as exc:
                self._require_sense(exc)
                raise
            self._is_committing = True
            return value

        try:
            value: Mapping[str, Any] = await run_transaction(
                cast(Client, self._database.client),
                serve,
                read_concern=ReadConcern("majority"),
                write_concern=MAJORITY,
                read_preference=ReadPreference.PRIMARY,
            )
        except PyMongoError as exc:
            if exc.timeout and self._is_blocked:
                raise _in_use() from exc
            self._explain(exc)
            raise
        return value

    def _explain(self, exc: PyMongoError) -> None:
        """Say how it ended; else the exception says it of a write in whose handling it is raised.

        A server labels few of the errors that leave a commit in doubt.
        """
        own = own_report_of(exc)
        denied = own is not None and own.outcome is Outcome.NOT_APPLIED
        in_doubt = exc.has_error_label(_UNKNOWN) or not (exc.has_error_label(_TRANSIENT) or denied)
        outcome = Outcome.UNKNOWN if self._is_committing and in_doubt else Outcome.NOT_APPLIED
        attach(exc, outcome, () if own is None else own.attempts)

    async def _claim(self, records: Collection, session: Session) -> None:
        try:
            # In good order it gets its time from the server, with the answer.
            claim = {"_id": self._id, "at": datetime.now(UTC)}
            await records.insert_one(claim, session=session)
        except DuplicateKeyError:
            raise _TakenError from None
        except OperationFailure as exc:
            # Its label would begin the transaction anew at once, and keep the turn.
            if exc.code == _WRITE_CONFLICT:
                raise _BlockedError from None
            raise
        self._is_blocked = False

    async def _answer(self, session: Session) -> bytes:
        token = _around.set(self._at_work)
        self._at_work.is_running = True
        try:
            given = await self._work(session)
        finally:
            self._at_work.is_running = False
            _around.reset(token)
        goes_on: Any = session.in_transaction  # typed as a method
        if not goes_on:
            self._is_committing = True
            raise InvalidOperation(_ENDED)
        answer = bson.encode(given, codec_options=self._codec_options)
        if len(answer) > _MOST_BYTES:
            raise DocumentTooLarge(
                f"an answer that is stored must not have more than {_MOST_BYTES} bytes: "
                f"{len(answer)}; nothing is applied"
            )
        return answer

    async def _store(
        self,
        records: Collection,
        answer: bytes,
        session: Session,
    ) -> None:
        await records.update_one(
            {"_id": self._id},
            {
                "$set": {"payload": self._fingerprint, "answer": answer},
                "$currentDate": {"at": True},
            },
            session=session,
        )

    def _require_sense(self, error: Exception) -> None:
        self._lost = self._lost + 1 if _says_lost(error) else 0
        if self._lost == _MOST_LOST:
            raise InvalidOperation(_LOST) from error

    async def _find(self, records: Collection) -> Mapping[str, Any] | None:
        record = await records.find_one({"_id": self._id})
        if record is None:
            return None
        if "payload" not in record:
            raise refusal(InvalidOperation(_SPOILED))
        if record["payload"] != self._fingerprint:
            raise refusal(IdempotencyConflict("this key was used with another payload before"))
        return self._decoded(record["answer"])

    def _decoded(self, answer: bytes) -> Mapping[str, Any]:
        return bson.decode(answer, codec_options=self._codec_options)


def _in_use() -> KeyInUseError:
    return refusal(KeyInUseError(_IN_USE))


def _says_lost(error: Exception) -> bool:
    # In a group with others, it is another one's fault.
    if isinstance(error, ExceptionGroup):
        return all(_says_lost(each) for each in error.exceptions)
    return isinstance(error, OperationFailure) and error.code == _NO_SUCH_TRANSACTION


def at_once_of(value: object) -> int:
    """Return how many may be at work at once."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"at_once must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"at_once must be at least 1, not {value!r}")
    return value
