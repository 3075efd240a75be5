"""The write methods of a collection, whichever driver's client it belongs to."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

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
from aioretry._drivers.port import DocumentT
from aioretry._writes.bulk import BulkWrite
from aioretry._writes.context import WritePath
from aioretry._writes.group.kinds import DELETES, INSERTS, UPDATES, Kind
from aioretry._writes.group.queue import DEFAULT_BYTES, DEFAULT_DOCUMENTS, Coalescing, GroupQueue
from aioretry._writes.single import Write
from aioretry._writes.statements import Statement

FoundT = TypeVar("FoundT")
SessionT = TypeVar("SessionT")
SelfT = TypeVar("SelfT", bound="WritingCollection")
T = TypeVar("T")


class WritingCollection:
    """What a collection's writes need of it, beside what every driver's collection has."""

    _driver_methods: Any
    """The driver's own collection class, for what stays the driver's."""

    _write_path: WritePath
    _own_target: Target | None = None
    _coalescing: Coalescing | None = None
    _own_queues: "dict[Kind, GroupQueue] | None" = None

    def coalesced(
        self, *, max_documents: int = DEFAULT_DOCUMENTS, max_bytes: int = DEFAULT_BYTES
    ) -> Self:
        """Return a view of this collection whose writes of one document travel together.

        They are ``insert_one``, and ``update_one``, ``replace_one`` and ``delete_one`` for one
        ``_id``. Those that come while one command is under way are sent in the next one, which is
        unordered. Nothing waits when nothing is under way. Each call has its own result, error,
        deadline and cancellation. All views of a collection with the same options share a queue.
        Calls with a session or with options of their own are sent alone.

        Args:
            max_documents: How many statements travel together at most, from 1 to 100,000.
            max_bytes: How many bytes of them do, from 1 to 40,000,000; a larger one goes alone.

        Returns:
            The view; everything else is as here.

        Raises:
            TypeError: An argument is not a whole number.
            ValueError: An argument is out of its range.
        """
        view = self._copy()
        view._coalescing = Coalescing.of(max_documents, max_bytes)
        return view

    @property
    def _drivers_own(self) -> Any:
        """The same, as the driver's collection that it is."""
        return self

    def _copy(self) -> Self:
        """Return the same collection, with the same options."""
        raise NotImplementedError

    def _session_of_call(self, session: Any) -> Any:
        """Return the session that a call goes over."""
        return session

    def _is_drivers(self, session: Any, options: "dict[str, Any] | None" = None) -> bool:
        own = options.get("writeConcern") if options else None
        if own is not None and isinstance(own, Mapping):
            acknowledged = own.get("w") != 0 or bool(own.get("j"))
        else:
            acknowledged = self._target().is_acknowledged
        if not acknowledged:
            return True
        if self._write_path.makes_transactions:
            return False
        return is_in_transaction(self._session_of_call(session))

    def _is_drivers_bulk(self, session: Any) -> bool:
        # Commands are split at another size before they are encrypted (Client Side Encryption,
        # "Size limits for Write Commands").
        return (
            self._write_path.encrypts
            or self._is_drivers(session)
            or is_in_transaction(self._session_of_call(session))
        )

    def _target(self) -> Target:
        if self._own_target is None:
            own = self._drivers_own
            self._own_target = Target.of(
                own.database.name, own.name, own.codec_options, own.write_concern
            )
        return self._own_target

    def _together(
        self, kind: Kind, arguments: single.Travelling[T], session: Any
    ) -> asyncio.Future[T] | None:
        """Have a write travel with others; return None if it goes alone."""
        coalescing = self._coalescing
        if coalescing is None or not arguments.may_travel:
            return None
        if self._session_of_call(session) is not None:
            return None
        queue = self._queue(kind, coalescing)
        if queue is None or not queue.is_of_use:
            return None
        return queue.add(arguments, self._write_path.deadline())

    def _queue(self, kind: Kind, coalescing: Coalescing) -> GroupQueue | None:
        """Return where writes of this collection wait; None if they may not travel together."""
        coordinator = self._write_path.coordinator()
        own = self._own_queues
        if own is None:
            own = self._own_queues = {}
        queue = own.get(kind)
        if queue is not None and queue.loop is coordinator.loop:
            return queue
        if self._is_drivers_bulk(None):
            return None
        queues, target = coordinator.waits.queues, self._target()
        queue = next((each for each in queues if each.is_for(kind, target, coalescing)), None)
        if queue is None:
            queue = GroupQueue(coordinator, kind, target, self._write_path.lease, coalescing)
        own[kind] = queue
        return queue

    def _submit(self, arguments: single.Arguments[T], session: Any) -> asyncio.Future[T]:
        path, target, session = self._write_path, self._target(), self._session_of_call(session)
        coordinator = path.coordinator()
        watch = coordinator.watchers.watch(arguments.operation, target.namespace)
        write: Write[T]
        if is_in_transaction(session):
            lease = path.statement_lease(session)
            write = Statement(coordinator, lease, path.deadline(), watch, session)
        else:
            write = Write(coordinator, path.lease(session), path.deadline(), watch)
        return write.begin(arguments, target)

    def _submit_bulk(
        self, arguments: bulk_arguments.Arguments[T], session: Any
    ) -> asyncio.Future[T]:
        path, target, session = self._write_path, self._target(), self._session_of_call(session)
        coordinator = path.coordinator()
        watch = coordinator.watchers.watch(arguments.operation, target.namespace)
        write: BulkWrite[T] = BulkWrite(coordinator, path.lease(session), path.deadline(), watch)
        return write.begin(arguments, target)


