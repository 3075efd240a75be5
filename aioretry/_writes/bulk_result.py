"""What came of a bulk operation: of each of its statements, and in all."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from pymongo.errors import BulkWriteError, OperationFailure, WriteError
from pymongo.results import BulkWriteResult

from aioretry._commands.bulk import Bulk
from aioretry._commands.error_codes import no_retryable_writes, says_no_retryable_writes
from aioretry._commands.replies import concern_error_document
from aioretry._commands.statements import Batch, Kind
from aioretry.errors import Outcome, PartialResult

T = TypeVar("T")

_OUTCOMES = (Outcome.NOT_APPLIED, Outcome.APPLIED, Outcome.UNKNOWN)
_CODES = {outcome: code for code, outcome in enumerate(_OUTCOMES)}


class BulkResult(Generic[T]):
    """What the answers to a bulk operation's commands say, as far as they have come.

    Args:
        bulk: The operation.
    """

    def __init__(self, bulk: Bulk[T]) -> None:
        self.bulk = bulk
        self._outcomes = bytearray(bulk.count)
        self._merged = _no_result()

    @property
    def has_more(self) -> bool:
        """Whether there is another command to be sent."""
        if self.bulk.ordered and self._merged["writeErrors"]:
            return False
        return self.bulk.has_unsent

    def merge(self, batch: Batch, reply: Mapping[str, Any], denied: Outcome) -> None:
        """Add the answer to a command.

        Args:
            batch: The command's statements.
            reply: The answer.
            denied: How the statements have ended that it does not say to be applied.
        """
        merged = self._merged
        _count(merged, batch, reply)
        for error in reply.get("writeErrors", ()):
            position = error["index"]
            merged["writeErrors"].append(
                {**error, "index": batch.indexes[position], "op": batch.statements[position]}
            )
        concern_error = concern_error_document(reply)
        if concern_error is not None:
            merged["writeConcernErrors"].append(concern_error)
        applied = Outcome.APPLIED if concern_error is None else Outcome.UNKNOWN
        self._note_outcomes(batch, reply, applied, denied)
        batch.is_merged = True

    def fullest(self, batch: Batch, answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the answer by which most statements of a command are applied; the last of such.

        What an attempt has applied stays so, and what it was refused a later one may have applied.
        So this one tells of all of them together.
        """
        return max(reversed(answers), key=lambda answer: len(self._applied(batch, answer)))

    def give_up(self, batch: Batch, outcome: Outcome) -> None:
        """Note how a command ended without an answer."""
        outcomes = self._known()
        for index in batch.indexes:
            outcomes[index] = _CODES[outcome]

    def get(self) -> T:
        """Return what the user awaits.

        Raises:
            BulkWriteError: A server has refused a statement, or could not give the concern asked.
            OperationFailure: The deployment does not support retryable writes.
        """
        error = self.error()
        if error is not None:
            raise error
        return self.bulk.result(self._merged)

    def error(self) -> OperationFailure | None:
        """Return the error that the answers amount to, or None."""
        merged = self._merged
        if not merged["writeErrors"] and not merged["writeConcernErrors"]:
            return None
        merged["writeErrors"].sort(key=lambda error: error["index"])
        if merged["writeErrors"]:
            first = merged["writeErrors"][0]
            cause = WriteError(first.get("errmsg", ""), first.get("code"), merged)
            if says_no_retryable_writes(cause):
                return no_retryable_writes(cause)
        return BulkWriteError(merged)

    def counts(self) -> dict[Outcome, int]:
        """Return how many statements have ended in which way."""
        return {outcome: self._known().count(code) for outcome, code in _CODES.items()}

    def outcome(self) -> Outcome:
        """Return the outcome that all statements have in common; of none, nothing is applied."""
        match [outcome for outcome, count in self.counts().items() if count]:
            case []:
                return Outcome.NOT_APPLIED
            case [Outcome.APPLIED] if self.bulk.has_unsent:
                return Outcome.UNKNOWN
            case [outcome]:
                return outcome
            case _:
                return Outcome.UNKNOWN

    def partial(self) -> PartialResult:
        """Return what has come of it so far."""
        outcomes = tuple(map(_OUTCOMES.__getitem__, self._known()))
        merged = {  # a command that is resolved later adds to it
            name: list(value) if isinstance(value, list) else value
            for name, value in self._merged.items()
        }
        return PartialResult(BulkWriteResult(merged, True), outcomes)

    def _known(self) -> bytearray:
        """Return how each statement has ended that is known by now."""
        self._outcomes.extend(bytes(self.bulk.count - len(self._outcomes)))
        return self._outcomes

    def _note_outcomes(
        self, batch: Batch, reply: Mapping[str, Any], applied: Outcome, denied: Outcome
    ) -> None:
        failed = _failed(reply)
        outcomes, first, size = self._known(), batch.indexes[0], len(batch.indexes)
        if not failed and batch.indexes[-1] - first == size - 1:
            outcomes[first : first + size] = bytes([_CODES[applied]]) * size
            return
        done = self._applied(batch, reply)
        for position, index in enumerate(batch.indexes):
            outcome = denied
            if position in done:
                outcome = applied
            elif position in failed and batch.kind.holds_multi([batch.statements[position]]):
                outcome = Outcome.UNKNOWN  # it may have changed some documents before
            outcomes[index] = _CODES[outcome]

    def _applied(self, batch: Batch, reply: Mapping[str, Any]) -> set[int]:
        """Return the positions of the statements that are applied by an answer."""
        failed = _failed(reply)
        ends_early = self.bulk.ordered or self.bulk.ordered is None
        reached = min(failed) if failed and ends_early else len(batch.indexes)
        return set(range(reached)) - failed


def nothing(count: int) -> PartialResult:
    """Return what came of a bulk operation that has done nothing.

    Args:
        count: How many statements there are, if that is known.
    """
    return PartialResult(BulkWriteResult(_no_result(), True), (Outcome.NOT_APPLIED,) * count)


def _no_result() -> dict[str, Any]:
    """Return the result of a bulk operation that has done nothing."""
    return {
        "writeErrors": [],
        "writeConcernErrors": [],
        "nInserted": 0,
        "nUpserted": 0,
        "nMatched": 0,
        "nModified": 0,
        "nRemoved": 0,
        "upserted": [],
    }


def _failed(reply: Mapping[str, Any]) -> set[int]:
    return {error["index"] for error in reply.get("writeErrors", ())}


def _count(merged: dict[str, Any], batch: Batch, reply: Mapping[str, Any]) -> None:
    count = reply.get("n", 0)
    match batch.kind:
        case Kind.INSERT:
            merged["nInserted"] += count
        case Kind.DELETE:
            merged["nRemoved"] += count
        case Kind.UPDATE:
            upserted = reply.get("upserted") or ()
            merged["upserted"] += [
                {**upsert, "index": batch.indexes[upsert["index"]]} for upsert in upserted
            ]
            merged["nUpserted"] += len(upserted)
            merged["nMatched"] += count - len(upserted)
            merged["nModified"] += reply.get("nModified", 0)
