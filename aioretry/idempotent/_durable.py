"""Keys that are good for days: record, writes and replies in one transaction."""

from contextvars import Context, copy_context
from typing import Any

import anyio
from pymongo.errors import ConfigurationError

from aioretry import Deadline, KeyedStatement, KnownReply, SessionId
from aioretry._faces import Collection, Database
from aioretry.idempotent._durable_transaction import (
    DurableTransaction,
    Request,
    TakenError,
    has_ended,
    has_failed,
)
from aioretry.idempotent._errors import IdempotencyConflict
from aioretry.idempotent._keys_derived import Names
from aioretry.idempotent._keys_records import Records, require_same

_PAUSE = 0.05


class DurableSource:
    """Executes each statement of an operation in a transaction, or knows its reply."""

    def __init__(self, names: Names, database: Database, records: Records) -> None:
        self._names = names
        self._database = database
        self._records = records
        self._limit: Deadline | None = None
        self._context = Context()
        self._is_closed = False
        self._writes = 0
        self._told: list[Request] = []
        self._stored: list[Any] | None = None
        self._transaction: DurableTransaction | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether the commit may have arrived."""
        return self._transaction is not None and self._transaction.in_doubt

    def open(self, limit: Deadline | None) -> None:
        """Take note of what surrounds the operation: its transactions run in that."""
        self._limit, self._context = limit, copy_context()

    def new_id(self, index: int) -> Any:
        """Return the ``_id`` of a document that is inserted without one."""
        return self._names.document_id(index)

    async def begin(self, statement: KeyedStatement) -> KnownReply:
        """Execute a statement, or give the reply that another call has got."""
        self._writes = statement.index + 1
        if statement.is_encrypted:
            raise ConfigurationError(
                "a client with automatic encryption can't have durable keys: the replies are kept "
                "as they are decrypted"
            )
        fingerprint = self._names.fingerprint(statement.index, statement.command)
        request = Request(statement, fingerprint)
        records = await self._records.of(self._database)
        while True:
            if self._transaction is None and self._stored is None:
                await self._find(records)
            if self._stored is not None:
                record = _record_of(request, self._stored)
                return KnownReply(bytes(record["reply"]), replayed=True)
            try:
                reply = await self._execute(request, records)
            except TakenError:  # another call was faster; it may not be visible yet
                self._transaction = None
                await anyio.sleep(_PAUSE)
            else:
                self._told.append(request)
                return KnownReply(reply, replayed=False)

    def end(self, answer: SessionId) -> None:
        """No session is given."""

    def explain(self, error: Exception) -> Exception | None:
        """Leave errors as they are."""
        del error
        return None

    async def close(self, error: BaseException | None, *, failed: bool) -> bool:
        """Commit, or abort if anything has failed."""
        self._is_closed = True
        if error is None and not failed:
            return await self._commit()
        if self._transaction is not None:
            await self._transaction.abort()
        if error is None and self._stored is None:
            raise has_failed()
        return False

    async def _execute(self, request: Request, records: Collection) -> bytes:
        if self._is_closed:
            raise has_ended()
        return await self._current(records).execute(request)

    async def _commit(self) -> bool:
        while self._stored is None:
            if self._transaction is None and not self._told:
                return False  # nothing was written, or is still to be
            records = await self._records.of(self._database)
            try:
                await self._current(records).commit()
            except TakenError:
                self._transaction = None
                await anyio.sleep(_PAUSE)
                await self._find(records)
            else:
                return False
        if self._writes < len(self._stored):
            raise IdempotencyConflict(
                f"this key was used for {len(self._stored)} writes, and this operation has made "
                f"{self._writes}"
            )
        return True

    def _current(self, records: Collection) -> DurableTransaction:
        if self._transaction is None:
            # What was told has to be in it, whatever has become of another call's record.
            self._transaction = DurableTransaction(
                self._database,
                records,
                self._names.record_id(),
                self._told,
                self._limit,
                self._context,
            )
        return self._transaction

    async def _find(self, records: Collection) -> None:
        record = await records.find_one({"_id": self._names.record_id()})
        if record is not None and self._transaction is None:  # else it may be this call's own
            stored: list[Any] = record["statements"]
            self._adopt(stored)
            self._stored = stored

    def _adopt(self, stored: list[Any]) -> None:
        # Another call has committed while this one was to begin anew: what was told has to be true.
        for request in self._told:
            if request.reply != _record_of(request, stored)["reply"]:
                raise IdempotencyConflict(
                    "another call with this key was faster, and was answered otherwise; repeat the "
                    "operation to get its answers"
                )


def _record_of(request: Request, stored: list[Any]) -> Any:
    index = request.statement.index
    if index >= len(stored):
        raise IdempotencyConflict(
            f"this key was used for {len(stored)} writes, and this is write {index + 1}"
        )
    require_same(request.statement, request.fingerprint, stored[index])
    return stored[index]