if TYPE_CHECKING:

    class Typed(Generic[DocumentT, SessionT, FoundT]):
        """What a collection is generic in."""

else:

    class Typed:
        """Motor's classes are generic for type checkers alone; so is what comes before them."""

        def __class_getitem__(cls, _: object) -> type:
            return cls


class WriteMethods(WritingCollection, Typed[DocumentT, SessionT, FoundT]):
    """The writes: each returns a running future."""

    def insert_one(
        self,
        document: "DocumentT | Any",
        bypass_document_validation: bool | None = None,
        session: SessionT | None = None,
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
        arguments = single.Insert(
            document, bypass_document_validation=bypass_document_validation, comment=comment
        )
        together = self._together(INSERTS, arguments, session)
        if together is not None:
            return together
        if self._is_drivers(session):
            return self._driver_methods.insert_one(  # type: ignore[no-any-return]
                self,
                document,
                bypass_document_validation=bypass_document_validation,
                session=session,
                comment=comment,
            )
        return self._submit(arguments, session)

    def update_one(
        self,
        filter: Document,
        update: Update,
        upsert: bool = False,
        bypass_document_validation: bool | None = None,
        collation: CollationIn | None = None,
        array_filters: Sequence[Document] | None = None,
        hint: Hint | None = None,
        session: SessionT | None = None,
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
        arguments = single.UpdateOrReplace(
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
        together = self._together(UPDATES, arguments, session)
        if together is not None:
            return together
        if self._is_drivers(session):
            return self._driver_methods.update_one(  # type: ignore[no-any-return]
                self,
                filter,
                update,
                upsert=upsert,
                bypass_document_validation=bypass_document_validation,
                collation=collation,
                array_filters=array_filters,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
                **_given(sort=sort),
            )
        return self._submit(arguments, session)

    def replace_one(
        self,
        filter: Document,
        replacement: Document,
        upsert: bool = False,
        bypass_document_validation: bool | None = None,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        session: SessionT | None = None,
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
        arguments = single.UpdateOrReplace(
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
        together = self._together(UPDATES, arguments, session)
        if together is not None:
            return together
        if self._is_drivers(session):
            return self._driver_methods.replace_one(  # type: ignore[no-any-return]
                self,
                filter,
                replacement,
                upsert=upsert,
                bypass_document_validation=bypass_document_validation,
                collation=collation,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
                **_given(sort=sort),
            )
        return self._submit(arguments, session)

    def delete_one(
        self,
        filter: Document,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        session: SessionT | None = None,
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
        arguments = single.Delete(
            "delete_one", filter, collation=collation, hint=hint, let=let, comment=comment
        )
        together = self._together(DELETES, arguments, session)
        if together is not None:
            return together
        if self._is_drivers(session):
            return self._driver_methods.delete_one(  # type: ignore[no-any-return]
                self,
                filter,
                collation=collation,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
            )
        return self._submit(arguments, session)

    def insert_many(
        self,
        documents: "Iterable[DocumentT | Any]",
        ordered: bool = True,
        bypass_document_validation: bool | None = None,
        session: SessionT | None = None,
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
        if self._is_drivers_bulk(session):
            return self._driver_methods.insert_many(  # type: ignore[no-any-return]
                self,
                documents,
                ordered=ordered,
                bypass_document_validation=bypass_document_validation,
                session=session,
                comment=comment,
            )
        return self._submit_bulk(
            bulk_arguments.InsertMany(documents, ordered, bypass_document_validation, comment),
            session,
        )

    def bulk_write(
        self,
        requests: "Sequence[Any]",
        ordered: bool = True,
        bypass_document_validation: bool | None = None,
        session: SessionT | None = None,
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
        if self._is_drivers_bulk(session):
            return self._driver_methods.bulk_write(  # type: ignore[no-any-return]
                self,
                requests,
                ordered=ordered,
                bypass_document_validation=bypass_document_validation,
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

    def update_many(
        self,
        filter: Document,
        update: Update,
        upsert: bool = False,
        array_filters: Sequence[Document] | None = None,
        bypass_document_validation: bool | None = None,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        session: SessionT | None = None,
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
        if self._is_drivers(session):
            return self._driver_methods.update_many(  # type: ignore[no-any-return]
                self,
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

    def delete_many(
        self,
        filter: Document,
        collation: CollationIn | None = None,
        hint: Hint | None = None,
        session: SessionT | None = None,
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
        if self._is_drivers(session):
            return self._driver_methods.delete_many(  # type: ignore[no-any-return]
                self,
                filter,
                collation=collation,
                hint=hint,
                session=session,
                let=let,
                comment=comment,
            )
        return self._submit(
            single.Delete(
                "delete_many", filter, collation=collation, hint=hint, let=let, comment=comment
            ),
            session,
        )

    def find_one_and_delete(
        self,
        filter: Document,
        projection: Projection | None = None,
        sort: Sort | None = None,
        hint: Hint | None = None,
        session: SessionT | None = None,
        let: Document | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[FoundT]:
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
        if self._is_drivers(session, kwargs):
            return self._driver_methods.find_one_and_delete(  # type: ignore[no-any-return]
                self,
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

    def find_one_and_replace(
        self,
        filter: Document,
        replacement: Document,
        projection: Projection | None = None,
        sort: Sort | None = None,
        upsert: bool = False,
        return_document: bool = False,
        hint: Hint | None = None,
        session: SessionT | None = None,
        let: Document | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[FoundT]:
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
        if self._is_drivers(session, kwargs):
            return self._driver_methods.find_one_and_replace(  # type: ignore[no-any-return]
                self,
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

    def find_one_and_update(
        self,
        filter: Document,
        update: Update,
        projection: Projection | None = None,
        sort: Sort | None = None,
        upsert: bool = False,
        return_document: bool = False,
        array_filters: Sequence[Document] | None = None,
        hint: Hint | None = None,
        session: SessionT | None = None,
        let: Document | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[FoundT]:
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
        if self._is_drivers(session, kwargs):
            return self._driver_methods.find_one_and_update(  # type: ignore[no-any-return]
                self,
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


def is_in_transaction(session: Any) -> bool:
    """Tell whether a transaction is in progress on a session, if it is one."""
    return session is not None and bool(getattr(session, "in_transaction", False))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
