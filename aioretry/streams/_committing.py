"""The transaction that applies a batch: lease, watermark and increments, or none of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo import ReadPreference, UpdateOne
from pymongo.errors import BulkWriteError
from pymongo.read_concern import ReadConcern

from aioretry import deadline
from aioretry._faces import Collection, Session
from aioretry.streams._changes import Position
from aioretry.streams._errors import CounterOverflowError, WatermarkMovedError
from aioretry.streams._folding import Fold, overflow
from aioretry.streams._leases import MAJORITY, PLAIN, Lease, Leases
from aioretry.streams._watermarks import Watermark, move, watermark_id

_SNAPSHOT = ReadConcern("snapshot")
_BAD_VALUE, _OVERFLOW = 2, "Failed to apply $inc operations"
_ONLY_COUNTED = {
    "$arrayToObject": {
        "$filter": {
            "input": {"$objectToArray": "$$ROOT"},
            "cond": {"$or": [{"$eq": ["$$this.k", "_id"]}, {"$ne": ["$$this.v", 0]}]},
        }
    }
}
_IS_EMPTY = {"$expr": {"$eq": [{"$size": {"$objectToArray": "$$ROOT"}}, 1]}}


@dataclass(frozen=True, slots=True)
class Committer:
    """Commits the batches of one lease."""

    target: Collection
    leases: Leases
    lease: Lease
    session: Session

    async def renew(self) -> bool:
        """Renew the lease; return whether a rebuild waits for it.

        Raises:
            LeaseLostError: The lease is somebody else's, or has expired.
        """
        async with deadline(self.leases.seconds):
            return await self.leases.renew(self.lease)

    async def commit(
        self, watermark: Watermark, fold: Fold, position: Position, changes: int
    ) -> tuple[Watermark, bool]:
        """Apply a batch.

        Args:
            watermark: Where the aggregates are, as far as this worker knows.
            fold: The increments.
            position: Where they are afterwards.
            changes: How many changes that are.

        Returns:
            The new watermark, and whether a rebuild waits for the lease.

        Raises:
            LeaseLostError: The lease is somebody else's, or has expired; nothing was applied.
            WatermarkMovedError: The watermark is elsewhere; nothing was applied by this call, but
                something was by an earlier one, or by a rebuild.
            PyMongoError: Whether it was applied, the watermark tells.
        """

        async def apply(session: Session) -> bool:
            # First of all, so that whoever takes the lease over waits for nobody else's locks.
            is_wanted = await self.leases.renew(self.lease, session)
            await self._move(watermark, position, changes, session)
            await self._increment(fold, session)
            return is_wanted

        async with deadline(self.leases.seconds):
            is_wanted = await self.session.with_transaction(
                apply, read_concern=_SNAPSHOT, write_concern=MAJORITY
            )
        return watermark.moved(position, changes), is_wanted

    async def _move(
        self,
        watermark: Watermark,
        position: Position,
        changes: int,
        session: Session,
    ) -> None:
        moved = await self.target.update_one(
            watermark.expected(), move(position, changes), session=session
        )
        if moved.matched_count != 1:
            raise WatermarkMovedError(f"the watermark is not at {watermark.sequence} any more")

    async def _increment(self, fold: Fold, session: Session) -> None:
        updates = fold.updates()
        if updates:
            await increment(self.target, updates, session)
            await remove_zeros(self.target, fold.counters(), fold.buckets(), session)


async def increment(
    target: Collection,
    updates: Sequence[UpdateOne],
    session: Session | None = None,
) -> None:
    """Apply increments.

    Raises:
        CounterOverflowError: A counter would become too large.
    """
    try:
        await target.bulk_write(updates, ordered=False, session=session)
    except BulkWriteError as exc:
        for error in (exc.details or {}).get("writeErrors", ()):
            if error["code"] == _BAD_VALUE and error["errmsg"].startswith(_OVERFLOW):
                of_bucket = error["op"]["q"]["_id"]["$eq"]
                raise CounterOverflowError(overflow(of_bucket, "a counter")) from exc
        raise


async def remove_zeros(
    target: Collection,
    counters: Sequence[str],
    buckets: Sequence[Any] | None = None,
    session: Session | None = None,
) -> None:
    """Remove counters that are zero, and then buckets that have none left.

    Args:
        target: The aggregates.
        counters: Which counters may be zero.
        buckets: Which buckets they may be in; None for all.
        session: The session of a transaction.
    """
    chosen: Mapping[str, Any] = {} if buckets is None else {"_id": {"$in": buckets}}
    zeros = {**chosen, "$or": [{name: 0} for name in counters]}
    removed = await target.update_many(zeros, [{"$replaceWith": _ONLY_COUNTED}], session=session)
    if removed.matched_count:
        await target.delete_many({**chosen, **_IS_EMPTY}, session=session)


async def load(target: Collection, part: int) -> Watermark | None:
    """Read the watermark of a part, as the majority has it; None if there is none."""
    majority = target.with_options(
        PLAIN, read_preference=ReadPreference.PRIMARY, read_concern=ReadConcern("majority")
    )
    found = await majority.find_one({"_id": watermark_id(part)})
    return None if found is None else Watermark.of(found)
