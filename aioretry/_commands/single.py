"""Arguments to commands, replies to PyMongo's results. Pure."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from bson.decimal128 import Decimal128
from bson.errors import BSONError
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
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
    require_bool,
)
from aioretry._commands.command import Command
from aioretry._commands.replies import error_in
from aioretry._commands.target import Target, top_level

T = TypeVar("T")


class Arguments(Protocol[T]):
    """What a user gave to a method that sends one command."""

    operation: str
    """The method."""

    def command(self, target: Target) -> Command[T]:
        """Return the command.

        Raises:
            Exception: What was given can't be sent.
        """
        ...


class Apart(NamedTuple):
    """A document that a statement is for."""

    is_added_to: bool
    """Whether it is added to only, which can be done in any order."""

    key: Hashable
    """Its ``_id``, if that is a number; None if that is the same where its BSON is."""


class Travelling(Arguments[T], Protocol):
    """Such as can be a statement of a command of several."""

    @property
    def may_travel(self) -> bool:
        """Whether it can: it is for one document, and has no options of the command's."""
        ...

    @property
    def apart(self) -> "Apart | None":
        """What it must not share with another one in a command; None if it can go with all.

        What changes nothing may be executed again later, and has to be in its place even then.
        """
        ...

    def statement(self) -> Any:
        """Return what is sent of it in a command of several.

        Raises:
            TypeError: An argument is of another type.
            ValueError: One can't be what it is.
        """
        ...

    @property
    def result(self) -> Callable[[Document], T]:
        """What turns the reply to it alone into what the user awaits."""
        ...


@dataclass(slots=True)
class Insert:
    """The arguments of ``insert_one``."""

    document: Any
    bypass_document_validation: bool | None = None
    comment: Any = None
    operation: str = "insert_one"
    _inserted_id: Any = None

    @property
    def may_travel(self) -> bool:
        """Whether it can be a statement of a command of several."""
        return self.bypass_document_validation is None and self.comment is None

    @property
    def apart(self) -> "Apart | None":
        """Nothing: an insert of a document is executed once, or refused."""
        return None

    def statement(self) -> Any:
        """Return the document; one that has no ``_id`` gets it.

        Raises:
            TypeError: It is no document.
        """
        document = self.document
        if type(document) is not dict:
            validate_is_document_type("document", document)
            if isinstance(document, RawBSONDocument):
                return document
        if "_id" not in document:
            document["_id"] = ObjectId()
        self._inserted_id = document["_id"]
        return document

    @property
    def result(self) -> Callable[[Document], InsertOneResult]:
        """What turns the reply to it alone into what the user awaits."""
        inserted_id = self._inserted_id  # and not the document
        return lambda _: InsertOneResult(inserted_id, True)

    def command(self, target: Target) -> Command[InsertOneResult]:
        """Return the command."""
        document = self.statement()
        options = target.encode_options(
            bypassDocumentValidation=self.bypass_document_validation, comment=self.comment
        )
        documents = [target.encode(document)]
        body = {"insert": target.collection, "ordered": True, "documents": documents, **options}
        return target.write(self.operation, "insert", body, self.result)


