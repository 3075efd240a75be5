"""The Idempotency-Key of one request, and the answers that are kept for it."""

import hashlib
from typing import Any

from bson.codec_options import CodecOptions
from pymongo.errors import InvalidOperation

from aioretry import StatementSource
from aioretry._faces import Collection, Database
from aioretry._web.requests import KEY_HEADER, NoKey, joined
from aioretry.idempotent import Keys, OnceAnswer
from aioretry.idempotent._once import Work

REPLAYED_HEADER = "Idempotent-Replayed"

_PLAIN: CodecOptions[dict[str, Any]] = CodecOptions()


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

    async def stored(self, work: Work) -> OnceAnswer:
        """Do the work and store its answer, or give the answer that is stored."""
        self._use("once", once=True)
        return await self._keys.once(
            self._key,
            work,
            database=self._database,
            payload=self._request,
            caller=self._caller,
        )

    def _use(self, name: str, *, once: bool) -> None:
        if name in self._used or "once" in self._used or (once and self._used):
            raise InvalidOperation(
                "the key of a request is good for one once(), or for one operation() on each "
                "collection, and this one was used already"
            )
        self._used.add(name)
