"""Entries of effects that are to follow a transaction, stored by that."""

import logging
import math
from collections.abc import Collection as Some
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import ReadPreference
from pymongo.errors import InvalidOperation, OperationFailure
from pymongo.read_concern import ReadConcern

from aioretry._faces import Client, Collection, Session, WritingCollection, settled
from aioretry.errors import refusal
from aioretry.streams._checks import require_seconds, require_texts
from aioretry.streams._leases import MAJORITY

_PENDING: Final = "pending"
_DELIVERED: Final = "delivered"
_DEAD: Final = "dead"
_OTHER_OPTIONS, _SAME_NAME = 85, 86
_WEEK = 7 * 86_400.0
_MOST_COUNTED = 100_000
_MOST_TEXT = 1000
# Reads whatever there can be.
_LENIENT: CodecOptions[Mapping[str, Any]] = CodecOptions(
    unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_MS
)

_log = logging.getLogger("aioretry.outbox")


@dataclass(frozen=True, slots=True)
class Entry:
    """What is to be done outside the database, for a transaction that was committed."""

    id: str
    """What tells it from all others, each time that it is handed on."""

    kind: str
    """What is to be done."""

    key: str | None
    """Among which entries it has its place; None if among none."""

    payload: Mapping[str, Any]
    """With what."""

    added: datetime
    """When it was added, by the server's clock."""

    attempts: int
    """How often it was handed on in vain."""

    error: str | None
    """What the latest of these attempts failed with."""

    fence: int = 0
    """The number of the lease under which it is handed on; later leases have larger ones."""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """How an outbox is. More than 100,000 entries are counted as so many."""

    pending: int
    """How many entries are to be handed on."""

    dead: int
    """How many were given up, and kept until somebody retries or discards them."""

    oldest_seconds: float
    """For how long the oldest of the pending ones has waited, in seconds; 0 if there is none."""


