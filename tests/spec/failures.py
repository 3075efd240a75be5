"""Comparing the error of an operation with what a test expects of it (``expectError``)."""

from collections.abc import Callable, Mapping
from typing import Any

from bson.errors import BSONError
from pymongo.errors import (
    BulkWriteError,
    ClientBulkWriteException,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    EncryptionError,
    InvalidOperation,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
)

from tests.spec.matching import MismatchError, match
from tests.spec.results import bulk_result, client_bulk_result
from tests.spec.unsupported import require_known

_FIELDS = {
    "isError",
    "isClientError",
    "isTimeoutError",
    "errorCode",
    "errorCodeName",
    "errorContains",
    "errorResponse",
    "errorLabelsContain",
    "errorLabelsOmit",
    "writeConcernErrors",
    "expectResult",
}


def check_error(
    expected: Mapping[str, Any],
    error: Exception | None,
    partial_result: Callable[[Exception], Mapping[str, Any] | None],
) -> None:
    """Compare an error with what a test expects of it.

    Args:
        expected: What the test says.
        error: The error, if there was one.
        partial_result: What a bulk operation that raised has done, if that is told.

    Raises:
        MismatchError: They differ, or there was none.
        UnsupportedError: The test expects something that is not known here.
    """
    require_known("expectError", expected, _FIELDS)
    if error is None:
        raise MismatchError(f"expected an error: {dict(expected)!r}")
    try:
        _check_kind(expected, error)
        _check_labels(expected, error)
        _check_contents(expected, error)
        if "expectResult" in expected:
            found = _partial_result_of(error, partial_result(error))
            match(expected["expectResult"], found, "expectResult of the error")
    except MismatchError as exc:
        raise exc from error


def _check_kind(expected: Mapping[str, Any], error: Exception) -> None:
    if expected.get("isError") is False:
        raise MismatchError("isError is always true")
    if "isClientError" in expected and expected["isClientError"] is not _is_clients(error):
        raise MismatchError(f"isClientError is not {expected['isClientError']}: {error!r}")
    if "isTimeoutError" in expected:
        times_out = isinstance(error, PyMongoError) and error.timeout
        if expected["isTimeoutError"] is not times_out:
            raise MismatchError(f"isTimeoutError is not {expected['isTimeoutError']}: {error!r}")


def _check_labels(expected: Mapping[str, Any], error: Exception) -> None:
    for label in expected.get("errorLabelsContain", []):
        if not _has(error, label):
            raise MismatchError(f"the label {label} is missing: {error!r}")
    for label in expected.get("errorLabelsOmit", []):
        if _has(error, label):
            raise MismatchError(f"the label {label} is there: {error!r}")


def _check_contents(expected: Mapping[str, Any], error: Exception) -> None:
    if "errorCode" in expected:
        match(expected["errorCode"], _code_of(error), "errorCode")
    if "errorCodeName" in expected:
        match(expected["errorCodeName"], _response_of(error).get("codeName"), "errorCodeName")
    if "errorResponse" in expected:
        match(expected["errorResponse"], _response_of(error), "errorResponse")
    if "errorContains" in expected:
        text = str(error.details if isinstance(error, BulkWriteError) else error)
        if expected["errorContains"].lower() not in text.lower():
            raise MismatchError(f"{expected['errorContains']} is missing: {error!r}")
    if "writeConcernErrors" in expected:
        match(expected["writeConcernErrors"], _concern_errors_of(error), "writeConcernErrors")


def _is_clients(error: Exception) -> bool:
    """Whether it did not come from a server; a broken connection counts as the client's."""
    if isinstance(error, ClientBulkWriteException) and error.error is not None:
        return _is_clients(error.error)
    if isinstance(error, NotPrimaryError | OperationFailure):
        return False
    own = (ConnectionFailure, ConfigurationError, EncryptionError, InvalidOperation)
    return isinstance(error, (*own, DocumentTooLarge, BSONError, TypeError, ValueError))


def _has(error: Exception, label: str) -> bool:
    if isinstance(error, ClientBulkWriteException) and error.error is not None:
        return _has(error.error, label)
    return isinstance(error, PyMongoError) and error.has_error_label(label)


def _code_of(error: Exception) -> int | None:
    if isinstance(error, ClientBulkWriteException) and error.error is not None:
        return _code_of(error.error)
    if isinstance(error, BulkWriteError):
        return _code_of_bulk(error)
    if isinstance(error, OperationFailure):
        return error.code
    details = error.details if isinstance(error, NotPrimaryError) else None
    return details.get("code") if isinstance(details, Mapping) else None


def _code_of_bulk(error: BulkWriteError) -> int | None:
    details = error.details
    for each in [*details["writeErrors"], *details["writeConcernErrors"]]:
        return int(each["code"])
    return None


def _response_of(error: Exception) -> Mapping[str, Any]:
    details = getattr(error, "details", None)
    if not isinstance(details, Mapping):
        raise MismatchError(f"an error without a server's response: {error!r}")
    return details


def _concern_errors_of(error: Exception) -> list[Mapping[str, Any]]:
    if isinstance(error, ClientBulkWriteException):
        found = error.write_concern_errors
    elif isinstance(error, BulkWriteError):
        found = error.details["writeConcernErrors"]
    else:
        raise MismatchError(f"an error without write concern errors: {error!r}")
    return [{**each, "message": each.get("errmsg")} for each in found]


def _partial_result_of(error: Exception, told: Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(error, ClientBulkWriteException):
        return client_bulk_result(error.partial_result)
    if told is None:
        raise MismatchError(f"an error without a partial result: {error!r}")
    return bulk_result(told)
