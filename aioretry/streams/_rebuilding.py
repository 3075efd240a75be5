"""Counting everything anew while writes go on, and swapping the result in."""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import anyio
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo import ReadPreference
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from aioretry import deadline
from aioretry._faces import Collection, Database, Session, settled, under_way_of
from aioretry.streams._changes import Position
from aioretry.streams._committing import increment, load, remove_zeros
from aioretry.streams._errors import (
    LeaseLostError,
    RebuildNeededError,
    SourceError,
    TargetError,
    WatermarkMovedError,
    passes_by_itself,
)
from aioretry.streams._folding import Fold
from aioretry.streams._holding import (
    new_owner,
    obeying,
    release,
    to_its_end,
    while_renewed,
)
from aioretry.streams._leases import Lease, LeaseKind
from aioretry.streams._pace import Courtesy, pause
from aioretry.streams._settings import Settings
from aioretry.streams._sources import check_deployment
from aioretry.streams._watermarks import Watermark, finish, finished, unfinished

T = TypeVar("T")

_log = logging.getLogger("aioretry.streams")

_PAUSE = 0.2
_DOCUMENTS_AT_ONCE = 2000
_BYTES_AT_ONCE = 8_000_000
_UPDATES_AT_ONCE = 2000
_UNAUTHORIZED, _NOT_FOUND, _TOO_OLD = 13, 26, 239


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
    """A read concern for one point in time, which every read at it sees alike."""

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
        error: Why, or None; if somebody else has rebuilt since, nothing is done.
    """

    settings: Settings
    on_progress: OnProgress
    error: RebuildNeededError | None = None
    _owner: str = field(default_factory=new_owner, init=False)
    _leases: dict[int, Lease] = field(default_factory=dict, init=False)

    async def run(self) -> Progress | None:
        """Take all leases, count, and swap; begin again after what passes by itself."""
        with under_way_of(self.settings.client).begin():
            return await obeying(self._run)

    async def _run(self) -> Progress | None:
        session = await self._until_it_passes(self._begin)
        try:
            return await while_renewed(
                self._renew, self.settings.lease_seconds / 4, partial(self._work, session)
            )
        finally:
            parts = range(self.settings.parts)
            giving = partial(self.settings.leases.give_up, self._owner, LeaseKind.REBUILD, parts)
            await release(self.settings.leases, giving, session)

    async def _work(self, session: Session) -> Progress | None:
        for part in range(self.settings.parts):
            await self._take(part, session)
        if await self._until_it_passes(self._is_done_by_others):
            return None
        return await self._until_it_passes(self._count)

    async def _until_it_passes(self, step: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await step()
            except PyMongoError as exc:
                if isinstance(exc, LeaseLostError) or not passes_by_itself(exc):
                    raise
                _log.info("%s begins again, after a %s", self._owner, type(exc).__name__)
                error = exc
            await pause(_PAUSE, error)

    async def _begin(self) -> Session:
        await check_deployment(self.settings.client)
        await self.settings.source.check()
        await self._check_documents()
        await self._check_target()
        return await settled(self.settings.client.start_session(causal_consistency=False))

    async def _check_target(self) -> None:
        target = self.settings.target
        watermark = await load(target, 0)
        if watermark is None and await target.find_one({}, {"_id": 1}) is not None:
            raise TargetError(
                f"{target.full_name} holds documents that are no aggregates, and a rebuild would "
                "replace them: use a target of its own, or empty this one if it is not needed"
            )
        mismatch = None if watermark is None else self.settings.mismatch(watermark)
        if mismatch is not None and mismatch.is_anothers:
            raise mismatch

    async def _is_done_by_others(self) -> bool:
        if self.error is None:
            return False
        watermark = await load(self.settings.target, 0)
        return (
            watermark is not None
            and watermark.build != self.error.build
            and self.settings.mismatch(watermark) is None
        )

    async def _check_documents(self) -> None:
        documents = self.settings.source.documents
        if (await documents.options()).get("capped"):
            raise SourceError(
                f"{documents.full_name} is capped: servers can't read it at a point in time"
            )

    async def _take(self, part: int, session: Session) -> None:
        while True:
            under_way_of(self.settings.client).go_on()
            error = None
            try:
                lease = await to_its_end(self._ask(part, session))
            except PyMongoError as exc:
                if isinstance(exc, LeaseLostError) or not passes_by_itself(exc):
                    raise
                lease, error = None, exc
            if lease is not None:
                self._leases[part] = lease
                return
            await pause(min(_PAUSE, self.settings.lease_seconds / 4), error)

    async def _ask(self, part: int, session: Session) -> Lease | None:
        leases = self.settings.leases
        for wanted in range(part, self.settings.parts):
            await leases.ask(wanted)
        return await leases.take(part, LeaseKind.REBUILD, self._owner, session)

    async def _count(self) -> Progress:
        try:
            return await Count(self.settings, self.on_progress, self._renew).run()
        except OperationFailure as exc:
            if exc.code != _TOO_OLD:
                raise
            raise SourceError(
                "the rebuild took longer than the servers keep a snapshot; raise their "
                "parameter minSnapshotHistoryWindowInSeconds (300 by default)"
            ) from exc

    async def _renew(self) -> Timestamp:
        return await self.settings.leases.renew_all(list(self._leases.values()))


@dataclass(slots=True)
class Count:
    """One attempt: it counts into a collection of its own, which takes the aggregates' place.

    A worker that was frozen and goes on after somebody else took its lease over does no harm: its
    collection was dropped meanwhile, or it holds the aggregates of a moment together with the
    watermark of that moment, from which they are brought up to date again.

    Args:
        now: Renews the leases, or raises LeaseLostError, and returns a cluster time that nothing
            acknowledged before is later than.
    """

    settings: Settings
    on_progress: OnProgress
    now: Callable[[], Awaitable[Timestamp]]
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
        database = cast(Database, target.database)
        prefix = _prefix(target)
        for name in await database.list_collection_names():
            if not name.startswith(prefix) or not ObjectId.is_valid(name.removeprefix(prefix)):
                continue
            left: Collection = database.get_collection(name, read_preference=target.read_preference)
            if await load(left, 0) is not None or await left.find_one({}, {"_id": 1}) is None:
                await left.drop()

    async def _make_staging(self) -> Collection:
        """Make a collection with the options and indexes of the target."""
        target = self.settings.target
        name = f"{_prefix(target)}{self._build}"
        options = await target.options()
        await target.database.create_collection(name, **options)
        database = cast(Database, target.database)
        staging = database.get_collection(
            name, target.codec_options, target.read_preference, target.write_concern
        )
        async for index in await settled(target.list_indexes()):
            given = {key: value for key, value in index.items() if key not in {"v", "ns", "key"}}
            if index["name"] != "_id_":
                await staging.create_index(list(index["key"].items()), **given)
        return staging

    async def _set_watermarks(self, staging: Collection, position: Position) -> None:
        settings = self.settings
        marks = [
            Watermark(
                part=part,
                parts=settings.parts,
                name=settings.name,
                version=settings.version,
                build=self._build,
                sequence=0,
                changes=0,
                position=position,
            )
            for part in range(settings.parts)
        ]
        async with deadline(self.settings.lease_seconds):
            await staging.insert_many([mark.document() for mark in marks])

    async def _read(self, staging: Collection, position: Position) -> None:
        source = self.settings.source
        documents = source.documents.with_options(read_preference=ReadPreference.PRIMARY)
        self._expected = await documents.estimated_document_count()
        at_once = await _documents_at_once(documents)
        cursor = documents.with_options(read_concern=At(position.time)).find(
            {}, source.projection, batch_size=at_once
        )
        fold, others = self._new_fold(), Courtesy()
        try:
            while batch := await cursor.to_list(at_once):
                under_way_of(self.settings.client).go_on()
                for document in batch:
                    fold.add(source.change_of_document(document, position))
                    await others.let_run()
                self._documents += len(batch)
                if fold.size >= 4 * self.settings.max_bytes:
                    await self._write(staging, fold)
                    fold = self._new_fold()
                self.on_progress(self._progress())
        finally:
            with anyio.move_on_after(1.0, shield=True):
                await cursor.close()
        await self._write(staging, fold)

    async def _write(self, staging: Collection, fold: Fold) -> None:
        updates = fold.updates()
        self._counters.update(fold.counters())
        for start in range(0, len(updates), _UPDATES_AT_ONCE):
            chunk = updates[start : start + _UPDATES_AT_ONCE]
            async with deadline(self.settings.lease_seconds):
                await increment(staging, chunk)
            self._buckets += len(chunk)
            self.on_progress(self._progress())

    async def _finish(self, staging: Collection) -> None:
        # Whoever has dropped it meanwhile has dropped these too. What was written to it later is
        # a collection without them.
        async with deadline(self.settings.lease_seconds):
            try:
                await staging.update_many(unfinished(self._build), finish())
            except PyMongoError as exc:
                if not passes_by_itself(exc):
                    raise
                # Once more: where it was applied, it finds nothing more to do.
                await staging.update_many(unfinished(self._build), finish())
            are_there = await staging.count_documents(finished(self._build))
        if are_there != self.settings.parts:
            raise WatermarkMovedError(f"{staging.full_name} was dropped by another rebuild")

    async def _swap(self, staging: Collection) -> None:
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
        async with deadline(self.settings.lease_seconds):
            found = await load(self.settings.target, 0)
        return found is not None and found.build == self._build

    def _new_fold(self) -> Fold:
        settings = self.settings
        return Fold(settings.increments, codec_options=settings.target.codec_options)

    def _progress(self) -> Progress:
        taken = time.monotonic() - self._began
        return Progress(self._documents, self._expected, self._buckets, taken)


async def _documents_at_once(documents: Collection) -> int:
    """Return how many documents of average size make a batch that memory bears well."""
    sizes: list[dict[str, Any]] = [
        {"$collStats": {"storageStats": {}}},
        {"$project": {"storageStats.avgObjSize": 1}},
    ]
    try:
        found = await (await settled(documents.aggregate(sizes))).to_list(None)
    except OperationFailure as exc:
        if exc.code not in {_NOT_FOUND, _UNAUTHORIZED}:
            raise
        found = []
    size = max((each.get("storageStats", {}).get("avgObjSize") or 1 for each in found), default=1)
    return int(max(1, min(_DOCUMENTS_AT_ONCE, _BYTES_AT_ONCE // size)))


def _prefix(target: Collection) -> str:
    return f"{target.name}.rebuild."


def _is_not_found(exc: PyMongoError) -> bool:
    return isinstance(exc, OperationFailure) and exc.code == _NOT_FOUND