class Outbox:
    """Entries of effects outside the database, each added by the transaction that it belongs to.

    What was committed has its entry, and what was not has none. A :class:`Relay` hands them on.

    Args:
        collection: Where they are kept; a collection of its own.
        keep_seconds: For how long delivered entries are kept, in seconds; then the server removes
            them, within a minute or so. By default a week.

    Raises:
        TypeError: ``collection`` is none of a :class:`~aioretry.RetryClient` or of an
            :class:`~aioretry.pymongo.AsyncRetryClient`, or ``keep_seconds`` no number.
        ValueError: ``keep_seconds`` is out of its range.
    """

    def __init__(self, collection: Collection, *, keep_seconds: float = _WEEK) -> None:
        if not isinstance(collection, WritingCollection):
            raise TypeError(
                "collection must be a collection of a RetryClient or of an AsyncRetryClient, "
                f"not {collection!r}"
            )
        require_seconds(keep_seconds=keep_seconds)
        self.collection: Collection = collection
        self.client: Client = cast(Client, collection.database.client)
        self.full_name: str = f"{collection.database.name}.{collection.name}"
        self._keep_seconds = math.ceil(keep_seconds)
        self._codec: CodecOptions[Any] = collection.codec_options
        # Each is decoded by itself: one that can't be would keep all others from being read.
        self._entries: Collection = collection.with_options(
            codec_options=self._codec.with_options(document_class=RawBSONDocument),
            write_concern=MAJORITY,
            read_concern=ReadConcern("majority"),  # what is rolled back has no effects
            read_preference=ReadPreference.PRIMARY,
        )
        self._ends = self._entries.coalesced()

    async def add(
        self, session: Session, kind: str, payload: Mapping[str, Any], *, key: str | None = None
    ) -> str:
        """Add an entry, as a part of a transaction.

        Entries of one key are handed on one after the other: in the order of their transactions,
        as long as these can't be told to be at the same time. That is so where one has begun after
        the other was committed, and where both write to the same document.

        Args:
            session: The session of the transaction.
            kind: What is to be done, for the function that does it.
            payload: With what; it is stored with the entry.
            key: Among which entries it has its place, such as the id of an order; None hands it on
                whenever there is time.

        Returns:
            The entry's id.

        Raises:
            InvalidOperation: The session is in no transaction. Nothing was sent.
            TypeError: An argument is of another type.
            ValueError: ``kind`` or ``key`` is empty.
            PyMongoError: What an insert in a transaction raises.
        """
        require_texts(kind=kind, **({} if key is None else {"key": key}))
        if not kind or key == "":
            raise ValueError("kind and key must not be empty")
        if not isinstance(payload, Mapping):
            raise TypeError(f"payload must be a mapping, not {type(payload).__name__}")
        if not getattr(session, "in_transaction", False):
            raise refusal(
                InvalidOperation(
                    "add() needs a session in a transaction: without one, an entry could be stored "
                    "and the write that it belongs to not, or the other way round"
                )
            )
        name = str(ObjectId())
        entry = {
            "_id": name,
            "state": _PENDING,
            "at": Timestamp(0, 0),  # the server puts in its time, which only grows
            "key": name if key is None else key,
            "kind": kind,
            "payload": payload,
            "attempts": 0,
        }
        await self.collection.insert_one(entry, session=session)
        return name

    async def prepare(self) -> None:
        """Make the collection's indexes; :meth:`Relay.run` does so, too.

        Raises:
            PyMongoError: What ``create_index`` raises; if another index is in the way, a note says
                what to do.
        """
        # By time; with the key, so that those that are passed over are not read. An entry is in one
        # index at a time, beside that of the ids: each costs writes on every member.
        for state, fields in (_PENDING, ("state", "at", "key")), (_DEAD, ("state", "at")):
            index = [(field, 1) for field in fields]
            try:
                await self._entries.create_index(index, partialFilterExpression={"state": state})
            except OperationFailure as exc:
                if exc.code in {_OTHER_OPTIONS, _SAME_NAME}:
                    which = f"{self.full_name} on {', '.join(fields)}"
                    exc.add_note(f"drop the existing index of {which}: this makes its own")
                raise
        seconds = self._keep_seconds
        try:
            await self._entries.create_index("delivered", expireAfterSeconds=seconds, sparse=True)
        except OperationFailure as exc:
            if exc.code != _OTHER_OPTIONS:
                raise
            change = {"keyPattern": {"delivered": 1}, "expireAfterSeconds": seconds}
            await self._entries.database.command("collMod", self._entries.name, index=change)

    async def status(self) -> OutboxStatus:
        """Tell how many entries there are, and for how long the oldest has waited.

        Raises:
            PyMongoError: The servers could not be asked.
        """
        pending, dead = [
            await self._entries.count_documents({"state": state}, limit=_MOST_COUNTED)
            for state in (_PENDING, _DEAD)
        ]
        age = {"$divide": [{"$subtract": ["$$NOW", {"$toDate": "$at"}]}, 1000]}
        pipeline: list[dict[str, Any]] = [
            {"$match": {"state": _PENDING, "at": {"$type": "timestamp"}}},
            {"$sort": {"at": 1}},
            {"$limit": 1},
            {"$project": {"age": age}},
        ]
        cursor = await settled(self._entries.aggregate(pipeline))
        ages = [found["age"] for found in await cursor.to_list(None)]
        return OutboxStatus(pending, dead, max([0.0, *ages]))

    async def dead(self, limit: int = 100) -> list[Entry]:
        """Return entries that were given up, the oldest first, with the reason of each.

        Args:
            limit: How many at most.

        Raises:
            PyMongoError: The servers could not be asked.
        """
        entries = []
        for stored in await self._found({"state": _DEAD}, limit):
            try:
                entries.append(_entry(bson.decode(stored.raw, self._codec)))
            except Exception:  # noqa: BLE001 - which is the reason why it was given up
                entries.append(_remains(bson.decode(stored.raw, _LENIENT)))
        return entries

    async def retry(self, entry_id: str) -> bool:
        """Have an entry that was given up handed on again, with all its attempts.

        Those of its key that came after it have been handed on without it.

        Args:
            entry_id: Its id.

        Returns:
            Whether there is such an entry.

        Raises:
            PyMongoError: What ``update_one`` raises.
        """
        again = {"$set": {"state": _PENDING, "attempts": 0}}
        done = await self._entries.update_one({"_id": entry_id, "state": _DEAD}, again)
        return bool(done.matched_count)

    async def discard(self, entry_id: str) -> bool:
        """Remove an entry that was given up.

        Args:
            entry_id: Its id.

        Returns:
            Whether there was such an entry.

        Raises:
            PyMongoError: What ``delete_one`` raises.
        """
        done = await self._entries.delete_one({"_id": entry_id, "state": _DEAD})
        return bool(done.deleted_count)

    async def pending(self, without: Some[str], limit: int) -> dict[str, list[Entry]]:
        """Return the oldest entries that are to be handed on, by their keys.

        What is no entry, or can't be decoded by the collection's codec options, is given up.

        Args:
            without: Keys whose entries are passed over.
            limit: How many at most.

        Raises:
            PyMongoError: The servers could not be asked.
        """
        found: dict[str, list[Entry]] = {}
        which = {"state": _PENDING, "key": {"$nin": [*without]}}
        for stored in await self._found(which, limit):
            try:
                entry = _entry(bson.decode(stored.raw, self._codec))
            except Exception as exc:  # noqa: BLE001 - whatever it is, the others are handed on
                await self._refuse(bson.decode(stored.raw, _LENIENT)["_id"], exc)
            else:
                found.setdefault(entry.key or entry.id, []).append(entry)
        return found

    async def end(self, entry: Entry) -> None:
        """Take note that an entry was delivered, whoever has done so.

        Raises:
            PyMongoError: What ``update_one`` raises.
        """
        done = {"$set": {"state": _DELIVERED}, "$currentDate": {"delivered": True}}
        # Also one that others have given up since: it was delivered all the same.
        await self._ends.update_one({"_id": entry.id}, done)

    async def fail(self, entry: Entry, error: str, *, is_dead: bool) -> None:
        """Take note of an attempt in vain, unless somebody else has been at work on the entry.

        Args:
            entry: As it was before.
            error: What has happened.
            is_dead: Whether it is given up.

        Raises:
            PyMongoError: What ``update_one`` raises.
        """
        change: dict[str, Any] = {"attempts": entry.attempts + 1, "error": error}
        if is_dead:
            change["state"] = _DEAD
        as_it_was = {"_id": entry.id, "state": _PENDING, "attempts": entry.attempts}
        await self._entries.update_one(as_it_was, {"$set": change})

    async def _found(self, which: Mapping[str, Any], limit: int) -> list[RawBSONDocument]:
        cursor = self._entries.find(which).sort("at", 1).limit(limit)
        found: list[RawBSONDocument] = await cursor.to_list(None)
        return found

    async def _refuse(self, name: object, reason: Exception) -> None:
        text = f"it can't be read: {text_of(reason)}"
        change = {"$set": {"state": _DEAD, "error": text}}
        await self._entries.update_one({"_id": name, "state": _PENDING}, change)
        _log.warning("an entry that can't be read is given up: %s", type(reason).__name__)


def text_of(error: BaseException) -> str:
    """Return what an error says, as it can be stored: a stranger has raised it."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - of whatever kind
        text = type(error).__name__
    return text[:_MOST_TEXT].encode(errors="backslashreplace").decode()


def _remains(document: Mapping[str, Any]) -> Entry:
    """Return what can be told of an entry that can't be read."""
    at = document.get("at")
    added = at if isinstance(at, Timestamp) else Timestamp(0, 0)
    kind, error = str(document.get("kind")), document.get("error")
    return Entry(str(document["_id"]), kind, None, {}, added.as_datetime(), 0, error)


def _entry(document: Mapping[str, Any]) -> Entry:
    name, key = document["_id"], document["key"]
    require_texts(_id=name, key=key, kind=document["kind"])
    if not isinstance(document["payload"], Mapping):
        raise TypeError("payload must be a document")
    return Entry(
        name,
        document["kind"],
        None if key == name else key,
        document["payload"],
        document["at"].as_datetime(),
        int(document["attempts"]),
        document.get("error"),
    )
