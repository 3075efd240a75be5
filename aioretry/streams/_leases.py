"""Who may write the aggregates: one worker for each part, or one rebuild."""

import contextlib
import datetime as dt
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp
from pymongo import ReadPreference, ReturnDocument, UpdateOne
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry import deadline
from aioretry._faces import Client, Collection, Database, Session, settled
from aioretry.streams._errors import LeaseLostError

MAJORITY: Final = WriteConcern(w="majority")
PLAIN: Final = CodecOptions[dict[str, Any]](tz_aware=True)
LEASES: Final = "aioretry.leases"

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
_NOT_OVER = {"$gt": ["$expires", "$$NOW"]}
# Without an owner, so that a renewal that comes late finds nothing to renew.
_GIVEN = {"$set": {"expires": _EPOCH}, "$unset": {"owner": "", "session": ""}}


class LeaseKind(enum.Enum):
    """What a lease is held for."""

    UPDATE = "update"
    """To follow the source."""

    REBUILD = "rebuild"
    """To count everything anew."""

    RELAY = "relay"
    """To hand on the entries of an outbox."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to do one part of some work, as long as nobody has taken it over."""

    part: int
    """Which part."""

    owner: str
    """Who holds it."""

    kind: LeaseKind
    """What for."""

    fence: int
    """Its number: each lease of a part has a larger one than all before."""


