"""What can go wrong with a stream, typed; and which errors of the driver pass by themselves."""

from typing import Final

from bson.objectid import ObjectId
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
)

_TOO_LARGE: Final = 10334
# TransactionTooLarge, TransactionTooLargeForCache, and a command of too many bytes.
_TOO_LARGE_FOR_A_TRANSACTION: Final = frozenset({257, 388, _TOO_LARGE})
_NO_IMAGE: Final = 47
_LOST: Final = {
    136: "the queue's oldest entries were overwritten before they were read",
    260: "the resume token does not belong to this collection",
    280: "the change stream can't go on",
    286: "the resume point is no longer in the oplog",
    _NO_IMAGE: "the image of a document before or after a change is no longer there",
    _TOO_LARGE: "a change is larger than 16 MB with its images",
}
_PASSING: Final = frozenset(
    {6, 7, 24, 43, 50, 63, 64, 89, 91, 112, 133, 150, 189, 225, 234, 237, 246, 251, 262, 279}
    | {9001, 10107, 11600, 11601, 11602, 13388, 13435, 13436}
)
_LABELS: Final = (
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
    "ResumableChangeStreamError",
    "RetryableWriteError",
    "RetryableError",
)


class StreamError(PyMongoError):
    """The aggregates can't follow their source; the base of all the others here."""


class RebuildNeededError(StreamError):
    """The aggregates can't be brought up to date by changes any more, only by a rebuild.

    Nothing was skipped: they are as they were at their watermark.
    """

    build: ObjectId | None = None
    """Which rebuild made the aggregates that can't; None if there are none."""


class NotBuiltError(RebuildNeededError):
    """There are no aggregates yet."""


class MismatchError(RebuildNeededError):
    """The aggregates are another aggregator's, or another version's, or for other workers.

    Perhaps somebody is at work who follows them as they are.
    """

    is_anothers: bool = False
    """Whether they are another aggregator's, so that a rebuild does not help."""


class PositionLostError(RebuildNeededError):
    """The changes after the watermark can't be read any more.

    The oplog has rolled over, or images of documents are gone. ``__cause__`` is the server's error.
    """


class SourceChangedError(RebuildNeededError):
    """The source was dropped or renamed, or its database was dropped."""


class SourceError(StreamError):
    """The source can't be followed as it is: it has no images, or the server is too old."""


class ChangeTooLargeError(RebuildNeededError):
    """One change moves more buckets than a transaction takes, or can apply while a lease lasts.

    A rebuild needs no such transaction. A longer ``lease_seconds`` helps, too.
    """


class BatchTooLargeError(StreamError):
    """Several changes are more than the server takes in one transaction.

    They were not applied, and are applied in smaller batches; nobody is raised this.
    """


class CounterOverflowError(StreamError):
    """A counter would leave the range of 64-bit integers; the batch was not applied.

    Let the increments count in larger units, or in more buckets, under another ``version``, and
    rebuild.
    """


class TargetError(StreamError):
    """The target holds documents that are no aggregates, which a rebuild would replace.

    Nothing was changed. Use a collection of its own, or empty this one if it is not needed.
    """


class LeaseLostError(StreamError):
    """The lease is somebody else's by now, or has expired; nothing was written without it."""


class WatermarkMovedError(StreamError):
    """The watermark is not where this worker has left it: a commit was applied, or a rebuild."""


def lost_position(exc: Exception) -> PositionLostError | None:
    """Return our error for one that says that the position is lost, or None."""
    why = _LOST.get(_code_of(exc)) if isinstance(exc, OperationFailure) else None
    if why is None:
        return None
    return PositionLostError(f"the position in the source is lost, rebuild the aggregates: {why}")


def passes_by_itself(exc: BaseException) -> bool:
    """Tell whether it helps to begin again at the watermark."""
    if isinstance(exc, StreamError):
        return isinstance(exc, BatchTooLargeError | LeaseLostError | WatermarkMovedError)
    if isinstance(exc, ConnectionFailure | ExecutionTimeout):
        return True
    if isinstance(exc, ConfigurationError):
        # A connection that a server has accepted while it started says so for as long as it lasts.
        return "Sessions are not supported" in str(exc)
    if not isinstance(exc, PyMongoError):
        return False
    labelled = any(exc.has_error_label(label) for label in _LABELS)
    return labelled or (isinstance(exc, OperationFailure) and _code_of(exc) in _PASSING)


def exceeds_a_transaction(exc: BaseException) -> bool:
    """Tell whether a commit was refused because of its size."""
    if isinstance(exc, BulkWriteError):
        errors = (exc.details or {}).get("writeErrors", ())
        return any(error.get("code") in _TOO_LARGE_FOR_A_TRANSACTION for error in errors)
    if isinstance(exc, OperationFailure):
        return _code_of(exc) in _TOO_LARGE_FOR_A_TRANSACTION
    return isinstance(exc, DocumentTooLarge)


def _code_of(exc: OperationFailure) -> int:
    return exc.code or 0
