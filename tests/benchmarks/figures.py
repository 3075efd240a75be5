"""Quantiles, ratios and how far they spread."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and from where to where the middle half of the values lies."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of some values; NaN if there are none."""
        return cls(*(quantile(values, share) for share in (0.25, 0.5, 0.75)))

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of all values does not exceed; NaN if there are none."""
    if not values:
        return math.nan
    if len(values) == 1:
        return values[0]
    parts = 1000
    return statistics.quantiles(values, n=parts, method="inclusive")[round(share * parts) - 1]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round, ours by theirs."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def shown(value: float) -> str:
    """A figure for people, with three digits at least; a dash if there is none."""
    if math.isnan(value):
        return "-"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
