"""What the web frameworks' modules share: problem details, header fields, keys of requests."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import IO, Any, TypeAlias

from bson.codec_options import CodecOptions
from pymongo.errors import (
    ConnectionFailure,
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
)

import aioretry
from aioretry import Outcome, StatementSource, outcome_of, partial_result_of
from aioretry._faces import Client, Collection, Database
from aioretry.idempotent import (
    IdempotencyConflict,
    KeyExpiredError,
    KeyInUseError,
    Keys,
    NoTurnError,
    OnceAnswer,
)
from aioretry.idempotent._once import Work

Parse: TypeAlias = Callable[[str], float]

MEDIA_TYPE = "application/problem+json"
TIMEOUT_HEADER = "X-Request-Timeout"
KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"

_RETRY_AFTER = 1
_LONGEST_KEY = 255
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)  # RFC 9110, 5.6.2
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', re.ASCII)  # RFC 9651, 3.3.3
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z:/-]+", re.ASCII)
_UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
_OVERLOADED = "SystemOverloadedError"
_WITHOUT_BODY = frozenset({204, 205, 304})
_CHUNK = 2**16


@dataclass(frozen=True, slots=True)
class Problem:
    """What an answer says that is no success (RFC 9457).

    Raises:
        TypeError: The status is no int.
        ValueError: The status is not one of an error, from 400 to 599.
    """

    status: int
    reason: str
    """What it is, for programs; the member ``reason`` of the body."""

    detail: str
    outcome: Outcome | None = None
    retry_after: int | None = None
    """Seconds."""

    def __post_init__(self) -> None:
        if isinstance(self.status, bool) or not isinstance(self.status, int):
            raise TypeError(f"status must be an int, not {self.status!r}")
        if not 400 <= self.status <= 599:
            raise ValueError(f"status must be from 400 to 599, not {self.status!r}")

    @property
    def headers(self) -> dict[str, str]:
        """What belongs into the answer's header beside its media type."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    @property
    def body(self) -> bytes:
        """The answer's body."""
        members: dict[str, object] = {
            "type": "about:blank",
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
        }
        if self.status in set(HTTPStatus):
            members["title"] = HTTPStatus(self.status).phrase
        if self.outcome is not None:
            members["outcome"] = self.outcome.value
        return json.dumps(members).encode()


def problem_of(error: BaseException, *, is_over: bool) -> Problem | None:
    """Return what an exception means to the caller of a service, None if that is not known here.

    Args:
        error: What a handler has raised. A group means something if all in it mean the same.
        is_over: Whether the request's deadline is over.
    """
    match error:
        case BaseExceptionGroup():
            problems = {problem_of(each, is_over=is_over) for each in error.exceptions}
            return problems.pop() if len(problems) == 1 else None
        case KeyInUseError():
            detail = (
                "a request with this Idempotency-Key is still running, or has not ended at the "
                "servers yet; repeat this one later"
            )
            return Problem(409, "key_in_use", detail, retry_after=_RETRY_AFTER)
        case IdempotencyConflict():
            return Problem(422, "key_reused", "this Idempotency-Key was used for another request")
        case KeyExpiredError():
            return Problem(422, "key_expired", "this Idempotency-Key was first used too long ago")
        case NoTurnError():
            detail = "too many requests with an Idempotency-Key wait; repeat this one later"
            return Problem(503, "no_turn", detail, Outcome.NOT_APPLIED, _RETRY_AFTER)
        case _:
            return _problem_of_write(error, _outcome_of(error), is_over=is_over)


def _problem_of_write(
    error: BaseException, outcome: Outcome | None, *, is_over: bool
) -> Problem | None:
    # A deadline is told to be over a little before it is, where no time is left for anything.
    is_late = isinstance(error, NetworkTimeout | ExecutionTimeout)
    if isinstance(error, PyMongoError) and error.timeout and (is_over or is_late):
        return deadline_exceeded(outcome)
    if outcome is Outcome.UNKNOWN:
        detail = "the database did not say whether this request has changed anything"
        return Problem(500, "unknown_outcome", detail, outcome)
    if not isinstance(error, ConnectionFailure) and not _is_refused(error):
        return None
    if outcome is Outcome.APPLIED or _is_partly_applied(error):
        detail = "the database failed when a part of what was to be written was there"
        return Problem(500, "partly_applied", detail)
    if _is_refused(error):
        detail = "the database has too much to do; repeat the request later"
        return Problem(503, "overloaded", detail, outcome, _RETRY_AFTER)
    detail = "the database can't be reached; repeat the request later"
    return Problem(503, "no_server", detail, outcome, _RETRY_AFTER)


def _is_refused(error: BaseException) -> bool:
    # By a server that has too much to do (client-backpressure, "Overload retry policy").
    return isinstance(error, OperationFailure) and error.has_error_label(_OVERLOADED)


def _is_partly_applied(error: BaseException) -> bool:
    partial = partial_result_of(error)
    return partial is not None and Outcome.APPLIED in partial.outcomes


def deadline_exceeded(outcome: Outcome | None) -> Problem:
    """Return what is answered once the time is over."""
    return Problem(504, "deadline_exceeded", "the time for this request is over", outcome)


def _outcome_of(error: BaseException) -> Outcome | None:
    if isinstance(error, PyMongoError) and error.has_error_label(_UNKNOWN_COMMIT):
        return Outcome.UNKNOWN
    partial = partial_result_of(error)
    outcome = outcome_of(error)
    if partial is not None and outcome is Outcome.UNKNOWN and outcome not in partial.outcomes:
        return None  # some statements are applied and some are not, and each is known
    return outcome


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

    Args:
        default: Seconds for a request that asks for nothing.
        maximum: The most that a request can ask for, in seconds; None is ``default``.
        header: The field that a request asks by.
        parse: Reads it.
        grace: Seconds after which a request is cancelled whose time is over.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is out of range, or ``header`` is no name of a header field.
    """

    def __init__(
        self, default: float, maximum: float | None, header: str, parse: Parse, grace: float
    ) -> None:
        self._default = _positive("default", default)
        self._maximum = self._default if maximum is None else _positive("maximum", maximum)
        if self._default > self._maximum:
            raise ValueError(f"default must be at most maximum={maximum!r}, not {default!r}")
        if not isinstance(header, str):
            raise TypeError(f"header must be a str, not {type(header).__name__}")
        if not _FIELD_NAME.fullmatch(header):
            raise ValueError(f"header must be the name of a header field, not {header!r}")
        if not callable(parse):
            raise TypeError(f"parse must be a callable, not {parse!r}")
        self.header = header
        self.grace = _positive("grace", grace)
        self._parse = parse

    def seconds(self, fields: Sequence[str]) -> float | Problem:
        """Return how long a request may take that has these fields, or what is wrong with them."""
        if not fields:
            return self._default
        try:
            (field,) = fields
            return _positive(self.header, min(self._parse(field.strip(" \t")), self._maximum))
        except (ValueError, ArithmeticError):
            return Problem(400, "bad_header", f"the header field {self.header} can't be read")


def maker_of(
    uri: object, client: type[Client] | None, keys: object, options: Mapping[str, Any]
) -> Callable[[], Any]:
    """Return what makes a service's client; arguments and errors as those who call this say."""
    if not isinstance(uri, str):
        raise TypeError(f"uri must be a str, not {type(uri).__name__}")
    if keys is not None and not isinstance(keys, Keys):
        raise TypeError(f"keys must be a Keys or None, not {keys!r}")
    return partial(aioretry.RetryClient if client is None else client, uri, **options)


def _positive(name: str, value: object) -> float:
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
