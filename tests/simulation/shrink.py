"""The few steps of a failed run that it takes to fail."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.plan import Plan
from tests.simulation.run import Run

T = TypeVar("T")


def shrunk(plan: Plan, most: int = 200) -> Plan:
    """Return a part of a run that goes wrong in the same way.

    Args:
        plan: A run that goes wrong.
        most: How many runs this may take.
    """
    runs_left, first = most, _ways(plan)[:1]

    def fails(candidate: Plan) -> bool:
        nonlocal runs_left
        runs_left -= 1
        return runs_left >= 0 and first[0] in _ways(candidate)

    operations = _fewest(plan.operations, lambda some: fails(replace(plan, operations=some)))
    plan = replace(plan, operations=operations)
    faults = _fewest(plan.faults, lambda some: fails(replace(plan, faults=some)))
    return replace(plan, faults=faults)


def _ways(plan: Plan) -> list[str]:
    """Return what goes wrong in a run, without which operation it was, when, and what was told."""
    return [re.sub(r"\d+|\(.*", "", each.partition(": ")[2]) for each in Run(plan).verdict().wrong]


def _fewest(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Leave out ever smaller parts, as long as it still fails."""
    kept, size = tuple(items), len(items)
    while size:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if fails(fewer):
                kept = fewer
            else:
                start += size
        size //= 2
    return kept
