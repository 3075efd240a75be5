"""Bulk operations: what each command of one holds, and what came of all of them. Pure."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Generic, TypeVar

from pymongo.errors import (
    BulkWriteError,
    DocumentTooLarge,
    InvalidOperation,
    OperationFailure,
    WriteError,
)
from pymongo.results import BulkWriteResult

from aioretry._commands.command import Command, CommandLimits, Encode
from aioretry._commands.encoded import EncodedDocuments
from aioretry._commands.error_codes import no_retryable_writes, says_no_retryable_writes
from aioretry._commands.replies import concern_error_document
from aioretry._commands.statements import Batch, Kind, Run
from aioretry._commands.target import Target
from aioretry.errors import Outcome, PartialResult

T = TypeVar("T")

# What a message holds beside the statements and the user's options: its header, the session, the
# cluster time. Servers also take documents that are larger by this.
_OVERHEAD = 16 * 1024
# How many statements are encoded at once, to begin with and at most.
_FIRST_STEP = 4
_LARGEST_STEP = 64
_OUTCOMES = (Outcome.NOT_APPLIED, Outcome.APPLIED, Outcome.UNKNOWN)
_CODES = {outcome: code for code, outcome in enumerate(_OUTCOMES)}


def no_result() -> dict[str, Any]:
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


class Bulk(Generic[T]):
    """A bulk operation: its statements still to be sent, and what came of the others.

    It is used by one thread at a time: the one that carries an attempt, or the event loop's.

    Args:
        target: Where it goes.
        operation: The method that the user called.
        runs: The statements in the order in which they are to be sent.
        ordered: Whether the first error ends it; None lets each command end with its first error.
        options: The options of each kind of command.
        result: Turns the merged replies into what the user awaits.
        count: How many statements there are, if that is known.
    """

    def __init__(
        self,
        target: Target,
        operation: str,
        runs: Sequence[Run],
        *,
        ordered: bool | None,
        options: Mapping[Kind, dict[str, Any]],
        result: Callable[[dict[str, Any]], T],
        count: int = 0,
    ) -> None:
        self.operation = operation
        self.namespace = f"{target.database}.{target.collection}"
        self._target = target
        self._runs = deque(runs)
        self._ordered = ordered
        self._options = options
        self._result = result
        self._outcomes = bytearray(count)
        self._merged = no_result()
        self._batch: Batch | None = None
        self._encoded_ahead: EncodedDocuments | None = None
        self._step = _FIRST_STEP

    @property
    def has_more(self) -> bool:
        """Whether there is another command to be sent."""
        if self._ordered and self._merged["writeErrors"]:
            return False
        return self.has_unsent

    @property
    def has_unsent(self) -> bool:
        """Whether there are statements that no command has held yet."""
        return bool(self._runs)

    @property
    def batch(self) -> Batch | None:
        """The command that is under way, or None."""
        return self._batch

    def next_command(self) -> Command[Any]:
        """Return the next command; it gets its statements when a server's limits are known."""
        kind = self._runs[0].kind
        batch = Batch(kind)
        body = {kind.value: self._target.collection, **self._options[kind]}
        command = self._target.write(self.operation, kind.value, body, _no_result)
        command.error_in = batch.error_in
        command.prepare = partial(self._fill, command, batch)
        command.may_block = True
        command.is_one_of_many = command.may_fill_message = True
        self._batch = batch
        return command

    def merge(self, reply: Mapping[str, Any], denied: Outcome) -> None:
        """Add the answer to the command that is under way to the result.

        Args:
            reply: The answer.
            denied: How the statements have ended that it does not say to be applied.
        """
        batch = self._batch
        if batch is None:
            raise AssertionError("a reply without a command")
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
        self._batch = None

    def fullest(self, batch: Batch, answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the answer by which most statements of a command are applied; the last of such.

        What an attempt has applied stays so, and what it was refused a later one may have applied.
        So this one tells of all of them together.
        """
        return max(reversed(answers), key=lambda answer: len(self._applied(batch, answer)))

    def take_up(self, batch: Batch) -> None:
        """Go back to a command that was given up, because an answer to it may come after all."""
        self._batch = batch

    def give_up(self, outcome: Outcome) -> None:
        """Note how the command that is under way ended without an answer."""
        batch, self._batch = self._batch, None
        if batch is not None:
            for index in batch.indexes:
                self._outcomes[index] = _CODES[outcome]

    def result(self) -> T:
        """Return what the user awaits.

        Raises:
            BulkWriteError: A server has refused a statement, or could not give the concern asked.
            OperationFailure: The deployment does not support retryable writes.
        """
        error = self.error()
        if error is not None:
            raise error
        return self._result(self._merged)

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
        return {outcome: self._outcomes.count(code) for outcome, code in _CODES.items()}

    def stop_reading(self) -> None:
        """Have the thread that still reads an iterator stop after the document that it gets."""
        for run in self._runs:
            run.is_stopped = True

    def partial_result(self) -> PartialResult:
        """Return what has come of it so far."""
        outcomes = tuple(map(_OUTCOMES.__getitem__, self._outcomes))
        merged = {  # a command that is resolved later adds to it
            name: list(value) if isinstance(value, list) else value
            for name, value in self._merged.items()
        }
        return PartialResult(BulkWriteResult(merged, True), outcomes)

    def _fill(
        self, command: Command[Any], batch: Batch, limits: CommandLimits, encode: Encode
    ) -> None:
        run = self._runs[0]
        try:
            self._take(run, batch, limits, encode, self._target.size(command.body))
        finally:
            self._note_taken(batch)
        if not batch.statements:
            raise InvalidOperation("No operations to execute")
        if run.is_over():
            self._runs.popleft()
        command.statement_count = len(batch.statements)
        command.holds_multi = batch.kind.holds_multi(batch.statements)
        command.body[batch.kind.field] = batch.encoded
        command.prepare = None  # it is done, and would keep what was sent alive

    def _take(
        self, run: Run, batch: Batch, limits: CommandLimits, encode: Encode, used: int
    ) -> None:
        room = limits.max_message_size - _OVERHEAD - used
        largest = limits.max_document_size + _OVERHEAD
        step, is_careful = self._step, False
        while statements := run.peek(min(step, limits.max_statements - len(batch.statements))):
            if run.is_stopped:
                break
            encoded, self._encoded_ahead = self._encoded_ahead, None
            if encoded is None:
                try:
                    encoded = encode(statements, self._target.codec_options)
                except Exception:
                    if len(statements) == 1:
                        raise
                    # Those before the one that can't be encoded may fill the command.
                    step, is_careful = 1, True
                    continue
            fitting = min(encoded.count, len(statements))
            if len(encoded.raw) > room or encoded.largest > largest:
                sizes = encoded.sizes()[: len(statements)]
                fitting = _fitting(sizes, room)
                _refuse_too_large(run, batch, sizes, fitting, limits)
            if fitting < encoded.count:
                encoded, self._encoded_ahead = encoded.cut(fitting)
            if fitting:
                batch.encoded.append(encoded)
            batch.statements += statements[:fitting]
            batch.indexes += run.take(fitting)
            room -= len(encoded.raw)
            if self._encoded_ahead is not None:
                break
            average = len(encoded.raw) // fitting
            self._step = min(2 * self._step, _LARGEST_STEP, max(1, room // average))
            step = 1 if is_careful else self._step

    def _note_taken(self, batch: Batch) -> None:
        missing = max(batch.indexes, default=-1) + 1 - len(self._outcomes)
        self._outcomes.extend(bytes(max(0, missing)))

    def _note_outcomes(
        self, batch: Batch, reply: Mapping[str, Any], applied: Outcome, denied: Outcome
    ) -> None:
        failed = _failed(reply)
        first, size = batch.indexes[0], len(batch.indexes)
        if not failed and batch.indexes[-1] - first == size - 1:
            self._outcomes[first : first + size] = bytes([_CODES[applied]]) * size
            return
        done = self._applied(batch, reply)
        for position, index in enumerate(batch.indexes):
            outcome = denied
            if position in done:
                outcome = applied
            elif position in failed and batch.kind.holds_multi([batch.statements[position]]):
                outcome = Outcome.UNKNOWN  # it may have changed some documents before
            self._outcomes[index] = _CODES[outcome]

    def _applied(self, batch: Batch, reply: Mapping[str, Any]) -> set[int]:
        """Return the positions of the statements that are applied by an answer."""
        failed = _failed(reply)
        ends_early = self._ordered or self._ordered is None
        reached = min(failed) if failed and ends_early else len(batch.indexes)
        return set(range(reached)) - failed


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


def _fitting(sizes: list[int], room: int) -> int:
    """Return how many of the first fit into so many bytes."""
    if sum(sizes) <= room:
        return len(sizes)
    return sum(total <= room for total in accumulate(sizes))


def _refuse_too_large(
    run: Run, batch: Batch, sizes: list[int], fitting: int, limits: CommandLimits
) -> None:
    # The one that does not fit belongs to this command, unless others are in it already.
    sizes = sizes[: fitting + 1]
    most = limits.max_document_size + _OVERHEAD
    fits_in_a_message = fitting or batch.encoded
    if fits_in_a_message and max(sizes) <= most:
        return
    offset = 0 if not fits_in_a_message else next(i for i, n in enumerate(sizes) if n > most)
    raise DocumentTooLarge(
        f"BSON document too large: statement {run.index_at(offset)} ({run.kind.value}) has "
        f"{sizes[offset]} bytes, and the connected server supports BSON document sizes up to "
        f"{limits.max_document_size} bytes and messages up to {limits.max_message_size} bytes"
    )


def _no_result(reply: Mapping[str, Any]) -> None:
    """A command of a bulk operation has no result of its own."""
