"""Arguments to commands, replies to PyMongo's results and errors. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.collation import validate_collation_or_none
from pymongo.common import (
    validate_is_document_type,
    validate_is_mapping,
    validate_list_or_none,
    validate_ok_for_replace,
    validate_ok_for_update,
)
from pymongo.results import DeleteResult, InsertOneResult, UpdateResult
from pymongo.write_concern import WriteConcern

from aioretry._commands.arguments import (
    CollationIn,
    Document,
    Hint,
    Projection,
    Sort,
    Update,
    fields_of,
    hint_of,
    index_document,
    let_of,
    require_bool,
)
from aioretry._commands.command import Command
from aioretry._commands.replies import error_in

T = TypeVar("T")


# What was encoded is read back without loss, dates out of Python's range included.
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a write goes, and the options that it goes with."""

    database: str
    collection: str
    codec_options: CodecOptions[Any]
    reply_codec_options: CodecOptions[Any]
    """For the replies of insert, update and delete, which hold no documents of the user."""

    write_concern: WriteConcern

    @property
    def namespace(self) -> str:
        """Database and collection, joined by a dot."""
        return f"{self.database}.{self.collection}"

    @classmethod
    def of(
        cls,
        database: str,
        collection: str,
        codec_options: CodecOptions[Any],
        write_concern: WriteConcern,
    ) -> "Target":
        """Return the target with what follows from its options."""
        reply_codec_options = codec_options.with_options(
            unicode_decode_error_handler="replace", document_class=dict
        )
        return cls(database, collection, codec_options, reply_codec_options, write_concern)

    def write(
        self,
        operation: str,
        name: str,
        body: dict[str, Any],
        result: Callable[[Document], T],
        *,
        holds_multi: bool = False,
    ) -> Command[T]:
        """Return an insert, update or delete command."""
        return Command(
            operation,
            name,
            self.database,
            self.collection,
            body,
            self.write_concern,
            self.reply_codec_options,
            None,
            result,
            error_in,
            holds_multi,
        )

    def encode(self, document: Document) -> RawBSONDocument:
        """Encode what the user gave: once, so that every attempt sends the same.

        What can't be encoded is refused here, before anything is sent.
        """
        if isinstance(document, RawBSONDocument):
            return document
        return RawBSONDocument(bson.encode(document, codec_options=self.codec_options))

    def size(self, document: Document) -> int:
        """Return how many bytes a document has once it is encoded."""
        return len(self.encode(document).raw)

    def encode_options(self, **options: Any) -> dict[str, Any]:
        """Encode the options that the user gave; those that are None are left out."""
        given = {name: value for name, value in options.items() if value is not None}
        return _top_level(self.encode(given)) if given else given


def write_concern_of(write_concern: WriteConcern, *, under_deadline: bool) -> dict[str, Any]:
    """Return the part of a command that says how it is to be acknowledged.

    Under a deadline it has no ``wtimeout``: the deadline takes its place (Client-Side Operations
    Timeout, "Command Execution").
    """
    if write_concern.is_server_default:
        return {}
    document = write_concern.document
    if under_deadline:
        document.pop("wtimeout", None)
    return {"writeConcern": document} if document else {}


def insert_one(
    target: Target, document: Any, bypass_document_validation: bool | None, comment: Any
) -> Command[InsertOneResult]:
    """Return the command of ``insert_one``; adds an ``_id`` to a document that has none."""
    validate_is_document_type("document", document)
    if isinstance(document, RawBSONDocument):
        inserted_id = None
    else:
        if "_id" not in document:
            document["_id"] = ObjectId()
        inserted_id = document["_id"]
    options = target.encode_options(
        bypassDocumentValidation=bypass_document_validation, comment=comment
    )
    body = {"insert": target.collection, "ordered": True, "documents": [target.encode(document)]}
    body |= options
    return target.write("insert_one", "insert", body, lambda _: InsertOneResult(inserted_id, True))


def update_one(
    target: Target,
    filter: Document,
    update: Update,
    upsert: bool,
    bypass_document_validation: bool | None,
    collation: CollationIn | None,
    array_filters: Sequence[Document] | None,
    hint: Hint | None,
    let: Document | None,
    sort: Document | None,
    comment: Any,
) -> Command[UpdateResult]:
    """Return the command of ``update_one``."""
    validate_is_mapping("filter", filter)
    validate_ok_for_update(update)
    validate_list_or_none("array_filters", array_filters)
    statement = _update_statement(filter, update, upsert, collation, hint, sort)
    _set(statement, arrayFilters=array_filters)
    return _update(target, "update_one", statement, bypass_document_validation, let, comment)


