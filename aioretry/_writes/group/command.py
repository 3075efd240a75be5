"""The command that writes of several calls travel in."""

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo.errors import (
    DocumentTooLarge,
    InvalidOperation,
    OperationFailure,
    ServerSelectionTimeoutError,
)

from aioretry._commands import replies
from aioretry._commands.command import Command, CommandLimits, Encode
from aioretry._commands.encoded import EncodedDocuments
from aioretry._commands.target import Target
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import SharedWatch, Watch
from aioretry._retry.sessions import SessionLease
from aioretry._retry.surfacing import too_late
from aioretry._writes.group.kinds import INSERTS, Kind, is_unread
from aioretry._writes.group.member import CoalescedWrite
from aioretry._writes.group.shares import Shares
from aioretry._writes.resolve import Resolving
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


class SharedCommand:
    """Writes of several calls in one command.

    Until an attempt is prepared, whoever leaves is taken out. From then on the documents are
    fixed, because every attempt has to send the same.

    Args:
        coordinator: Executes the command.
        kind: What they are.
        target: Where it goes.
        members: The writes, in the order of their statements.
        lease: The session.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        kind: Kind,
        target: Target,
        members: dict[CoalescedWrite, None],
        lease: SessionLease,
    ) -> None:
        self._coordinator = coordinator
        self._kind = kind
        self._target = target
        self._members = members
        self._left = len(members)
        # Guards what is chosen: a thread may do it, the event loop takes out.
        self._lock = threading.Lock()
        self._gone: dict[int, BaseException] = {}
        self._answers: dict[BaseException, Mapping[str, Any]] = {}
        self._asked: dict[int, Resolving[Any]] = {}
        self._has_doubts = False
        self.when_answered: Callable[[], object] | None = None
        """Is called when nothing is asked about any more."""

        for member in members:
            member.holder = self
        self.deadline = latest(member.deadline for member in members)
        """When all of it has to be over, or None."""

        watch = SharedWatch(self._watches) if coordinator.watchers else None
        self._execution = coordinator.execution(self._command(), lease, self.deadline, watch)
        self._execution.is_shared = True
        write: Write[Mapping[str, Any]] = Write(coordinator, lease, self.deadline, watch)
        self.write = write.as_part()
        self._shares = Shares(coordinator, kind, self._execution, self._answers, self.write.done)

    def begin(self) -> None:
        """Send it."""
        self.write.execute(self._execution)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def waiting(self) -> int:
        """How many writes are in it, or are still asked about, unless an attempt is in the air."""
        if self.write.done():
            return len(self._asked)
        return len(self) if self._execution.pending is None else 0

    @property
    def is_asking(self) -> bool:
        """Whether some are asked about, after the answer to all."""
        return bool(self._asked)

    def outlives(self, member: CoalescedWrite) -> bool:
        """Tell whether the deadline of a write comes before that of the whole."""
        own, last = member.deadline, self.deadline
        return own is not None and last is not None and own.at < last.at

    @property
    def attempts(self) -> Sequence[Attempt]:
        """What was tried."""
        return self._execution.attempts

    def let_go(self, member: CoalescedWrite, exc: BaseException) -> None:
        """Do without a write: it is taken out, or its outcome is unknown until the end."""
        index = self._take_out(member)
        self._left -= 1
        if index is None:
            attach(exc, Outcome.NOT_APPLIED, [])
        else:
            self._gone[index] = exc
            asked = self._asked.get(index)
            if asked is not None and self._kind is not INSERTS and not asked.was_sent:
                asked.cancel()  # it would be done only now
            doubt = self._shares.doubt(index, member.result_of)
            attach(exc, Outcome.UNKNOWN, self._execution.history(), doubt=doubt)
        if not self._left:
            self.write.cancel()
            if index is not None and self.write.done():
                self._shares.explain(exc, index, member.result_of)

    def too_late(self, member: CoalescedWrite) -> DeadlineExceeded:
        """Return the error that says that a write's deadline is over."""
        execution = self._execution
        last: BaseException | None = execution.last_error()
        if last is None and execution.attempts:  # nobody has judged it yet
            last = execution.attempts[-1].error
        if isinstance(last, Exception):
            error = too_late(execution, last)
            error.__cause__ = last
            return error
        return past(self._kind.operation, is_sent=self._take_out(member) is not None)

    def end(self) -> ServerSelectionTimeoutError | None:
        """Tell each write what came of it, and whoever has gone how it ended after all.

        Returns:
            The error if no server was found, so that others need not look for one.
        """
        reply, error = self._ending()
        if reply is not None and self._succeed(reply):
            for exc in self._gone.values():
                self._acknowledge(exc)
            if not self._gone:  # nobody asks any more; a cycle is the garbage collector's work
                self._execution.command.error_in = replies.error_in
            return None
        for index, member in enumerate(list(self._members)):
            self._end_one(member, index, reply, error)
        return error if isinstance(error, ServerSelectionTimeoutError) else None

    def _take_out(self, member: CoalescedWrite) -> int | None:
        """Return the place of a write, or have it travel no more if it has none yet."""
        with self._lock:
            if member.index is None:
                self._members.pop(member, None)
            return member.index

    def _ending(self) -> tuple[Mapping[str, Any] | None, BaseException | None]:
        try:
            return self.write.result(), None
        except asyncio.CancelledError as exc:
            return None, exc
        except Exception as exc:  # noqa: BLE001 - each gets its own of it
            reply = self._answers.get(exc)  # the last word was an answer after all
            return (None, exc) if reply is None else (reply, None)

    def _succeed(self, reply: Mapping[str, Any]) -> bool:
        """End all with their results, if a reply says of each what became of it."""
        try:
            reading = self._kind.reading(reply, len(self._members))
            if not reading.is_plain:
                return False
            results = [
                member.result_of(reading.alone(index) or reply)
                for index, member in enumerate(self._members)
            ]
        except Exception:  # noqa: BLE001 - it makes no sense, which each is told
            return False
        attempts = self.attempts
        for member, result in zip(list(self._members), results, strict=True):
            member.succeed(result, attempts)
        return True

    def _end_one(
        self,
        member: CoalescedWrite,
        index: int,
        reply: Mapping[str, Any] | None,
        error: BaseException | None,
    ) -> None:
        if member.done() and index not in self._gone:
            return
        try:
            if self._is_unsaid(index, reply, error) and self._asks(member, index):
                return
            own, result = self._error_of(member, index, reply, error), None
            if own is None and reply is not None:
                result = member.result_of(self._shares.alone(reply, index) or reply)
        except Exception as exc:  # noqa: BLE001 - the answer makes no sense
            own, result = exc, None
            attach(own, Outcome.UNKNOWN, self.attempts)
        self._tell(member, index, own, result)

    def _is_unsaid(
        self, index: int, reply: Mapping[str, Any] | None, error: BaseException | None
    ) -> bool:
        """Tell whether it is not said what becomes of a write, or would of it alone."""
        if reply is not None:
            return self._shares.is_silent(reply, index)
        return len(self._members) > 1 and is_unread(error)  # because of any of them

    def _asks(self, member: CoalescedWrite, index: int) -> bool:
        """Ask the server about a write of which its reply does not tell, if it can be asked."""
        if index in self._gone and self._kind is not INSERTS:
            return True  # it may be done only now, which is for resolve() to want
        doubt = self._shares.doubt(index, member.result_of)
        if doubt.why_unresolvable() is not None:
            return False
        execution = self._execution
        left = None if execution.deadline is None else execution.time_left()
        part = None if member.watch is None else SharedWatch([member.watch].copy)
        asked = self._shares.ask(index, member.result_of, left, part).as_part()
        self._asked[index] = asked
        asked.add_done_callback(partial(self._hear, member, index))
        return True

    def _hear(self, member: CoalescedWrite, index: int, asked: asyncio.Future[Any]) -> None:
        try:
            own, result = None, asked.result()
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 - told to whom it is for
            own, result = exc, None
        try:
            self._tell(member, index, own, result)
        finally:  # whatever that raises, the next command waits for this
            del self._asked[index]
            if not self._asked:
                self._end_asking()

    def _end_asking(self) -> None:
        if not (self._has_doubts or self._gone):
            # Each was answered: the session is as good as new, and the server knows it already.
            self._execution.lease.settle_asked()
        if self.when_answered is not None:
            self.when_answered()

    def _tell(
        self, member: CoalescedWrite, index: int, own: BaseException | None, result: Any = None
    ) -> None:
        gone = self._gone.get(index)
        if gone is not None:
            if own is None or outcome_of(own) is Outcome.APPLIED:
                self._acknowledge(gone)
            else:
                copy_report(own, gone)
        elif own is None:
            member.succeed(result, self.attempts)
        else:
            self._has_doubts |= outcome_of(own) is Outcome.UNKNOWN  # resolve() needs the session
            member.fail(own, self.attempts)

    def _acknowledge(self, gone: BaseException) -> None:
        """Say on the exception of somebody who has gone that the write is applied."""
        report = report_of(gone)
        # Whoever is about to resolve it gets the answer.
        doubt = None if report is None else report.doubt
        attach(gone, Outcome.APPLIED, self.attempts, doubt=doubt)

    def _error_of(
        self,
        member: CoalescedWrite,
        index: int,
        reply: Mapping[str, Any] | None,
        error: BaseException | None,
    ) -> BaseException | None:
        each = self._shares
        reply = reply or each.denial(index)
        if reply is not None:
            return each.error_in(reply, index, member.result_of)
        if error is None:
            return None
        own = error if len(self._members) == 1 else copy_of(error)
        each.explain(own, index, member.result_of)
        return own

    def _command(self) -> Command[Mapping[str, Any]]:
        kind = self._kind
        body = {kind.command: self._target.collection, "ordered": False}
        command = self._target.write(kind.operation, kind.command, body, _reply)
        command.error_in = self._error_in
        command.prepare = partial(self._fix, command)
        return command

    def _fix(self, command: Command[Any], limits: CommandLimits, _: Encode) -> None:
        """Choose the documents; called by whoever makes the attempt."""
        # A single one is refused by the driver, as any write.
        largest = limits.max_document_size + _OVERHEAD if len(self._members) > 1 else math.inf
        refused: list[tuple[CoalescedWrite, Exception]] = []
        raws: list[bytes] = []
        with self._lock:
            for member in list(self._members):
                error = None
                if len(member.raw) > largest or member.deadline is not None:
                    error = _refusal(member, self._kind.operation, largest, limits)
                if error is None:
                    member.index = len(raws)
                    raws.append(member.raw)
                    member.raw = b""
                else:
                    del self._members[member]
                    refused.append((member, error))
        for member, error in refused:
            self._coordinator.loop.call_soon_threadsafe(member.refuse, error)
        if not raws:
            raise InvalidOperation("nothing is left to be sent")
        command.body[self._kind.field] = [_joined(raws)]
        command.statement_count = len(raws)
        # The driver then takes it for larger than one document, and shows its documents singly.
        command.may_fill_message = len(raws) > 1
        command.prepare = None

    def _error_in(self, reply: Mapping[str, Any]) -> OperationFailure | None:
        if len(self._members) == 1:
            return replies.error_in(reply)
        # What some are not told is found out over the same session.
        error = replies.retryable_error_in(reply) or self._shares.silence_in(reply)
        if error is not None:
            self._answers[error] = reply
        return error

    def _watches(self) -> list[Watch]:
        return [member.watch for member in list(self._members) if member.watch is not None]


