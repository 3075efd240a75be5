"""A write that travels with others, as its caller sees it."""

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from aioretry._commands.single import Apart, Travelling
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._writes.future import RunningWrite
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt, DeadlineExceeded, Outcome, attach


class Holder(Protocol):
    """Where a write is that has not ended: in a queue, or in a command with others."""

    @property
    def attempts(self) -> Sequence[Attempt]:
        """What was tried for it."""
        ...

    def let_go(self, member: "CoalescedWrite", exc: BaseException) -> None:
        """Do without a write that ends before the others, and say on an exception how."""
        ...

    def too_late(self, member: "CoalescedWrite") -> DeadlineExceeded:
        """Return the error that says that a write's deadline is over."""
        ...


class CoalescedWrite(RunningWrite[Any]):
    """A write that travels with others.

    Args:
        coordinator: Of the client's event loop.
        holder: Where it is.
        deadline: When it has to be over, or None.
        watch: Who is told of what becomes of it, or None.
    """

    __slots__ = (
        "_statement",
        "_tried",
        "apart",
        "deadline",
        "holder",
        "index",
        "outages",
        "raw",
        "result_of",
    )

    def __init__(
        self,
        coordinator: Coordinator,
        holder: Holder,
        deadline: Deadline | None,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(coordinator, watch)
        self._statement: Any = None
        self._tried: Sequence[Attempt] = ()
        self.holder: Holder | None = holder
        self.deadline = deadline
        self.raw = b""
        """Its statement's BSON, as long as it waits."""

        self.index: int | None = None
        """The place of its statement in the command; None before that was chosen."""

        self.context = contextvars.copy_context()
        """That of its caller, for the command if this is its first write."""

        self.outages = 0
        """How often nobody had found a server when it came."""

        self.apart: Apart | None = None
        """What it must not share with another one in a command; None if it can go with all."""

        self.result_of: Callable[[Mapping[str, Any]], Any] = _nothing
        """Turns the reply to it alone into what the user awaits."""

    def take(self, arguments: Travelling[Any]) -> None:
        """Take what the user gave; a document that has no ``_id`` gets it.

        Raises:
            TypeError: An argument is of another type.
            ValueError: One can't be what it is.
        """
        self._statement = arguments.statement()
        self.apart, self.result_of = arguments.apart, arguments.result

    def encode(self, codec_options: CodecOptions[Any]) -> int:
        """Encode its statement; return the size in bytes.

        Raises:
            InvalidDocument: It can't be encoded.
        """
        statement, self._statement = self._statement, None
        if isinstance(statement, RawBSONDocument):
            self.raw = bytes(statement.raw)
        else:
            self.raw = bson.encode(statement, codec_options=codec_options)
        if self.apart is not None and self.apart.key is None:
            self.apart = Apart(self.apart.is_added_to, _filter_in(self.raw))
        return len(self.raw)

    def succeed(self, result: Any, tried: Sequence[Attempt]) -> None:
        """End it with its result."""
        if not self.done():
            self._tried, self.holder = tried, None
            self.set_result(result)
            self._tell_end(None)

    def fail(self, exc: BaseException, tried: Sequence[Attempt]) -> None:
        """End it with an error that says already how it ended."""
        if self.done():
            return
        self._tried, self.holder = tried, None
        if isinstance(exc, asyncio.CancelledError):
            self._cancelled_error = exc
            asyncio.Future.cancel(self)
            self._tell_end(exc)
        else:
            self._end(exc)

    def refuse(self, exc: Exception) -> None:
        """End it with an error of its own, before the others."""
        if not self.done():
            self._fail(exc)

    def expire(self) -> None:
        """End it because its deadline is over, while the others go on."""
        if self.holder is not None and not self.done():
            self._fail(self.holder.too_late(self))

    def attempts(self) -> Sequence[Attempt]:
        """Return what was tried for the write."""
        return self._tried

    def _settle(self, exc: BaseException) -> None:
        holder, self.holder = self.holder, None
        if holder is None:
            attach(exc, Outcome.NOT_APPLIED, [])
        else:
            self._tried = holder.attempts
            holder.let_go(self, exc)
        self._statement, self.raw = None, b""


def _filter_in(raw: bytes) -> bytes:
    """Return the BSON of a statement's first field, which is its filter."""
    start = raw.index(b"\0", 5) + 1  # after the length, the type and the name
    return raw[start : start + int.from_bytes(raw[start : start + 4], "little")]


def _nothing(reply: Mapping[str, Any]) -> None:
    """Make nothing of a reply: nothing was sent."""
