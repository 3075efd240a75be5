"""Transactions of a blocking client that were given up, aborted on threads."""

import contextlib
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

from aioretry import deadlines
from aioretry._drivers.engine.aborting import TRY_PATIENCE, Abort, Aborts
from aioretry._drivers.engine.ending import SessionEnding
from aioretry._drivers.threads import Job, ThreadPool

_MOST_THREADS = 4


class ThreadAborts(Aborts):
    """Aborts transactions of one client on threads of its own.

    Args:
        delegate: The client.
        ending: Ends the sessions that can't be used again.
    """

    def __init__(self, delegate: pymongo.MongoClient[Any], ending: SessionEnding) -> None:
        super().__init__(delegate, ending)
        self.threads = ThreadPool(_MOST_THREADS, "aioretry-abort")

    def submit(self, abort: Abort) -> None:
        """Have an abort tried by a thread."""

        def attempt() -> None:
            is_over = False
            try:
                is_over = abort.is_unsent or abort.is_over_after(_try(abort.session))
            finally:
                with contextlib.suppress(RuntimeError):  # the loop was closed
                    abort.loop.call_soon_threadsafe(abort.tried, is_over)

        self.threads.submit(Job(attempt))

    def unpin(self, session: Any) -> None:
        """Have a session keep nothing of PyMongo's."""
        session._unpin()

    def close(self) -> None:
        """End the threads, and leave the sessions to be ended."""
        self.threads.close()
        super().close()


def _try(session: Any) -> PyMongoError | None:
    try:
        with deadlines.fresh_timeout(TRY_PATIENCE):
            session._finish_transaction_with_retry("abortTransaction")
    except PyMongoError as exc:
        return exc
    return None
