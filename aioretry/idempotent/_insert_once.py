"""Inserting a document once, whatever becomes of the answers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.common import validate_is_document_type
from pymongo.errors import ConfigurationError, DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference

from aioretry import Outcome
from aioretry.errors import attach, copy_report
from aioretry.idempotent._collections import Collection
from aioretry.idempotent._repeat import RunAgain, repeat

__all__ = ["InsertConflict", "InsertOnceResult", "insert_once"]

_DUPLICATE_KEY = 11000
_ID_KEYS = {"_id": 1}
_INDEX = re.compile(r"\bindex: (\S+)")

# What is read is compared and sent as it is, dates out of Python's range included.
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)


@dataclass(frozen=True, slots=True)
class InsertOnceResult:
    """A document that is stored."""

    inserted_id: Any
    """Its ``_id``."""

    was_there: bool
    """Whether it was stored when the insert was executed.

    By an earlier run, whose answer was lost, or by an earlier call with the same document.
    """


class InsertConflict(DuplicateKeyError):  # noqa: N818 - PyMongo's is DuplicateKeyError
    """Another document is stored under the ``_id``.

    ``__cause__`` is the error of the insert. The text holds neither of the documents.
    """

    existing: Mapping[str, Any]
    """The document that is stored, decoded as the collection decodes."""

    def __init__(self, existing: Mapping[str, Any]) -> None:
        super().__init__(
            "a document with another content is stored under this _id",
            _DUPLICATE_KEY,
            {"code": _DUPLICATE_KEY, "keyPattern": dict(_ID_KEYS)},
        )
        self.existing = existing


async def insert_once(
    collection: Collection,
    document: Any,
    *,
    timeout: float | None = None,  # noqa: ASYNC109 - a deadline, with an outcome
) -> InsertOnceResult:
    """Insert a document, so that it is there once, however often its answer is lost.

    The insert is repeated, with the same ``_id``, after network errors and other errors that are
    retryable: as often as time allows under a deadline, else once. So it is on a standalone server
    and with ``retryWrites=false``. A duplicate key is judged by the document that is stored under
    the ``_id``: the same bytes are success.

    Args:
        collection: Of this library, of Motor or of PyMongo's asynchronous API. ``w: "majority"`` is
            recommended: what was acknowledged below it may be rolled back.
        document: The document; it gets an ``_id`` if it has none, as by ``insert_one``.
        timeout: How long it may take, in seconds; a surrounding ``deadline()`` that is nearer
            counts. None sets no limit of its own.

    Returns:
        The ``_id``, and whether the document was there already.

    Raises:
        InsertConflict: Another document is stored under the ``_id``. Also if the own one was
            stored, and somebody has changed it meanwhile.
        DuplicateKeyError: Another document has the same value in another unique index.
        DeadlineExceeded: Time is over; the document may be there or not.
        ConfigurationError: The collection's write concern is ``w: 0``.
        ValueError: The document is raw and has no ``_id``, or it has an empty timestamp, which the
            server would replace; or ``timeout`` is negative or NaN.
        TypeError: ``document`` is no document, or ``timeout`` is no number.
        PyMongoError: Any other error of the insert, or of reading the document.
    """
    if not collection.write_concern.acknowledged:
        raise ConfigurationError(
            "insert_once() needs an acknowledged write concern; this collection has w: 0"
        )
    insert = _Insert(collection, _encode(document, collection.codec_options))
    was_there, _ = await repeat("insert_once", insert.run, timeout)
    inserted_id = insert.document["_id"] if _is_raw(document) else document["_id"]
    return InsertOnceResult(inserted_id, was_there)


class _Insert:
    def __init__(self, collection: Collection, document: RawBSONDocument) -> None:
        self.document = document
        self._collection = collection

    async def run(self, doubt: PyMongoError | None) -> bool:
        """Insert it; return whether it was there."""
        try:
            await self._collection.insert_one(self.document)
        except DuplicateKeyError as exc:
            duplicate = exc
        else:
            return False
        await self._judge(duplicate, doubt)
        return True

    async def _judge(self, duplicate: DuplicateKeyError, doubt: PyMongoError | None) -> None:
        """Return if the document is stored, and raise what its absence means if not."""
        try:
            stored = await self._stored()
        except BaseException as exc:
            attach(exc, Outcome.NOT_APPLIED, [])  # of this run, which has met a duplicate,
            copy_report(duplicate, exc)  # unless an earlier attempt of it is in doubt
            raise
        if any(each.raw == self.document.raw for each in stored):
            return
        if not _is_about_id(duplicate):
            raise duplicate
        if not stored:  # gone by now, or not yet acknowledged by a majority
            raise RunAgain(duplicate)
        options = self._collection.codec_options
        existing: Mapping[str, Any] = bson.decode(stored[0].raw, codec_options=options)
        raise InsertConflict(existing) from doubt or duplicate

    async def _stored(self) -> list[RawBSONDocument]:
        """Return what is stored under the ``_id``: on a sharded cluster perhaps several."""
        # The insert has waited for its write concern also when it met a duplicate. Only below a
        # majority there may be more to see than what is safe from being rolled back.
        level = "local" if self._collection.write_concern.document.get("w") == 1 else "majority"
        collection = self._collection.with_options(
            codec_options=_RAW,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern(level),
        )
        cursor = collection.find({"_id": {"$eq": self.document["_id"]}})
        found: list[RawBSONDocument] = await cursor.to_list(None)
        return found


def _encode(document: Any, options: CodecOptions[Any]) -> RawBSONDocument:
    """Encode a document, with its ``_id`` first, as the server stores it."""
    validate_is_document_type("document", document)
    if not _is_raw(document):
        if "_id" not in document:
            document["_id"] = ObjectId()
        encoded = RawBSONDocument(bson.encode(document, codec_options=options), _RAW)
    elif "_id" not in document:
        raise ValueError("a raw document needs an _id to be inserted once")
    else:
        fields = RawBSONDocument(document.raw, _RAW).items()
        encoded = RawBSONDocument(bson.encode(dict(fields), codec_options=_RAW), _RAW)
    if any(value == Timestamp(0, 0) for key, value in encoded.items() if key != "_id"):
        raise ValueError("the server would replace an empty timestamp: give it a value")
    return encoded


def _is_raw(document: Any) -> bool:
    return isinstance(document, RawBSONDocument)


def _is_about_id(duplicate: DuplicateKeyError) -> bool:
    """Tell whether a duplicate is, or may be, one of the ``_id``."""
    details = duplicate.details or {}
    pattern = details.get("keyPattern")
    if isinstance(pattern, Mapping):
        return dict(pattern) == _ID_KEYS
    # Servers before 4.4 give the name of the index alone, in the text.
    index = _INDEX.search(str(details.get("errmsg") or duplicate))
    return index is None or index[1].rpartition("$")[2] == "_id_"
