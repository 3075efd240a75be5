"""What must not be told: credentials, wherever they turn up."""

import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus

_HIDDEN = "***"
_LONG = 6
_USERINFO = re.compile(r"^\w[\w+.-]*://(.*)@", re.DOTALL)
_CLEAR = re.compile(r"(?:[^:/@%]|%[0-9a-fA-F]{2})*(?::(?:[^:/@%]|%[0-9a-fA-F]{2})*)?")
# Options whose values let somebody in.
_OPTION = re.compile(
    r"[?&;][^=&;]*(?:password|properties|token|secret)[^=&;]*=([^&;]*)", re.IGNORECASE
)


def has_credentials(uri: str) -> bool:
    """Tell whether a connection string holds a user name, a password or a secret option."""
    return next(secrets_in(uri), None) is not None


def is_clear(uri: str) -> bool:
    """Tell whether it is sure which part of a connection string is the user name and password."""
    userinfo = _USERINFO.match(uri)
    if userinfo is None:
        return "@" not in uri
    return _CLEAR.fullmatch(userinfo[1]) is not None


def secrets_in(uri: str) -> Iterator[str]:
    """Return what must not be told of a connection string, however it is written."""
    found = [match[1] for match in _OPTION.finditer(uri)]
    userinfo = _USERINFO.match(uri)
    if userinfo is not None:
        name, _, password = userinfo[1].partition(":")
        found += [userinfo[1], password, name]
    for secret in found:
        yield from {secret, unquote(secret), unquote_plus(secret)} - {""}


def without_secrets(text: str, uri: str) -> str:
    """Return a text in which no part of a connection string is that must not be told."""
    if has_credentials(uri):
        text = text.replace(uri, _HIDDEN)
    for secret in sorted(secrets_in(uri), key=len, reverse=True):
        found = re.escape(secret)
        if len(secret) < _LONG:  # which may be a part of any word
            found = rf"(?<!\w){found}(?!\w)"
        text = re.sub(found, _HIDDEN, text)
    return text
