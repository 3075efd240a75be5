"""A Motor collection whose writes are retried."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from bson.codec_options import CodecOptions
from pymongo.errors import ConfigurationError
from pymongo.read_concern import ReadConcern
from pymongo.results import (
    BulkWriteResult,
    DeleteResult,
    InsertManyResult,
    InsertOneResult,
    UpdateResult,
)
from pymongo.write_concern import WriteConcern

from aioretry._commands import bulk_arguments, single
from aioretry._commands.arguments import CollationIn, Document, Hint, Projection, Sort, Update
from aioretry._commands.target import Target
from aioretry._drivers.motor import (
    AgnosticClientSession,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
    Collection,
    add_requests,
)
from aioretry._drivers.port import DocumentT
from aioretry._writes.bulk import BulkWrite
from aioretry._writes.context import WritePath
from aioretry._writes.group.queue import DEFAULT_BYTES, DEFAULT_DOCUMENTS, Coalescing, InsertQueue
from aioretry._writes.single import Write
from aioretry.operation import Operation
from aioretry.sources import OperationKey

__all__ = ["RetryMotorCollection"]

P = ParamSpec("P")
T = TypeVar("T")

Session = AgnosticClientSession  # as Motor's own stubs say


class RetryMotorCollection(AsyncIOMotorCollection[DocumentT]):
    """A collection of a :class:`~aioretry.RetryClient`.

    Everything is Motor's, apart from the writes below and :meth:`operation`. Those writes take
    Motor's arguments and give its results and exceptions, and return a running future: a write that
    nobody awaits still happens. They are retried as the retryable-writes specification says, once,
    or inside a :func:`~aioretry.deadline` as often as time allows; ``update_many`` and
    ``delete_many`` after overload errors only. With ``w: 0`` and inside a transaction they are
    Motor's own.

    Every exception that leaves such a write answers :func:`~aioretry.outcome_of` and
    :func:`~aioretry.attempts_of`. Beyond Motor's they raise :class:`~aioretry.DeadlineExceeded`
    when a deadline is over, and ``InvalidOperation`` on another event loop than the client's.
    """

    database: AsyncIOMotorDatabase[DocumentT]
    """The database that it was made from; one of ours."""

    def __init__(
        self,
        database: Any,
        name: str,
        codec_options: Any = None,
        read_preference: Any = None,
        write_concern: Any = None,
        read_concern: Any = None,
        _delegate: Any = None,
    ) -> None:
        super().__init__(
            database,
            name,
            codec_options=codec_options,
            read_preference=read_preference,
            write_concern=write_concern,
            read_concern=read_concern,
            _delegate=_delegate,
        )
        self._write_path: WritePath = database._write_path
        self._own_target: Target | None = None
        self._coalescing: Coalescing | None = None
        self._own_queue: InsertQueue | None = None

    def __getitem__(self, name: str) -> "RetryMotorCollection[DocumentT]":
        # Concatenated so that what is no name is a TypeError: `for x in collection` has to end.
        full_name: str = self.name + "." + name
        return type(self)(self.database, full_name, _delegate=self.delegate[name])

    def __getattr__(self, name: str) -> "RetryMotorCollection[DocumentT]":
        if name.startswith("_"):
            super().__getattr__(name)  # raises
        return self[name]

    def wrap(self, obj: Any) -> Any:
        """Wrap what PyMongo returned; its collections become collections of this class."""
        if isinstance(obj, Collection):
            wrapped = type(self)(self.database, obj.name, _delegate=obj)
            wrapped._coalescing = self._coalescing
            return wrapped
        return super().wrap(obj)

    def with_options(
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> "RetryMotorCollection[DocumentT]":
        """Return this collection with other options; arguments and errors as Motor's."""
        return self.wrap(  # type: ignore[no-any-return]
            self.delegate.with_options(codec_options, read_preference, write_concern, read_concern)
        )

    def coalesced(
        self, *, max_documents: int = DEFAULT_DOCUMENTS, max_bytes: int = DEFAULT_BYTES
    ) -> "RetryMotorCollection[DocumentT]":
        """Return a view of this collection whose ``insert_one`` calls travel together.

        Those that come while one command is under way are sent in the next one, as one unordered
        ``insert``. Nothing waits when nothing is under way. Each call has its own result, error,
        deadline and cancellation. All views of a collection with the same options share a queue.
        Calls with a session or with options of their own are sent alone.

        Args:
            max_documents: How many documents travel together at most, from 1 to 100,000.
            max_bytes: How many bytes of documents do, from 1 to 40,000,000; a larger document goes
                alone.

        Returns:
            The view; everything but ``insert_one`` is as here.

        Raises:
            TypeError: An argument is not a whole number.
            ValueError: An argument is out of its range.
        """
        view = self.wrap(self.delegate)
        view._coalescing = Coalescing.of(max_documents, max_bytes)
        return view  # type: ignore[no-any-return]

    def operation(
        self, timeout: float | None = None, *, key: OperationKey | None = None
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
            TypeError: ``timeout`` is not a number.
            ValueError: ``timeout`` is negative or NaN.
            ConfigurationError: The collection's write concern is ``w: 0``.
        """
        if not self.write_concern.acknowledged:
            raise ConfigurationError(
                "operation() needs an acknowledged write concern; this collection has w: 0"
            )
        source = None if key is None else key.source(self)
        return Operation(self._write_path, self._target(), timeout, source)

    def insert_one(  # type: ignore[override]
        self,
        document: "DocumentT | Any",
        bypass_document_validation: bool | None = None,
        session: Session | None = None,
        comment: Any = None,
    ) -> asyncio.Future[InsertOneResult]:
        """Insert a document.

        Args:
            document: The document; it gets an ``_id`` if it has none.
            bypass_document_validation: Whether the collection's validation is skipped.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.

        Returns:
            A future that ends with the result.
        """
        if self._coalescing is not None:
            is_plain = session is None and bypass_document_validation is None and comment is None
            queue = self._queue(self._coalescing) if is_plain else None
            if queue is not None:
                return queue.insert(document, self._write_path.deadline())
        if self._is_motors(session):
            return super().insert_one(  # type: ignore[return-value]
                document,
                bypass_document_validation=bypass_document_validation,  # type: ignore[arg-type]
                session=session,
                comment=comment,
            )
        return self._submit(
            single.Insert(
                document, bypass_document_validation=bypass_document_validation, comment=comment
            ),
            session,
        )

    def update_one(  # type: ignore[override]
        self,
        filter: Document,
        update: Update,
        upsert: bool = False,
        bypass_document_validation: bool | None = None,
        collation: CollationIn | None = None,
        array_filters: Sequence[Document] | None = None,
        hint: Hint | None = None,
        session: Session | None = None,
        let: Document | None = None,
        sort: Document | None = None,
        comment: Any = None,
    ) -> asyncio.Future[UpdateResult]:
        """Update the first document that matches.

        Args:
            filter: What it has to match.
            update: Update operators, or an aggregation pipeline.
            upsert: Whether to insert a document if none matches.
            bypass_document_validation: Whether the collection's validation is skipped.
            collation: How strings compare.
            array_filters: Which array elements the update is for.
            hint: The index to use, by name or by keys.
            session: A session of this client.
            let: Variables for the expressions.
            sort: Which document is the first; MongoDB 8.0.
            comment: Any BSON value, for the server's logs.

        Returns:
            A future that ends with the result.
        """
        if self._is_motors(session):
            return super().update_one(  # type: ignore[return-value]
                filter,
                update,
                upsert=upsert,
                bypass_document_validation=bypass_document_validation,  # type: ignore[arg-type]
                collation=collation,
                array_filters=array_filters,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
                **_given(sort=sort),
            )
        return self._submit(
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
            ),
            session,
        )

    def replace_one(  # type: ignore[override]
        self,
        filter: Document,
        replacement: Document,
        upsert: bool = False,
        bypass_document_validation: bool | None = None,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        session: Session | None = None,
        let: Document | None = None,
        sort: Document | None = None,
        comment: Any = None,
    ) -> asyncio.Future[UpdateResult]:
        """Replace the first document that matches.

        Args:
            filter: What it has to match.
            replacement: The new document, without update operators.
            upsert: Whether to insert it if none matches.
            bypass_document_validation: Whether the collection's validation is skipped.
            collation: How strings compare.
            hint: The index to use, by name or by keys.
            session: A session of this client.
            let: Variables for the expressions.
            sort: Which document is the first; MongoDB 8.0.
            comment: Any BSON value, for the server's logs.

        Returns:
            A future that ends with the result.
        """
        if self._is_motors(session):
            return super().replace_one(  # type: ignore[return-value]
                filter,
                replacement,
                upsert=upsert,
                bypass_document_validation=bypass_document_validation,  # type: ignore[arg-type]
                collation=collation,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
                **_given(sort=sort),
            )
        return self._submit(
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
            ),
            session,
        )

    def delete_one(  # type: ignore[override]
        self,
        filter: Document,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        session: Session | None = None,
        let: Document | None = None,
        comment: Any = None,
    ) -> asyncio.Future[DeleteResult]:
        """Delete the first document that matches.

        Args:
            filter: What it has to match.
            collation: How strings compare.
            hint: The index to use, by name or by keys.
            session: A session of this client.
            let: Variables for the expressions.
            comment: Any BSON value, for the server's logs.

        Returns:
            A future that ends with the result.
        """
        if self._is_motors(session):
            return super().delete_one(  # type: ignore[return-value]
                filter,
                collation=collation,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
            )
        return self._submit(
            single.Delete(
                "delete_one", filter, collation=collation, hint=hint, let=let, comment=comment
            ),
            session,
        )

    def insert_many(  # type: ignore[override]
        self,
        documents: "Iterable[DocumentT | Any]",
        ordered: bool = True,
        bypass_document_validation: bool | None = None,
        session: Session | None = None,
        comment: Any = None,
    ) -> asyncio.Future[InsertManyResult]:
        """Insert documents, in as many commands as the server's limits ask for.

        Each command is retried on its own. One that can't be brought to an end ends the whole, and
        the exception answers :func:`~aioretry.partial_result_of`. A deadline counts for the whole.

        Args:
            documents: The documents; each gets an ``_id`` if it has none. An iterator is read on a
                thread, as far as the next command needs it.
            ordered: Whether the first error of a document ends the whole.
            bypass_document_validation: Whether the collection's validation is skipped.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.

        Returns:
            A future that ends with the result, or with ``BulkWriteError`` if the server refused a
            document; with ``DocumentTooLarge`` before anything of that document's command is sent.
        """
        if self._is_motors_bulk(session):
            return super().insert_many(  # type: ignore[return-value]
                documents,
                ordered=ordered,
                bypass_document_validation=bypass_document_validation,  # type: ignore[arg-type]
                session=session,
                comment=comment,
            )
        return self._submit_bulk(
            bulk_arguments.InsertMany(documents, ordered, bypass_document_validation, comment),
            session,
        )

    def bulk_write(  # type: ignore[override]
        self,
        requests: "Sequence[Any]",
        ordered: bool = True,
        bypass_document_validation: bool | None = None,
        session: Session | None = None,
        comment: Any = None,
        let: Document | None = None,
    ) -> asyncio.Future[BulkWriteResult]:
        """Send writes, in as many commands as their kinds and the server's limits ask for.

        Each command is retried on its own, but not one that holds an ``UpdateMany`` or
        ``DeleteMany``: those have no transaction id. A command that can't be brought to an end ends
        the whole, and the exception answers :func:`~aioretry.partial_result_of`. A deadline counts
        for the whole.

        Args:
            requests: A list of ``InsertOne``, ``UpdateOne``, ``UpdateMany``, ``ReplaceOne``,
                ``DeleteOne`` and ``DeleteMany``.
            ordered: Whether they are sent in their order, and the first error ends the whole.
            bypass_document_validation: Whether the collection's validation is skipped.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            let: Variables for the expressions.

        Returns:
            A future that ends with the result, or with ``BulkWriteError`` if the server refused a
            request; with ``DocumentTooLarge`` before anything of that request's command is sent.
        """
        if self._is_motors_bulk(session):
            return super().bulk_write(  # type: ignore[return-value]
                requests,
                ordered=ordered,
                bypass_document_validation=bypass_document_validation,  # type: ignore[arg-type]
                session=session,
                comment=comment,
                let=let,
            )
        return self._submit_bulk(
            bulk_arguments.BulkRequests(
                requests, ordered, bypass_document_validation, comment, let, add_requests
            ),
            session,
        )

    def update_many(  # type: ignore[override]
        self,
        filter: Document,
        update: Update,
        upsert: bool = False,
        array_filters: Sequence[Document] | None = None,
        bypass_document_validation: bool | None = None,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        session: Session | None = None,
        let: Document | None = None,
        comment: Any = None,
    ) -> asyncio.Future[UpdateResult]:
        """Update all documents that match. It has no transaction id.

        Args:
            filter: What they have to match.
            update: Update operators, or an aggregation pipeline.
            upsert: Whether to insert a document if none matches.
            array_filters: Which array elements the update is for.
            bypass_document_validation: Whether the collection's validation is skipped.
            collation: How strings compare.
            hint: The index to use, by name or by keys.
            session: A session of this client.
            let: Variables for the expressions.
            comment: Any BSON value, for the server's logs.

        Returns:
            A future that ends with the result.
        """
        if self._is_motors(session):
            return super().update_many(  # type: ignore[return-value]
                filter,
                update,
                upsert=upsert,
                array_filters=array_filters,
                bypass_document_validation=bypass_document_validation,
                collation=collation,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
            )
        return self._submit(
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
            ),
            session,
        )

    def delete_many(  # type: ignore[override]
        self,
        filter: Document,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        session: Session | None = None,
        let: Document | None = None,
        comment: Any = None,
    ) -> asyncio.Future[DeleteResult]:
        """Delete all documents that match. It has no transaction id.

        Args:
            filter: What they have to match.
            collation: How strings compare.
            hint: The index to use, by name or by keys.
            session: A session of this client.
            let: Variables for the expressions.
            comment: Any BSON value, for the server's logs.

        Returns:
            A future that ends with the result.
        """
        if self._is_motors(session):
            return super().delete_many(  # type: ignore[return-value]
                filter, collation=collation, hint=hint, session=session, let=let, comment=comment
            )
        return self._submit(
            single.Delete(
                "delete_many", filter, collation=collation, hint=hint, let=let, comment=comment
            ),
            session,
        )

    def find_one_and_delete(  # type: ignore[override]
        self,
        filter: Document,
        projection: Projection | None = None,
        sort: Sort | None = None,
        hint: Hint | None = None,
        session: Session | None = None,
        let: Document | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[DocumentT]:
        """Delete the first document that matches, and return it.

        Args:
            filter: What it has to match.
            projection: Which fields to return.
            sort: Which document is the first.
            hint: The index to use, by name or by keys.
            session: A session of this client.
            let: Variables for the expressions.
            comment: Any BSON value, for the server's logs.
            **kwargs: Further options of the command, such as ``maxTimeMS`` (milliseconds).

        Returns:
            A future that ends with the document, or with None if none matches.
        """
        if self._is_motors(session, kwargs):
            return super().find_one_and_delete(  # type: ignore[return-value]
                filter,
                projection=projection,
                sort=sort,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
                **kwargs,
            )
        return self._submit(
            single.FindAndModify(
                "find_one_and_delete",
                filter,
                projection=projection,
                sort=sort,
                hint=hint,
                let=let,
                comment=comment,
                options=kwargs,
            ),
            session,
        )

    def find_one_and_replace(  # type: ignore[override]
        self,
        filter: Document,
        replacement: Document,
        projection: Projection | None = None,
        sort: Sort | None = None,
        upsert: bool = False,
        return_document: bool = False,
        hint: Hint | None = None,
        session: Session | None = None,
        let: Document | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[DocumentT]:
        """Replace the first document that matches, and return the old or the new one.

        Args:
            filter: What it has to match.
            replacement: The new document, without update operators.
            projection: Which fields to return.
            sort: Which document is the first.
            upsert: Whether to insert the document if none matches.
            return_document: ``ReturnDocument.BEFORE`` or ``ReturnDocument.AFTER``.
            hint: The index to use, by name or by keys.
            session: A session of this client.
            let: Variables for the expressions.
            comment: Any BSON value, for the server's logs.
            **kwargs: Further options of the command, such as ``maxTimeMS`` (milliseconds).

        Returns:
            A future that ends with the document, or with None if there is none to return.
        """
        if self._is_motors(session, kwargs):
            return super().find_one_and_replace(  # type: ignore[return-value]
                filter,
                replacement,
                projection=projection,
                sort=sort,
                upsert=upsert,
                return_document=return_document,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
                **kwargs,
            )
        return self._submit(
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
            ),
            session,
        )

    def find_one_and_update(  # type: ignore[override]
        self,
        filter: Document,
        update: Update,
        projection: Projection | None = None,
        sort: Sort | None = None,
        upsert: bool = False,
        return_document: bool = False,
        array_filters: Sequence[Document] | None = None,
        hint: Hint | None = None,
        session: Session | None = None,
        let: Document | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[DocumentT]:
        """Update the first document that matches, and return it as it was or as it is.

        Args:
            filter: What it has to match.
            update: Update operators, or an aggregation pipeline.
            projection: Which fields to return.
            sort: Which document is the first.
            upsert: Whether to insert a document if none matches.
            return_document: ``ReturnDocument.BEFORE`` or ``ReturnDocument.AFTER``.
            array_filters: Which array elements the update is for.
            hint: The index to use, by name or by keys.
            session: A session of this client.
            let: Variables for the expressions.
            comment: Any BSON value, for the server's logs.
            **kwargs: Further options of the command, such as ``maxTimeMS`` (milliseconds).

        Returns:
            A future that ends with the document, or with None if there is none to return.
        """
        if self._is_motors(session, kwargs):
            return super().find_one_and_update(  # type: ignore[return-value]
                filter,
                update,
                projection=projection,
                sort=sort,
                upsert=upsert,
                return_document=return_document,
                array_filters=array_filters,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
                **kwargs,
            )
        return self._submit(
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
            ),
            session,
        )

    def _is_motors(self, session: Any, options: "dict[str, Any] | None" = None) -> bool:
        own = options.get("writeConcern") if options else None
        if own is not None and isinstance(own, Mapping):
            acknowledged = own.get("w") != 0 or bool(own.get("j"))
        else:
            acknowledged = self.write_concern.acknowledged
        in_transaction = session is not None and getattr(session, "in_transaction", False)
        return not acknowledged or in_transaction

    def _is_motors_bulk(self, session: Any) -> bool:
        # Commands are split at another size before they are encrypted (Client Side Encryption,
        # "Size limits for Write Commands").
        return self._write_path.encrypts or self._is_motors(session)

    def _target(self) -> Target:
        if self._own_target is None:
            self._own_target = Target.of(
                self.database.name, self.name, self.codec_options, self.write_concern
            )
        return self._own_target

    def _queue(self, coalescing: Coalescing) -> InsertQueue | None:
        """Return where inserts of this collection wait; None if they may not travel together."""
        coordinator = self._write_path.coordinator()
        queue = self._own_queue
        if queue is not None and queue.loop is coordinator.loop:
            return queue
        if self._is_motors_bulk(None):
            return None
        queues, target = coordinator.waits.queues, self._target()
        queue = next((each for each in queues if each.is_for(target, coalescing)), None)
        if queue is None:
            queue = InsertQueue(coordinator, target, self._write_path.lease, coalescing)
        self._own_queue = queue
        return queue

    def _submit(self, arguments: single.Arguments[T], session: Session | None) -> asyncio.Future[T]:
        path, target = self._write_path, self._target()
        coordinator = path.coordinator()
        watch = coordinator.watchers.watch(arguments.operation, target.namespace)
        write: Write[T] = Write(coordinator, path.lease(session), path.deadline(), watch)
        return write.begin(arguments, target)

    def _submit_bulk(
        self, arguments: bulk_arguments.Arguments[T], session: Session | None
    ) -> asyncio.Future[T]:
        path, target = self._write_path, self._target()
        coordinator = path.coordinator()
        watch = coordinator.watchers.watch(arguments.operation, target.namespace)
        write: BulkWrite[T] = BulkWrite(coordinator, path.lease(session), path.deadline(), watch)
        return write.begin(arguments, target)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
