"""Who holds what, and how far behind the aggregates are."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bson.timestamp import Timestamp
from pymongo import ReadPreference
from pymongo.errors import ExecutionTimeout, NetworkTimeout, PyMongoError
from pymongo.read_concern import ReadConcern

from aioretry import deadline
from aioretry._faces import settled
from aioretry.streams._changes import ChangeKind, Position
from aioretry.streams._errors import StreamError, lost_position
from aioretry.streams._leases import PLAIN, LeaseKind
from aioretry.streams._reading import start, watched
from aioretry.streams._settings import Settings
from aioretry.streams._sources import Source
from aioretry.streams._watching import opened, where_it_waits
from aioretry.streams._watermarks import Watermark, watermark_id

MOST = 100_000

_PATIENCE = 15.0  # seconds for counting, and as many for everything else
_AWAIT_MS = 50
_CHANGES = frozenset(kind.value for kind in ChangeKind)


@dataclass(frozen=True, slots=True)
class Lag:
    """What an aggregate has not seen yet."""

    changes: int
    """How many changes wait."""

    seconds: float
    """How old the oldest of them is, in seconds; 0 if there is none."""

    is_all: bool
    """Whether there are not more than were counted; there may be if the time was over."""


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
    """What it has not seen; None if only a rebuild helps."""

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
    """Look; so many changes are counted at most, for all parts together."""
    async with deadline(_PATIENCE):
        records = {record["_id"]["part"]: record for record in await settings.leases.records()}
        watermarks = await _watermarks(settings)
    problems = {part: _problem(settings, watermarks.get(part)) for part in range(settings.parts)}
    going = {part: mark for part, mark in watermarks.items() if problems.get(part) is None}
    lags = await _lags(settings, [mark.position for mark in going.values()], most)
    found = dict(zip(going, lags, strict=True))
    parts = []
    for part, problem in problems.items():
        lag, why = found.get(part, (None, problem))
        parts.append(_described(part, records.get(part, {}), watermarks.get(part), lag, why))
    return Status(settings.name, tuple(parts))


def _described(
    part: int,
    record: Mapping[str, Any],
    watermark: Watermark | None,
    lag: Lag | None,
    problem: str | None,
) -> PartStatus:
    left = max(0.0, float(record.get("left", 0.0)))
    return PartStatus(
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


async def _watermarks(settings: Settings) -> dict[int, Watermark]:
    target = settings.target.with_options(
        PLAIN, read_preference=ReadPreference.PRIMARY, read_concern=ReadConcern("majority")
    )
    ids = [watermark_id(part) for part in range(settings.parts)]
    marks = [Watermark.of(each) for each in await target.find({"_id": {"$in": ids}}).to_list(None)]
    return {mark.part: mark for mark in marks}


def _problem(settings: Settings, watermark: Watermark | None) -> str | None:
    if watermark is None:
        return "it was never built"
    mismatch = settings.mismatch(watermark)
    return None if mismatch is None else str(mismatch)


async def _lags(
    settings: Settings, positions: Sequence[Position], most: int
) -> list[tuple[Lag | None, str | None]]:
    """Count the changes after each position; once for all who are at the same one."""
    distinct: list[Position] = []
    for position in positions:
        if position not in distinct:
            distinct.append(position)
    found = []
    for position in distinct:
        share = max(1, most // len(distinct)), _PATIENCE / len(distinct)
        found.append(await _lag(settings, position, *share))
    return [found[distinct.index(position)] for position in positions]


async def _lag(
    settings: Settings, position: Position, most: int, seconds: float
) -> tuple[Lag | None, str | None]:
    with deadline(seconds):
        hello = await settings.client.admin.command("hello")
        now: Timestamp = hello["operationTime"]
        count = partial(_counted, settings.source, position, most, seconds)
        try:
            number, first, is_all = await where_it_waits(settings.source.watched, count)
        except StreamError as exc:
            return None, str(exc)
        except PyMongoError as exc:
            lost = lost_position(exc)
            if lost is None:
                raise
            return None, str(lost)
    waiting = 0.0 if first is None else max(0.0, float(now.time - first.time))
    return Lag(number, waiting, is_all), None


async def _counted(
    source: Source, position: Position, most: int, seconds: float
) -> tuple[int, Timestamp | None, bool]:
    """Count changes; return also when the first one happened, and whether these are all."""
    arguments = source.watching()
    # The images are asked for, as a worker does: the server must have them. But not sent.
    shown = {"$project": {"clusterTime": 1, "operationType": 1}}
    arguments = {**arguments, "pipeline": [*arguments.get("pipeline", ()), shown]}
    number, first, end = 0, None, time.monotonic() + seconds
    try:
        stream = await opened(
            watched(source), **arguments, max_await_time_ms=_AWAIT_MS, **start(position)
        )
        try:
            while number < most and time.monotonic() < end:
                event = await settled(stream.try_next())
                if event is None:
                    return number, first, True
                if event["operationType"] not in _CHANGES:
                    source.change_of(event)  # it says what that means: the source has ended
                number += 1
                first = first or event["clusterTime"]
        finally:
            await settled(stream.close())
    except (ExecutionTimeout, NetworkTimeout):
        pass  # there may be more
    return number, first, False
