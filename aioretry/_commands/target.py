"""Where a write goes, and the options that it goes with. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo.write_concern import WriteConcern

from aioretry._commands.arguments import Document
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
    namespace: str
    """Database and collection, joined by a dot."""

    is_acknowledged: bool
    """Whether a server says what came of it."""

    @classmethod
    def of(
        cls,
        database: str,
        collection: str,
        codec_options: CodecOptions[Any],
        write_concern: WriteConcern,
    ) -> "Target":
        """Return the target with what follows from its options."""
        return cls(
            database,
            collection,
            codec_options,
            _of_replies(codec_options),
            write_concern,
            f"{database}.{collection}",
            write_concern.acknowledged,
        )

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
        if type(document) is not dict and isinstance(document, RawBSONDocument):
            return document
        return RawBSONDocument(bson.encode(document, codec_options=self.codec_options))

    def size(self, document: Document) -> int:
        """Return how many bytes a document has once it is encoded."""
        return len(self.encode(document).raw)

    def encode_options(self, **options: Any) -> dict[str, Any]:
        """Encode the options that the user gave; those that are None are left out."""
        given = {name: value for name, value in options.items() if value is not None}
        return top_level(self.encode(given)) if given else given


def _of_replies(codec_options: CodecOptions[Any]) -> CodecOptions[Any]:
    """Return the options for the replies of writes."""
    global _latest_of_replies  # noqa: PLW0603 - of one client they are the same, and take a while
    given, made = _latest_of_replies
    if given is codec_options and made is not None:
        return made
    made = codec_options.with_options(unicode_decode_error_handler="replace", document_class=dict)
    _latest_of_replies = codec_options, made
    return made


_latest_of_replies: tuple[object, CodecOptions[Any] | None] = (None, None)


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


def top_level(document: RawBSONDocument) -> dict[str, Any]:
    """Return the fields of a document as they were encoded."""
    return dict(RawBSONDocument(document.raw, _RAW))
