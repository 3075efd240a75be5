"""What a version holds, what counts for it, and who has won. Pure."""

import enum
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pymongo.errors import PyMongoError

__all__ = ["Comparison", "Fields", "Version", "VersionConflict", "Versioned", "judge", "stamp_of"]

_HASH = re.compile(r"sha1:[0-9a-f]{40}|sha256:[0-9a-f]{64}")
_BARE_SHA1 = re.compile(r"[0-9a-f]{40}")
_STAMP_LENGTH = 24


class VersionConflict(PyMongoError):  # noqa: N818 - it says what happened, as the driver's do
    """The document is not, or no longer, as whoever wanted to write it has seen it.

    Nothing was written. The text holds no content; the attributes say who won.

    Args:
        message: What happened.
        expected: The version that was to be written over; None for a document that was to be new.
        new: The version that was to be written; None for a delete.
        stored: The version that is stored; None if there is none.
        stored_document: The document that is stored; None if there is none.
    """

    expected_version: str | None
    """The hash of the content that was to be written over; None if there was to be none."""

    new_version: str | None
    """The hash of the content that was to be written; None for a delete."""

    stored_version: str | None
    """The hash of the content that won; None if the document is gone or carries no version."""

    stored_by: str | None
    """The ``writer`` who saved the stored version, if it has said its name."""

    stored_document: Mapping[str, Any] | None
    """The document that won; None if it is gone."""

    def __init__(
        self,
        message: str,
        *,
        expected: "Version | None" = None,
        new: str | None = None,
        stored: "Version | None" = None,
        stored_document: Mapping[str, Any] | None = None,
    ) -> None:
        self.expected_version = expected.hash if expected else None
        self.new_version = new
        self.stored_version = stored.hash if stored else None
        self.stored_by = stored.by if stored else None
        self.stored_document = stored_document
        super().__init__(
            f"{message} (stored: {self.stored_version}, expected: {self.expected_version}, "
            f"new: {self.new_version})"
        )

    @property
    def is_deleted(self) -> bool:
        """Whether there is no such document any more."""
        return self.stored_document is None

    @property
    def is_equal(self) -> bool:
        """Whether the content that won is the one that was to be written."""
        return self.new_version is not None and self.stored_version == self.new_version


@dataclass(frozen=True, slots=True)
class Versioned:
    """A document and its version, after it was created, saved or updated."""

    id: Any
    """The document's ``_id``."""

    version: str
    """The hash of its content, as ``sha256:`` and 64 hexadecimal digits."""

    written: bool
    """Whether it was written; False if it was stored like that already.

    Also True when an earlier attempt, or an earlier call with the same key, has written it.
    """

    document: dict[str, Any] = field(repr=False)
    """The document with its version, to be changed and saved next."""


@dataclass(frozen=True, slots=True)
class Version:
    """What the version field of a document holds."""

    hash: str
    """Of the content, with the mark of its algorithm."""

    saves: tuple[str, ...]
    """The stamps of the latest saves, the newest first; of an old document, its version as it is.

    A hash alone can't tell a document that was changed from one that was changed and changed back.
    """

    created: str | None = None
    """The hash of the content that the document was created with; None for old documents."""

    by: str | None = None
    """Who has saved it."""

    is_old: bool = False
    """Whether it is a mere hash, as others have stored it."""

    @classmethod
    def parse(cls, value: object) -> "Version | None":
        """Return what a version field holds, or None if it is not a version."""
        if isinstance(value, str):
            if _BARE_SHA1.fullmatch(value):
                return cls(f"sha1:{value}", (value,), is_old=True)
            return cls(value, (value,), is_old=True) if _HASH.fullmatch(value) else None
        if not isinstance(value, Mapping):
            return None
        digest, saves = value.get("hash"), value.get("saves")
        if not (isinstance(digest, str) and _HASH.fullmatch(digest) and isinstance(saves, list)):
            return None
        if not saves or not all(isinstance(stamp, str) for stamp in saves):
            return None
        return cls(digest, tuple(saves), value.get("created"), value.get("by"))

    @property
    def algorithm(self) -> str:
        """The name of the hash function."""
        return self.hash.partition(":")[0]

    def next(self, hash: str, stamp: str, by: str | None, history: int) -> "Version":
        """Return the version that follows this one."""
        return Version(hash, (stamp, *self.saves)[:history], self.created, by)

    def stored(self) -> dict[str, Any] | str:
        """Return what the version field holds."""
        if self.is_old:
            return self.saves[0]
        named = {"hash": self.hash, "created": self.created, "by": self.by}
        known: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        return known | {"saves": list(self.saves)}

    def filter(self, field: str, id: Any) -> dict[str, Any]:
        """Return what finds the document as long as it has this version."""
        # An _id that holds an operator is a value all the same.
        found: dict[str, Any] = {"_id": {"$eq": id}}
        if self.is_old:
            return found | {field: {"$eq": self.saves[0]}}
        # The stamp of a key comes back if the key does, once it is forgotten; all of them don't.
        return found | {
            f"{field}.saves": {"$eq": list(self.saves)},
            f"{field}.hash": {"$eq": self.hash},
        }

    def is_same(self, other: "Version") -> bool:
        """Tell whether another version is this one."""
        return (self.hash, self.saves) == (other.hash, other.saves)


