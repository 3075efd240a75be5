"""A transaction that is fed with one write after the other, and begun anew where that can help."""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo.errors import DocumentTooLarge, DuplicateKeyError, InvalidOperation

from aioretry import Deadline, DeadlineExceeded, KeyedStatement, Outcome, deadline, outcome_of
from aioretry._faces import Collection, Database, Session
from aioretry.idempotent._keys_records import MOST_BYTES, transact

_RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)
_OF_THE_SERVER = frozenset(
    {"$clusterTime", "operationTime", "electionId", "opTime", "recoveryToken", "topologyVersion"}
)
# How long the transaction's own error about a deadline is waited for.
_GRACE = 0.1


class TakenError(Exception):
    """Another call has committed the record; never leaves the durable keys."""


def has_ended() -> InvalidOperation:
    """Return the error of a write that comes to nothing because its block was left."""
    return InvalidOperation("the block of this operation has ended; this write is not applied")


def has_failed() -> InvalidOperation:
    """Return the error of an operation one of whose writes has failed."""
    return InvalidOperation(
        "a write of this operation has failed, so that none of it is applied; repeat the whole "
        "operation with the same key"
    )


@dataclass(slots=True, eq=False)
class Request:
    """One write of a transaction."""

    statement: KeyedStatement
    fingerprint: bytes
    reply: bytes = b""
    answer: "asyncio.Future[bytes] | None" = field(default=None, repr=False)

    def stored(self) -> dict[str, Any]:
        """Return what the record keeps of it."""
        return {
            "kind": self.statement.operation,
            "payload": self.fingerprint,
            "reply": self.reply,
        }


class DurableTransaction:
    """A record and some writes, all or none of which are applied.

    It runs in a task, by ``run_transaction()``. Where that begins anew, the writes that were
    executed are executed again, and have to be answered as they were before.

    Args:
        database: What is written to.
        records: Where the record is written.
        record_id: Its ``_id``.
        executed: What an earlier transaction has executed, which was lost.
        limit: When it has to be committed, or None.
        context: What its task runs in; the same limit surrounds it.
    """

    def __init__(
        self,
        database: Database,
        records: Collection,
        record_id: bytes,
        executed: Sequence[Request],
        limit: Deadline | None,
        context: Context,
    ) -> None:
        self._database = database
        self._records = records
        self._record_id = record_id
        self._requests: asyncio.Queue[Request | None] = asyncio.Queue()
        self._executed = list(executed)
        self._limit = limit
        self._context = context
        self._waiting: Request | None = None
        self._is_ending = False
        self._is_stored = False
        self._task: asyncio.Task[None] | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether it may be committed, once it has ended; who waits may be cancelled even so."""
        task = self._task
        if task is None or not task.done() or not self._is_stored:
            return False
        error = None if task.cancelled() else task.exception()
        return error is None or outcome_of(error) is Outcome.UNKNOWN

    async def execute(self, request: Request) -> bytes:
        """Execute a write; return its reply.

        Raises:
            TakenError: Another call has committed the record.
            DeadlineExceeded: The caller's time is over.
            PyMongoError: The transaction has ended.
        """
        answer = request.answer = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(request)
        task = self._started()
        await asyncio.wait(
            {task, answer}, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED
        )
        if answer.done():
            reply: bytes = answer.result()
            return reply
        if not task.done():
            raise DeadlineExceeded(f"the deadline of {request.statement.operation} is over")
        if not task.cancelled():
            task.result()
        raise has_ended()

    async def commit(self) -> None:
        """Commit.

        Raises:
            TakenError: Another call has committed the record.
            PyMongoError: It is not committed, or :attr:`in_doubt`.
        """
        self._requests.put_nowait(None)
        try:
            async with asyncio.timeout(self._patience()):
                await self._started()
        except TimeoutError:
            raise DeadlineExceeded(
                "the deadline was over before the transaction was committed"
            ) from None

    async def abort(self) -> None:
        """Abort, if it has not ended."""
        task = self._task
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # the caller has it, or does not care any more

    def _started(self) -> "asyncio.Task[None]":
        if self._task is None:
            # Not in the context of the first write, whose deadline is not the others'.
            self._task = asyncio.get_running_loop().create_task(
                transact(self._database, self._serve), context=self._context.copy()
            )
        return self._task

    def _patience(self) -> float | None:
        with deadline(None) as own:
            if own is None or not own.is_limited:
                return None
        # The transaction's own error says more, where it comes at the same time.
        is_shared = self._limit is not None and self._limit.at <= own.at
        return own.remaining() + (_GRACE if is_shared else 0.0)

    async def _serve(self, session: Session) -> None:
        await self._claim(session)
        for request in self._executed:
            if request.reply != await self._send(request, session):
                raise InvalidOperation(
                    "the transaction had to begin anew, and what it found was not what it had "
                    "found before; repeat the whole operation with the same key"
                )
        while not self._is_ending:
            if self._waiting is None:
                self._waiting = await self._requests.get()
            request_or_end = self._waiting
            if request_or_end is None:
                self._is_ending = True
                break
            await self._answer(request_or_end, session)
        await self._store(session)
        self._is_stored = True

    async def _claim(self, session: Session) -> None:
        # Another call that has the record and is not done makes this a write conflict, after which
        # everything begins anew.
        try:
            await self._records.insert_one({"_id": self._record_id}, session=session)
        except DuplicateKeyError:
            raise TakenError from None

    async def _answer(self, request: Request, session: Session) -> None:
        request.reply = await self._send(request, session)
        self._require_room(request)
        self._executed.append(request)
        self._waiting = None
        if request.answer is not None and not request.answer.done():
            request.answer.set_result(request.reply)
        if "writeErrors" in RawBSONDocument(request.reply):
            raise has_failed()  # the server has aborted everything

    async def _send(self, request: Request, session: Session) -> bytes:
        raw: RawBSONDocument = await self._database.command(
            dict(request.statement.command), codec_options=_RAW, session=session
        )
        return bson.encode({name: raw[name] for name in raw if name not in _OF_THE_SERVER})

    async def _store(self, session: Session) -> None:
        statements = [request.stored() for request in self._executed]
        await self._records.update_one(
            {"_id": self._record_id},
            {"$set": {"statements": statements}, "$currentDate": {"at": True}},
            session=session,
        )

    def _require_room(self, request: Request) -> None:
        size = len(request.reply) + sum(len(each.reply) for each in self._executed)
        if size > MOST_BYTES:
            raise DocumentTooLarge(
                f"the replies of an operation with a durable key are kept in one document, and "
                f"must not have more than {MOST_BYTES} bytes together: {size}; nothing is applied"
            )
