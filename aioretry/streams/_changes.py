"""What a source tells: changes, and positions among them."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.timestamp import Timestamp


class ChangeKind(enum.Enum):
    """What happened to a document."""

    INSERT = "insert"
    """It is new; a rebuild tells of every document so."""

    UPDATE = "update"
    """Fields of it were changed."""

    REPLACE = "replace"
    """All of it was changed."""

    DELETE = "delete"
    """It is gone."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the order of changes that the server has given them."""

    time: Timestamp
    """The cluster time."""

    token: Mapping[str, Any] | None = None
    """The resume token; None right after a rebuild, and for a document that one reads."""

    def after(self) -> Timestamp:
        """Return the first cluster time that is later.

        A change stream that starts at a time tells of what happened at that time, too.
        """
        return Timestamp(self.time.time, self.time.inc + 1)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one document."""

    kind: ChangeKind
    """What happened."""

    key: Any
    """The document's ``_id``."""

    before: Mapping[str, Any] | None
    """The document before the change; None if there was none."""

    after: Mapping[str, Any] | None
    """The document after the change; None if there is none."""

    position: Position
    """Where the change stands among all others."""