def update_many(
    target: Target,
    filter: Document,
    update: Update,
    upsert: bool,
    array_filters: Sequence[Document] | None,
    bypass_document_validation: bool | None,
    collation: CollationIn | None,
    hint: Hint | None,
    let: Document | None,
    comment: Any,
) -> Command[UpdateResult]:
    """Return the command of ``update_many``."""
    validate_is_mapping("filter", filter)
    validate_ok_for_update(update)
    validate_list_or_none("array_filters", array_filters)
    statement = _update_statement(filter, update, upsert, collation, hint, None, multi=True)
    _set(statement, arrayFilters=array_filters)
    return _update(target, "update_many", statement, bypass_document_validation, let, comment)


def replace_one(
    target: Target,
    filter: Document,
    replacement: Document,
    upsert: bool,
    bypass_document_validation: bool | None,
    collation: CollationIn | None,
    hint: Hint | None,
    let: Document | None,
    sort: Document | None,
    comment: Any,
) -> Command[UpdateResult]:
    """Return the command of ``replace_one``."""
    validate_is_mapping("filter", filter)
    validate_ok_for_replace(replacement)
    let_of(let)
    statement = _update_statement(filter, replacement, upsert, collation, hint, sort)
    return _update(target, "replace_one", statement, bypass_document_validation, let, comment)


def delete_one(
    target: Target,
    filter: Document,
    collation: CollationIn | None,
    hint: Hint | None,
    let: Document | None,
    comment: Any,
) -> Command[DeleteResult]:
    """Return the command of ``delete_one``."""
    return _delete(target, "delete_one", 1, filter, collation, hint, let, comment)


def delete_many(
    target: Target,
    filter: Document,
    collation: CollationIn | None,
    hint: Hint | None,
    let: Document | None,
    comment: Any,
) -> Command[DeleteResult]:
    """Return the command of ``delete_many``."""
    return _delete(target, "delete_many", 0, filter, collation, hint, let, comment)


def find_one_and_delete(
    target: Target,
    filter: Document,
    projection: Projection | None,
    sort: Sort | None,
    hint: Hint | None,
    let: Document | None,
    comment: Any,
    options: Mapping[str, Any],
) -> Command[Any]:
    """Return the command of ``find_one_and_delete``."""
    extra = {**options, "remove": True}
    _set(extra, comment=comment)
    return _find_and_modify(
        target,
        "find_one_and_delete",
        filter,
        extra,
        projection=projection,
        sort=sort,
        hint=hint,
        let=let,
    )


def find_one_and_replace(
    target: Target,
    filter: Document,
    replacement: Document,
    projection: Projection | None,
    sort: Sort | None,
    upsert: bool,
    return_document: bool,
    hint: Hint | None,
    let: Document | None,
    comment: Any,
    options: Mapping[str, Any],
) -> Command[Any]:
    """Return the command of ``find_one_and_replace``."""
    validate_ok_for_replace(replacement)
    extra = {**options, "update": replacement}
    _set(extra, comment=comment)
    return _find_and_modify(
        target,
        "find_one_and_replace",
        filter,
        extra,
        projection=projection,
        sort=sort,
        upsert=upsert,
        return_document=return_document,
        hint=hint,
        let=let,
    )


def find_one_and_update(
    target: Target,
    filter: Document,
    update: Update,
    projection: Projection | None,
    sort: Sort | None,
    upsert: bool,
    return_document: bool,
    array_filters: Sequence[Document] | None,
    hint: Hint | None,
    let: Document | None,
    comment: Any,
    options: Mapping[str, Any],
) -> Command[Any]:
    """Return the command of ``find_one_and_update``."""
    validate_ok_for_update(update)
    validate_list_or_none("array_filters", array_filters)
    extra = {**options, "update": update}
    _set(extra, comment=comment, arrayFilters=array_filters)
    return _find_and_modify(
        target,
        "find_one_and_update",
        filter,
        extra,
        projection=projection,
        sort=sort,
        upsert=upsert,
        return_document=return_document,
        hint=hint,
        let=let,
    )


