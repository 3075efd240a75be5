"""What the clients said of the writes, and whether it is true."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aioretry import Outcome, outcome_of, resolve
from aioretry.testing import Ledger, LedgerError, ReplicaSet
from tests.benchmarks.failovers.clients import Kind
from tests.benchmarks.failovers.measuring import Figures
from tests.benchmarks.failovers.servers import marks

_RESOLVE_WITHIN = 30.0
_RESOLVE_AT_ONCE = 50


@dataclass
class Told:
    """How each write ended for its caller; a write that is missing is still running."""

    kind: Kind
    acknowledged: set[int] = field(default_factory=set)
    errors: dict[int, BaseException] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Of those with an error."""

    begun: int = 0

    def fail(self, number: int, exc: BaseException) -> None:
        """Note that a write raised an error."""
        self.errors[number] = exc
        self.outcomes[number] = self.kind.outcome_of(exc)

    def wrong(self, found: dict[int, float], when: str) -> list[str]:
        """What is not as it was told, for a given content of the database."""
        ledger = Ledger()
        for number in range(self.begun):
            applied = number in self.acknowledged
            outcome = Outcome.APPLIED if applied else self.outcomes.get(number, Outcome.UNKNOWN)
            ledger.record(number, outcome, self.errors.get(number))
        try:
            ledger.check(found)
        except LedgerError as exc:
            return [f"{when}: {exc}"]
        return []


async def judge(told: Told, servers: ReplicaSet, collection: str) -> Figures:
    """Compare what was told with the database, resolve what is unknown, and compare again."""
    found = await marks(servers, collection)
    wrong = told.wrong(found, "before resolving")
    hung = told.begun - len(told.acknowledged) - len(told.errors)
    if hung:
        wrong.append(f"{hung} writes have not ended")
    figures: Figures = {
        "writes": told.begun,
        "acknowledged": len(told.acknowledged),
        "counted": int(sum(found.values())),
        "errors": len(told.errors),
    }
    if told.kind.is_ours:
        figures["errors_by_outcome"] = _names(outcome.value for outcome in told.outcomes.values())
    figures["errors_by_type"] = _names(type(exc).__name__ for exc in told.errors.values())
    figures["errors_of_writes_that_were_applied"] = sum(
        found.get(number, 0) > 0 for number in told.errors
    )
    resolved = await _resolve_all(told)
    if resolved is not None:
        found = await marks(servers, collection)
        wrong += told.wrong(found, "after resolving")
        figures |= resolved
        figures["counted_after_resolving"] = int(sum(found.values()))
    unknown = list(told.outcomes.values()).count(Outcome.UNKNOWN) + hung
    figures["exact"] = "no" if wrong else f"{unknown} unknown" if unknown else "yes"
    figures["wrong"] = wrong
    return figures


async def _resolve_all(told: Told) -> Figures | None:
    """Resolve each unknown write, and note how it ended after all; None if that can't be done."""
    unknown = [number for number, outcome in told.outcomes.items() if outcome is Outcome.UNKNOWN]
    if not told.kind.is_ours or not unknown:
        return None
    slots = asyncio.Semaphore(_RESOLVE_AT_ONCE)
    failures: list[BaseException] = []

    async def one(number: int) -> None:
        async with slots:
            try:
                await resolve(told.errors[number], timeout=_RESOLVE_WITHIN)
            except Exception as exc:  # noqa: BLE001 - whatever it is, it is counted
                failures.append(exc)
                told.outcomes[number] = outcome_of(exc) or Outcome.UNKNOWN
            else:
                told.outcomes[number] = Outcome.APPLIED

    await asyncio.gather(*(one(number) for number in unknown))
    return {
        "resolved": len(unknown) - len(failures),
        "not_resolved": _names(
            f"{type(exc).__name__} ({outcome.value if (outcome := outcome_of(exc)) else None})"
            for exc in failures
        ),
    }


def _names(values: Any) -> dict[str, int]:
    return dict(Counter(values).most_common())
