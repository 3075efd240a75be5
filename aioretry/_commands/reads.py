"""Reads of one command and one reply: arguments to commands, replies to results. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pymongo.collation import validate_collation_or_none
from pymongo.errors import ConfigurationError, OperationFailure
from pymongo.write_concern import WriteConcern

from aioretry._commands.arguments import Document, Hint, fields_of, hint_of, index_document
from aioretry._commands.command import Command, Reading
from aioretry._commands.target import Target

_NO_CONCERN = WriteConcern()
_FOUND = {"cursor": {"firstBatch": 1}}
_VALUES = {"values": 1}


@dataclass(slots=True)
class FindOne:
    """The arguments of ``find_one``, those that have a place in a plain command."""

    filter: Any = None
    projection: Any = None
    skip: int = 0
    sort: Any = None
    collation: Any = None
    hint: Hint | None = None
    max_time_ms: int | None = None
    comment: Any = None
    let: Document | None = None
    operation: str = "find_one"

    @classmethod
    def of(cls, filter: Any, options: Mapping[str, Any]) -> "FindOne | None":
        """Return them; None if the driver's own method is to take or refuse them.

        Args:
            filter: As for ``find_one``.
            options: The others by name.
        """
        if not options.keys() <= _PLAIN:
            return None
        arguments = cls(filter, **options)
        return arguments if arguments.are_plain() else None

    def are_plain(self) -> bool:
        """Tell whether PyMongo would make a plain command of them."""
        wanted = self.filter
        if isinstance(wanted, Mapping) and ("$query" in wanted or "query" in wanted):
            return False  # which PyMongo takes for something else
        numbers = self.skip, self.max_time_ms or 0
        return (
            all(type(number) is int and number >= 0 for number in numbers)
            and all(_is_plain(each) for each in (self.projection, self.sort))
            and (self.let is None or isinstance(self.let, Mapping))
        )

    def command(self, target: Target, reading: Reading) -> Command[Any]:
        """Return the command."""
        wanted = {} if self.filter is None else self.filter
        if not isinstance(wanted, Mapping):
            wanted = {"_id": wanted}
        body: dict[str, Any] = {"find": target.collection, "filter": target.encode(wanted)}
        body |= target.encode_options(
            sort=None if self.sort is None else index_document(self.sort),
            hint=hint_of(self.hint),
            let=self.let or None,
            comment=self.comment or None,  # as PyMongo
            maxTimeMS=self.max_time_ms,
            projection=None if self.projection is None else fields_of(self.projection),
            skip=self.skip or None,
        )
        body["limit"] = 1
        body["singleBatch"] = True
        if self.collation is not None:
            body["collation"] = validate_collation_or_none(self.collation)
        return _read(self.operation, "find", body, target, reading, _first, _FOUND)


_PLAIN = {"projection", "skip", "sort", "collation", "hint", "max_time_ms", "comment", "let"}


@dataclass(slots=True)
class Count:
    """The arguments of ``count_documents``."""

    filter: Any
    comment: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    operation: str = "count_documents"

    def command(self, target: Target, reading: Reading) -> Command[int]:
        """Return the command."""
        options = dict(self.options)
        part = [{f"${name}": options.pop(name)} for name in ("skip", "limit") if name in options]
        pipeline = [{"$match": self.filter}, *part]
        if self.comment is not None:
            options["comment"] = self.comment
        pipeline.append({"$group": {"_id": 1, "n": {"$sum": 1}}})
        body = {"aggregate": target.collection, "pipeline": pipeline, "cursor": {}}
        body |= _options(options)
        return _read(self.operation, "aggregate", body, target, reading, _counted)


@dataclass(slots=True)
class EstimatedCount:
    """The arguments of ``estimated_document_count``."""

    comment: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    operation: str = "estimated_document_count"

    def command(self, target: Target, reading: Reading) -> Command[int]:
        """Return the command.

        Raises:
            ConfigurationError: There is a session, which it does not support.
        """
        if "session" in self.options:
            raise ConfigurationError("estimated_document_count does not support sessions")
        body = {"count": target.collection, **self.options}
        if self.comment is not None:
            body["comment"] = self.comment
        return _read(self.operation, "count", body, target, reading, _number)


@dataclass(slots=True)
class Distinct:
    """The arguments of ``distinct``."""

    key: str
    filter: Any = None
    comment: Any = None
    hint: Hint | None = None
    options: dict[str, Any] = field(default_factory=dict)
    operation: str = "distinct"

    def command(self, target: Target, reading: Reading) -> Command[list[Any]]:
        """Return the command.

        Raises:
            TypeError: The key is no string.
            ConfigurationError: There are two filters.
        """
        if not isinstance(self.key, str):
            raise TypeError(f"key must be an instance of str, not {type(self.key)}")
        options = dict(self.options)
        if self.filter is not None:
            if "query" in options:
                raise ConfigurationError("can't pass both filter and query")
            options["query"] = self.filter
        if self.comment is not None:
            options["comment"] = self.comment
        if self.hint is not None:
            options["hint"] = self.hint
        body = {"distinct": target.collection, "key": self.key, **_options(options)}
        return _read(self.operation, "distinct", body, target, reading, _values, _VALUES)


def _is_plain(fields: object) -> bool:
    return fields is None or (isinstance(fields, Mapping | list) and bool(fields))


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as a command has them."""
    if "hint" in options:
        options["hint"] = hint_of(options["hint"])
    collation = validate_collation_or_none(options.pop("collation", None))
    if collation is not None:
        options["collation"] = collation
    return options


def _read(
    operation: str,
    name: str,
    body: dict[str, Any],
    target: Target,
    reading: Reading,
    result: Any,
    user_fields: Mapping[str, Any] | None = None,
) -> Command[Any]:
    # Encoded once, so that every attempt sends the same.
    codec_options = target.reply_codec_options if user_fields is None else target.codec_options
    return Command(
        operation,
        name,
        target.database,
        target.collection,
        body if name == "find" else target.encode_options(**body),
        _NO_CONCERN,
        codec_options,
        user_fields,
        result,
        _no_error,
        reading=reading,
    )


def _no_error(reply: Mapping[str, Any]) -> OperationFailure | None:  # noqa: ARG001
    return None


def _first(reply: Mapping[str, Any]) -> Any:
    batch = reply["cursor"]["firstBatch"]
    return batch[0] if batch else None


def _counted(reply: Mapping[str, Any]) -> int:
    found = _first(reply)
    return found["n"] if found else 0


def _number(reply: Mapping[str, Any]) -> int:
    return int(reply["n"])


def _values(reply: Mapping[str, Any]) -> list[Any]:
    return list(reply["values"])