def _update(
    target: Target,
    operation: str,
    statement: Document,
    bypass_document_validation: bool | None,
    let: Document | None,
    comment: Any,
) -> Command[UpdateResult]:
    let_of(let)
    options = target.encode_options(
        let=let, comment=comment, bypassDocumentValidation=bypass_document_validation
    )
    body = {"update": target.collection, "ordered": True, "updates": [target.encode(statement)]}
    body |= options
    holds_multi = bool(statement["multi"])
    return target.write(operation, "update", body, _update_result, holds_multi=holds_multi)


def _delete(
    target: Target,
    operation: str,
    limit: int,
    filter: Document,
    collation: CollationIn | None,
    hint: Hint | None,
    let: Document | None,
    comment: Any,
) -> Command[DeleteResult]:
    validate_is_mapping("filter", filter)
    statement: dict[str, Any] = {"q": filter, "limit": limit}
    _set(statement, collation=validate_collation_or_none(collation), hint=hint_of(hint))
    if let is not None:
        validate_is_document_type("let", let)
    options = target.encode_options(let=let, comment=comment)
    body = {"delete": target.collection, "ordered": True, "deletes": [target.encode(statement)]}
    body |= options
    return target.write(
        operation, "delete", body, lambda reply: DeleteResult(reply, True), holds_multi=limit == 0
    )


def _find_and_modify(
    target: Target,
    operation: str,
    filter: Document,
    extra: Mapping[str, Any],
    *,
    projection: Projection | None,
    sort: Sort | None,
    hint: Hint | None,
    let: Document | None,
    upsert: bool | None = None,
    return_document: bool = False,
) -> Command[Any]:
    validate_is_mapping("filter", filter)
    # Names of PyMongo's own helper, which its methods let through in **kwargs.
    options = dict(extra)
    upsert = options.pop("upsert", upsert)
    return_document = options.pop("return_document", return_document)
    array_filters = options.pop("array_filters", None)
    if not isinstance(return_document, bool):
        raise TypeError(
            "return_document must be ReturnDocument.BEFORE or ReturnDocument.AFTER, "
            f"not {type(return_document)}"
        )
    collation = validate_collation_or_none(options.pop("collation", None))
    index = hint_of(hint)
    own_concern = options.get("writeConcern")
    concern = target.write_concern if own_concern is None else WriteConcern(**own_concern)
    given: dict[str, Any] = {"query": filter, "new": return_document}
    _set(given, let=let_of(let))
    given.update(options)
    if projection is not None:
        given["fields"] = fields_of(projection)
    if sort is not None:
        given["sort"] = index_document(sort)
    if upsert is not None:
        require_bool("upsert", upsert)
        given["upsert"] = upsert
    if array_filters is not None:
        given["arrayFilters"] = list(array_filters)
    _set(given, hint=index, collation=collation)
    body = {"findAndModify": target.collection, **_top_level(target.encode(given))}
    return Command(
        operation,
        "findAndModify",
        target.database,
        target.collection,
        body,
        concern,
        target.codec_options,
        {"value": 1},
        lambda reply: reply.get("value"),
        error_in,
    )


def _update_statement(
    filter: Document,
    update: Update,
    upsert: bool,
    collation: CollationIn | None,
    hint: Hint | None,
    sort: Document | None,
    *,
    multi: bool = False,
) -> dict[str, Any]:
    require_bool("upsert", upsert)
    statement: dict[str, Any] = {"q": filter, "u": update, "multi": multi, "upsert": upsert}
    _set(statement, collation=validate_collation_or_none(collation), hint=hint_of(hint))
    if sort is not None:
        validate_is_mapping("sort", sort)
        statement["sort"] = sort
    return statement


def _update_result(reply: Document) -> UpdateResult:
    raw = dict(reply)
    upserted = raw.get("upserted")
    raw["updatedExisting"] = bool(raw.get("n")) and upserted is None
    if upserted is not None:
        raw["upserted"] = upserted[0]["_id"]
    return UpdateResult(raw, True)


def _top_level(document: RawBSONDocument) -> dict[str, Any]:
    return dict(RawBSONDocument(document.raw, _RAW))


def _set(document: dict[str, Any], **values: Any) -> None:
    document.update({key: value for key, value in values.items() if value is not None})
