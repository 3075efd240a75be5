"""Updating and deleting many documents, again and again if need be."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from pymongo.common import validate_is_mapping, validate_ok_for_update
from pymongo.errors import ConfigurationError, DuplicateKeyError, PyMongoError
from pymongo.results import DeleteResult, UpdateResult

from aioretry.errors import copy_report
from aioretry.idempotent._collections import Collection
from aioretry.idempotent._operators import (
    Document,
    Update,
    UpdateMany,
    problems_of_filter,
    refuse,
)
from aioretry.idempotent._repeat import may_have_written, repeat

__all__ = ["DeleteManyResult", "UpdateManyResult", "delete_many", "update_many"]


class UpdateManyResult(UpdateResult):
    """An update that was brought to its end, perhaps in several runs.

    Its counts are those of the last run. After a repetition, documents that an earlier run changed
    may be missing in ``modified_count``, those that it made match no more also in
    ``matched_count``, and ``upserted_id`` is None if an earlier run inserted the document.
    """

    __slots__ = ("_was_repeated",)

    def __init__(self, raw_result: Mapping[str, Any] | None, *, was_repeated: bool) -> None:
        super().__init__(raw_result, acknowledged=True)
        self._was_repeated = was_repeated

    @property
    def was_repeated(self) -> bool:
        """Whether there was more than one run, so that the counts may be too low."""
        return self._was_repeated


class DeleteManyResult(DeleteResult):
    """A deletion that was brought to its end, perhaps in several runs.

    ``deleted_count`` is that of the last run.
    """

    __slots__ = ("_was_repeated",)

    def __init__(self, raw_result: Mapping[str, Any], *, was_repeated: bool) -> None:
        super().__init__(raw_result, acknowledged=True)
        self._was_repeated = was_repeated

    @property
    def was_repeated(self) -> bool:
        """Whether there was more than one run, so that the count may be too low."""
        return self._was_repeated


async def update_many(
    collection: Collection,
    filter: Document,
    update: Update,
    *,
    upsert: bool = False,
    array_filters: Sequence[Document] | None = None,
    bypass_document_validation: bool | None = None,
    collation: Any = None,
    hint: Any = None,
    let: Document | None = None,
    comment: Any = None,
    unique_key: Sequence[str] = (),
    timeout: float | None = None,  # noqa: ASYNC109 - a deadline, with an outcome
) -> UpdateManyResult:
    """Update all documents that match, in as many runs as it takes.

    It is run again after network errors and other errors that are retryable: as often as time
    allows under a deadline, else once. What it leaves is what one or several complete runs of it
    leave. An update that might do more in several runs than in one is refused, and nothing is sent.
    Any operator can be run again beside a mark that the filter leaves out, because each document is
    updated once: ``{"jobs": {"$ne": 7}}`` with ``{"$addToSet": {"jobs": 7}}``.

    Args:
        collection: Of this library, of Motor or of PyMongo's asynchronous API.
        filter: What documents have to match.
        update: Update operators, or an aggregation pipeline.
        upsert: Whether to insert a document if none matches. The filter must ask for equality
            alone, of ``_id`` or of ``unique_key`` at least, and of nothing that is changed.
        array_filters: Which array elements the update is for.
        bypass_document_validation: Whether the collection's validation is skipped.
        collation: How strings compare.
        hint: The index to use, by name or by keys.
        let: Variables for the expressions.
        comment: Any BSON value, for the server's logs.
        unique_key: The fields of a unique index of the collection, for an upsert without ``_id``.
            If there is no such index, an upsert may insert twice.
        timeout: How long it may take, in seconds; a surrounding ``deadline()`` that is nearer
            counts. None sets no limit of its own.

    Returns:
        The result of the last run, and whether there were others before.

    Raises:
        NotIdempotentError: It can't be repeated safely; the error names the operators.
        DeadlineExceeded: Time is over; some documents may be updated, and others not.
        ConfigurationError: The collection's write concern is ``w: 0``.
        ValueError: ``update`` is empty or a replacement, or ``timeout`` is negative or NaN.
        TypeError: An argument is of the wrong type.
        PyMongoError: Any other error of the update.
    """
    _require_acknowledged("update_many", collection)
    validate_is_mapping("filter", filter)
    validate_ok_for_update(update)
    _validate_array_filters(array_filters)
    _validate_unique_key(unique_key)
    called = UpdateMany(filter, update, upsert, array_filters or (), let, unique_key)
    refuse("update_many", called.problems())
    options = _given(
        array_filters=array_filters,
        bypass_document_validation=bypass_document_validation,
        collation=collation,
        hint=hint,
        let=let,
        comment=comment,
    )

    async def send() -> UpdateResult:
        running: Awaitable[UpdateResult] = collection.update_many(
            filter, update, upsert=upsert, **options
        )
        return await running

    async def run(_: PyMongoError | None) -> UpdateResult:
        try:
            return await send()
        except DuplicateKeyError as exc:
            if not upsert:
                raise
            first = exc
        # Another upsert was first, perhaps an earlier run of this one: its document may match now.
        try:
            return await send()
        except (PyMongoError, asyncio.CancelledError) as exc:
            if may_have_written(first):  # some of what matched
                copy_report(first, exc)
            raise

    result, was_repeated = await repeat("update_many", run, timeout)
    return UpdateManyResult(result.raw_result, was_repeated=was_repeated)


async def delete_many(
    collection: Collection,
    filter: Document,
    *,
    collation: Any = None,
    hint: Any = None,
    let: Document | None = None,
    comment: Any = None,
    timeout: float | None = None,  # noqa: ASYNC109 - a deadline, with an outcome
) -> DeleteManyResult:
    """Delete all documents that match, in as many runs as it takes.

    It is run again after network errors and other errors that are retryable: as often as time
    allows under a deadline, else once. Each run deletes what matches by then, also what others have
    inserted meanwhile.

    Args:
        collection: Of this library, of Motor or of PyMongo's asynchronous API.
        filter: What documents have to match.
        collation: How strings compare.
        hint: The index to use, by name or by keys.
        let: Variables for the expressions.
        comment: Any BSON value, for the server's logs.
        timeout: How long it may take, in seconds; a surrounding ``deadline()`` that is nearer
            counts. None sets no limit of its own.

    Returns:
        The result of the last run, and whether there were others before.

    Raises:
        NotIdempotentError: The filter chooses by chance, or nobody can tell (``$where``).
        DeadlineExceeded: Time is over; some documents may be deleted, and others not.
        ConfigurationError: The collection's write concern is ``w: 0``.
        ValueError: ``timeout`` is negative or NaN.
        TypeError: An argument is of the wrong type.
        PyMongoError: Any other error of the deletion.
    """
    _require_acknowledged("delete_many", collection)
    validate_is_mapping("filter", filter)
    refuse("delete_many", list(problems_of_filter(filter, let)))
    options = _given(collation=collation, hint=hint, let=let, comment=comment)

    async def run(_: PyMongoError | None) -> DeleteResult:
        running: Awaitable[DeleteResult] = collection.delete_many(filter, **options)
        return await running

    result, was_repeated = await repeat("delete_many", run, timeout)
    return DeleteManyResult(result.raw_result, was_repeated=was_repeated)


def _require_acknowledged(operation: str, collection: Collection) -> None:
    if not collection.write_concern.acknowledged:
        raise ConfigurationError(
            f"{operation}() needs an acknowledged write concern; this collection has w: 0"
        )


def _validate_array_filters(array_filters: object) -> None:
    if array_filters is None:
        return
    if not isinstance(array_filters, list):
        raise TypeError(f"array_filters must be a list, not {type(array_filters).__name__}")
    for each in array_filters:
        validate_is_mapping("each of array_filters", each)


def _validate_unique_key(unique_key: object) -> None:
    if not isinstance(unique_key, list | tuple) or any(
        not isinstance(name, str) for name in unique_key
    ):
        raise TypeError("unique_key must be a list or a tuple of names of fields")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
