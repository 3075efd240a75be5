"""Those who read, at the primary and at secondaries, and what they may see."""

from typing import TYPE_CHECKING, Any

from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import (
    Nearest,
    Primary,
    PrimaryPreferred,
    Secondary,
    SecondaryPreferred,
)

from aioretry import Outcome, outcome_of
from aioretry._writes.context import settled
from tests.simulation.commands import Command
from tests.simulation.plan import READS, Operation
from tests.simulation.transfers import TIMES

if TYPE_CHECKING:
    from tests.simulation.run import Run, Told

PREFERENCES = (Primary(), PrimaryPreferred(), Secondary(), SecondaryPreferred(), Nearest())
_CONCERNS = (ReadConcern(), ReadConcern("majority"))


class Reads:
    """Those who read.

    Args:
        run: The run.
    """

    kinds = READS

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._of_majority: list[tuple[Operation, Any]] = []
        """What was read that a majority had."""

    def _things(self, operation: Operation) -> Any:
        preference = PREFERENCES[operation.how % len(PREFERENCES)]
        concern = _CONCERNS[operation.how // len(PREFERENCES) % len(_CONCERNS)]
        return self._run.collection.with_options(read_preference=preference, read_concern=concern)

    def deadline_of(self, operation: Operation) -> float | None:
        """Return the surrounding deadline."""
        return operation.deadline

    async def call(self, operation: Operation, told: "Told") -> None:
        """Read."""
        things = self._things(operation)
        match operation.kind:
            case "find_one":
                key = "hot" if operation.ordered else f"contested{operation.index % 3}"
                self._look_at(operation, await things.find_one({"_id": key}))
            case "count":
                self._expect(operation, 2, await things.count_documents({"many": True}))
            case "estimated":
                found, most = await things.estimated_document_count(), len(self._run.set.versions)
                self._expect(operation, True, 3 <= found <= most)
            case "distinct":
                self._expect(operation, {True, False}, set(await things.distinct("many")))
            case "causal":
                await self._read_own_write(operation, things, told)

    async def _read_own_write(self, operation: Operation, things: Any, told: "Told") -> None:
        async with await settled(self._run.client.start_session()) as session:
            key, update = {"_id": f"u{told.tags[0]}"}, {"$inc": {told.tags[0]: 1}}
            await things.update_one(key, update, session=session)
            told.done = 1
            found = await things.find_one(key, session=session)
        self._look_at(operation, found)
        if found is None or told.tags[0] not in found:
            self._run.complain(operation, f"has not read what it wrote before, but {found!r}")

    def _look_at(self, operation: Operation, found: Any) -> None:
        """See that a document is one that was there."""
        if found is None:
            return
        if id(found) not in self._run.set.versions:
            self._run.complain(operation, f"has read what never was: {found!r}")
        elif self._things(operation).read_concern.level == "majority":
            self._of_majority.append((operation, found))

    def _expect(self, operation: Operation, right: object, found: object) -> None:
        if found != right:
            self._run.complain(operation, f"has read {found!r}, and {right!r} is there")

    def outcomes(self, operation: Operation, told: "Told", exc: BaseException) -> list[Outcome]:
        """Return what an exception says of what was written before; of a read it says nothing."""
        outcome = outcome_of(exc)
        if operation.kind == "causal":
            return [Outcome.APPLIED if told.done else outcome or Outcome.NOT_APPLIED]
        if outcome not in {None, Outcome.NOT_APPLIED}:
            self._run.complain(operation, f"is told that it is {outcome}")
        return []

    def outcomes_of_success(self, operation: Operation) -> list[Outcome]:
        """Return what it says that there is none."""
        return [Outcome.APPLIED] if operation.kind == "causal" else []

    def is_resolved(self, operation: Operation) -> None:
        """Nothing is kept of doubts."""

    def most_seconds(self, operation: Operation) -> float | None:
        """Return how long it may take, in seconds; None if nothing limits that."""
        limits = [one for one in (operation.deadline, operation.cancelled) if one is not None]
        return min(limits, default=None)

    def most_sent(self, operation: Operation, took: float) -> float:
        """Return how many commands may have been sent for it."""
        if operation.deadline is None:
            return 6 if operation.kind == "causal" else 3
        return 2 * (40 + 4 * took + 3 * self._run.driver.changes)

    def may_be_sent(self, command: Command) -> bool:
        """Nothing may be sent for what is over."""
        del command
        return False

    def judge_all(self) -> None:
        """What a majority had is still there, or was, and what was written is there once."""
        primary = self._run.set.primary
        kept = {id(document) for entry in primary.oplog for _, _, document in entry.changes}
        for operation, found in self._of_majority:
            if id(found) not in kept:
                self._run.complain(operation, f"has read what was rolled back: {found!r}")
        documents = primary.state.documents("things")
        for operation in self._run.plan.operations:
            told = self._run.told.get(operation.index)
            if operation.kind == "causal" and told is not None and told.outcomes:
                times = documents[f"u{told.tags[0]}"].get(told.tags[0], 0)
                least, most = TIMES[told.outcomes[0]]
                if not least <= times <= most:
                    text = f"was told {told.outcomes[0].name}, and was done {times} times"
                    self._run.complain(operation, text)