class Comparison(enum.Enum):
    """What a compare-and-swap that found nothing means."""

    SAVED = enum.auto()
    """It was done before: its reply was lost, or its key was used before."""

    EQUAL = enum.auto()
    """Somebody else has saved the same content."""

    BEHIND = enum.auto()
    """The server that answered does not yet know the newest version."""

    IN_DOUBT = enum.auto()
    """A reply was lost, and too much has happened since to tell whether it was done."""

    CONFLICT = enum.auto()
    """Somebody else was first."""


def judge(stored: Version | None, held: Version, new: Version, *, reply_lost: bool) -> Comparison:
    """Tell what the stored version means for a save.

    Args:
        stored: The version that is stored; None if the document has none any more.
        held: The version that was to be written over.
        new: The version that was to be written.
        reply_lost: Whether an earlier attempt may have been applied.
    """
    if stored is None:
        return Comparison.IN_DOUBT if reply_lost else Comparison.CONFLICT
    if new.saves[0] in stored.saves:
        return Comparison.SAVED
    if stored.is_same(held):
        return Comparison.BEHIND
    if reply_lost and held.saves[0] not in stored.saves:
        return Comparison.IN_DOUBT
    return Comparison.EQUAL if stored.hash == new.hash else Comparison.CONFLICT


def stamp_of(purpose: str, key: str, *parts: str) -> str:
    """Return the stamp that a key always gives."""
    digest = hashlib.sha256(purpose.encode())
    for part in (key, *parts):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:_STAMP_LENGTH]


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a document count for its version."""

    version: str
    only: frozenset[str] | None
    ignored: frozenset[str]

    @classmethod
    def of(
        cls, version: object, only: Iterable[str] | None, ignored: Iterable[str] | None
    ) -> "Fields":
        """Check the names.

        Raises:
            TypeError: A name is not a string, or a string was given for a set of names.
            ValueError: A name can't be that of such a field, or both sets were given.
        """
        if only is not None and ignored is not None:
            raise ValueError("give fields or ignored, not both")
        name = _field_name("version_field", version)
        chosen = None if only is None else _names("fields", only, name)
        if chosen is not None and not chosen:
            raise ValueError("fields must name a field")
        return cls(
            name, chosen, frozenset() if ignored is None else _names("ignored", ignored, name)
        )

    @property
    def all_count(self) -> bool:
        """Whether every field counts."""
        return self.only is None and not self.ignored

    def count(self, name: str) -> bool:
        """Tell whether a field counts."""
        if name in {"_id", self.version} or name in self.ignored:
            return False
        return self.only is None or name in self.only

    def content(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return what counts of a document."""
        return {name: value for name, value in document.items() if self.count(name)}

    def swap(self, content: Mapping[str, Any], version: Version) -> Any:
        """Return the update that stores a content and leaves alone what does not count."""
        new = {**content, self.version: version.stored()}
        if self.only is not None:
            gone = dict.fromkeys(sorted(self.only - set(content)), "")
            return {"$set": new, "$unset": gone} if gone else {"$set": new}
        kept = {name: f"${name}" for name in ("_id", *sorted(self.ignored))}
        return [{"$replaceWith": {"$mergeObjects": [{"$literal": new}, kept]}}]


def _names(argument: str, names: object, version: str) -> frozenset[str]:
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise TypeError(f"{argument} must be names of fields, not {type(names).__name__}")
    found = frozenset(_field_name(argument, name) for name in names)
    if version in found:
        raise ValueError(f"{argument} can't have the version field {version!r}")
    return found


def _field_name(argument: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be of strings, not {type(name).__name__}")
    if not name or name == "_id" or name[0] == "$" or "." in name or "\0" in name:
        raise ValueError(f"{argument} must name fields at the top of a document, not {name!r}")
    return name
