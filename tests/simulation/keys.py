"""Keys that give each write a session of a chosen id, without records at the servers."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import UUID

from bson.binary import Binary, UuidRepresentation
from pymongo.errors import InvalidOperation

from aioretry import KeyedStatement, SessionId


class Key:
    """A key, for as many calls as are made with it.

    Args:
        name: Tells it from others.
        now: Says the time, in seconds.
        ended: Told the id of each session that is needed no more.
    """

    def __init__(
        self, name: str, now: Callable[[], float], ended: Callable[[bytes], object]
    ) -> None:
        self._name = name
        self._now = now
        self._ended = ended
        self._first: dict[int, float] = {}

    def source(self, collection: Any) -> "Key":
        """Return what an operation asks."""
        del collection
        return self

    @property
    def in_doubt(self) -> bool:
        """Closing applies nothing."""
        return False

    def open(self, limit: Any) -> None:
        """Do nothing."""

    def new_id(self, index: int) -> Any:
        """Return the id of a document."""
        return f"{self._name} {index}"

    async def begin(self, statement: KeyedStatement) -> SessionId:
        """Give a statement its session, unless the servers may have forgotten that."""
        now, index = self._now(), statement.index
        age = now - self._first.setdefault(index, now)
        if age >= statement.trusted_seconds:
            raise InvalidOperation("the key was first used too long ago")
        digest = bytearray(sha256(f"{self._name}/{index}".encode()).digest()[:16])
        digest[6], digest[8] = digest[6] & 0x0F | 0x40, digest[8] & 0x3F | 0x80
        given = Binary.from_uuid(UUID(bytes=bytes(digest)), UuidRepresentation.STANDARD)
        return SessionId(given, age)

    def end(self, answer: SessionId) -> None:
        """Have the session ended."""
        self._ended(bytes(answer.id))

    def explain(self, error: Exception) -> Exception | None:
        """Let every error through."""
        del error
        return None

    async def close(self, error: BaseException | None, *, failed: bool) -> bool:
        """Do nothing."""
        del error, failed
        return False
