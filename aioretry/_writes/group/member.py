"""An insert that travels with others, as its caller sees it."""

import asyncio
import contextvars
from collections.abc import Sequence
from typing import Any, Protocol

import bson
from bson.codec_options import CodecOptions
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.common import validate_is_document_type
from pymongo.results import InsertOneResult

from aioretry._retry.monitoring import Watch
from aioretry._writes.future import RunningWrite
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt, DeadlineExceeded, Outcome, attach


class Holder(Protocol):
    """Where an insert is that has not ended: in a queue, or in a command with others."""

    @property
    def attempts(self) -> Sequence[Attempt]:
        """What was tried for it."""
        ...

    def let_go(self, insert: "CoalescedInsert", exc: BaseException) -> None:
        """Do without an insert that ends before the others, and say on an exception how."""
        ...

    def too_late(self, insert: "CoalescedInsert") -> DeadlineExceeded:
        """Return the error that says that an insert's deadline is over."""
        ...


class CoalescedInsert(RunningWrite[InsertOneResult]):
    """An ``insert_one`` that travels with others.

    Args:
        loop: The client's event loop.
        holder: Where it is.
        document: What is inserted.
        deadline: When it has to be over, or None.
        watch: Who is told of what becomes of it, or None.
    """

    __slots__ = (
        "_document",
        "_tried",
        "deadline",
        "holder",
        "index",
        "inserted_id",
        "outages",
        "raw",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        holder: Holder,
        document: Any,
        deadline: Deadline | None,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(loop, watch)
        self._document: Any = document
        self._tried: Sequence[Attempt] = ()
        self.holder: Holder | None = holder
        self.deadline = deadline
        self.raw = b""
        """Its document's BSON, as long as it waits."""

        self.index: int | None = None
        """The place of its document in the command; None before that was chosen."""

        self.context = contextvars.copy_context()
        """That of its caller, for the command if this is its first insert."""

        self.inserted_id: Any = None
        self.outages = 0
        """How often nobody had found a server when it came."""

    def identify(self) -> None:
        """Give the document an ``_id`` if it has none.

        Raises:
            TypeError: It is no document.
        """
        document = self._document
        if type(document) is not dict:
            validate_is_document_type("document", document)
            if isinstance(document, RawBSONDocument):
                return
        if "_id" not in document:
            document["_id"] = ObjectId()
        self.inserted_id = document["_id"]

    def encode(self, codec_options: CodecOptions[Any]) -> int:
        """Encode the document; return its size in bytes.

        Raises:
            InvalidDocument: It can't be encoded.
        """
        document, self._document = self._document, None
        if isinstance(document, RawBSONDocument):
            self.raw = bytes(document.raw)
        else:
            self.raw = bson.encode(document, codec_options=codec_options)
        return len(self.raw)

    def succeed(self, tried: Sequence[Attempt]) -> None:
        """End it with its result."""
        if not self.done():
            self._tried, self.holder = tried, None
            self.set_result(InsertOneResult(self.inserted_id, True))
            if self.watch is not None:
                self.watch.end(None)

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
        self._document, self.raw = None, b""
