"""Codes and labels of errors that the specifications name."""

from pymongo.errors import OperationFailure

RETRYABLE_WRITE = "RetryableWriteError"

RETRYABLE = "RetryableError"

OVERLOADED = "SystemOverloadedError"

NO_WRITES = "NoWritesPerformed"

LABELS = (RETRYABLE_WRITE, RETRYABLE, OVERLOADED, NO_WRITES)

# retryable-writes, "RetryableWriteError Labels": what is retried of servers before 4.4, which give
# no labels. Of newer ones the labels count, and these codes say only that the outcome is in doubt,
# and of a bulk operation's write concern error that it could be retried.
RETRYABLE_CODES = frozenset({6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})

# retryable-reads, "Retryable Error": with ReadConcernMajorityNotAvailableYet.
RETRYABLE_READ_CODES = RETRYABLE_CODES | {134}

MAX_TIME_EXPIRED = 50

_ILLEGAL_OPERATION = 20

_NO_RETRYABLE_WRITES = (
    "This MongoDB deployment does not support retryable writes. "
    "Please add retryWrites=false to your connection string."
)


def says_no_retryable_writes(error: Exception) -> bool:
    """Tell whether a server says that it takes no transaction ids."""
    return (
        isinstance(error, OperationFailure)
        and error.code == _ILLEGAL_OPERATION
        and str(error).startswith("Transaction numbers")
    )


def no_retryable_writes(error: Exception) -> OperationFailure:
    """Return the specification's error for that."""
    details = error.details if isinstance(error, OperationFailure) else None
    replacement = OperationFailure(_NO_RETRYABLE_WRITES, _ILLEGAL_OPERATION, details)
    replacement.__cause__ = error
    return replacement
