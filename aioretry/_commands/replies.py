"""What the replies of accepted commands say. Pure."""

from collections.abc import Mapping
from typing import Any

from pymongo.errors import (
    DuplicateKeyError,
    OperationFailure,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)

from aioretry._commands.error_codes import (
    MAX_TIME_EXPIRED,
    OVERLOADED,
    RETRYABLE_CODES,
    RETRYABLE_WRITE,
)

_DUPLICATE_KEY = 11000


def error_in(reply: Mapping[str, Any]) -> OperationFailure | None:
    """Return the error that the reply to a single write speaks of, or None.

    A write error counts before a write concern error, which is its cause then.
    """
    write_errors = reply.get("writeErrors")
    if write_errors:
        error = write_errors[-1]
        is_duplicate = error.get("code") == _DUPLICATE_KEY
        refusal = (DuplicateKeyError if is_duplicate else WriteError)(
            error.get("errmsg"), error.get("code"), error
        )
        if (concern := _concern_error_in(reply)) is not None:
            refusal.__cause__ = concern
        return refusal
    return _concern_error_in(reply) if "writeConcernError" in reply else None


def alone(reply: Mapping[str, Any], write_error: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what the reply to several inserts would have been to one of them alone.

    Args:
        reply: The reply.
        write_error: What it has of ``writeErrors`` for that one, or None.
    """
    errors = [] if write_error is None else [{**write_error, "index": 0}]
    return {**reply, "n": 1 - len(errors), "writeErrors": errors}


def leaves_out(reply: Mapping[str, Any], count: int) -> bool:
    """Tell whether the reply to so many unordered inserts does not speak of some of them."""
    return int(reply.get("n", count)) + len(reply.get("writeErrors", ())) < count


def tells_each(reply: Mapping[str, Any], count: int) -> bool:
    """Tell whether the reply to so many unordered inserts can't but say what became of each.

    Whatever the order in which a server before 5.0 speaks of the ones it had executed before, and
    of the others: all are done, or none is, or the last thing that it did was to refuse the last.
    """
    done, errors = reply.get("n", count), reply.get("writeErrors", ())
    if done + len(errors) != count:
        return False
    return not errors or not done or [count - 1] == [error["index"] for error in errors]


def retryable_error_in(reply: Mapping[str, Any]) -> OperationFailure | None:
    """Return the error in the reply to a command of a bulk operation that could have it sent again.

    Anything else that such a reply speaks of is a part of the operation's result.
    """
    if has_retryable_concern_error(reply):
        return _concern_error_in(reply)
    labels = set(reply.get("errorLabels", ()))
    return error_in(reply) if labels & {RETRYABLE_WRITE, OVERLOADED} else None


def has_retryable_concern_error(reply: Mapping[str, Any]) -> bool:
    """Tell whether a reply's write concern error has a code that means a retry may help."""
    return (reply.get("writeConcernError") or {}).get("code") in RETRYABLE_CODES


def concern_error_document(reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a reply's write concern error with the labels of the reply, or None."""
    concern: Mapping[str, Any] | None = reply.get("writeConcernError")
    if not concern:
        return None
    labels = reply.get("errorLabels")
    if not labels:
        return concern
    # As PyMongo's: of the user's document class, if that is a dict.
    labelled = concern.copy() if isinstance(concern, dict) else dict(concern)
    labelled["errorLabels"] = labels
    return labelled


def says_time_is_over(reply: Mapping[str, Any]) -> bool:
    """Tell whether a reply speaks of MaxTimeMSExpired (CSOT, "Errors")."""
    errors = [*reply.get("writeErrors", ()), reply.get("writeConcernError") or {}]
    return any(error.get("code") == MAX_TIME_EXPIRED for error in errors)


def _concern_error_in(reply: Mapping[str, Any]) -> OperationFailure | None:
    details = concern_error_document(reply)
    if details is None:
        return None
    timed_out = details.get("code") == MAX_TIME_EXPIRED or (details.get("errInfo") or {}).get(
        "wtimeout"
    )
    return (WTimeoutError if timed_out else WriteConcernError)(
        details.get("errmsg", ""), details.get("code"), details
    )
