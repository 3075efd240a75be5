"""What requests say: how long they may take, and their keys."""

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from typing import IO, TypeAlias

from aioretry._web.problems import Problem

Parse: TypeAlias = Callable[[str], float]

TIMEOUT_HEADER = "X-Request-Timeout"
KEY_HEADER = "Idempotency-Key"

_LONGEST_KEY = 255
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)  # RFC 9110, 5.6.2
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', re.ASCII)  # RFC 9651, 3.3.3
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z:/-]+", re.ASCII)
_WITHOUT_BODY = frozenset({204, 205, 304})
_CHUNK = 2**16


def seconds_of(text: str) -> float:
    """Read a number of seconds: decimal digits, with a fraction or without, more than 0.

    Raises:
        ValueError: It is something else.
    """
    if not _SECONDS.fullmatch(text):
        raise ValueError("not a number of seconds")
    return float(text)


class RequestLimits:
    """How long requests may take.

    Arguments and errors are as for :class:`~aioretry.asgi.DeadlineMiddleware`.
    """

    def __init__(
        self, default: float, maximum: float | None, header: str, parse: Parse, grace: float
    ) -> None:
        self._default = positive("default", default)
        self._maximum = self._default if maximum is None else positive("maximum", maximum)
        if self._default > self._maximum:
            raise ValueError(f"default must be at most maximum={maximum!r}, not {default!r}")
        if not isinstance(header, str):
            raise TypeError(f"header must be a str, not {type(header).__name__}")
        if not _FIELD_NAME.fullmatch(header):
            raise ValueError(f"header must be the name of a header field, not {header!r}")
        if not callable(parse):
            raise TypeError(f"parse must be a callable, not {parse!r}")
        self.header = header
        self.grace = positive("grace", grace)
        self._parse = parse

    def seconds(self, fields: Sequence[str]) -> float | Problem:
        """Return how long a request may take that has these fields, or what is wrong with them."""
        if not fields:
            return self._default
        try:
            (field,) = fields
            return positive(self.header, min(self._parse(field.strip(" \t")), self._maximum))
        except (ValueError, ArithmeticError):
            return Problem(400, "bad_header", f"the header field {self.header} can't be read")


def positive(name: str, value: object) -> float:
    """Return a number of seconds.

    Raises:
        TypeError: It is no number.
        ValueError: It is not above 0, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be more than 0 seconds, and finite, not {value!r}")
    return float(value)


class NoKey:
    """Stands for the key of one request that has none."""


def key_of(fields: Sequence[str], *, required: bool) -> str | NoKey | Problem:
    """Read the Idempotency-Key field: a string, as the draft says, or a token, as many send it.

    Args:
        fields: The values of all such fields of a request.
        required: Whether there has to be one.

    Returns:
        The key, or what is wrong with it.
    """
    if not fields:
        missing = Problem(400, "key_missing", f"this request needs the header field {KEY_HEADER}")
        return missing if required else NoKey()
    text = fields[0].strip(" \t")
    quoted = _STRING.fullmatch(text)
    key = re.sub(r'\\(["\\])', r"\1", quoted[1]) if quoted else text
    if len(fields) > 1 or not (quoted or _TOKEN.fullmatch(text)) or not key:
        detail = f'{KEY_HEADER} must be there once, as a string in quotes ("...") or a token'
        return Problem(400, "bad_header", detail)
    if len(key) > _LONGEST_KEY:
        detail = f"{KEY_HEADER} must have at most {_LONGEST_KEY} characters"
        return Problem(400, "bad_header", detail)
    return key


def joined(*parts: str | bytes) -> bytes:
    """Join parts so that no other parts give the same, whatever bytes they were decoded from."""
    encoded = [
        part.encode(errors="surrogatepass") if isinstance(part, str) else part for part in parts
    ]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def digest_of(file: IO[bytes]) -> bytes:
    """Return what stands for a file's content, and leave the file where it is."""
    position = file.tell()
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    file.seek(position)
    return digest.digest()


def has_body(status: int) -> bool:
    """Tell whether an answer of this status has a body (RFC 9110, 15)."""
    return status >= 200 and status not in _WITHOUT_BODY
