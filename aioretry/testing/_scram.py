"""The server's side of SCRAM-SHA-256, as drivers speak it (RFC 5802 and RFC 7677)."""

import hashlib
import hmac
import secrets
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus

_MECHANISM: Final = "SCRAM-SHA-256"
_ITERATIONS: Final = 4096  # drivers refuse fewer
_LOGIN: Final = frozenset({"saslstart", "saslcontinue"})
_FREE: Final = _LOGIN | {"hello", "ismaster", "buildinfo", "ping"}


class User:
    """A user of the database `admin`.

    Args:
        name: the name.
        password: the password.

    Attributes:
        name: the name.
        in_uri: name and password, as the URI for a client has them before the hosts.
    """

    def __init__(self, name: str, password: str) -> None:
        self.name: Final = name
        self.in_uri: Final = f"{quote_plus(name)}:{quote_plus(password)}@"
        self.salt: Final = secrets.token_bytes(28)
        prepared = unicodedata.normalize("NFKC", password).encode()
        salted = hashlib.pbkdf2_hmac("sha256", prepared, self.salt, _ITERATIONS)
        self.stored_key: Final = hashlib.sha256(_mac(salted, "Client Key")).digest()
        self.server_key: Final = _mac(salted, "Server Key")


class Login:
    """How far a client has logged in on one connection.

    Args:
        user: the only one who can; None if everybody is let in.
    """

    def __init__(self, user: User | None) -> None:
        self._user = user
        self._is_done = user is None
        self._said = ""  # by both, without the client's proof
        self._nonce = ""
        self._ends_early = False  # without an exchange that says nothing

    def refusal(self, name: str) -> Mapping[str, Any] | None:
        """Give the answer to a command that needs a login that was not made; else None."""
        if self._is_done or name.lower() in _FREE:
            return None
        return {"ok": 0.0, "errmsg": f"Command {name} requires authentication", "code": 13}

    def has_answer(self, name: str) -> bool:
        """Say whether a command is one to log in with, here."""
        return self._user is not None and name.lower() in _LOGIN

    def greet(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        """Give what the reply to a hello says of it, where a login may begin."""
        if self._user is None:
            return {}
        is_asked = hello.get("saslSupportedMechs") == f"admin.{self._user.name}"
        found: dict[str, Any] = {"saslSupportedMechs": [_MECHANISM]} if is_asked else {}
        begin = hello.get("speculativeAuthenticate")
        reply = self._start(self._user, begin) if isinstance(begin, Mapping) else None
        return {**found, "speculativeAuthenticate": reply} if reply else found

    def answer(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer `saslStart` and `saslContinue`."""
        step = self._start if "saslStart" in command else self._continue
        if self._user is not None and (reply := step(self._user, command)):
            return {"ok": 1.0, **reply}
        return {"ok": 0.0, "errmsg": "Authentication failed.", "code": 18}

    def _start(self, user: User, command: Mapping[str, Any]) -> dict[str, Any] | None:
        bare = _text_of(command).removeprefix("n,,")
        named, nonce = f"n={_escaped(user.name)},r=", bare.rpartition(",r=")[2]
        is_known = bare == named + nonce and command.get("db", command.get("$db")) == "admin"
        if not is_known or command.get("mechanism") != _MECHANISM:
            return None
        self._nonce = nonce + secrets.token_urlsafe(24)
        challenge = f"r={self._nonce},s={b64encode(user.salt).decode()},i={_ITERATIONS}"
        self._said = f"{bare},{challenge}"
        self._ends_early = bool(command.get("options", {}).get("skipEmptyExchange"))
        return _reply(challenge, is_done=False)

    def _continue(self, user: User, command: Mapping[str, Any]) -> dict[str, Any] | None:
        text = _text_of(command)
        if self._is_done and not text:
            return _reply("", is_done=True)
        final, _, proof = text.rpartition(",p=")
        if not self._nonce or final != f"c=biws,r={self._nonce}":
            return None
        said = f"{self._said},{final}"
        signature = _mac(user.stored_key, said)
        key = bytes(a ^ b for a, b in zip(b64decode(proof), signature, strict=False))
        self._nonce = ""  # good for one proof
        if hashlib.sha256(key).digest() != user.stored_key:
            return None
        self._is_done = True
        own = b64encode(_mac(user.server_key, said)).decode()
        return _reply(f"v={own}", is_done=self._ends_early)


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _text_of(command: Mapping[str, Any]) -> str:
    payload = command.get("payload")
    return payload.decode(errors="replace") if isinstance(payload, bytes) else ""


def _reply(text: str, *, is_done: bool) -> dict[str, Any]:
    return {"conversationId": 1, "done": is_done, "payload": text.encode()}
