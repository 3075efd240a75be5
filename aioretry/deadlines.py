"""Deadlines: absolute points in monotonic time, the blocks that set them, and how to leave them."""

import contextlib
import contextvars
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import ParamSpec, TypeVar

import pymongo
from pymongo import _csot

__all__ = ["Deadline", "deadline", "detached"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in monotonic time by which a write has to end.

    ``at`` may be infinite: there is no limit then, and a write is retried without end (Client-Side
    Operations Timeout specification, "timeoutMS").
    """

    at: float
    """The point, in seconds of ``clock``."""

    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    """The clock that ``at`` belongs to."""

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> "Deadline":
        """Return the deadline that lies a number of seconds from now.

        Args:
            seconds: From now on; 0 has expired, infinity never does.
            clock: The monotonic clock to read.

        Returns:
            The deadline.
        """
        return cls(clock() + seconds, clock)

    @property
    def is_limited(self) -> bool:
        """Whether the deadline ever comes."""
        return not math.isinf(self.at)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.clock() >= self.at

    def remaining(self) -> float:
        """Return the seconds that are left; 0 when the deadline has passed."""
        return max(0.0, self.at - self.clock())

    def nearer(self, other: "Deadline | None") -> "Deadline":
        """Return whichever of the two comes first."""
        return self if other is None or self.at <= other.at else other


_current: ContextVar[Deadline | None] = ContextVar("aioretry_deadline", default=None)


def current_deadline() -> Deadline | None:
    """Return the deadline of the innermost surrounding block, or None outside any."""
    return _current.get()


class deadline:  # noqa: N801 - used like a function
    """A block inside which writes are retried as often as time allows.

    Usable with ``async with`` and ``with``. Of nested blocks, the nearer deadline counts. Reads and
    cursors inside the block obey it too, by ``pymongo.timeout()``. Entering gives the
    :class:`Deadline` in force, which may be that of a surrounding ``pymongo.timeout()``, or None if
    there is none.

    Args:
        seconds: How long the block may take, from entering it. None inherits the surrounding
            deadline. 0 has expired already: nothing is sent. Infinity sets no limit and retries
            without end.

    Raises:
        TypeError: ``seconds`` is not a number.
        ValueError: ``seconds`` is negative or NaN.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = validate_seconds("seconds", seconds)
        self._token: Token[Deadline | None] | None = None
        self._driver_timeout: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> Deadline | None:
        if self._token is not None:
            raise RuntimeError("this deadline() block was entered already; make a new one")
        outer = _current.get()
        pymongos_end = surrounding_end()
        if self._seconds is None:
            inner = outer
        else:
            inner = Deadline.after(self._seconds).nearer(outer)
            self._driver_timeout = driver_timeout(inner)
        self._token = _current.set(inner)
        self._driver_timeout.__enter__()
        return inner if pymongos_end is None else Deadline(pymongos_end).nearer(inner)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._token is None:
            raise RuntimeError("this deadline() block was not entered")
        self._driver_timeout.__exit__(exc_type, exc, traceback)
        _current.reset(self._token)
        self._token = None

    async def __aenter__(self) -> Deadline | None:
        return self.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(exc_type, exc, traceback)


def detached(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Begin what outlives its caller: it inherits no deadline, and no other context variable.

    ``detached(asyncio.create_task, work())`` starts a task that goes on when the deadline around it
    is over; ``detached(loop.call_later, 5.0, call)`` and ``detached(thread.start)`` do the same for
    timers and threads.

    Args:
        call: What starts it.
        args: Its arguments.
        kwargs: Its arguments by name.

    Returns:
        What the call returns.
    """
    return contextvars.Context().run(call, *args, **kwargs)


def lift_deadlines() -> None:
    """Set no deadline in this context any more, for what goes on in a copy of its caller's."""
    _current.set(None)
    lift_timeout()


def validate_seconds(name: str, seconds: object) -> float | None:
    """Return a number of seconds, or raise an error that names the argument.

    Raises:
        TypeError: It is neither a number nor None.
        ValueError: It is negative or NaN.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(
            f"{name} must be a number of seconds or None, not {type(seconds).__name__}: {seconds!r}"
        )
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"{name} must be a number of seconds from 0 on, not {seconds!r}")
    return float(seconds)


def driver_timeout(limit: Deadline | None) -> AbstractContextManager[object]:
    """Return a block inside which PyMongo obeys a deadline, if there is one."""
    return nullcontext() if limit is None else limited(limit.remaining())


# Below this, pymongo.timeout() would see an exhausted remainder, or 0, which means "no limit".
_LEAST = 1e-6
# A server takes a number of milliseconds for a limit that it can hold in 32 bits, and 0 for none.
_MOST_MILLISECONDS = 2**31 - 1


def nearest() -> Deadline | None:
    """Return the nearest of the surrounding ``deadline()`` and ``pymongo.timeout()`` blocks."""
    ours = _current.get()
    if _csot.get_timeout() is None:
        return ours
    return Deadline(_csot.get_deadline()).nearer(ours)


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
    """Return a ``maxTimeMS``; it must not be sent if it is not above 0: there is no time."""
    return int(min(seconds * 1000, _MOST_MILLISECONDS))


@contextlib.contextmanager
def fresh_timeout(seconds: float) -> Iterator[None]:
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


def lift_timeout() -> None:
    """Have PyMongo set no limit in this context."""
    _csot.TIMEOUT.set(None)
    _csot.DEADLINE.set(math.inf)
    _csot.RTT.set(0.0)


@contextlib.contextmanager
def _less_a_round_trip(
    timeout: AbstractContextManager[object], round_trip_time: float
) -> Iterator[None]:
    with timeout:
        _csot.set_rtt(round_trip_time)  # as PyMongo's server selection does
        yield
