"""What must not be told: credentials, wherever they turn up."""

import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus

_HIDDEN = "***"
_LONG = 6
_SCHEME = re.compile(r"\w[\w+.-]*://")
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
    rest = _rest(uri)
    if rest is None:
        return "@" not in uri
    authority = _authority(rest)
    userinfo = authority.rpartition("@")[0]
    return _is_plain(rest.removeprefix(authority)) and _CLEAR.fullmatch(userinfo) is not None


def secrets_in(uri: str) -> Iterator[str]:
    """Return what must not be told of a connection string, however it is written."""
    found = [match[1] for match in _OPTION.finditer(uri)]
    for userinfo in _readings(uri):
        name, _, password = userinfo.partition(":")
        found += [userinfo, password, name]
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


def _rest(uri: str) -> str | None:
    scheme = _SCHEME.match(uri)
    return None if scheme is None else uri[scheme.end() :]


def _authority(rest: str) -> str:
    """Return the user name, the password and the hosts, if all that has to be is encoded."""
    return re.split("[/?]", rest, maxsplit=1)[0]


def _is_plain(tail: str) -> bool:
    """Tell whether each @ behind the hosts belongs to the value of an option."""
    path, _, query = tail.partition("?")
    if "@" not in tail:
        return True
    return path != "" and "@" not in path and all(map(_is_value, re.split("[&;]", query)))


def _is_value(option: str) -> bool:
    before, at, _ = option.partition("@")
    return not at or "=" in before


def _readings(uri: str) -> set[str]:
    """Return what may be the user name and password: to each @ that may end them."""
    rest = _rest(uri) or ""
    authority = _authority(rest)
    if "@" not in authority and _is_plain(rest.removeprefix(authority)):
        return set()
    shortest, longest = rest.partition("@")[0], rest.rpartition("@")[0]
    return {shortest, authority.rpartition("@")[0], longest} - {""}
