"""One operation: an implicit session, a deadline and a history, for one or a few writes."""

import contextlib
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from pymongo.errors import ConfigurationError, InvalidOperation
from pymongo.results import (
    BulkWriteResult,
    DeleteResult,
    InsertManyResult,
    InsertOneResult,
    UpdateResult,
)

from aioretry._commands import bulk_arguments, single
from aioretry._commands.arguments import CollationIn, Document, Hint, Projection, Sort, Update
from aioretry._commands.target import Target
from aioretry._drivers.engine.messages import add_requests
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._retry.sessions import LastingLease
from aioretry._writes.bulk import BulkWrite
from aioretry._writes.context import WritePath
from aioretry._writes.future import RunningWrite
from aioretry._writes.keyed import KeyedWrites
from aioretry._writes.single import Write
from aioretry._writes.under_way import Whole
from aioretry.deadlines import Deadline, nearest, validate_seconds
from aioretry.errors import Attempt, refusal
from aioretry.sources import OperationKey, StatementSource

__all__ = ["Operation"]

T = TypeVar("T")


class Operation:
    """The async context manager of one operation; made by ``collection.operation()``.

    Its writes share one implicit session and one deadline, are awaited one at a time, and leave
    their attempts in :attr:`attempts`.
    """

    def __init__(
        self,
        path: WritePath,
        target: Target,
        timeout: float | None,
        source: StatementSource | None = None,
    ) -> None:
        self._path = path
        self._keyed = None if source is None else KeyedWrites(path, source)
        self._target = target
        self._timeout = validate_seconds("timeout", timeout)
        self._history: list[Attempt] = []
        self._coordinator: Coordinator | None = None
        self._deadline: Deadline | None = None
        self._lease: LastingLease | None = None
        self._busy = False
        self._has_left = False
        self._whole = Whole()

    def __repr__(self) -> str:
        state = "open" if self._coordinator is not None else "closed"
        return f"<{type(self).__name__} {state} attempts={len(self._history)}>"

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What was sent to whom and what came of it, oldest first; also after the block."""
        return tuple(self._history)

    @property
    def replayed(self) -> bool | None:
        """Whether the latest write was not applied by this call, because another call had done so.

        True if it was answered from memory. False if this call has applied it. None if nobody can
        tell: the operation has no key, the write has not ended well, the server does not say so
        (before MongoDB 6.0, or behind a router), or an earlier attempt of this call may have
        applied it as well. With a durable key it is final when the block has ended.
        """
        return None if self._keyed is None else self._keyed.replayed

    async def __aenter__(self) -> Self:
        if self._coordinator is not None:
            raise InvalidOperation("this operation was entered already")
        if self._keyed is not None and self._has_left:
            # Its writes would be further ones under the key, and not the same again.
            raise refusal(
                InvalidOperation(
                    "an operation with a key can be entered once: to repeat its writes, make "
                    "another one with the same key"
                )
            )
        coordinator = self._path.coordinator()
        self._whole = self._path.under_way.begin()
        self._deadline = self._path.deadline(self._timeout)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._whole)
            if self._keyed is not None:
                self._keyed.open(self._deadline)
            stack.pop_all()  # until the block is left
        self._coordinator = coordinator
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._coordinator = None
        self._has_left = True
        try:
            if not self._busy:  # else a task of the user's still writes, and ends it
                self._end_lease()
            if self._keyed is not None:
                await self._keyed.close(exc, self._limit())
        finally:
            self._whole.__exit__()

    async def insert_one(
        self,
        document: Any,
        bypass_document_validation: bool | None = None,
        comment: Any = None,
    ) -> InsertOneResult:
        """Insert a document; as ``collection.insert_one()``."""
        return await self._write(
            single.Insert(
                document, bypass_document_validation=bypass_document_validation, comment=comment
            )
        )

    async def update_one(
        self,
        filter: Document,
        update: Update,
        upsert: bool = False,
        bypass_document_validation: bool | None = None,
        collation: CollationIn | None = None,
        array_filters: Sequence[Document] | None = None,
        hint: Hint | None = None,
        let: Document | None = None,
        sort: Document | None = None,
        comment: Any = None,
    ) -> UpdateResult:
        """Update a document; as ``collection.update_one()``."""
        return await self._write(
            single.UpdateOrReplace(
                "update_one",
                filter,
                update,
                upsert=upsert,
                bypass_document_validation=bypass_document_validation,
                collation=collation,
                array_filters=array_filters,
                hint=hint,
                let=let,
                sort=sort,
                comment=comment,
            )
        )

    async def replace_one(
        self,
        filter: Document,
        replacement: Document,
        upsert: bool = False,
        bypass_document_validation: bool | None = None,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        let: Document | None = None,
        sort: Document | None = None,
        comment: Any = None,
    ) -> UpdateResult:
        """Replace a document; as ``collection.replace_one()``."""
        return await self._write(
            single.UpdateOrReplace(
                "replace_one",
                filter,
                replacement,
                upsert=upsert,
                bypass_document_validation=bypass_document_validation,
                collation=collation,
                hint=hint,
                let=let,
                sort=sort,
                comment=comment,
            )
        )

    async def delete_one(
        self,
        filter: Document,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        let: Document | None = None,
        comment: Any = None,
    ) -> DeleteResult:
        """Delete a document; as ``collection.delete_one()``."""
        return await self._write(
            single.Delete(
                "delete_one", filter, collation=collation, hint=hint, let=let, comment=comment
            )
        )

    async def insert_many(
        self,
        documents: Iterable[Any],
        ordered: bool = True,
        bypass_document_validation: bool | None = None,
        comment: Any = None,
    ) -> InsertManyResult:
        """Insert documents; as ``collection.insert_many()``."""
        return await self._write_bulk(
            bulk_arguments.InsertMany(documents, ordered, bypass_document_validation, comment)
        )

    async def bulk_write(
        self,
        requests: Sequence[Any],
        ordered: bool = True,
        bypass_document_validation: bool | None = None,
        comment: Any = None,
        let: Document | None = None,
    ) -> BulkWriteResult:
        """Send a list of writes; as ``collection.bulk_write()``."""
        return await self._write_bulk(
            bulk_arguments.BulkRequests(
                requests, ordered, bypass_document_validation, comment, let, add_requests
            )
        )

    async def update_many(
        self,
        filter: Document,
        update: Update,
        upsert: bool = False,
        array_filters: Sequence[Document] | None = None,
        bypass_document_validation: bool | None = None,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        let: Document | None = None,
        comment: Any = None,
    ) -> UpdateResult:
        """Update all documents that match; as ``collection.update_many()``."""
        return await self._write(
            single.UpdateOrReplace(
                "update_many",
                filter,
                update,
                upsert=upsert,
                array_filters=array_filters,
                bypass_document_validation=bypass_document_validation,
                collation=collation,
                hint=hint,
                let=let,
                comment=comment,
            )
        )

    async def delete_many(
        self,
        filter: Document,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        let: Document | None = None,
        comment: Any = None,
    ) -> DeleteResult:
        """Delete all documents that match; as ``collection.delete_many()``."""
        return await self._write(
            single.Delete(
                "delete_many", filter, collation=collation, hint=hint, let=let, comment=comment
            )
        )

    async def find_one_and_delete(
        self,
        filter: Document,
        projection: Projection | None = None,
        sort: Sort | None = None,
        hint: Hint | None = None,
        let: Document | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Delete a document and return it; as ``collection.find_one_and_delete()``."""
        return await self._write(
            single.FindAndModify(
                "find_one_and_delete",
                filter,
                projection=projection,
                sort=sort,
                hint=hint,
                let=let,
                comment=comment,
                options=kwargs,
            )
        )

    async def find_one_and_replace(
        self,
        filter: Document,
        replacement: Document,
        projection: Projection | None = None,
        sort: Sort | None = None,
        upsert: bool = False,
        return_document: bool = False,
        hint: Hint | None = None,
        let: Document | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Replace a document and return it; as ``collection.find_one_and_replace()``."""
        return await self._write(
            single.FindAndModify(
                "find_one_and_replace",
                filter,
                replacement,
                projection=projection,
                sort=sort,
                upsert=upsert,
                return_document=return_document,
                hint=hint,
                let=let,
                comment=comment,
                options=kwargs,
            )
        )

    async def find_one_and_update(
        self,
        filter: Document,
        update: Update,
        projection: Projection | None = None,
        sort: Sort | None = None,
        upsert: bool = False,
        return_document: bool = False,
        array_filters: Sequence[Document] | None = None,
        hint: Hint | None = None,
        let: Document | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Update a document and return it; as ``collection.find_one_and_update()``."""
        return await self._write(
            single.FindAndModify(
                "find_one_and_update",
                filter,
                update,
                projection=projection,
                sort=sort,
                upsert=upsert,
                return_document=return_document,
                array_filters=array_filters,
                hint=hint,
                let=let,
                comment=comment,
                options=kwargs,
            )
        )

    async def _write(self, arguments: single.Arguments[T]) -> T:
        coordinator, lease, deadline = self._begin()
        watch = coordinator.watchers.watch(arguments.operation, self._target.namespace)
        if self._keyed is not None:
            return await self._write_keyed(self._keyed, coordinator, arguments, deadline, watch)
        write: Write[T] = Write(coordinator, lease, deadline, watch)
        try:
            return await write.begin(arguments, self._target)
        finally:
            self._end_write(write)

    async def _write_keyed(
        self,
        keyed: KeyedWrites,
        coordinator: Coordinator,
        arguments: single.Arguments[T],
        deadline: Deadline | None,
        watch: Watch | None,
    ) -> T:
        attempts: list[Attempt] = []
        error: BaseException | None = None
        try:
            return await keyed.write(
                coordinator, arguments, self._target, deadline, attempts, watch
            )
        except BaseException as exc:
            error = exc
            raise
        finally:
            self._end(attempts)
            if watch is not None:
                watch.end(error)

    async def _write_bulk(self, arguments: bulk_arguments.Arguments[T]) -> T:
        if self._keyed is not None:
            raise refusal(
                InvalidOperation(
                    "an operation with a key has no insert_many and bulk_write: write one document "
                    "after the other"
                )
            )
        if self._path.encrypts:
            raise refusal(
                ConfigurationError(
                    "operation() has no insert_many and bulk_write for a client with automatic "
                    "encryption; use those of the collection"
                )
            )
        coordinator, lease, deadline = self._begin()
        watch = coordinator.watchers.watch(arguments.operation, self._target.namespace)
        write: BulkWrite[T] = BulkWrite(coordinator, lease, deadline, watch)
        try:
            return await write.begin(arguments, self._target)
        finally:
            self._end_write(write)

    def _end_write(self, write: RunningWrite[Any]) -> None:
        # It goes on if what was to be sent could not be made for a reason that is no Exception, or
        # if the coroutine that awaits it was closed.
        if not write.done():
            write.cancel()
            self._end_lease(discard=True)
        self._end(write.attempts())

    def _begin(self) -> tuple[Coordinator, LastingLease, Deadline | None]:
        if self._coordinator is None:
            raise refusal(
                InvalidOperation("an operation's writes belong inside its `async with` block")
            )
        if self._busy:
            raise refusal(InvalidOperation("an operation's writes are awaited one at a time"))
        if self._lease is None or self._lease.is_over:
            self._lease = self._path.lasting_lease()
        self._busy = True
        return self._coordinator, self._lease, self._limit()

    def _limit(self) -> Deadline | None:
        limit = nearest()
        return self._deadline if limit is None else limit.nearer(self._deadline)

    def _end(self, attempts: Sequence[Attempt]) -> None:
        self._busy = False
        self._history.extend(attempts)
        if self._has_left:
            self._end_lease()

    def _end_lease(self, *, discard: bool = False) -> None:
        lease, self._lease = self._lease, None
        if lease is not None and not lease.is_over:
            lease.finish(discard=discard)


class BeginsOperations:
    """A collection that operations can be begun on."""

    def operation(
        self: Any, timeout: float | None = None, *, key: OperationKey | None = None
    ) -> Operation:
        """Begin an operation: an implicit session, a deadline and a history.

        Args:
            timeout: How long the operation may take, in seconds from entering its block; a
                surrounding deadline that is nearer counts. None sets no limit of its own.
            key: Makes the same writes under the same key happen once, from whichever process; see
                :class:`aioretry.idempotent.Keys`. None lets each call write.

        Returns:
            The operation, to be entered with ``async with``.

        Raises:
            TypeError: ``timeout`` is not a number, or ``key`` is not what a ``Keys`` has made.
            ValueError: ``timeout`` is negative or NaN.
            ConfigurationError: The collection's write concern is ``w: 0``.
            InvalidOperation: A session that ``session.bind()`` has made the one of this block is in
                a transaction, of which an operation's writes are no part.
        """
        bound = self._session_of_call(None)
        if bound is not None and bound.in_transaction:
            raise InvalidOperation(
                "an operation has a session of its own, and the transaction of the session that is "
                "bound here would not have its writes; begin it outside of the block"
            )
        if not self.write_concern.acknowledged:
            raise ConfigurationError(
                "operation() needs an acknowledged write concern; this collection has w: 0"
            )
        source = None if key is None else _key(key).source(self)
        return Operation(self._write_path, self._target(), timeout, source)


def _key(key: OperationKey) -> OperationKey:
    """Return a key that the user gave."""
    if not callable(getattr(key, "source", None)):
        raise TypeError(
            'key must be what aioretry.idempotent.Keys makes, such as keys("order-42"), '
            f"not {type(key).__name__}"  # and not which one: keys are nobody else's business
        )
    return key
