"""Doing a step of a recipe again after an error that leaves open whether it was done."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from pymongo.errors import (
    ConnectionFailure,
    ExecutionTimeout,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from aioretry import Deadline, DeadlineExceeded

__all__ = ["pause", "repeated"]

T = TypeVar("T")

_ATTEMPTS = 3  # without a deadline
_RETRYABLE = "RetryableWriteError"
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0


async def repeated(
    limit: Deadline | None, step: Callable[[PyMongoError | None], Awaitable[T]]
) -> T:
    """Do a step until it gives an answer.

    Args:
        limit: How long errors of the network are survived; None for two repetitions.
        step: Is given the last error that an earlier attempt may have been applied in spite of; it
            may raise that one again to end.

    Raises:
        DeadlineExceeded: The deadline is over.
        PyMongoError: The step's own last error.
    """
    lost: PyMongoError | None = None
    attempt = 1
    while True:
        try:
            return await step(lost)
        except PyMongoError as exc:
            if exc is lost:  # the step found out that it can't find out
                raise
            if _is_timeout(exc, limit):
                raise DeadlineExceeded(f"the deadline is over: {exc}") from exc
            if not _may_repeat(exc, attempt, limit):
                raise
            lost = exc
        await pause(limit, attempt, _FIRST_WAIT, _LONGEST_WAIT, lost)
        attempt += 1


async def pause(
    limit: Deadline | None, attempt: int, first: float, longest: float, reason: Exception
) -> None:
    """Wait for a random time before another attempt.

    Args:
        limit: The wait does not pass it.
        attempt: The number of the attempt that failed, from 1.
        first: The longest wait after the first attempt, in seconds; it doubles with each one.
        longest: The longest wait of all, in seconds.
        reason: Why another attempt is needed.

    Raises:
        DeadlineExceeded: The deadline would be over, or is.
    """
    wait = random.random() * min(longest, first * 2.0 ** min(attempt - 1, 30))
    if limit is not None and wait >= limit.remaining():
        raise DeadlineExceeded(f"the deadline is over: {reason}") from reason
    await anyio.sleep(wait)


def _is_timeout(exc: PyMongoError, limit: Deadline | None) -> bool:
    if limit is None or not limit.is_limited or isinstance(exc, DeadlineExceeded):
        return False
    return isinstance(exc, ExecutionTimeout) or (exc.timeout and limit.remaining() < _FIRST_WAIT)


def _may_repeat(exc: PyMongoError, attempt: int, limit: Deadline | None) -> bool:
    if isinstance(exc, DeadlineExceeded):
        return False
    if not isinstance(exc, ConnectionFailure) and not exc.has_error_label(_RETRYABLE):
        return False
    if limit is not None:
        return True
    return attempt < _ATTEMPTS and not isinstance(exc, ServerSelectionTimeoutError)
