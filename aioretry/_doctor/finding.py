"""One thing that is said of a deployment."""

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad it is; the worst first."""

    PROBLEM = 0
    """Writes can't be retried."""

    WARNING = 1
    """They can, but something is lost or worse than it need be."""

    UNKNOWN = 2
    """It could not be found out."""

    OK = 3
    NOTE = 4
    """What our defaults do there."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is said."""

    id: str
    """Stays the same from version to version."""

    level: Level
    text: str
    advice: str | None = None
    """What to change; None if there is nothing."""
