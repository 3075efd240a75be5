"""An update that has a token, and what is sent for it; nothing here awaits anything.

An element of the array is a token (``t``) with the times at which it was made (``m``) and may be
forgotten (``f``), a digest of the update (``h``) and the update itself (``u``), encoded, so that
anybody can finish it. One that is done (``d``) has lost its update and is called a mark.
"""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import bson
from bson import ObjectId
from bson.binary import Binary
from bson.codec_options import CodecOptions, DatetimeConversion

Token: TypeAlias = ObjectId | Binary
"""A caller's own token is an ObjectId; one that was made here is a UUID."""

NEUTRAL: CodecOptions[Any] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
"""Decodes so that encoding again gives the same, whatever the collection's own options are."""

APPLIED, REFUSED = "applied", "refused"


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """An update of one document, under the token that it is applied once by."""

    id: Any
    """The document's ``_id``."""

    token: Token
    """What the update is known by."""

    encoded: bytes
    """The update operators and array filters."""

    def matching(self, field: str) -> dict[str, Any]:
        """Return the filter that finds the document while the update is not applied."""
        waits = {"t": self.token, "d": {"$exists": False}}
        return {"_id": {"$eq": self.id}, field: {"$elemMatch": waits}}

    def finishing(self, field: str, *, mark: bool) -> dict[str, Any]:
        """Return the update operators, and what takes the token away or leaves a mark of it."""
        operators: dict[str, Any] = {
            name: dict(fields) for name, fields in bson.decode(self.encoded, NEUTRAL)["u"].items()
        }
        for name, fields in self.withdrawing(field, mark=APPLIED if mark else None).items():
            operators.setdefault(name, {}).update(fields)
        return operators

    def withdrawing(self, field: str, *, mark: str | None) -> dict[str, dict[str, Any]]:
        """Return what takes the token away without the update, or leaves a mark of it."""
        if mark is None:
            return {"$pull": {field: {"t": self.token}}}
        return {"$set": {f"{field}.$.d": mark}, "$unset": {f"{field}.$.u": ""}}

    def array_filters(self) -> list[dict[str, Any]] | None:
        """Return which array elements the update is for."""
        filters: list[dict[str, Any]] | None = bson.decode(self.encoded, NEUTRAL).get("a")
        return filters


