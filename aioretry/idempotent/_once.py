"""Work that is done once for a key: its writes and its answer in one transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import bson
from bson.codec_options import CodecOptions
from pymongo.errors import (
    DocumentTooLarge,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
)
from pymongo.read_concern import ReadConcern

from aioretry import (
    Deadline,
    DeadlineExceeded,
    Outcome,
    WritesUnavailableError,
    attempts_of,
    deadline,
    outcome_of,
)
from aioretry._faces import (
    Client,
    Collection,
    Database,
    Session,
    contended,
    is_known_to_transact,
    require_transactions,
    settled,
    under_way_of,
)
from aioretry.errors import attach, refusal
from aioretry.idempotent._errors import IdempotencyConflict, KeyInUseError
from aioretry.idempotent._keys_derived import Names
from aioretry.idempotent._keys_records import MOST_BYTES, Records, insist, transact
from aioretry.idempotent._once_turns import Turn, Turns, acquired

Work: TypeAlias = Callable[[Session], Awaitable[Mapping[str, Any]]]

_NO_SUCH_TRANSACTION = 251
_UNKNOWN = "UnknownTransactionCommitResult"
# How long an error about the deadline is waited for that says more, and then for the abort.
_GRACE = 0.1
# A failover loses one transaction; what loses several in a row is the work.
_MOST_LOST = 3
# How often a record may be in the way that is gone when it is looked for.
_MOST_TAKEN = 3
_IN_USE = "another call with this key has not ended yet; repeat this one later"
_LOST = (
    f"the server had aborted the transaction {_MOST_LOST} times in a row before its work was done, "
    "and nothing is applied: the work must let the errors of its commands out, and must not take "
    "longer than transactionLifetimeLimitSeconds"
)

_ENDED = "the work of once() must leave its transaction open: commits and aborts are once()'s"


@dataclass(frozen=True, slots=True)
class OnceAnswer:
    """What work that is done once has given."""

    value: Mapping[str, Any]
    """What the work returned when it was done, as BSON and the database's codec options keep it."""

    replayed: bool
    """Whether another call has done the work."""


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
        self._client = cast(Client, database.client)
        self._codec_options: CodecOptions[Any] = database.codec_options
        self._records = records
        self._turns = turns
        self._turn = Turn(turns, self._client, caller)
        self._work = work
        self._at_work = _AtWork()
        self._limit: Deadline | None = None
        self._session: Session = None
        self._is_storing = False
        self._is_blocked = False
        self._is_committing = False
        self._may_be_committed = False
        self._lost = 0

    async def run(self) -> OnceAnswer:
        """Do the work and store its answer, or give the answer that is stored."""
        around = _around.get()
        if around is not None and around.is_running:
            raise InvalidOperation(
                "once() can't be used in the work of another once(): it is no part of that "
                "transaction, and the two could wait for each other"
            )
        with deadline(None) as limit:
            self._limit = limit if limit is not None and limit.is_limited else None
        timeout = None if self._limit is None else self._limit.remaining() + _GRACE
        with under_way_of(self._client).begin():
            return await self._run_in_task(timeout)

    async def _run_in_task(self, timeout: float | None) -> OnceAnswer:  # noqa: ASYNC109
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
            attach(exc, Outcome.UNKNOWN if self._is_in_doubt else Outcome.NOT_APPLIED, [])
            task.cancel()
            raise
        if task.done() and not task.cancelled():
            return task.result()
        raise self._late()

    async def _run(self) -> OnceAnswer:
        if not is_known_to_transact(self._client):
            await insist(lambda: require_transactions(self._client, "once()"))
        records = None if self._records is None else await self._records.of(self._database)
        own = self._turns.lock_of(self._client, self._id)
        has_waited = own.locked()
        if not await acquired(own, self._limit):
            raise _in_use()
        try:
            # For a call that has done it meanwhile, most likely.
            known = await self._known(records) if has_waited else None
            return known or await self._work_or_know(records)
        finally:
            own.release()

    async def _work_or_know(self, records: Collection | None) -> OnceAnswer:
        taken = 0
        while True:
            try:
                return OnceAnswer(await self._execute(records), replayed=False)
            except Exception as exc:
                is_nobody = isinstance(exc, WritesUnavailableError)  # nor for asking
                if self._is_committing or is_nobody or self._is_too_late(exc):
                    raise
                # Whatever it says, it may say of what a call with this key has done.
                known = await self._known(records, exc)
                if known is not None:
                    return known
                taken += 1
                is_taken = self._is_storing and isinstance(exc, DuplicateKeyError)
                if not is_taken or taken == _MOST_TAKEN:
                    raise

    def _is_too_late(self, error: Exception) -> bool:
        """Tell whether an error says that time is over; if that went by in waiting, say so."""
        if not isinstance(error, PyMongoError) or not error.timeout:
            return False
        if self._is_blocked and outcome_of(error) is Outcome.NOT_APPLIED:
            raise _in_use() from error
        return True

    @property
    def _is_in_doubt(self) -> bool:
        # Work that does not mind being cancelled goes on, and may be committed.
        return self._may_be_committed or self._at_work.is_running

    def _late(self) -> PyMongoError:
        if self._is_blocked and not self._is_in_doubt:
            return _in_use()
        labels = [_UNKNOWN] if self._is_in_doubt else []
        error = DeadlineExceeded("the deadline of once() is over", {"errorLabels": labels})
        attach(error, Outcome.UNKNOWN if self._is_in_doubt else Outcome.NOT_APPLIED, [])
        return error

    async def _execute(self, records: Collection | None) -> Mapping[str, Any]:
        async def serve(session: Session) -> Mapping[str, Any]:
            self._session, self._is_storing, self._is_committing = session, False, False
            await self._turn.begin(self._limit)
            try:
                answer = await self._answer(session)
                value = self._decoded(answer)  # not later: it may raise
                if records is not None:
                    await self._store(records, answer, session)
            except Exception as exc:
                self._learn(exc)
                raise
            self._is_blocked = False
            self._is_committing = self._may_be_committed = True
            return value

        try:
            return await transact(self._database, serve)
        finally:
            self._turn.close()

    async def _answer(self, session: Session) -> bytes:
        session._why_open = _ENDED
        token = _around.set(self._at_work)
        self._at_work.is_running = True
        try:
            given = await self._work(session)
        finally:
            self._at_work.is_running = False
            _around.reset(token)
        goes_on: Any = session.in_transaction  # typed as a method
        if not goes_on:
            raise InvalidOperation(_ENDED)
        answer = bson.encode(given, codec_options=self._codec_options)
        if len(answer) > MOST_BYTES:
            raise DocumentTooLarge(
                f"an answer that is stored must not have more than {MOST_BYTES} bytes: "
                f"{len(answer)}; nothing is applied"
            )
        return answer

    async def _store(self, records: Collection, answer: bytes, session: Session) -> None:
        self._is_storing = True
        # An upsert could have the server tell the time, and costs it the planning of a query. What
        # the servers have told the session is theirs, too, unless the work has asked them nothing.
        told = session.cluster_time
        at = datetime.now(UTC) if told is None else told["clusterTime"].as_datetime()
        record = {"_id": self._id, "payload": self._fingerprint, "answer": answer, "at": at}
        await records.insert_one(record, session=session)

    def _learn(self, error: Exception) -> None:
        conflict = contended(self._session, error)
        if self._is_storing:
            self._is_blocked = conflict is not None
        self._turn.end(conflict)
        self._lost = self._lost + 1 if _says_lost(error) else 0
        if self._lost == _MOST_LOST:
            raise InvalidOperation(_LOST) from error

    async def _known(
        self, records: Collection | None, error: Exception | None = None
    ) -> OnceAnswer | None:
        """Return the answer that is stored, if one was when the latest run saw what it saw."""
        if records is None:
            return None
        try:
            record = await self._found(records)
        except PyMongoError as exc:
            attach(exc, (error and outcome_of(error)) or Outcome.NOT_APPLIED, attempts_of(exc))
            raise
        if record is None:
            return None
        if record["payload"] != self._fingerprint:
            raise refusal(IdempotencyConflict("this key was used with another payload before"))
        return OnceAnswer(self._decoded(record["answer"]), replayed=True)

    async def _found(self, records: Collection) -> Mapping[str, Any] | None:
        async with await settled(self._client.start_session(causal_consistency=True)) as session:
            # What the work saw may not be a majority's yet, and so the record: look by that time,
            # which also waits for what routers have prepared to commit; then wait for a majority.
            if self._session is not None and self._session.operation_time is not None:
                session.advance_cluster_time(self._session.cluster_time)
                session.advance_operation_time(self._session.operation_time)
            record: Mapping[str, Any] | None = None
            for level in "local", "majority":
                read = records.with_options(read_concern=ReadConcern(level))
                record = await read.find_one({"_id": self._id}, session=session)
                if record is None:
                    break
            return record

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