class Leases:
    """The leases of one aggregator, or outbox: a record for each part.

    Times are the server's (``$$NOW``). Wrong clocks make a lease end early or late, and no more: it
    is its number that every commit checks.

    Args:
        database: Where they are kept.
        name: Whose they are.
        seconds: How long a lease lasts without being renewed.
    """

    def __init__(self, database: Database, name: str, seconds: float) -> None:
        self._records: Collection = database.get_collection(
            LEASES,
            codec_options=PLAIN,
            read_preference=ReadPreference.PRIMARY,
            write_concern=MAJORITY,
            read_concern=ReadConcern("majority"),
        )
        self.client = cast(Client, database.client)
        self.name = name
        self.seconds = seconds

    async def take(
        self, part: int, kind: LeaseKind, owner: str, session: Session | None = None
    ) -> Lease | None:
        """Take a lease, if it is nobody's; an owner may take its own over.

        Args:
            part: Which.
            kind: What for. While a rebuild waits, nobody gets one for updates.
            owner: Who wants it: another name for each worker.
            session: What its transactions will be in, if there are any. Whoever takes the lease
                over ends them, so that it is to be retired and not ended.

        Returns:
            The lease, or None if it is somebody's.

        Raises:
            PyMongoError: It may have been taken, or not.
        """
        async with deadline(self.seconds):
            found = await self._look(part, kind, owner)
            if not found["is_free"]:
                return None
            await self._end_transactions(found.get("session"))
            taken: Mapping[str, Any] | None = await self._records.find_one_and_update(
                {"_id": self._id(part), "$expr": self._is_free(kind, owner)},
                [
                    {
                        "$set": {
                            "owner": {"$literal": owner},
                            "kind": kind.value,
                            "fence": {"$add": ["$fence", 1]},
                            "since": "$$NOW",
                            "expires": self._end(),
                            "session": {"$literal": session and session.session_id},
                        }
                    },
                    *([{"$unset": "wanted"}] if kind is LeaseKind.REBUILD else []),
                ],
                return_document=ReturnDocument.AFTER,
            )
        return None if taken is None else Lease(part, owner, kind, taken["fence"])

    async def renew(self, lease: Lease, session: Session | None = None) -> bool:
        """Make a lease last longer.

        Args:
            lease: The lease.
            session: A session; in its transaction, which conflicts with a takeover then, if one
                runs.

        Returns:
            Whether a rebuild waits for it.

        Raises:
            LeaseLostError: It is somebody else's; or it has expired, and is for updates. The work
                of others is worth waiting for as long as nobody else wants to.
        """
        limit = {"$expr": _NOT_OVER} if lease.kind is LeaseKind.UPDATE else {}
        record: Mapping[str, Any] | None = await self._records.find_one_and_update(
            {**self._of(lease), **limit},
            [{"$set": {"expires": self._end()}}],
            session=session,
            return_document=ReturnDocument.AFTER,
        )
        if record is None:
            raise LeaseLostError(f"{lease.owner} has lost its lease {lease.fence} of {self.name}")
        if "wanted" not in record or lease.kind is LeaseKind.REBUILD:
            return False
        now = record["expires"] - dt.timedelta(seconds=self.seconds)
        return bool(record["wanted"] > now)

    async def renew_all(self, leases: Iterable[Lease]) -> Timestamp:
        """Make leases last longer; return a time that nothing acknowledged before is later than.

        Raises:
            LeaseLostError: As for :meth:`renew`.
        """
        async with (
            deadline(self.seconds),
            await settled(self.client.start_session(causal_consistency=False)) as session,
        ):
            for lease in leases:
                await self.renew(lease, session)
        now: Any = session.operation_time  # a method in Motor's stubs
        return cast(Timestamp, now)

    async def release(self, leases: Iterable[Lease]) -> None:
        """Let others have them at once."""
        updates = [UpdateOne(self._of(lease), _GIVEN) for lease in leases]
        await self._records.bulk_write(updates, ordered=False)

    async def give_up(self, owner: str, kind: LeaseKind, parts: Iterable[int]) -> None:
        """Let others have at once whatever an owner has, whether or not it knows of that.

        Args:
            owner: Who; it asks for none any more.
            kind: What for. A rebuild also asks no more for what it has not got.
            parts: Which.
        """
        updates = []
        for part in parts:
            record = {"_id": self._id(part)}
            if kind is LeaseKind.REBUILD:  # another one that waits asks again
                others = {**record, "owner": {"$ne": owner}}
                updates.append(UpdateOne(others, {"$unset": {"wanted": ""}}))
            updates.append(UpdateOne({**record, "owner": owner}, _GIVEN))
        await self._records.bulk_write(updates, ordered=False)

    async def retire(self, session: Session) -> None:
        """End what the transactions of a lease were in, after the lease.

        It does not go back into the client's pool: whoever has looked at the record before the
        lease was given back may still kill it, and would kill somebody else's work.
        """
        with contextlib.suppress(PyMongoError):  # the server forgets it by itself, later
            await self.client.admin.command({"endSessions": [session.session_id]})

    async def ask(self, part: int) -> None:
        """Have the one who follows leave a lease to a rebuild, and nobody else begin to."""
        await self._make(part)
        await self._records.update_one({"_id": self._id(part)}, [{"$set": {"wanted": self._end()}}])

    async def records(self) -> list[dict[str, Any]]:
        """Return all records, by part, with the seconds that are left of each (``left``)."""
        left = {"$divide": [{"$subtract": ["$expires", "$$NOW"]}, 1000]}
        return await self._found(
            {"$match": {"_id.aggregator": self.name}},
            {"$set": {"left": left}},
            {"$sort": {"_id.part": 1}},
        )

    async def _look(self, part: int, kind: LeaseKind, owner: str) -> Mapping[str, Any]:
        pipeline: list[dict[str, Any]] = [
            {"$match": {"_id": self._id(part)}},
            {"$project": {"session": 1, "is_free": self._is_free(kind, owner)}},
        ]
        found = await self._found(*pipeline)
        if not found:
            await self._make(part)
            found = await self._found(*pipeline)
        return found[0]

    async def _found(self, *pipeline: dict[str, Any]) -> list[dict[str, Any]]:
        cursor = await settled(self._records.aggregate([*pipeline]))
        return cast(list[dict[str, Any]], await cursor.to_list(None))

    async def _make(self, part: int) -> None:
        with contextlib.suppress(DuplicateKeyError):  # somebody else has, at the same time
            await self._records.update_one(
                {"_id": self._id(part)},
                {"$setOnInsert": {"fence": 0, "expires": _EPOCH}},
                upsert=True,
            )

    async def _end_transactions(self, session_id: Mapping[str, Any] | None) -> None:
        """Abort what a dead or frozen owner has left open: the server would wait for a minute."""
        if session_id is None:
            return
        try:
            await self.client.admin.command({"killSessions": [session_id]})
        except OperationFailure as exc:
            # Another database user's session can't be ended by us. Its transaction ends by itself.
            if exc.code not in {11, 13}:
                raise

    def _is_free(self, kind: LeaseKind, owner: str) -> dict[str, Any]:
        free: dict[str, Any] = {
            "$or": [{"$lte": ["$expires", "$$NOW"]}, {"$eq": ["$owner", {"$literal": owner}]}]
        }
        if kind is LeaseKind.REBUILD:
            return free
        unwanted = {"$lte": [{"$ifNull": ["$wanted", _EPOCH]}, "$$NOW"]}
        return {"$and": [free, unwanted]}

    def _end(self) -> dict[str, Any]:
        return {"$add": ["$$NOW", round(self.seconds * 1000)]}

    def _of(self, lease: Lease) -> dict[str, Any]:
        return {"_id": self._id(lease.part), "owner": lease.owner, "fence": lease.fence}

    def _id(self, part: int) -> dict[str, Any]:
        return {"aggregator": self.name, "part": part}
