"""Who holds what, and how far behind the aggregates are."""

from dataclasses import dataclass

from anyio import to_thread
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from aioretry.streams._changes import Position
from aioretry.streams._errors import lost_position
from aioretry.streams._leases import PLAIN, LeaseKind
from aioretry.streams._reading import start, watched
from aioretry.streams._settings import Settings
from aioretry.streams._watermarks import Watermark, watermark_id

MOST = 100_000


@dataclass(frozen=True, slots=True)
class Lag:
    """What an aggregate has not seen yet."""

    changes: int
    """How many changes wait."""

    seconds: float
    """How old the oldest of them is, in seconds; 0 if there is none."""

    is_all: bool
    """Whether there are not more than were counted."""


@dataclass(frozen=True, slots=True)
class PartStatus:
    """How one part of the aggregates is."""

    part: int
    """Which part."""

    owner: str | None
    """Who holds its lease; None if nobody does."""

    kind: LeaseKind | None
    """What for; None if nobody does."""

    fence: int
    """The number of the latest lease."""

    seconds_left: float
    """How long the lease lasts if it is not renewed; 0 if nobody holds it."""

    is_built: bool
    """Whether there are aggregates."""

    changes: int
    """How many changes it has looked at since the last rebuild."""

    position: Position | None
    """Where the next change is looked for; None if it was never built."""

    lag: Lag | None
    """What it has not seen; None if it was never built, or if the position is lost."""

    problem: str | None
    """Why it can't go on without a rebuild; None if it can."""


@dataclass(frozen=True, slots=True)
class Status:
    """How an aggregator is."""

    name: str
    """Its name."""

    parts: tuple[PartStatus, ...]
    """Its parts, by number."""


async def status(settings: Settings, most: int) -> Status:
    """Look; a lag is counted up to so many changes."""
    records = {record["_id"]["part"]: record for record in await settings.leases.records()}
    parts = []
    for part in range(settings.parts):
        record = records.get(part, {})
        left = max(0.0, float(record.get("left", 0.0)))
        watermark, problem = await _watermark(settings, part)
        lag = None
        if watermark is not None and problem is None:
            lag, problem = await _lag(settings, watermark.position, most)
        parts.append(
            PartStatus(
                part,
                record["owner"] if left else None,
                LeaseKind(record["kind"]) if left else None,
                record.get("fence", 0),
                left,
                watermark is not None,
                0 if watermark is None else watermark.changes,
                None if watermark is None else watermark.position,
                lag,
                problem,
            )
        )
    return Status(settings.name, tuple(parts))


async def _watermark(settings: Settings, part: int) -> tuple[Watermark | None, str | None]:
    target = settings.target.with_options(PLAIN, read_concern=ReadConcern("majority"))
    found = await target.find_one({"_id": watermark_id(part)})
    if found is None:
        return None, "it was never built"
    watermark = Watermark.of(found)
    if watermark.parts != settings.parts:
        return watermark, f"it was built for {watermark.parts} workers"
    return watermark, None


async def _lag(settings: Settings, position: Position, most: int) -> tuple[Lag | None, str | None]:
    """Count the changes after a position, without their documents."""
    pipeline = settings.source.watching()["pipeline"]
    only = [*pipeline, {"$project": {"clusterTime": 1}}]
    hello = await settings.client.admin.command("hello")
    now: Timestamp = hello["operationTime"]
    followed = watched(settings.source)

    def count() -> Lag:
        with followed.delegate.watch(only, max_await_time_ms=50, **start(position)) as stream:
            number, first = 0, None
            while number < most:
                event = stream.try_next()
                if event is None:
                    break
                number += 1
                first = first or event["clusterTime"]
        seconds = 0.0 if first is None else max(0.0, float(now.time - first.time))
        return Lag(number, seconds, number < most)

    try:
        return await to_thread.run_sync(count, abandon_on_cancel=True), None
    except PyMongoError as exc:
        lost = lost_position(exc)
        if lost is None:
            raise
        return None, str(lost)
