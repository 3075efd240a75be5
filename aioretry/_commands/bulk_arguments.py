"""Arguments to bulk operations. Pure."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Protocol, TypeAlias, TypeVar

from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.common import (
    validate_is_document_type,
    validate_list,
    validate_ok_for_replace,
    validate_ok_for_update,
)
from pymongo.errors import InvalidOperation
from pymongo.results import BulkWriteResult, InsertManyResult

from aioretry._commands.arguments import Document
from aioretry._commands.bulk import Bulk
from aioretry._commands.statements import Kind, Run
from aioretry._commands.target import Target

T = TypeVar("T")

Plan: TypeAlias = Generator[int, None, Bulk[T]]
"""Makes a bulk operation, in steps between which the event loop is free to run others.

Each step tells how many statements there will be.
"""

_CHECKED_AT_ONCE = 500
_UNORDERED = [Kind.INSERT, Kind.UPDATE, Kind.DELETE]


class Requests:
    """The requests of a ``bulk_write``, which add themselves to it."""

    def __init__(self) -> None:
        self._segments: list[tuple[Kind, list[Document]]] = []
        self._kind: Kind | None = None
        self._statements: list[Document] = []

    def add_insert(self, document: Any) -> None:
        """Add an insert; the document gets an ``_id`` if it has none."""
        _ensure_id(document)
        self._add(Kind.INSERT, document)

    def add_update(
        self,
        selector: Document,
        update: Any,
        multi: bool,
        upsert: bool | None,
        collation: Document | None = None,
        array_filters: Sequence[Document] | None = None,
        hint: str | Document | None = None,
        sort: Document | None = None,
    ) -> None:
        """Add an update with operators or a pipeline."""
        validate_ok_for_update(update)
        statement = {"q": selector, "u": update, "multi": multi}
        self._add(Kind.UPDATE, statement, upsert, collation, array_filters, hint, sort)

    def add_replace(
        self,
        selector: Document,
        replacement: Document,
        upsert: bool | None,
        collation: Document | None = None,
        hint: str | Document | None = None,
        sort: Document | None = None,
    ) -> None:
        """Add a replacement."""
        validate_ok_for_replace(replacement)
        statement = {"q": selector, "u": replacement}
        self._add(Kind.UPDATE, statement, upsert, collation, None, hint, sort)

    def add_delete(
        self,
        selector: Document,
        limit: int,
        collation: Document | None = None,
        hint: str | Document | None = None,
    ) -> None:
        """Add a deletion, of one document or (limit 0) of all that match."""
        statement = {"q": selector, "limit": limit}
        self._add(Kind.DELETE, statement, None, collation, None, hint)

    def count(self) -> int:
        """Return how many there are."""
        return sum(len(statements) for _, statements in self._segments)

    def runs(self, *, ordered: bool) -> list[Run]:
        """Return what is sent: those of a kind that follow each other, or, unordered, all of it."""
        ends = list(accumulate(len(statements) for _, statements in self._segments))
        segments = [
            (kind, statements, range(end - len(statements), end))
            for (kind, statements), end in zip(self._segments, ends, strict=True)
        ]
        if ordered:
            return [Run(*segment) for segment in segments]
        runs = []
        for kind in _UNORDERED:
            its_segments = [segment for segment in segments if segment[0] is kind]
            if its_segments:
                _, statements, indexes = zip(*its_segments, strict=True)
                runs.append(Run(kind, _joined(statements), _joined(indexes)))
        return runs

    def _add(
        self,
        kind: Kind,
        statement: Any,
        upsert: bool | None = None,
        collation: Document | None = None,
        array_filters: Sequence[Document] | None = None,
        hint: str | Document | None = None,
        sort: Document | None = None,
    ) -> None:
        if upsert is not None:
            statement["upsert"] = upsert
        if collation is not None:
            statement["collation"] = collation
        if array_filters is not None:
            statement["arrayFilters"] = array_filters
        if hint is not None:
            statement["hint"] = hint
        if sort is not None:
            statement["sort"] = sort
        if kind is not self._kind:
            self._kind, self._statements = kind, []
            self._segments.append((kind, self._statements))
        self._statements.append(statement)


class Arguments(Protocol[T]):
    """What a user gave to a method that sends many statements."""

    operation: str
    """The method."""

    def plan(self, target: Target) -> Plan[T]:
        """Plan the operation.

        Raises:
            Exception: What was given can't be sent.
        """
        ...


@dataclass(slots=True)
class InsertMany:
    """The arguments of ``insert_many``.

    The documents of a list or tuple are looked at before anything is sent, those of any other
    iterable when their turn comes.
    """

    documents: Iterable[Any]
    ordered: bool
    bypass_document_validation: bool | None
    comment: Any
    operation: str = "insert_many"

    def plan(self, target: Target) -> Plan[InsertManyResult]:
        """Plan the operation."""
        documents: Any = self.documents
        if not isinstance(documents, Iterable) or isinstance(documents, Mapping) or not documents:
            raise TypeError("documents must be a non-empty list")
        ids: list[Any] = []
        statements: list[Any] | Iterator[Any]
        if isinstance(documents, list | tuple):
            statements = []
            for step in _steps(list(documents)):
                statements += _with_ids(step, ids)
                yield len(documents)
            count = len(statements)
        else:
            statements, count = _with_ids(documents, ids), 0
        options = _options(
            target, self.ordered, self.bypass_document_validation, self.comment, None
        )
        return Bulk(
            target,
            self.operation,
            [Run(Kind.INSERT, statements)],
            ordered=self.ordered,
            options=options,
            result=lambda _: InsertManyResult(ids, True),
            count=count,
        )


@dataclass(slots=True)
class BulkRequests:
    """The arguments of ``bulk_write``."""

    requests: Sequence[Any]
    ordered: bool
    bypass_document_validation: bool | None
    comment: Any
    let: Document | None
    add: Callable[[Iterable[Any], Requests], None]
    """Has the driver's requests add themselves."""

    operation: str = "bulk_write"

    def plan(self, target: Target) -> Plan[BulkWriteResult]:
        """Plan the operation."""
        validate_list("requests", self.requests)
        if self.let is not None:
            validate_is_document_type("let", self.let)
        collected = Requests()
        for step in _steps(list(self.requests)):
            self.add(step, collected)
            yield len(self.requests)
        count = collected.count()
        if not count:
            raise InvalidOperation("No operations to execute")
        options = _options(
            target, self.ordered, self.bypass_document_validation, self.comment, self.let
        )
        return Bulk(
            target,
            self.operation,
            collected.runs(ordered=self.ordered),
            ordered=self.ordered,
            options=options,
            result=lambda merged: BulkWriteResult(merged, True),
            count=count,
        )


def _with_ids(documents: Iterable[Any], ids: list[Any]) -> Iterator[Any]:
    for document in documents:
        _ensure_id(document, ids)
        yield document


def _ensure_id(document: Any, ids: list[Any] | None = None) -> None:
    if type(document) is not dict:
        validate_is_document_type("document", document)
        if isinstance(document, RawBSONDocument):
            return
    if "_id" not in document:
        document["_id"] = ObjectId()
    if ids is not None:
        ids.append(document["_id"])


def _steps(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), _CHECKED_AT_ONCE):
        yield items[start : start + _CHECKED_AT_ONCE]


def _options(
    target: Target,
    ordered: bool,
    bypass_document_validation: bool | None,
    comment: Any,
    let: Document | None,
) -> dict[Kind, dict[str, Any]]:
    shared = {"ordered": ordered} | target.encode_options(
        # PyMongo leaves out a comment that is false.
        comment=comment or None,
        bypassDocumentValidation=bypass_document_validation,
    )
    with_let = shared | target.encode_options(let=let)
    return {Kind.INSERT: shared, Kind.UPDATE: with_let, Kind.DELETE: with_let}


def _joined(parts: Iterable[Iterable[T]]) -> list[T]:
    return list(chain.from_iterable(parts))
