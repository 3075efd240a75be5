"""The steps of saving versioned documents; each may be done again after any error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, DuplicateKeyError, PyMongoError
from pymongo.read_preferences import ReadPreference

from aioretry import Outcome
from aioretry.errors import attach
from aioretry.idempotent._canonical import content_hash, snapshot
from aioretry.idempotent._repeat import RunNoMore
from aioretry.idempotent._versions import (
    Comparison,
    Fields,
    Version,
    VersionConflict,
    Versioned,
    judge,
)

__all__ = ["Save", "Steps"]

E = TypeVar("E", bound=BaseException)

_ONLY_ID = {"_id": True}
_BEHIND = "a server has answered that is behind"
_IN_DOUBT = "aioretry: too much has happened since to tell whether this was applied"


@dataclass(frozen=True, slots=True)
class Save:
    """What is to be stored, and over what."""

    id: Any
    held: Version | None
    """The version that is written over; None for a new document."""

    new: Version
    document: Mapping[str, Any]
    """As the user gave it."""

    stored: dict[str, Any]
    """The document in BSON's own types."""

    accept_equal: bool = False

    @property
    def changes(self) -> bool:
        """Whether there is anything to write."""
        return self.held is None or self.held.hash != self.new.hash


class Steps:
    """Commands on one collection, and what their answers mean.

    Each step may be a run of :func:`~aioretry.idempotent._repeat.repeat`, which takes its
    :class:`VersionConflict` as it is. What a step raises after a write that found nothing says that
    this run has changed nothing, unless an earlier one may have.

    A read also sees what may be rolled back. A success that follows from one is therefore judged
    again by what a write finds that changes nothing: it waits for the write concern as any other.
    """

    def __init__(self, collection: Any, fields: Fields) -> None:
        self._codec_options = collection.codec_options
        self._collection = collection.with_options(read_preference=ReadPreference.PRIMARY)
        self._fields = fields
        self._no_change = {"$setOnInsert": {fields.version: None}}

    def hash(self, document: Mapping[str, Any], algorithm: str = "sha256") -> str:
        """Return the hash of what counts of a document."""
        content = snapshot(self._fields.content(document), self._codec_options)
        return content_hash(content, algorithm)

    def snapshot(self, document: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return a document as it is stored, and its hash.

        Raises:
            InvalidDocument: It can't be encoded.
            ValueError: It would not be stored as it is.
        """
        stored = snapshot(document, self._codec_options)
        content = self._fields.content(stored)
        if Timestamp(0, 0) in content.values():
            raise ValueError("the server would replace an empty timestamp: give it a value")
        return stored, content_hash(content)

    def version(self, document: Mapping[str, Any]) -> Version | None:
        """Return the version that a document carries."""
        return Version.parse(document.get(self._fields.version))

    def held(self, document: Mapping[str, Any]) -> tuple[Any, Version]:
        """Return a document's id, and the version that it was read with.

        Raises:
            ValueError: It has no id, or no version.
        """
        if "_id" not in document:
            raise ValueError("the document has no _id")
        version = self.version(document)
        if version is None:
            raise ValueError(
                f"the document has no version in {self._fields.version!r}: read it as a whole, "
                "or create it"
            )
        return document["_id"], version

    def saved(self, save: Save) -> Versioned:
        """Return the result of a save that was done."""
        version = save.new if save.held is None or save.changes else save.held
        carried = {"_id": save.id, self._fields.version: version.stored()}
        return Versioned(save.id, version.hash, save.changes, {**save.document, **carried})

    def found(self, stored: Mapping[str, Any], *, written: bool = False) -> Versioned:
        """Return the result for a document that was there already."""
        identity, version = self.held(stored)
        return Versioned(identity, version.hash, written, dict(stored))

    async def create_index(self, *, unique: bool) -> str:
        """Make the index on the hashes; old documents are not in it."""
        keys = [(f"{self._fields.version}.hash", 1)]
        name: str = await self._collection.create_index(keys, unique=unique, sparse=True)
        return name

    async def read(self, identity: Any, _lost: PyMongoError | None) -> Mapping[str, Any]:
        """Return the document with an id.

        Raises:
            VersionConflict: There is none.
        """
        stored: Mapping[str, Any] | None = await self._collection.find_one(_by_id(identity))
        if stored is None:
            raise RunNoMore(VersionConflict("there is no such document"))
        return stored

    async def create(self, save: Save, lost: PyMongoError | None) -> Versioned:
        """Insert a document, or find the one that was inserted before."""
        try:
            await self._collection.insert_one(dict(save.stored))
        except DuplicateKeyError as exc:
            duplicate = exc
        else:
            return self.saved(save)
        pattern = (duplicate.details or {}).get("keyPattern") or {}
        path = f"{self._fields.version}.hash"
        stored = await self._look(_by_id(save.id))
        if stored is None and path in pattern:
            stored = await self._look({path: {"$eq": save.new.hash}})
        if stored is not None:
            self._created_before(save, stored, lost)
            stored = await self._find_safe(_by_id(stored["_id"]))
        if stored is not None:
            return self._created_before(save, stored, lost)
        if pattern == {"_id": 1}:
            error = AutoReconnect("the document that was in the way is gone again")
            raise _unwritten(error) from duplicate
        raise duplicate

    async def save(self, save: Save, lost: PyMongoError | None) -> Versioned:
        """Write over the version that was read, or find out who else has."""
        assert save.held is not None  # noqa: S101 - for type checkers
        if await self._swap(save, save.held):
            return self.saved(save)
        self._saved_before(save, save.held, await self._look(_by_id(save.id)), lost)
        return self._saved_before(save, save.held, await self._find_safe(_by_id(save.id)), lost)

    async def known(
        self, held: Mapping[str, Any], stamp: str, new: str | None, _lost: PyMongoError | None
    ) -> Versioned:
        """Return the document as it is, if the stamp that was read in it is there to stay."""
        identity, version = self.held(held)
        match = _by_id(identity) | {f"{self._fields.version}.saves": {"$eq": stamp}}
        found = await self._find_safe(match)
        if found is not None:
            return self.found(found)
        stored = await self._look(_by_id(identity))
        raise RunNoMore(_unwritten(self._conflict(version, new, stored)))

    async def delete(self, identity: Any, held: Version, lost: PyMongoError | None) -> None:
        """Delete the version that was read, or find out who has saved another one."""
        match = held.filter(self._fields.version, identity)
        if await self._collection.find_one_and_delete(match, projection=_ONLY_ID) is not None:
            return
        stored = await self._look(_by_id(identity))
        if stored is None:
            stored = await self._find_safe(_by_id(identity))
        if stored is None:
            return
        version = self.version(stored)
        if version is not None and version.is_same(held):
            raise _unwritten(AutoReconnect(_BEHIND))
        follows = version is not None and held.saves[0] in version.saves
        raise RunNoMore(_caused(self._conflict(held, None, stored), None if follows else lost))

    def _saved_before(
        self,
        save: Save,
        held: Version,
        stored: Mapping[str, Any] | None,
        lost: PyMongoError | None,
    ) -> Versioned:
        version = None if stored is None else self.version(stored)
        is_equal = version is not None and version.hash == save.new.hash
        reply_lost = lost is not None and save.changes
        match judge(version, held, save.new, reply_lost=reply_lost):
            case Comparison.SAVED if stored is not None:
                return self.found(stored, written=True)
            case Comparison.EQUAL | Comparison.IN_DOUBT if (
                save.accept_equal and is_equal and stored is not None
            ):
                return self.found(stored)
            case Comparison.BEHIND:
                raise _unwritten(AutoReconnect(_BEHIND))
            case Comparison.IN_DOUBT if lost is not None:
                lost.add_note(_IN_DOUBT)
                raise RunNoMore(lost)
        # What is stored follows from what was held, and not by this save.
        raise RunNoMore(_unwritten(self._conflict(held, save.new.hash, stored)))

    def _created_before(
        self, save: Save, stored: Mapping[str, Any], lost: PyMongoError | None
    ) -> Versioned:
        version = self.version(stored)
        if version is not None and save.new.saves[0] in version.saves:
            return self.found(stored, written=True)
        if version is not None and self._is_same(save, version):
            return self.found(stored)
        conflict = VersionConflict(
            "another document has this _id",
            new=save.new.hash,
            stored=version,
            stored_document=stored,
        )
        raise RunNoMore(_caused(conflict, lost))

    def _is_same(self, save: Save, stored: Version) -> bool:
        if stored.algorithm != "sha256":
            return stored.hash == self.hash(save.stored, stored.algorithm)
        return save.new.hash in {stored.created, stored.hash}

    async def _swap(self, save: Save, held: Version) -> bool:
        """Tell whether the document had the version that it was read with, and is saved now."""
        match = held.filter(self._fields.version, save.id)
        if not save.changes:
            return await self._find_safe(match, _ONLY_ID) is not None
        if self._fields.all_count:
            replacement = {**save.stored, self._fields.version: save.new.stored()}
            found = await self._collection.find_one_and_replace(
                match, replacement, projection=_ONLY_ID
            )
        else:
            update = self._fields.swap(self._fields.content(save.stored), save.new)
            found = await self._collection.find_one_and_update(match, update, projection=_ONLY_ID)
        return found is not None

    async def _find_safe(
        self, match: Mapping[str, Any], projection: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any] | None:
        """Return a document, or None, once that is as safe as a write is."""
        found: Mapping[str, Any] | None = await self._collection.find_one_and_update(
            match, self._no_change, projection=projection
        )
        return found

    async def _look(self, match: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Find out what is in the way of a write that has found nothing to change."""
        try:
            found: Mapping[str, Any] | None = await self._collection.find_one(match)
        except BaseException as exc:
            _unwritten(exc)
            raise
        return found

    def _conflict(
        self, held: Version, new: str | None, stored: Mapping[str, Any] | None
    ) -> VersionConflict:
        if stored is None:
            message = "there is no such document any more"
        else:
            message = "the document was saved by somebody else since it was read"
        return VersionConflict(
            message,
            expected=held,
            new=new,
            stored=None if stored is None else self.version(stored),
            stored_document=stored,
        )


def _by_id(identity: Any) -> dict[str, Any]:
    return {"_id": {"$eq": identity}}


def _unwritten(error: E) -> E:
    """Say on an error that nothing was written."""
    attach(error, Outcome.NOT_APPLIED, [])
    return error


def _caused(conflict: VersionConflict, lost: PyMongoError | None) -> VersionConflict:
    """Say on a conflict whether an earlier run may have written all the same."""
    if lost is None:
        return _unwritten(conflict)
    conflict.__cause__ = lost
    return conflict
