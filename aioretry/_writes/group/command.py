"""The command that inserts of several calls travel in."""

import asyncio
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo.errors import (
    DocumentTooLarge,
    InvalidOperation,
    OperationFailure,
    ServerSelectionTimeoutError,
)
from pymongo.results import InsertOneResult

from aioretry._commands import replies
from aioretry._commands.command import Command, CommandLimits, Encode
from aioretry._commands.encoded import EncodedDocuments
from aioretry._commands.target import Target
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import SharedWatch, Watch
from aioretry._retry.sessions import SessionLease
from aioretry._retry.surfacing import too_late
from aioretry._writes.group.member import CoalescedInsert
from aioretry._writes.group.shares import Shares
from aioretry._writes.single import Write
from aioretry.deadlines import Deadline
from aioretry.errors import (
    Attempt,
    DeadlineExceeded,
    Outcome,
    attach,
    copy_of,
    copy_report,
    outcome_of,
    report_of,
)

_OVERHEAD = 16 * 1024  # servers refuse by themselves what is larger by less than this


class SharedInsert:
    """Inserts of several calls in one command.

    Until an attempt is prepared, whoever leaves is taken out. From then on the documents are
    fixed, because every attempt has to send the same.

    Args:
        coordinator: Executes the command.
        target: Where it goes.
        inserts: The inserts, in the order of their documents.
        lease: The session.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        target: Target,
        inserts: dict[CoalescedInsert, None],
        lease: SessionLease,
    ) -> None:
        self._coordinator = coordinator
        self._target = target
        self._inserts = inserts
        self._left = len(inserts)
        # Guards what is chosen: a thread may do it, the event loop takes out.
        self._lock = threading.Lock()
        self._gone: dict[int, BaseException] = {}
        self._answers: dict[BaseException, Mapping[str, Any]] = {}
        for insert in inserts:
            insert.holder = self
        self.deadline = latest(insert.deadline for insert in inserts)
        """When all of it has to be over, or None."""

        watch = SharedWatch(self._watches) if coordinator.watchers else None
        self._execution = coordinator.execution(self._command(), lease, self.deadline, watch)
        self._execution.is_shared = True
        self.write: Write[Mapping[str, Any]] = Write(coordinator, lease, self.deadline, watch)
        self._shares = Shares(coordinator, self._execution, self._answers, self.write.done)

    def begin(self) -> None:
        """Send it."""
        self.write.execute(self._execution)

    def __len__(self) -> int:
        return len(self._inserts)

    @property
    def waiting(self) -> int:
        """How many inserts are in it, unless an attempt is in the air."""
        return len(self) if self._execution.pending is None else 0

    def outlives(self, insert: CoalescedInsert) -> bool:
        """Tell whether the deadline of an insert comes before that of the whole."""
        own, last = insert.deadline, self.deadline
        return own is not None and last is not None and own.at < last.at

    @property
    def attempts(self) -> Sequence[Attempt]:
        """What was tried."""
        return self._execution.attempts

    def let_go(self, insert: CoalescedInsert, exc: BaseException) -> None:
        """Do without an insert: it is taken out, or its outcome is unknown until the end."""
        index = self._take_out(insert)
        self._left -= 1
        if index is None:
            attach(exc, Outcome.NOT_APPLIED, [])
        else:
            self._gone[index] = exc
            doubt = self._shares.doubt(index, insert.inserted_id)
            attach(exc, Outcome.UNKNOWN, self._execution.history(), doubt=doubt)
        if not self._left:
            self.write.cancel()
            if index is not None and self.write.done():
                self._shares.explain(exc, index, insert.inserted_id)

    def too_late(self, insert: CoalescedInsert) -> DeadlineExceeded:
        """Return the error that says that an insert's deadline is over."""
        execution = self._execution
        last: BaseException | None = execution.last_error()
        if last is None and execution.attempts:  # nobody has judged it yet
            last = execution.attempts[-1].error
        if isinstance(last, Exception):
            error = too_late(execution, last)
            error.__cause__ = last
            return error
        return past(is_sent=self._take_out(insert) is not None)

    def end(self) -> ServerSelectionTimeoutError | None:
        """Tell each insert what came of it, and whoever has gone how it ended after all.

        Returns:
            The error if no server was found, so that others need not look for one.
        """
        reply, error = self._ending()
        if reply is not None and self._is_plain(reply):
            attempts = self.attempts
            for insert in list(self._inserts):
                insert.succeed(attempts)
            for exc in self._gone.values():
                self._acknowledge(exc)
            if not self._gone:  # nobody asks any more; a cycle is the garbage collector's work
                self._execution.command.error_in = replies.error_in
            return None
        for index, insert in enumerate(list(self._inserts)):
            self._end_one(insert, index, reply, error)
        return error if isinstance(error, ServerSelectionTimeoutError) else None

    def _take_out(self, insert: CoalescedInsert) -> int | None:
        """Return the place of an insert, or have it travel no more if it has none yet."""
        with self._lock:
            if insert.index is None:
                self._inserts.pop(insert, None)
            return insert.index

    def _ending(self) -> tuple[Mapping[str, Any] | None, BaseException | None]:
        try:
            return self.write.result(), None
        except asyncio.CancelledError as exc:
            return None, exc
        except Exception as exc:  # noqa: BLE001 - each gets its own of it
            reply = self._answers.get(exc)  # the last word was an answer after all
            return (None, exc) if reply is None else (reply, None)

    def _is_plain(self, reply: Mapping[str, Any]) -> bool:
        """Tell whether a reply acknowledges every insert."""
        count = len(self._inserts)
        return (
            (count == 1 or reply.get("n") == count)
            and not reply.get("writeErrors")
            and not reply.get("writeConcernError")
        )

    def _end_one(
        self,
        insert: CoalescedInsert,
        index: int,
        reply: Mapping[str, Any] | None,
        error: BaseException | None,
    ) -> None:
        if insert.done() and index not in self._gone:
            return
        try:
            if reply is not None and self._asks(insert, index, reply):
                return
            own = self._error_of(insert, index, reply, error)
        except Exception as exc:  # noqa: BLE001 - the answer makes no sense
            own = exc
            attach(own, Outcome.UNKNOWN, self.attempts)
        self._tell(insert, index, own)

    def _asks(self, insert: CoalescedInsert, index: int, reply: Mapping[str, Any]) -> bool:
        """Ask the server about an insert of which its reply does not tell, if it can be asked."""
        if not self._shares.is_silent(reply, index):
            return False
        doubt = self._shares.doubt(index, insert.inserted_id)
        if doubt.why_unresolvable() is not None:
            return False
        execution = self._execution
        left = None if execution.deadline is None else execution.time_left()
        part = None if insert.watch is None else SharedWatch([insert.watch].copy)
        asked = asyncio.ensure_future(self._shares.ask(index, insert.inserted_id, left, part))
        asked.add_done_callback(partial(self._hear, insert, index))
        return True

    def _hear(
        self, insert: CoalescedInsert, index: int, asked: asyncio.Future[InsertOneResult]
    ) -> None:
        try:
            asked.result()
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - told to whom it is for
            self._tell(insert, index, exc)
        else:
            self._tell(insert, index, None)

    def _tell(self, insert: CoalescedInsert, index: int, own: BaseException | None) -> None:
        gone = self._gone.get(index)
        if gone is not None:
            if own is None or outcome_of(own) is Outcome.APPLIED:
                self._acknowledge(gone)
            else:
                copy_report(own, gone)
        elif own is None:
            insert.succeed(self.attempts)
        else:
            insert.fail(own, self.attempts)

    def _acknowledge(self, gone: BaseException) -> None:
        """Say on the exception of somebody who has gone that the insert is applied."""
        report = report_of(gone)
        # Whoever is about to resolve it gets the answer.
        doubt = None if report is None else report.doubt
        attach(gone, Outcome.APPLIED, self.attempts, doubt=doubt)

    def _error_of(
        self,
        insert: CoalescedInsert,
        index: int,
        reply: Mapping[str, Any] | None,
        error: BaseException | None,
    ) -> BaseException | None:
        each = self._shares
        reply = reply or each.denial(index)
        if reply is not None:
            return each.error_in(reply, index, insert.inserted_id)
        if error is None:
            return None
        own = error if len(self._inserts) == 1 else copy_of(error)
        each.explain(own, index, insert.inserted_id)
        return own

    def _command(self) -> Command[Mapping[str, Any]]:
        body = {"insert": self._target.collection, "ordered": False}
        command = self._target.write("insert_one", "insert", body, _reply)
        command.error_in = self._error_in
        command.prepare = partial(self._fix, command)
        return command

    def _fix(self, command: Command[Any], limits: CommandLimits, _: Encode) -> None:
        """Choose the documents; called by whoever makes the attempt."""
        # A single one is refused by the driver, as any insert.
        largest = limits.max_document_size + _OVERHEAD if len(self._inserts) > 1 else math.inf
        refused: list[tuple[CoalescedInsert, Exception]] = []
        raws: list[bytes] = []
        with self._lock:
            for insert in list(self._inserts):
                error = None
                if len(insert.raw) > largest or insert.deadline is not None:
                    error = _refusal(insert, largest, limits)
                if error is None:
                    insert.index = len(raws)
                    raws.append(insert.raw)
                    insert.raw = b""
                else:
                    del self._inserts[insert]
                    refused.append((insert, error))
        for insert, error in refused:
            self._coordinator.loop.call_soon_threadsafe(insert.refuse, error)
        if not raws:
            raise InvalidOperation("nothing is left to be sent")
        command.body["documents"] = [_joined(raws)]
        command.statement_count = len(raws)
        # The driver then takes it for larger than one document, and shows its documents singly.
        command.may_fill_message = len(raws) > 1
        command.prepare = None

    def _error_in(self, reply: Mapping[str, Any]) -> OperationFailure | None:
        if len(self._inserts) == 1:
            return replies.error_in(reply)
        # What some are not told is found out over the same session.
        error = replies.retryable_error_in(reply) or self._shares.silence_in(reply)
        if error is not None:
            self._answers[error] = reply
        return error

    def _watches(self) -> list[Watch]:
        return [insert.watch for insert in list(self._inserts) if insert.watch is not None]


def past(*, is_sent: bool) -> DeadlineExceeded:
    """Return the error that says that the deadline of one insert is over."""
    what = "the server has not answered" if is_sent else "nothing was sent"
    return DeadlineExceeded(f"the deadline of insert_one is over; {what}")


def latest(deadlines: Iterable[Deadline | None]) -> Deadline | None:
    """Return the deadline that comes last, or None if there is none."""
    given = [deadline for deadline in deadlines if deadline is not None]
    return max(given, key=lambda deadline: deadline.at, default=None)


def _refusal(insert: CoalescedInsert, largest: float, limits: CommandLimits) -> Exception | None:
    if len(insert.raw) > largest:
        return DocumentTooLarge(
            f"BSON document too large ({len(insert.raw)} bytes) - the connected server supports "
            f"BSON document sizes up to {limits.max_document_size} bytes."
        )
    if insert.deadline is not None and insert.deadline.is_over:
        return past(is_sent=False)
    return None


def _joined(raws: list[bytes]) -> RawBSONDocument | EncodedDocuments:
    if len(raws) == 1:
        return RawBSONDocument(raws[0])
    return EncodedDocuments(b"".join(raws), len(raws), max(map(len, raws)))


def _reply(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the command awaits is told to each insert singly."""
    return reply
