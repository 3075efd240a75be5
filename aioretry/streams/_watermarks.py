"""Pure: how far the aggregates are, as a document among them.

It lives in their collection: what swaps the aggregates swaps their watermark, in one step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bson.objectid import ObjectId

from aioretry.streams._changes import Position
from aioretry.streams._folding import RESERVED

NO_WATERMARKS: Mapping[str, Any] = {f"_id.{RESERVED}": {"$exists": False}}
"""A filter for the aggregates without their watermarks."""

# A level deeper than the counters, so that no filter or sort by counters finds it.
_FIELDS = "watermark"


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far one part of the aggregates is."""

    part: int
    """Whose."""

    parts: int
    """How many there are."""

    name: str
    """Of the aggregator."""

    version: str
    """Of its increments."""

    build: ObjectId
    """Which rebuild made the aggregates."""

    sequence: int
    """How many batches were committed since then."""

    changes: int
    """How many changes were looked at since then."""

    position: Position
    """Where the next change is looked for."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Watermark":
        """Read one."""
        mark = document[_FIELDS]
        return cls(
            part=document["_id"]["part"],
            parts=mark["parts"],
            name=mark["name"],
            version=mark["version"],
            build=mark["build"],
            sequence=mark["sequence"],
            changes=mark["changes"],
            position=Position(mark["time"], mark["token"]),
        )

    def document(self) -> dict[str, Any]:
        """Return it as a rebuild begins with it."""
        mark = {
            "parts": self.parts,
            "name": self.name,
            "version": self.version,
            "build": self.build,
            "sequence": self.sequence,
            "changes": self.changes,
            "time": self.position.time,
            "token": self.position.token,
            "building": True,
        }
        return {"_id": watermark_id(self.part), _FIELDS: mark}

    def expected(self) -> dict[str, Any]:
        """Return the filter that it matches as long as nobody has moved it."""
        return {
            "_id": watermark_id(self.part),
            f"{_FIELDS}.build": self.build,
            f"{_FIELDS}.sequence": self.sequence,
            f"{_FIELDS}.building": {"$exists": False},
        }

    def moved(self, position: Position, changes: int) -> "Watermark":
        """Return the next one."""
        return replace(
            self,
            sequence=self.sequence + 1,
            changes=self.changes + changes,
            position=position,
        )


def move(position: Position, changes: int) -> dict[str, Any]:
    """Return the update that moves a watermark."""
    return {
        "$set": {f"{_FIELDS}.time": position.time, f"{_FIELDS}.token": position.token},
        "$inc": {f"{_FIELDS}.sequence": 1, f"{_FIELDS}.changes": changes},
        "$currentDate": {f"{_FIELDS}.at": True},
    }


def finish() -> dict[str, Any]:
    """Return the update that says that a rebuild has counted everything."""
    return {"$unset": {f"{_FIELDS}.building": ""}}


def finished(build: ObjectId) -> dict[str, Any]:
    """Return the filter of all watermarks of a rebuild that has."""
    return {f"{_FIELDS}.build": build, f"{_FIELDS}.building": {"$exists": False}}


def unfinished(build: ObjectId) -> dict[str, Any]:
    """Return the filter of all watermarks of a rebuild that has not."""
    return {f"{_FIELDS}.build": build, f"{_FIELDS}.building": True}


def watermark_id(part: int) -> dict[str, Any]:
    """Return the ``_id`` of a watermark."""
    return {RESERVED: "watermark", "part": part}
