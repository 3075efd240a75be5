"""The Idempotency-Key of one request, and the answers that are kept for it."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bson.codec_options import CodecOptions
from pymongo.errors import InvalidOperation

from aioretry import StatementSource
from aioretry._faces import Client, Collection, Database, Session
from aioretry._web.requests import KEY_HEADER, NoKey, has_body, joined
from aioretry.idempotent import Keys

_REPLAYED = (b"idempotent-replayed", b"true")
_OF_A_BODY = frozenset({b"content-length", b"content-type"})
_PLAIN: CodecOptions[dict[str, Any]] = CodecOptions()


@dataclass(frozen=True, slots=True)
class Kept:
    """A whole response, as it is kept and given again."""

    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


class KeyOfRequest:
    """The Idempotency-Key of one request, for one caller.

    Args:
        keys: Makes keys.
        database: Where answers are kept.
        caller: Whose request it is; the keys of two callers are never the same.
        key: What the request says; without one, nothing is kept of what is done for it.
        request: What the key stands for: method, path and body.

    Raises:
        TypeError: ``caller`` is no text.
        ValueError: ``caller`` is empty.
    """

    def __init__(
        self,
        keys: Keys,
        database: Database,
        caller: object,
        key: str | NoKey,
        request: bytes,
    ) -> None:
        if not isinstance(caller, str):
            raise TypeError(f"scope must give a str, not {caller!r}")
        if not caller:
            raise ValueError("scope must say who calls, and gave an empty str")
        self._keys = keys
        # Answers are made of plain values here, whatever the database's are.
        is_plain = database.codec_options == _PLAIN
        self._database = database if is_plain else database.with_options(codec_options=_PLAIN)
        self._caller = caller
        self._key = None if isinstance(key, NoKey) else joined(KEY_HEADER, caller, key)
        self._request = hashlib.sha256(request).digest()
        self._used: set[str] = set()

    def source(self, collection: Collection) -> StatementSource | None:
        """Return what ``collection.operation(key=...)`` asks; for its use only."""
        self._use(f"{collection.database.name}.{collection.name}", once=False)
        if self._key is None:
            return None
        return self._keys(self._key, caller=self._caller).source(collection)

    async def _kept(self, work: Callable[[Session], Awaitable[Kept]]) -> Kept:
        """Do the work and keep its response, or give the one that is kept."""

        async def stored(session: Session) -> dict[str, Any]:
            answer = await work(session)
            headers = [[name, value] for name, value in answer.headers]
            if has_body(answer.status):
                return {"status": answer.status, "headers": headers, "body": answer.body}
            headers = [pair for pair in headers if pair[0].lower() not in _OF_A_BODY]
            return {"status": answer.status, "headers": headers, "body": b""}

        self._use("once", once=True)
        answer = await self._keys.once(
            self._key,
            stored,
            database=self._database,
            payload=self._request,
            caller=self._caller,
        )
        headers = [(name, value) for name, value in answer.value["headers"]]
        replayed = [_REPLAYED] if answer.replayed else []
        return Kept(answer.value["status"], (*headers, *replayed), answer.value["body"])

    def _use(self, name: str, *, once: bool) -> None:
        if name in self._used or "once" in self._used or (once and self._used):
            raise InvalidOperation(
                "the key of a request is good for one once(), or for one operation() on each "
                "collection, and this one was used already"
            )
        self._used.add(name)


def database_of(client: Client, name: str | None) -> Database:
    """Return a database: that of a name, or the one that the URI names."""
    return client.get_default_database() if name is None else client[name]
