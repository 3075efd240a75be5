"""PyMongo's timeout context, which its own operations obey, and each attempt."""

import contextlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pymongo
from pymongo import _csot

# Below this, pymongo.timeout() would see an exhausted remainder, or 0, which means "no limit".
_LEAST = 1e-6
# A server takes a number of milliseconds for a limit that it can hold in 32 bits, and 0 for none.
_MOST_MILLISECONDS = 2**31 - 1


def surrounding_end() -> float | None:
    """Return when the surrounding ``pymongo.timeout()`` blocks are over, or None outside any.

    In seconds of the monotonic clock; infinite if they set no limit.
    """
    return None if _csot.get_timeout() is None else _csot.get_deadline()


def limited(seconds: float, round_trip_time: float | None = None) -> AbstractContextManager[object]:
    """Return a block that limits what is called inside.

    Args:
        seconds: From entering it on, infinity included, which also lifts the client's ``timeoutMS``
            but no limit of a surrounding block.
        round_trip_time: By how many seconds less a server is told to take, if it is told.
    """
    if math.isinf(seconds):
        return nullcontext() if _csot.get_timeout() is not None else pymongo.timeout(0)
    timeout = pymongo.timeout(min(max(_LEAST, seconds), _MOST_MILLISECONDS / 1000))
    return timeout if round_trip_time is None else _less_a_round_trip(timeout, round_trip_time)


def milliseconds(seconds: float) -> int:
    """Return a ``maxTimeMS``: 0 if there is no time, which must not be sent."""
    return int(min(seconds * 1000, _MOST_MILLISECONDS))


@contextlib.contextmanager
def fresh(seconds: float) -> Iterator[None]:
    """Set a timeout for what is called inside, which no surrounding block shortens.

    Args:
        seconds: From now on.
    """
    token = _csot.DEADLINE.set(math.inf)
    try:
        with pymongo.timeout(max(_LEAST, seconds)):
            yield
    finally:
        _csot.DEADLINE.reset(token)


def lift() -> None:
    """Have PyMongo set no limit in this context."""
    _csot.TIMEOUT.set(None)
    _csot.DEADLINE.set(math.inf)
    _csot.RTT.set(0.0)


def end() -> None:
    """Have PyMongo take the timeout of this context for over, if it has one."""
    _csot.DEADLINE.set(-math.inf)


@contextlib.contextmanager
def _less_a_round_trip(
    timeout: AbstractContextManager[object], round_trip_time: float
) -> Iterator[None]:
    with timeout:
        _csot.set_rtt(round_trip_time)  # as PyMongo's server selection does
        yield
