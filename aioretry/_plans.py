"""Arguments to bulk operations. Pure."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

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

from aioretry._bulk import Bulk, Kind, Run
from aioretry._commands import Document, Target

T = TypeVar("T")

Plan: TypeAlias = Generator[None, None, Bulk[T]]
"""Makes a bulk operation, in steps between which the event loop is free to run others."""

_CHECKED_AT_ONCE = 500
_UNORDERED = [Kind.INSERT, Kind.UPDATE, Kind.DELETE]


class Requests:
    """The requests of a ``bulk_write``, which add themselves to it."""

    def __init__(self) -> None:
        self.statements: list[tuple[Kind, Document]] = []

    def add_insert(self, document: Any) -> None:
        """Add an insert; the document gets an ``_id`` if it has none."""
        _ensure_id(document)
        self.statements.append((Kind.INSERT, document))

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
        options = _given(
            upsert=upsert, collation=collation, arrayFilters=array_filters, hint=hint, sort=sort
        )
        self.statements.append((Kind.UPDATE, statement | options))

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
        options = _given(upsert=upsert, collation=collation, hint=hint, sort=sort)
        self.statements.append((Kind.UPDATE, {"q": selector, "u": replacement} | options))

    def add_delete(
        self,
        selector: Document,
        limit: int,
        collation: Document | None = None,
        hint: str | Document | None = None,
    ) -> None:
        """Add a deletion, of one document or (limit 0) of all that match."""
        options = _given(collation=collation, hint=hint)
        self.statements.append((Kind.DELETE, {"q": selector, "limit": limit} | options))


def insert_many(
    target: Target,
    documents: Iterable[Any],
    ordered: bool,
    bypass_document_validation: bool | None,
    comment: Any,
) -> Plan[InsertManyResult]:
    """Plan an ``insert_many``.

    The documents of a list or tuple are looked at before anything is sent, those of any other
    iterable when their turn comes.
    """
    given_any: Any = documents
    if not isinstance(given_any, Iterable) or isinstance(given_any, Mapping) or not given_any:
        raise TypeError("documents must be a non-empty list")
    ids: list[Any] = []
    statements: list[Any] | Iterator[Any]
    if isinstance(documents, list | tuple):
        statements = []
        for step in _steps(list(documents)):
            statements += _with_ids(step, ids)
            yield
        count = len(statements)
    else:
        statements, count = _with_ids(documents, ids), 0
    options = _options(target, ordered, bypass_document_validation, comment, None)
    return Bulk(
        target,
        "insert_many",
        [Run(Kind.INSERT, statements)],
        ordered=ordered,
        options=options,
        result=lambda _: InsertManyResult(ids, True),
        count=count,
    )


def bulk_write(
    target: Target,
    requests: Sequence[Any],
    ordered: bool,
    bypass_document_validation: bool | None,
    comment: Any,
    let: Document | None,
    add_request: Callable[[Any, Requests], None],
) -> Plan[BulkWriteResult]:
    """Plan a ``bulk_write``."""
    validate_list("requests", requests)
    if let is not None:
        validate_is_document_type("let", let)
    runs, count = _Runs(ordered=ordered), 0
    for step in _steps(list(requests)):
        collected = Requests()
        for request in step:
            add_request(request, collected)
        runs.extend(collected.statements)
        count += len(collected.statements)
        yield
    if not count:
        raise InvalidOperation("No operations to execute")
    options = _options(target, ordered, bypass_document_validation, comment, let)
    return Bulk(
        target,
        "bulk_write",
        runs.made(),
        ordered=ordered,
        options=options,
        result=lambda merged: BulkWriteResult(merged, True),
        count=count,
    )


class _Runs:
    """Statements put together by their kinds: those that follow each other, or, unordered, all."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._runs: list[tuple[Kind, list[Document], list[int]]] = []
        self._by_kind: dict[Kind, tuple[Kind, list[Document], list[int]]] = {}
        self._last: Kind | None = None
        self._count = 0

    def extend(self, statements: list[tuple[Kind, Document]]) -> None:
        """Add the next statements."""
        for kind, statement in statements:
            if kind not in self._by_kind or (self._ordered and kind is not self._last):
                self._by_kind[kind] = (kind, [], [])
                self._runs.append(self._by_kind[kind])
            self._last = kind
            _, its_statements, its_indexes = self._by_kind[kind]
            its_statements.append(statement)
            its_indexes.append(self._count)
            self._count += 1

    def made(self) -> list[Run]:
        """Return the runs in the order in which they are sent."""
        if not self._ordered:
            self._runs.sort(key=lambda run: _UNORDERED.index(run[0]))
        return [Run(*run) for run in self._runs]


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


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