@dataclass(slots=True)
class UpdateOrReplace:
    """The arguments of ``update_one``, ``update_many`` and ``replace_one``."""

    operation: str
    filter: Document
    update: Update
    upsert: bool = False
    bypass_document_validation: bool | None = None
    collation: CollationIn | None = None
    array_filters: Sequence[Document] | None = None
    hint: Hint | None = None
    let: Document | None = None
    sort: Document | None = None
    comment: Any = None

    @property
    def may_travel(self) -> bool:
        """Whether it can be a statement of a command of several."""
        options = (self.collation, self.hint, self.let, self.sort, self.comment)
        if self.bypass_document_validation is not None or any(map(_is_given, options)):
            return False
        # Of a pipeline, or of other filters, a server may refuse the whole command.
        filters = self.array_filters
        if filters and not (isinstance(filters, list | tuple) and all(map(_is_mapping, filters))):
            return False
        return _is_mapping(self.update) and _is_by_id(self.filter)

    @property
    def apart(self) -> "Apart | None":
        """The document, unless it is only added to: that can be done in any order."""
        if self.array_filters is None and self.update.keys() == {"$inc"}:  # type: ignore[union-attr]
            return Apart(True, _key_of(self.filter))
        return Apart(False, _key_of(self.filter))

    def command(self, target: Target) -> Command[UpdateResult]:
        """Return the command."""
        statement = self.statement()
        self._check_let()
        options = target.encode_options(
            let=self.let,
            comment=self.comment,
            bypassDocumentValidation=self.bypass_document_validation,
        )
        updates = [target.encode(statement)]
        body = {"update": target.collection, "ordered": True, "updates": updates, **options}
        is_multi = self.operation == "update_many"
        return target.write(self.operation, "update", body, self.result, holds_multi=is_multi)

    @staticmethod
    def result(reply: Document) -> UpdateResult:
        """Turn the reply to it alone into what the user awaits."""
        raw = dict(reply)
        upserted = raw.get("upserted")
        raw["updatedExisting"] = bool(raw.get("n")) and upserted is None
        if upserted is not None:
            raw["upserted"] = upserted[0]["_id"]
        return UpdateResult(raw, True)

    def _check_let(self) -> None:
        if self.let is not None:
            validate_is_mapping("let", self.let)

    def statement(self) -> dict[str, Any]:
        """Return what is sent of it in a command of several.

        Raises:
            TypeError: An argument is of another type.
            ValueError: The update is none, or the replacement.
        """
        # In PyMongo's order, so that of two mistakes the same one is told.
        validate_is_mapping("filter", self.filter)
        if self.operation == "replace_one":
            validate_ok_for_replace(self.update)  # type: ignore[arg-type]
            self._check_let()
        else:
            validate_ok_for_update(self.update)
            validate_list_or_none("array_filters", self.array_filters)
        require_bool("upsert", self.upsert)
        is_multi = self.operation == "update_many"
        statement: dict[str, Any] = {"q": self.filter, "u": self.update, "multi": is_multi}
        statement["upsert"] = self.upsert
        if self.collation is not None:
            statement["collation"] = validate_collation_or_none(self.collation)
        if self.hint is not None:
            statement["hint"] = hint_of(self.hint)
        if self.sort is not None:
            validate_is_mapping("sort", self.sort)
            statement["sort"] = self.sort
        if self.array_filters is not None:
            statement["arrayFilters"] = self.array_filters
        return statement


@dataclass(slots=True)
class Delete:
    """The arguments of ``delete_one`` and ``delete_many``."""

    operation: str
    filter: Document
    collation: CollationIn | None = None
    hint: Hint | None = None
    let: Document | None = None
    comment: Any = None

    @property
    def may_travel(self) -> bool:
        """Whether it can be a statement of a command of several."""
        options = (self.collation, self.hint, self.let, self.comment)
        return not any(map(_is_given, options)) and _is_by_id(self.filter)

    @property
    def apart(self) -> "Apart | None":
        """Nothing: which of two removes a document makes no difference."""
        return None

    def statement(self) -> dict[str, Any]:
        """Return what is sent of it in a command of several.

        Raises:
            TypeError: An argument is of another type.
        """
        validate_is_mapping("filter", self.filter)
        is_multi = self.operation == "delete_many"
        statement: dict[str, Any] = {"q": self.filter, "limit": 0 if is_multi else 1}
        if self.collation is not None:
            statement["collation"] = validate_collation_or_none(self.collation)
        if self.hint is not None:
            statement["hint"] = hint_of(self.hint)
        if self.let is not None:
            validate_is_document_type("let", self.let)
        return statement

    @staticmethod
    def result(reply: Document) -> DeleteResult:
        """Turn the reply to it alone into what the user awaits."""
        return DeleteResult(reply, True)

    def command(self, target: Target) -> Command[DeleteResult]:
        """Return the command."""
        statement = self.statement()
        options = target.encode_options(let=self.let, comment=self.comment)
        deletes = [target.encode(statement)]
        is_multi = self.operation == "delete_many"
        body = {"delete": target.collection, "ordered": True, "deletes": deletes, **options}
        return target.write(self.operation, "delete", body, self.result, holds_multi=is_multi)


