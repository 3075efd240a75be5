"""The runs of a session's transactions, and what one leaves behind when it has ended."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from pymongo.errors import InvalidOperation

from aioretry.errors import Outcome, attach

T = TypeVar("T")


class Runs:
    """The runs of one session's transactions.

    Each puts a mark into its context, which the tasks and threads that it starts inherit. Once it
    has ended, whatever they still want to send in the session would be part of the next transaction
    or of none, and is refused.
    """

    def __init__(self) -> None:
        # A run that ends waits for what is being stamped for it, on any thread: after that, nothing
        # of it gets the number of another one.
        self._lock = threading.Lock()

    @contextmanager
    def run(self) -> Iterator[None]:
        """Mark what is done in the block, and started by it, as one run."""
        mark = _Mark(self)
        # Of sessions that are gone, nothing can come any more.
        others = tuple(other for other in _marks.get() if other.runs() is not None)
        token = _marks.set((*others, mark))
        try:
            yield
        finally:
            with self._lock:
                mark.has_ended = True
            _marks.reset(token)

    def make_ready(self, make: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Make something ready to be sent; as long as that takes, the run does not end.

        Args:
            make: Does so.
            *args: What it is given.
            **kwargs: The same.

        Raises:
            InvalidOperation: It has ended.
        """
        with self._lock:
            self.require()
            return make(*args, **kwargs)

    def require(self) -> None:
        """Refuse what comes from a run that has ended.

        Raises:
            InvalidOperation: The caller was started by one.
        """
        for mark in _marks.get():
            if not mark.has_ended or mark.runs() is not self:
                continue
            error = InvalidOperation(
                "the run of the transaction that this was started by has ended; nothing was sent"
            )
            attach(error, Outcome.NOT_APPLIED, ())
            raise error


class _Mark:
    """One run, as those know it who are started by it."""

    __slots__ = ("has_ended", "runs")

    def __init__(self, runs: Runs) -> None:
        self.runs = weakref.ref(runs)
        self.has_ended = False


_marks: ContextVar[tuple[_Mark, ...]] = ContextVar("aioretry_runs", default=())
