"""A command, whatever is sent by it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from bson.codec_options import CodecOptions
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._commands.encoded import EncodedDocuments

T = TypeVar("T")

Encode: TypeAlias = Callable[[list[Mapping[str, Any]], CodecOptions[Any]], EncodedDocuments]
"""Encodes documents as the driver does."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """How much one command may hold, as a server reports it."""

    max_document_size: int
    """In bytes."""

    max_message_size: int
    """In bytes."""

    max_statements: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How a command reads."""

    preference: Any
    """PyMongo's read preference."""

    concern: ReadConcern

    @property
    def is_of_primary(self) -> bool:
        """Whether it goes where writes go."""
        return not self.preference.mode

    @property
    def kind(self) -> str:
        """The same text for all that may go to the same servers."""
        # Preferences are equal where their texts are, and can't be hashed.
        return "" if self.is_of_primary else repr(self.preference)


@dataclass(slots=True)
class Command(Generic[T]):
    """One command, and how to read its answer."""

    operation: str
    """The method that the user called, such as ``update_one``."""

    name: str
    """The command's name, such as ``update``; the first key of ``body``."""

    database: str
    collection: str
    body: dict[str, Any]
    """The command, with what the user gave encoded already."""

    write_concern: WriteConcern
    codec_options: CodecOptions[Any]
    """Decodes the reply."""

    user_fields: Mapping[str, Any] | None
    """The fields of the reply that the user's type decoders are for."""

    result: Callable[[Mapping[str, Any]], T]
    """Turns the reply of a successful write into what the user awaits."""

    error_in: Callable[[Mapping[str, Any]], OperationFailure | None]
    """Returns the error that the reply of an accepted command speaks of, or None."""

    holds_multi: bool = False
    """Whether a statement in it may change several documents, so that it has no transaction id."""

    prepare: Callable[[CommandLimits, Encode], None] | None = None
    """Completes the command for a server's limits; called before an attempt."""

    may_block: bool = False
    """Whether preparing it may block, as reading from an iterator of the user's may."""

    statement_count: int = 1

    is_one_of_many: bool = False
    """Whether it is one of several commands of an operation."""

    may_fill_message: bool = False
    """Whether it may be as large as a message, because its documents were looked at one by one."""

    reading: Reading | None = None
    """How it reads; None if it writes."""

    @property
    def is_atomic(self) -> bool:
        """Whether an error of the server means that it has changed nothing."""
        return self.statement_count == 1 and not self.holds_multi

    @property
    def operation_count(self) -> int:
        """How many operations travel in it."""
        return self.statement_count if self.operation == "insert_one" else 1

    @property
    def namespace(self) -> str:
        """Database and collection, joined by a dot; of what has no collection, the database."""
        return f"{self.database}.{self.collection}" if self.collection else self.database