@dataclass(slots=True)
class FindAndModify:
    """The arguments of ``find_one_and_delete``, ``..._replace`` and ``..._update``."""

    operation: str
    filter: Document
    update: Update | None = None
    """None to delete the document."""

    projection: Projection | None = None
    sort: Sort | None = None
    upsert: bool | None = None
    return_document: bool = False
    array_filters: Sequence[Document] | None = None
    hint: Hint | None = None
    let: Document | None = None
    comment: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the command; and the names of PyMongo's own helper, which its methods let
    through in ``**kwargs``."""

    def command(self, target: Target) -> Command[Any]:
        """Return the command."""
        self._check()
        fields = self._fields()
        own_concern = self.options.get("writeConcern")
        concern = target.write_concern if own_concern is None else WriteConcern(**own_concern)
        self._add_options(fields)
        return Command(
            self.operation,
            "findAndModify",
            target.database,
            target.collection,
            {"findAndModify": target.collection, **top_level(target.encode(fields))},
            concern,
            target.codec_options,
            {"value": 1},
            _value,
            error_in,
        )

    def _check(self) -> None:
        # In PyMongo's order, so that of two mistakes the same one is told.
        if self.operation == "find_one_and_replace":
            validate_ok_for_replace(self.update)  # type: ignore[arg-type]
        elif self.operation == "find_one_and_update":
            validate_ok_for_update(self.update)
            validate_list_or_none("array_filters", self.array_filters)
        validate_is_mapping("filter", self.filter)

    def _fields(self) -> dict[str, Any]:
        options = dict(self.options)
        for name in ("upsert", "array_filters"):
            options.pop(name, None)
        returned = options.pop("return_document", self.return_document)
        if not isinstance(returned, bool):
            raise TypeError(
                "return_document must be ReturnDocument.BEFORE or ReturnDocument.AFTER, "
                f"not {type(returned)}"
            )
        collation = validate_collation_or_none(options.pop("collation", None))
        fields: dict[str, Any] = {"query": self.filter, "new": returned}
        _set(fields, let=self.let)
        fields.update(options)
        if self.operation == "find_one_and_delete":
            fields["remove"] = True
        else:
            fields["update"] = self.update
        _set(fields, comment=self.comment, hint=hint_of(self.hint), collation=collation)
        return fields

    def _add_options(self, fields: dict[str, Any]) -> None:
        if self.let is not None:
            validate_is_mapping("let", self.let)
        if self.projection is not None:
            fields["fields"] = fields_of(self.projection)
        if self.sort is not None:
            fields["sort"] = index_document(self.sort)
        upsert = self.options.get("upsert", self.upsert)
        if upsert is not None:
            require_bool("upsert", upsert)
            fields["upsert"] = upsert
        array_filters = self.options.get("array_filters", self.array_filters)
        if array_filters is not None:
            fields["arrayFilters"] = list(array_filters)


def _value(reply: Document) -> Any:
    return reply.get("value")


def _set(document: dict[str, Any], **values: Any) -> None:
    document.update({key: value for key, value in values.items() if value is not None})


def _is_given(option: object) -> bool:
    return option is not None


def _is_mapping(value: object) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # an abstract class takes its time


def _is_by_id(filter: object) -> bool:
    """Tell whether a filter is an ``_id``, and so matches one document at most."""
    if not isinstance(filter, dict) or filter.keys() != {"_id"}:
        return False
    value = filter["_id"]
    if isinstance(value, Mapping):  # operators
        try:
            return not any(str(name).startswith("$") for name in value)
        except BSONError:  # it is damaged, which is for the server to say
            return False
    return not isinstance(value, re.Pattern | Regex | Decimal128)


def _key_of(filter: Mapping[str, Any]) -> Hashable:
    """Return an ``_id`` that may be the same in other types."""
    value = filter["_id"]
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
