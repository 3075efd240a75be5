"""What the parts of an aggregator share."""

from dataclasses import dataclass

from aioretry._faces import Client, Collection
from aioretry.streams._errors import MismatchError
from aioretry.streams._folding import Increments
from aioretry.streams._leases import Leases
from aioretry.streams._sources import Source
from aioretry.streams._watermarks import Watermark


@dataclass(frozen=True, slots=True)
class Settings:
    """An aggregator's arguments, checked, and what follows from them."""

    name: str
    source: Source
    increments: Increments
    target: Collection
    client: Client
    leases: Leases
    parts: int
    version: str
    max_changes: int
    max_bytes: int
    max_seconds: float

    def mismatch(self, watermark: Watermark) -> MismatchError | None:
        """Return what is wrong with the aggregates that have this watermark, or None."""
        its, mine = watermark, self
        if its.name != mine.name:
            how = f"by the aggregator {its.name!r}, not by {mine.name!r}: use another target"
        elif its.parts != mine.parts:
            how = f"for {its.parts} workers, not for {mine.parts}: rebuild"
        elif its.version != mine.version:
            how = f"by version {its.version!r}, not by {mine.version!r}: rebuild"
        else:
            return None
        mismatch = MismatchError(f"{mine.target.full_name} was built {how}")
        mismatch.is_anothers = its.name != mine.name
        return mismatch

    @property
    def lease_seconds(self) -> float:
        """How long a lease lasts."""
        return self.leases.seconds
