"""What an operation asks that is to be recognised when it is repeated, before each statement."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from bson.binary import Binary

from aioretry.deadlines import Deadline

__all__ = ["KeyedStatement", "KnownReply", "OperationKey", "SessionId", "StatementSource"]


@dataclass(frozen=True, slots=True)
class KeyedStatement:
    """One write of an operation that has a key, before it is sent."""

    index: int
    """Which of the operation's writes it is, from 0 on."""

    operation: str
    """The method that the user called, such as ``update_one``."""

    database: str
    collection: str
    command: Mapping[str, Any]
    """What is to be sent, encoded as far as the user gave it; without session and concern."""

    deadline: Deadline | None
    """When the write has to be done, or None. It surrounds the call as well."""

    trusted_seconds: float
    """How long the servers remember a transaction id for sure."""

    is_encrypted: bool
    """Whether the client encrypts by itself, so that what it sends is secret."""


@dataclass(frozen=True, slots=True)
class SessionId:
    """Send the statement over the session of this id, with transaction number 1."""

    id: Binary
    """A UUID of version 4, of binary subtype 4."""

    age: float | None = None
    """How long ago it may have been sent for the first time, in seconds; None if nobody knows."""


@dataclass(frozen=True, slots=True)
class KnownReply:
    """Send nothing: the statement has this reply."""

    raw: bytes
    """The reply, as BSON."""

    replayed: bool
    """Whether another call has applied it."""


Answer: TypeAlias = SessionId | KnownReply


class StatementSource(Protocol):
    """Says how each statement of one operation is sent. Made by an :class:`OperationKey`."""

    def open(self, limit: Deadline | None) -> None:
        """Learn that the operation begins: in the context of whoever begins it.

        Args:
            limit: When the operation has to be done, or None. It surrounds the call as well.
        """
        ...

    def new_id(self, index: int) -> Any:
        """Return the ``_id`` of a document that is inserted without one; the same every time.

        Args:
            index: Which of the operation's writes inserts it.
        """
        ...

    async def begin(self, statement: KeyedStatement) -> Answer:
        """Say how a statement is to be sent.

        Raises:
            Exception: It must not be sent; nothing of it has been.
        """
        ...

    def end(self, answer: SessionId) -> None:
        """Learn that nothing is sent any more over a session that was given."""
        ...

    def explain(self, error: Exception) -> Exception | None:
        """Return what to raise in the place of an error that a statement ended with, or None."""
        ...

    async def close(self, error: BaseException | None, *, failed: bool) -> bool:
        """End the operation.

        Args:
            error: What its block ended with, or None.
            failed: Whether a write in it has ended with an error.

        Returns:
            Whether it shows only now that another call has applied it.

        Raises:
            Exception: It can't be ended well; :attr:`in_doubt` says what that means.
        """
        ...

    @property
    def in_doubt(self) -> bool:
        """Whether what :meth:`close` was to apply may be applied or not."""
        ...


class OperationKey(Protocol):
    """What is given to ``collection.operation(key=...)``."""

    def source(self, collection: Any) -> StatementSource | None:
        """Return what is asked in one operation; None if it is to be one without a key.

        Args:
            collection: The collection that the operation is on.
        """
        ...
