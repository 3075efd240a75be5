"""The write methods of a collection, whichever driver's client it belongs to."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pymongo.results import (
    BulkWriteResult,
    DeleteResult,
    InsertManyResult,
    InsertOneResult,
    UpdateResult,
)

from aioretry._commands import bulk_arguments, single
from aioretry._commands.arguments import CollationIn, Document, Hint, Projection, Sort, Update
from aioretry._drivers.engine.messages import add_requests
from aioretry._drivers.port import DocumentT
from aioretry._writes.group.kinds import DELETES, INSERTS, UPDATES
from aioretry._writes.writing import FoundT, SessionT, Typed, WritingCollection

SelfT = TypeVar("SelfT", bound="WritingCollection")
T = TypeVar("T")


class WriteMethods(WritingCollection, Typed[SessionT, FoundT, DocumentT]):
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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
                session=self._told_to_driver(session),
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


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
