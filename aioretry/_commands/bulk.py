"""Bulk operations: what each command of one holds. Pure."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Generic, TypeVar

from pymongo.errors import DocumentTooLarge, InvalidOperation

from aioretry._commands.command import Command, CommandLimits, Encode
from aioretry._commands.encoded import EncodedDocuments
from aioretry._commands.statements import Batch, Kind, Run
from aioretry._commands.target import Target

T = TypeVar("T")

# What a message holds beside the statements and the user's options: its header, the session, the
# cluster time. Servers also take documents that are larger by this.
_OVERHEAD = 16 * 1024
# How many statements are encoded at once, to begin with and at most.
_FIRST_STEP = 4
_LARGEST_STEP = 64


class Bulk(Generic[T]):
    """A bulk operation: its statements, of which each command takes as many as it can hold.

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
        self.ordered = ordered
        self.result = result
        self.count = count
        """How many statements there are, as far as that is known."""

        self._options = options
        self._encoded_ahead: EncodedDocuments | None = None
        self._step = _FIRST_STEP

    @property
    def has_unsent(self) -> bool:
        """Whether there are statements that no command has held yet."""
        return bool(self._runs)

    def next_command(self) -> tuple[Command[Any], Batch]:
        """Return the next command; it gets its statements when a server's limits are known."""
        kind = self._runs[0].kind
        batch = Batch(kind)
        body = {kind.value: self._target.collection, **self._options[kind]}
        command = self._target.write(self.operation, kind.value, body, _no_result)
        command.error_in = batch.error_in
        command.prepare = partial(self._fill, command, batch)
        command.may_block = True
        command.is_one_of_many = command.may_fill_message = True
        return command, batch

    def stop_reading(self) -> None:
        """Have the thread that still reads an iterator stop after the document that it gets."""
        for run in self._runs:
            run.is_stopped = True

    def _fill(
        self, command: Command[Any], batch: Batch, limits: CommandLimits, encode: Encode
    ) -> None:
        run = self._runs[0]
        try:
            self._take(run, batch, limits, encode, self._target.size(command.body))
        finally:
            self.count = max(self.count, 1 + max(batch.indexes, default=-1))
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
