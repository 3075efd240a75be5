"""What the parts of an aggregator share."""

from dataclasses import dataclass
from typing import Any

from aioretry import RetryClient, RetryMotorCollection
from aioretry.streams._folding import Increments
from aioretry.streams._leases import Leases
from aioretry.streams._sources import Source


@dataclass(frozen=True, slots=True)
class Settings:
    """An aggregator's arguments, checked, and what follows from them."""

    name: str
    source: Source
    increments: Increments
    target: RetryMotorCollection[Any]
    client: RetryClient[Any]
    leases: Leases
    parts: int
    max_changes: int
    max_bytes: int
    max_seconds: float

    @property
    def lease_seconds(self) -> float:
        """How long a lease lasts."""
        return self.leases.seconds
