"""One operation: an implicit session, a deadline and a history, for one or a few writes."""

from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Iterable, Sequence
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
from aioretry._commands.command import Command
from aioretry._commands.single import Target
from aioretry._drivers.motor import add_requests
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._retry.sessions import SessionLease
from aioretry._writes.bulk import BulkRun, explain_unplanned
from aioretry._writes.context import WritePath
from aioretry._writes.keyed import KeyedWrites
from aioretry._writes.single import explain, result_of
from aioretry.deadlines import Deadline, validate_seconds
from aioretry.errors import Attempt, DeadlineExceeded, Outcome, refusal
from aioretry.sources import StatementSource

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
        self._lease: SessionLease | None = None
        self._busy = False
        self._has_left = False

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
        self._coordinator = self._path.coordinator()
        self._deadline = self._path.deadline(self._timeout)
        if self._keyed is not None:
            self._keyed.open(self._deadline)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._coordinator = None
        self._has_left = True
        if not self._busy:  # else a task of the user's still writes, and ends it
            self._end_lease(discard=False)
        if self._keyed is not None:
            await self._keyed.close(exc, self._limit())

    async def insert_one(
        self,
        document: Any,
        bypass_document_validation: bool | None = None,
        comment: Any = None,
    ) -> InsertOneResult:
        """Insert a document; as ``collection.insert_one()``."""
        return await self._write(
            "insert_one",
            lambda target: single.insert_one(
                target,
                document if self._keyed is None else self._keyed.identified(document),
                bypass_document_validation,
                comment,
            ),
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
            "update_one",
            lambda target: single.update_one(
                target,
                filter,
                update,
                upsert,
                bypass_document_validation,
                collation,
                array_filters,
                hint,
                let,
                sort,
                comment,
            ),
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
            "replace_one",
            lambda target: single.replace_one(
                target,
                filter,
                replacement,
                upsert,
                bypass_document_validation,
                collation,
                hint,
                let,
                sort,
                comment,
            ),
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
            "delete_one",
            lambda target: single.delete_one(target, filter, collation, hint, let, comment),
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
            "insert_many",
            lambda target: bulk_arguments.insert_many(
                target, documents, ordered, bypass_document_validation, comment
            ),
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
            "bulk_write",
            lambda target: bulk_arguments.bulk_write(
                target, requests, ordered, bypass_document_validation, comment, let, add_requests
            ),
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
            "update_many",
            lambda target: single.update_many(
                target,
                filter,
                update,
                upsert,
                array_filters,
                bypass_document_validation,
                collation,
                hint,
                let,
                comment,
            ),
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
            "delete_many",
            lambda target: single.delete_many(target, filter, collation, hint, let, comment),
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
            "find_one_and_delete",
            lambda target: single.find_one_and_delete(
                target, filter, projection, sort, hint, let, comment, kwargs
            ),
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
            "find_one_and_replace",
            lambda target: single.find_one_and_replace(
                target,
                filter,
                replacement,
                projection,
                sort,
                upsert,
                return_document,
                hint,
                let,
                comment,
                kwargs,
            ),
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
            "find_one_and_update",
            lambda target: single.find_one_and_update(
                target,
                filter,
                update,
                projection,
                sort,
                upsert,
                return_document,
                array_filters,
                hint,
                let,
                comment,
                kwargs,
            ),
        )

    async def _write(self, operation: str, build: Callable[[Target], Command[T]]) -> T:
        coordinator, lease, deadline = self._begin()
        watch = coordinator.watchers.watch(operation, self._target.namespace)
        if self._keyed is None:
            write = self._send(build, coordinator, lease, deadline, watch)
        else:
            write = self._send_keyed(self._keyed, build, coordinator, deadline, watch)
        return await (write if watch is None else _until_end(write, watch))

    async def _send(
        self,
        build: Callable[[Target], Command[T]],
        coordinator: Coordinator,
        lease: SessionLease,
        deadline: Deadline | None,
        watch: Watch | None,
    ) -> T:
        execution = None
        try:
            execution = coordinator.execution(build(self._target), lease, deadline, watch)
            reply = await coordinator.execute(execution)
        except BaseException as exc:
            self._end_lease_after(
                exc, in_doubt=explain(exc, execution, coordinator) is Outcome.UNKNOWN
            )
            raise
        else:
            result: T = result_of(execution, reply)
            return result
        finally:
            self._end([] if execution is None else execution.attempts)

    async def _send_keyed(
        self,
        keyed: KeyedWrites,
        build: Callable[[Target], Command[T]],
        coordinator: Coordinator,
        deadline: Deadline | None,
        watch: Watch | None,
    ) -> T:
        attempts: list[Attempt] = []
        try:
            return await keyed.write(
                coordinator, lambda: build(self._target), deadline, attempts, watch
            )
        finally:
            self._end(attempts)

    async def _write_bulk(
        self, operation: str, plan: Callable[[Target], bulk_arguments.Plan[T]]
    ) -> T:
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
        watch = coordinator.watchers.watch(operation, self._target.namespace)
        write = self._send_bulk(plan, coordinator, lease, deadline, watch)
        return await (write if watch is None else _until_end(write, watch))

    async def _send_bulk(
        self,
        plan: Callable[[Target], bulk_arguments.Plan[T]],
        coordinator: Coordinator,
        lease: SessionLease,
        deadline: Deadline | None,
        watch: Watch | None,
    ) -> T:
        run = None
        try:
            run = BulkRun(coordinator, plan(self._target), lease, deadline, watch)
            return await run.run()
        except BaseException as exc:
            in_doubt = explain_unplanned(exc) if run is None else run.explain(exc)
            self._end_lease_after(exc, in_doubt=in_doubt)
            raise
        finally:
            self._end([] if run is None else run.attempts)

    def _begin(self) -> tuple[Coordinator, SessionLease, Deadline | None]:
        if self._coordinator is None:
            raise refusal(
                InvalidOperation("an operation's writes belong inside its `async with` block")
            )
        if self._busy:
            raise refusal(InvalidOperation("an operation's writes are awaited one at a time"))
        if self._lease is None:
            self._lease = self._path.lease()
        self._busy = True
        return self._coordinator, self._lease, self._limit()

    def _limit(self) -> Deadline | None:
        limit = self._path.surrounding_deadline()
        return self._deadline if limit is None else limit.nearer(self._deadline)

    def _end(self, attempts: list[Attempt]) -> None:
        self._busy = False
        self._history.extend(attempts)
        if self._has_left:
            self._end_lease(discard=False)

    def _end_lease_after(self, exc: BaseException, *, in_doubt: bool) -> None:
        # What was given up may still use the session, and what was sent may still arrive: a later
        # write over that session would bar it.
        if in_doubt or isinstance(exc, CancelledError | DeadlineExceeded):
            self._end_lease(discard=in_doubt)

    def _end_lease(self, *, discard: bool) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.finish(discard=discard)


async def _until_end(write: Coroutine[Any, Any, T], watch: Watch) -> T:
    try:
        result = await write
    except BaseException as exc:
        watch.end(exc)
        raise
    watch.end(None)
    return result
