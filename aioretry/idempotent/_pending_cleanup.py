"""Finishing pending updates that were left, and counting them."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import bson
from pymongo.errors import PyMongoError

from aioretry import Deadline, Outcome, attempts_of, outcome_of
from aioretry.errors import attach
from aioretry.idempotent._pending_sending import Documents, is_refusal, may_have_arrived, repeat
from aioretry.idempotent._pending_update import REFUSED, PendingUpdate, Token
from aioretry.idempotent._pending_values import CleanUpReport, FailedToken, PendingStatus

_Key: TypeAlias = tuple[bytes, Token]  # of a document and one of its tokens


class CleanUp:
    """One clean-up.

    Args:
        documents: What it is for.
        older_than: From which age on tokens are finished, in seconds by the server's clock.
        drop_refused: Whether a token whose update the server refuses is taken away.
        batch_size: How many tokens are read at a time.
        limit: When to end; None to repeat each command once.
        on_progress: Is told what was done so far, after each batch and at the end.
    """

    def __init__(
        self,
        documents: Documents,
        *,
        older_than: float,
        drop_refused: bool,
        batch_size: int,
        limit: Deadline | None,
        on_progress: Callable[[CleanUpReport], object] | None,
    ) -> None:
        self._documents = documents
        self._older_than = older_than
        self._drop_refused = drop_refused
        self._batch_size = batch_size
        self._limit = limit
        self._on_progress = on_progress
        self._finished = self._already_gone = self._tidied = 0
        self._failed: dict[_Key, FailedToken] = {}
        self._may_have_written = False
        self._seen: set[_Key] = set()
        # A command that may have finished them was lost; if so, they are not found again.
        self._doubtful: set[_Key] = set()

    async def run(self) -> CleanUpReport:
        """Finish what is old enough, and remove marks that are.

        Raises:
            PyMongoError: It was cut off; what is done is done, and it may be repeated.
        """
        try:
            await repeat(self._finish_all, self._limit)
            self._finished += len(self._doubtful - self._failed.keys())
            self._doubtful.clear()
            await repeat(self._tidy, self._limit)
        except (PyMongoError, asyncio.CancelledError) as exc:
            # It knows of its own command alone.
            if self._may_have_written and outcome_of(exc) is not Outcome.UNKNOWN:
                attach(exc, Outcome.UNKNOWN, attempts_of(exc))
            raise
        self._tell()
        return self._report()

    async def _finish_all(self) -> None:
        field = self._documents.field
        pipeline = [
            *_each_element(field),
            {
                "$match": {
                    f"{field}.d": {"$exists": False},
                    "age": {"$gte": self._older_than * 1000},
                }
            },
            {
                "$project": {
                    "token": f"${field}.t",
                    "encoded": f"${field}.u",
                    "is_forgotten": {"$gte": ["$$NOW", f"${field}.f"]},
                }
            },
        ]
        cursor = await self._documents.open_cursor(pipeline, self._batch_size)
        try:
            async for row in cursor:
                key = bson.encode({"_id": row["_id"]}), row["token"]
                if key not in self._seen:
                    await self._finish(key, row)
                    self._seen.add(key)
                    if len(self._seen) % self._batch_size == 0:
                        self._tell()
        finally:
            await cursor.close()

    async def _finish(self, key: _Key, row: dict[str, Any]) -> None:
        update = PendingUpdate(row["_id"], row["token"], bytes(row["encoded"]))
        # As long as the token may still be added, whoever adds it must find a mark.
        mark = not row["is_forgotten"]

        def note(error: BaseException) -> None:
            if may_have_arrived(error):
                self._may_have_written = True
                self._doubtful.add(key)

        try:
            matched = await repeat(
                lambda: self._documents.finish(update, mark=mark), self._limit, note
            )
        except PyMongoError as exc:
            if not is_refusal(exc):
                raise
            # Before it is withdrawn: once it may be, nobody finds it again.
            self._failed[key] = FailedToken(update.id, update.token, exc)
            if self._drop_refused:
                self._may_have_written = True
                await repeat(lambda: self._documents.withdraw(update, mark=REFUSED), self._limit)
        else:
            self._note_end(key, matched=matched)
        self._doubtful.discard(key)

    def _note_end(self, key: _Key, *, matched: bool) -> None:
        self._may_have_written |= matched
        if matched:
            self._failed.pop(key, None)
        elif key in self._failed:
            return  # withdrawn by a command that was lost
        if matched or key in self._doubtful:
            self._finished += 1
        else:
            self._already_gone += 1

    async def _tidy(self) -> None:
        """Remove marks that nobody can need any more."""
        field = self._documents.field
        rows = await self._documents.read([*_with_elements(field), {"$limit": 1}, _NOW])
        if rows:
            old = {"d": {"$exists": True}, "f": {"$lte": rows[0]["now"]}}
            changed = await self._documents.update_many(
                {field: {"$elemMatch": old}}, {"$pull": {field: old}}
            )
            self._tidied += changed

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._report())

    def _report(self) -> CleanUpReport:
        ended = self._finished + self._already_gone
        return CleanUpReport(
            found=ended + len(self._failed),
            finished=self._finished,
            already_gone=self._already_gone,
            failed=tuple(self._failed.values()),
            tidied=self._tidied,
        )


async def read_status(documents: Documents) -> PendingStatus:
    """Count tokens and marks."""
    field = documents.field
    is_done = {"$ne": [{"$type": f"${field}.d"}, "missing"]}
    rows = await documents.read(
        [
            *_each_element(field),
            {
                "$group": {
                    "_id": None,
                    "tokens": {"$sum": {"$cond": [is_done, 0, 1]}},
                    "marks": {"$sum": {"$cond": [is_done, 1, 0]}},
                    "oldest": {"$max": {"$cond": [is_done, None, "$age"]}},
                }
            },
        ]
    )
    if not rows:
        return PendingStatus(tokens=0, oldest=None, marks=0)
    [row] = rows
    oldest = None if row["oldest"] is None else row["oldest"] / 1000
    return PendingStatus(tokens=row["tokens"], oldest=oldest, marks=row["marks"])


_NOW = {"$project": {"_id": 0, "now": "$$NOW"}}


def _with_elements(field: str) -> list[dict[str, Any]]:
    return [{"$match": {f"{field}.f": {"$exists": True}}}]


def _each_element(field: str) -> list[dict[str, Any]]:
    return [
        *_with_elements(field),
        {"$project": {field: 1}},
        {"$unwind": f"${field}"},
        {"$set": {"age": {"$subtract": ["$$NOW", f"${field}.m"]}}},
    ]
