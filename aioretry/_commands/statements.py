"""The statements of bulk operations: by their kind, in the order of the call, in one command."""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymongo.errors import OperationFailure

from aioretry._commands.arguments import Document
from aioretry._commands.encoded import EncodedDocuments
from aioretry._commands.replies import retryable_error_in


class Kind(enum.Enum):
    """A kind of statement, by the name of its command."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"

    @property
    def field(self) -> str:
        """The field of the command that the statements are in."""
        return _FIELDS[self]

    def holds_multi(self, statements: Iterable[Document]) -> bool:
        """Tell whether any of the statements may change several documents."""
        match self:
            case Kind.INSERT:
                return False
            case Kind.UPDATE:
                return any(statement.get("multi") for statement in statements)
            case Kind.DELETE:
                return not all(statement["limit"] for statement in statements)


_FIELDS = {Kind.INSERT: "documents", Kind.UPDATE: "updates", Kind.DELETE: "deletes"}


class Run:
    """Statements of one kind that follow each other, taken from the front.

    Args:
        kind: The kind.
        statements: What is sent: a list, or an iterator that is read as far as it is needed.
        indexes: Their indexes in the user's call, if they are others than their positions.
    """

    def __init__(
        self,
        kind: Kind,
        statements: list[Document] | Iterator[Document],
        indexes: Sequence[int] | None = None,
    ) -> None:
        self.kind = kind
        self._known: list[Document] = []
        self._rest: Iterator[Document] = iter(())
        self._is_list = isinstance(statements, list)
        if isinstance(statements, list):
            self._known = statements
        else:
            self._rest = statements
        self._indexes = indexes
        self._taken = 0
        self._start = 0
        self._error: Exception | None = None
        self.is_stopped = False

    def peek(self, count: int) -> list[Document]:
        """Return the next statements, at most so many and none at the end.

        Raises:
            Exception: The iterator has failed, and there are none before that.
        """
        missing = self._start + count - len(self._known)
        if missing > 0 and self._error is None:
            self._read(missing)
        statements = self._known[self._start : self._start + count]
        if count and not statements and self._error is not None:
            raise self._error
        return statements

    def take(self, count: int) -> Sequence[int]:
        """Pass over the next statements; return their indexes."""
        first, self._taken = self._taken, self._taken + count
        if self._is_list:
            self._start += count
        else:  # what was sent is not kept
            del self._known[:count]
        positions = range(first, self._taken)
        return positions if self._indexes is None else self._indexes[first : self._taken]

    def index_at(self, offset: int) -> int:
        """Return the index of one of the next statements."""
        position = self._taken + offset
        return position if self._indexes is None else self._indexes[position]

    def is_over(self) -> bool:
        """Tell whether there is nothing more to take; a failed iterator still has its error."""
        try:
            return not self.peek(1)
        except Exception:  # noqa: BLE001 - raised when its turn comes
            return False

    def _read(self, count: int) -> None:
        try:
            for statement in self._rest:
                self._known.append(statement)
                count -= 1
                if not count or self.is_stopped:
                    return
        except Exception as exc:  # noqa: BLE001 - commands before its own can still be sent
            self._error = exc


@dataclass(slots=True)
class Batch:
    """The statements of one command."""

    kind: Kind
    indexes: list[int] = field(default_factory=list)
    statements: list[Document] = field(default_factory=list)
    encoded: list[EncodedDocuments] = field(default_factory=list)
    answers: dict[OperationFailure, Mapping[str, Any]] = field(default_factory=dict)
    """The replies that were taken for errors, so that the command may be sent again; in order."""

    is_merged: bool = False
    """Whether an answer to it is a part of the result."""

    def error_in(self, reply: Mapping[str, Any]) -> OperationFailure | None:
        """Return the error in a reply that could have the command sent again, or None."""
        error = retryable_error_in(reply)
        if error is not None:
            self.answers[error] = reply
        return error