@dataclass(frozen=True, slots=True)
class NewUpdate:
    """A pending update, and the times that hold for adding its token."""

    update: PendingUpdate
    made: datetime
    lifetime: timedelta
    is_shared: bool
    """Whether the token is the caller's, so that another process may be using it right now."""

    upsert: bool
    """Whether to create the document if there is none."""

    @classmethod
    def of(
        cls,
        id: Any,
        update: Mapping[str, Any],
        array_filters: Sequence[Mapping[str, Any]] | None,
        token: ObjectId | None,
        *,
        lifetime: timedelta,
        upsert: bool,
        options: CodecOptions[Any],
    ) -> "NewUpdate":
        """Encode an update, and make a token if the caller gave none.

        Raises:
            InvalidDocument: It can't be encoded.
        """
        content = {"u": update} | ({} if array_filters is None else {"a": list(array_filters)})
        neutral_id = bson.decode(bson.encode({"_id": id}, codec_options=options), NEUTRAL)["_id"]
        encoded = bson.encode(content, codec_options=options)
        made = datetime.now(UTC) if token is None else token.generation_time
        own = Binary.from_uuid(uuid.uuid4()) if token is None else token
        update_of_id = PendingUpdate(neutral_id, own, encoded)
        return cls(update_of_id, made, lifetime, is_shared=token is not None, upsert=upsert)

    @property
    def expires(self) -> datetime:
        """From when on the server refuses to add the token."""
        return self.made + self.lifetime

    @property
    def forgotten(self) -> datetime:
        """From when on a mark may be removed."""
        return self.expires + self.lifetime

    @property
    def digest(self) -> bytes:
        """What tells this update from another one under the same token."""
        return hashlib.sha256(self.update.encoded).digest()[:16]

    @property
    def element(self) -> dict[str, Any]:
        """What is added to the array."""
        return {
            "t": self.update.token,
            "m": self.made,
            "f": self.forgotten,
            "h": self.digest,
            "u": self.update.encoded,
        }

    def adding_filter(self, field: str, max_pending: int) -> dict[str, Any]:
        """Return the filter that finds the document as long as the token may be added.

        The server compares with its own clock when the command arrives, however late that is.
        """
        return {
            "_id": {"$eq": self.update.id},
            f"{field}.t": {"$ne": self.update.token},
            f"{field}.{max_pending - 1}": {"$exists": False},
            "$expr": self._is_in_time,
        }

    def creating(self, field: str, max_pending: int) -> list[dict[str, Any]]:
        """Return the pipeline that adds the token where it may be, to a new document too."""
        array = {"$ifNull": [f"${field}", []]}
        tokens = {"$ifNull": [f"${field}.t", []]}
        may_add = [
            self._is_in_time,
            {"$lt": [{"$size": array}, max_pending]},
            {"$not": {"$in": [self.update.token, tokens]}},
        ]
        added = {"$concatArrays": [array, [{"$literal": self.element}]]}
        return [{"$set": {field: {"$cond": [{"$and": may_add}, added, array]}}}]

    @property
    def _is_in_time(self) -> dict[str, Any]:
        earliest = self.made - self.lifetime
        return {"$and": [{"$lt": ["$$NOW", self.expires]}, {"$gt": ["$$NOW", earliest]}]}

    def looking(self, field: str) -> list[dict[str, Any]]:
        """Return the pipeline that tells what there is of the token."""
        array = {"$cond": [{"$isArray": f"${field}"}, f"${field}", []]}
        own = {"$eq": ["$$each.t", self.update.token]}
        return [
            {"$match": {"_id": {"$eq": self.update.id}}},
            {
                "$project": {
                    "_id": 0,
                    "size": {"$size": array},
                    "found": {"$filter": {"input": array, "as": "each", "cond": own}},
                    "is_expired": {"$gte": ["$$NOW", self.expires]},
                    "is_forgotten": {"$gte": ["$$NOW", self.forgotten]},
                    "is_early": {"$lte": ["$$NOW", self.made - self.lifetime]},
                }
            },
        ]


def validate_update(update: object, field: str) -> None:
    """Raise an error if an update can't be applied by way of a token.

    Raises:
        TypeError: It is no mapping of operators to mappings.
        ValueError: It is empty, a replacement, has ``$setOnInsert`` or the positional ``$``, or
            touches the field of the tokens.
    """
    if isinstance(update, list | tuple):
        raise TypeError("update must be a mapping of update operators: a pipeline has no place")
    if not isinstance(update, Mapping):
        raise TypeError(
            f"update must be a mapping of update operators, not {type(update).__name__}"
        )
    if not update:
        raise ValueError("update must have an operator: it is empty")
    for name, fields in update.items():
        if not isinstance(name, str) or not name.startswith("$"):
            raise ValueError(f"update must have operators only, as $inc, not {name!r}")
        if name == "$setOnInsert":
            raise ValueError("update must not have $setOnInsert: the document exists by then")
        if not isinstance(fields, Mapping):
            raise TypeError(f"{name} must be given a mapping, not {type(fields).__name__}")
        if not fields:
            raise ValueError(f"{name} must be given a field: it is empty")
        for path in _paths(name, fields):
            _validate_path(path, field)


def validate_array_filters(array_filters: object) -> None:
    """Raise an error if array filters are of a type that no server takes.

    Raises:
        TypeError: They are no sequence of mappings.
    """
    if array_filters is None:
        return
    if not isinstance(array_filters, list | tuple):
        raise TypeError(
            f"array_filters must be a list of mappings, not {type(array_filters).__name__}"
        )
    for each in array_filters:
        if not isinstance(each, Mapping):
            raise TypeError(f"array_filters must hold mappings, not {type(each).__name__}")


def _paths(name: str, fields: Mapping[Any, Any]) -> list[str]:
    targets = fields.values() if name == "$rename" else ()
    return [str(path) for path in (*fields, *targets)]


def _validate_path(path: str, field: str) -> None:
    parts = path.split(".")
    if parts[0] == field:
        raise ValueError(f"update must not touch {path!r}: {field!r} is where the tokens are")
    if "$" in parts:
        raise ValueError(f"update must not have the positional $ in {path!r}: use array_filters")
