"""The error of a deployment that takes no transaction numbers, and the codes that are named."""

import pytest
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure, WriteError

from aioretry._commands.error_codes import (
    LABELS,
    NO_WRITES,
    OVERLOADED,
    RETRYABLE,
    RETRYABLE_CODES,
    RETRYABLE_WRITE,
    no_retryable_writes,
    says_no_retryable_writes,
)

TEXT = "Transaction numbers are only allowed on a replica set member or mongos"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OperationFailure(TEXT, 20), True),
        (OperationFailure(TEXT, 20, {"errmsg": TEXT}), True),
        (WriteError(TEXT, 20, {"errmsg": TEXT}), True),
        (OperationFailure(TEXT, 21), False),
        (OperationFailure(TEXT), False),
        (OperationFailure("Illegal operation", 20), False),
        (OperationFailure(f"No {TEXT}", 20), False),
        (NotPrimaryError(TEXT, {"code": 20}), False),
        (AutoReconnect(TEXT), False),
        (ValueError(TEXT), False),
    ],
)
def test_says_no_retryable_writes(error, expected):
    """It takes both the code and the beginning of the text, from a server."""
    assert expected is says_no_retryable_writes(error)


class TestReplacement:
    def test_says_what_to_do(self):
        """The specification's text replaces the server's, which stays its cause."""
        original = OperationFailure(TEXT, 20)
        error = no_retryable_writes(original)
        expected = (
            "This MongoDB deployment does not support retryable writes. "
            "Please add retryWrites=false to your connection string."
        )
        assert expected == str(error)
        assert (20, original) == (error.code, error.__cause__)

    def test_keeps_what_the_server_said(self):
        """The reply is in its details, and its labels are its own."""
        details = {"errmsg": TEXT, "errorLabels": [NO_WRITES]}
        error = no_retryable_writes(OperationFailure(TEXT, 20, details))
        assert details is error.details
        assert error.has_error_label(NO_WRITES)
        assert not error.has_error_label(RETRYABLE_WRITE)

    def test_of_another_error(self):
        """One that is no server's has no details."""
        original = ValueError(TEXT)
        error = no_retryable_writes(original)
        assert (None, original) == (error.details, error.__cause__)

    def test_is_not_taken_for_the_first(self):
        """It is replaced once."""
        assert not says_no_retryable_writes(no_retryable_writes(OperationFailure(TEXT, 20)))


@pytest.mark.parametrize(
    "code",
    [
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        10107,  # NotWritablePrimary
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
        189,  # PrimarySteppedDown
        91,  # ShutdownInProgress
        7,  # HostNotFound
        6,  # HostUnreachable
        89,  # NetworkTimeout
        9001,  # SocketException
        262,  # ExceededTimeLimit
    ],
)
def test_retryable_codes(code):
    """The specification's table."""
    assert code in RETRYABLE_CODES


@pytest.mark.parametrize(
    "code",
    [
        None,
        10058,  # LegacyNotPrimary
        11601,  # Interrupted
        50,  # MaxTimeMSExpired
        64,  # WriteConcernTimeout
        112,  # WriteConflict
        133,  # FailedToSatisfyReadPreference, of reads
        134,  # ReadConcernMajorityNotAvailableYet, of reads
        11000,  # DuplicateKey
    ],
)
def test_other_codes(code):
    """What is like them, or retried for reads, is not in the table."""
    assert code not in RETRYABLE_CODES


def test_labels():
    """All labels are known to those who copy them, by their names in the specifications."""
    expected = {
        "RetryableWriteError",
        "RetryableError",
        "SystemOverloadedError",
        "NoWritesPerformed",
    }
    assert expected == {RETRYABLE_WRITE, RETRYABLE, OVERLOADED, NO_WRITES} == set(LABELS)
