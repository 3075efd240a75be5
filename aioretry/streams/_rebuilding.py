"""Counting everything anew while writes go on, and swapping the result in."""

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from aioretry import RetryMotorClientSession, RetryMotorCollection, RetryMotorDatabase, deadline
from aioretry.streams._changes import Position
from aioretry.streams._committing import remove_zeros
from aioretry.streams._errors import (
    LeaseLostError,
    SourceError,
    WatermarkMovedError,
    passes_by_itself,
)
from aioretry.streams._folding import Fold
from aioretry.streams._following import new_owner, release
from aioretry.streams._leases import PLAIN, Lease, LeaseKind
from aioretry.streams._settings import Settings
from aioretry.streams._watermarks import Watermark, finish, unfinished, watermark_id

_log = logging.getLogger("aioretry.streams")

_PAUSE = 0.2
_DOCUMENTS_AT_ONCE = 2000
_UPDATES_AT_ONCE = 2000
_NOT_FOUND, _TOO_OLD = 26, 239


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild is."""

    documents: int
    """How many documents it has read."""

    expected: int
    """About how many there are."""

    buckets: int
    """How many buckets it has written; one that was written again counts again."""

    seconds: float
    """How long it has taken, attempts that were cut off apart."""


OnProgress = Callable[[Progress], object]


class At(ReadConcern):
    """A read concern for one point in time, which every read at it sees alike.

    Args:
        time: The cluster time.
    """

    def __init__(self, time: Timestamp) -> None:
        super().__init__("snapshot")
        self._time = time

    @property
    def document(self) -> dict[str, Any]:
        """Return it as a command has it."""
        return {"level": "snapshot", "atClusterTime": self._time}


@dataclass(slots=True)
class Rebuild:
    """One call of ``rebuild``.

    Args:
        settings: The aggregator's.
        on_progress: What is told of it.
    """

    settings: Settings
    on_progress: OnProgress
    _owner: str = field(default_factory=new_owner, init=False)
    _leases: dict[int, Lease] = field(default_factory=dict, init=False)
    _renewed: float = field(default=0.0, init=False)

    async def run(self) -> Progress:
        """Take all leases, count, and swap; begin again after what passes by itself."""
        await self.settings.source.check()
        await self._check_documents()
        async with AsyncExitStack() as stack:
            session = await self.settings.client.start_session(causal_consistency=False)
            await stack.enter_async_context(session)
            try:
                for part in range(self.settings.parts):
                    await self._take(part, session)
                return await self._count_until_done()
            finally:
                for lease in self._leases.values():
                    await release(self.settings, lease)

    async def _check_documents(self) -> None:
        documents = self.settings.source.documents
        if (await documents.options()).get("capped"):
            raise SourceError(
                f"{documents.full_name} is capped: servers can't read it at a point in time"
            )

    async def _take(self, part: int, session: RetryMotorClientSession) -> None:
        leases = self.settings.leases
        while True:
            try:
                await self._renew_when_due()
                await leases.ask(part)
                lease = await leases.take(part, LeaseKind.REBUILD, self._owner, session)
            except PyMongoError as exc:
                if isinstance(exc, LeaseLostError) or not passes_by_itself(exc):
                    raise
                lease = None
            if lease is not None:
                self._leases[part] = lease
                return
            await anyio.sleep(min(_PAUSE, leases.seconds / 4))

    async def _count_until_done(self) -> Progress:
        while True:
            try:
                count = Count(self.settings, self.on_progress, self._renew, self._renew_when_due)
                return await count.run()
            except PyMongoError as exc:
                if _is_too_old(exc):
                    raise SourceError(
                        "the rebuild took longer than the servers keep a snapshot; raise their "
                        "parameter minSnapshotHistoryWindowInSeconds (300 by default)"
                    ) from exc
                if isinstance(exc, LeaseLostError) or not passes_by_itself(exc):
                    raise
                _log.info("%s counts from the beginning again: %s", self._owner, exc)
            await anyio.sleep(_PAUSE)

    async def _renew(self) -> Timestamp:
        began = time.monotonic()
        client = self.settings.client
        async with (
            deadline(self.settings.lease_seconds),
            await client.start_session(causal_consistency=False) as session,
        ):
            for lease in self._leases.values():
                await self.settings.leases.renew(lease, session)
        self._renewed = began
        now: Any = session.operation_time  # a method in Motor's stubs
        return cast(Timestamp, now)

    async def _renew_when_due(self) -> None:
        due = self._renewed + self.settings.lease_seconds / 4
        if self._leases and time.monotonic() > due:
            await self._renew()


@dataclass(slots=True)
class Count:
    """One attempt: it counts into a collection of its own, which takes the aggregates' place.

    A worker that was frozen and goes on after somebody else took its lease over does no harm: its
    collection was dropped meanwhile, or it holds the aggregates of a moment together with the
    watermark of that moment, from which they are brought up to date again.

    Args:
        settings: The aggregator's.
        on_progress: What is told of it.
        now: Renews the leases, or raises LeaseLostError, and returns a cluster time that nothing
            acknowledged before is later than.
        renew_when_due: Renews them now and then.
    """

    settings: Settings
    on_progress: OnProgress
    now: Callable[[], Awaitable[Timestamp]]
    renew_when_due: Callable[[], Awaitable[None]]
    _build: ObjectId = field(default_factory=ObjectId, init=False)
    _documents: int = field(default=0, init=False)
    _expected: int = field(default=0, init=False)
    _buckets: int = field(default=0, init=False)
    _counters: set[str] = field(default_factory=set, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)

    async def run(self) -> Progress:
        """Count, and swap the result in."""
        settings = self.settings
        await self.now()  # who has lost its lease must not drop what another one counts into
        await self._drop_others()
        staging = await self._make_staging()
        position = Position(await self.now())
        await self._set_watermarks(staging, position)
        await self._read(staging, position)
        if self._counters:
            await remove_zeros(staging, sorted(self._counters))
        await self._finish(staging)
        await self.now()
        await self._swap(staging)
        progress = self._progress()
        self.on_progress(progress)
        _log.info("%s was rebuilt from %d documents", settings.name, progress.documents)
        return progress

    async def _drop_others(self) -> None:
        """Drop what rebuilds left behind that were interrupted."""
        target = self.settings.target
        database = target.database
        for name in await database.list_collection_names():
            if name.startswith(_prefix(target)):
                await database.drop_collection(name)

    async def _make_staging(self) -> RetryMotorCollection[Any]:
        """Make a collection with the options and indexes of the target."""
        target = self.settings.target
        name = f"{_prefix(target)}{self._build}"
        options = await target.options()
        await target.database.create_collection(name, **options)
        database = cast(RetryMotorDatabase[Any], target.database)
        staging = database.get_collection(
            name, target.codec_options, write_concern=target.write_concern
        )
        async for index in target.list_indexes():
            given = {key: value for key, value in index.items() if key not in {"v", "ns", "key"}}
            if index["name"] != "_id_":
                await staging.create_index(list(index["key"].items()), **given)
        return staging

    async def _set_watermarks(self, staging: RetryMotorCollection[Any], position: Position) -> None:
        parts = self.settings.parts
        marks = [Watermark(part, parts, self._build, 0, 0, position) for part in range(parts)]
        async with deadline(self.settings.lease_seconds):
            await staging.insert_many([mark.document() for mark in marks])

    async def _read(self, staging: RetryMotorCollection[Any], position: Position) -> None:
        source = self.settings.source
        documents = source.documents
        self._expected = await documents.estimated_document_count()
        cursor = documents.with_options(read_concern=At(position.time)).find(
            {}, source.projection, batch_size=_DOCUMENTS_AT_ONCE
        )
        fold = self._new_fold()
        try:
            while batch := await cursor.to_list(_DOCUMENTS_AT_ONCE):
                for document in batch:
                    fold.add(source.change_of_document(document, position))
                self._documents += len(batch)
                if fold.size >= 4 * self.settings.max_bytes:
                    await self._write(staging, fold)
                    fold = self._new_fold()
                await self.renew_when_due()
                self.on_progress(self._progress())
        finally:
            with anyio.move_on_after(1.0, shield=True):
                await cursor.close()
        await self._write(staging, fold)

    async def _write(self, staging: RetryMotorCollection[Any], fold: Fold) -> None:
        updates = fold.updates()
        self._counters.update(fold.counters())
        for start in range(0, len(updates), _UPDATES_AT_ONCE):
            chunk = updates[start : start + _UPDATES_AT_ONCE]
            async with deadline(self.settings.lease_seconds):
                await staging.bulk_write(chunk, ordered=False)
            self._buckets += len(chunk)
            await self.renew_when_due()
            self.on_progress(self._progress())

    async def _finish(self, staging: RetryMotorCollection[Any]) -> None:
        # Whoever has dropped it meanwhile has dropped these too. What was written to it later is
        # a collection without them.
        finished = await staging.update_many(unfinished(self._build), finish())
        if finished.modified_count != self.settings.parts:
            raise WatermarkMovedError(f"{staging.full_name} was dropped by another rebuild")

    async def _swap(self, staging: RetryMotorCollection[Any]) -> None:
        target = self.settings.target
        try:
            async with deadline(self.settings.lease_seconds):
                await staging.rename(target.name, dropTarget=True)
        except PyMongoError as exc:
            if not passes_by_itself(exc) and not _is_not_found(exc):
                raise
            if await self._is_swapped():
                return
            if _is_not_found(exc):
                raise WatermarkMovedError(f"{staging.full_name} was dropped") from exc
            raise

    async def _is_swapped(self) -> bool:
        """Look whether a rename of unknown outcome was applied."""
        target = self.settings.target.with_options(PLAIN, read_concern=ReadConcern("majority"))
        async with deadline(self.settings.lease_seconds):
            found = await target.find_one({"_id": watermark_id(0)})
        return found is not None and Watermark.of(found).build == self._build

    def _new_fold(self) -> Fold:
        settings = self.settings
        return Fold(settings.increments, codec_options=settings.target.codec_options)

    def _progress(self) -> Progress:
        taken = time.monotonic() - self._began
        return Progress(self._documents, self._expected, self._buckets, taken)


def _prefix(target: RetryMotorCollection[Any]) -> str:
    return f"{target.name}.rebuild."


def _is_not_found(exc: PyMongoError) -> bool:
    return isinstance(exc, OperationFailure) and exc.code == _NOT_FOUND


def _is_too_old(exc: PyMongoError) -> bool:
    return isinstance(exc, OperationFailure) and exc.code == _TOO_OLD
