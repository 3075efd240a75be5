"""What follows from a key: session ids, the ids of records and documents, fingerprints. Pure."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import bson
from bson.binary import UUID_SUBTYPE, Binary
from bson.objectid import ObjectId

_VERSION = b"aioretry/1"
_LEAST_SECRET = 16
# What tells of a call and not of the write.
_OF_THE_CALL = frozenset({"comment"})


@dataclass(frozen=True, slots=True)
class Names:
    """Derives everything from one key on one collection.

    Args:
        secret: Without it, nobody can tell or make what is derived.
        namespace: Tells services or tenants apart that share the secret.
        collection: The full name of the collection.
        key: The user's key.
    """

    secret: bytes = field(repr=False)
    namespace: str
    collection: str
    key: bytes = field(repr=False)

    def session_id(self, index: int) -> Binary:
        """Return the id of the session for one statement: a UUID of version 4 (RFC 4122, 4.4)."""
        raw = bytearray(self._digest(b"session", index)[:16])
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        return Binary(bytes(raw), UUID_SUBTYPE)

    def record_id(self, index: int | None = None) -> bytes:
        """Return the ``_id`` of the record of one statement, or of a whole operation."""
        what = b"operation" if index is None else b"record"
        return self._digest(what, index or 0)

    def document_id(self, index: int) -> ObjectId:
        """Return the ``_id`` of a document that one statement inserts without one."""
        return ObjectId(self._digest(b"document", index)[:12])

    def fingerprint(self, index: int, command: Mapping[str, Any]) -> bytes:
        """Return what tells one payload from another, and does not tell the payload."""
        payload = {name: value for name, value in command.items() if name not in _OF_THE_CALL}
        return self._digest(b"payload", index, bson.encode(payload))

    def _digest(self, what: bytes, index: int, more: bytes = b"") -> bytes:
        parts = [
            _VERSION,
            what,
            self.namespace.encode(),
            self.collection.encode(),
            self.key,
            index.to_bytes(8, "big"),
            more,
        ]
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self.secret, message, hashlib.sha256)


def secret_of(value: object) -> bytes:
    """Return a secret that is long enough."""
    if not isinstance(value, bytes):
        raise TypeError(f"secret must be bytes, not {type(value).__name__}")
    if len(value) < _LEAST_SECRET:
        raise ValueError(f"secret must have at least {_LEAST_SECRET} bytes, not {len(value)}")
    return value


def namespace_of(value: object) -> str:
    """Return a namespace that says something."""
    if not isinstance(value, str):
        raise TypeError(f"namespace must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError("namespace must not be empty")
    return value


def key_of(value: object) -> bytes:
    """Return a key as bytes; a text and its UTF-8 are two keys."""
    if not isinstance(value, str | bytes):
        raise TypeError(f"a key must be a str or bytes, not {type(value).__name__}")
    if not value:
        raise ValueError("a key must not be empty")
    return b"b" + value if isinstance(value, bytes) else b"s" + value.encode()