def past(operation: str, *, is_sent: bool) -> DeadlineExceeded:
    """Return the error that says that the deadline of one write is over."""
    what = "the server has not answered" if is_sent else "nothing was sent"
    return DeadlineExceeded(f"the deadline of {operation} is over; {what}")


def latest(deadlines: Iterable[Deadline | None]) -> Deadline | None:
    """Return the deadline that comes last, or None if there is none."""
    given = [deadline for deadline in deadlines if deadline is not None]
    return max(given, key=lambda deadline: deadline.at, default=None)


def _refusal(
    member: CoalescedWrite, operation: str, largest: float, limits: CommandLimits
) -> Exception | None:
    if len(member.raw) > largest:
        return DocumentTooLarge(
            f"BSON document too large ({len(member.raw)} bytes) - the connected server supports "
            f"BSON document sizes up to {limits.max_document_size} bytes."
        )
    if member.deadline is not None and member.deadline.is_over:
        return past(operation, is_sent=False)
    return None


def _joined(raws: list[bytes]) -> RawBSONDocument | EncodedDocuments:
    if len(raws) == 1:
        return RawBSONDocument(raws[0])
    return EncodedDocuments(b"".join(raws), len(raws), max(map(len, raws)))


def _reply(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the command awaits is told to each write singly."""
    return reply
