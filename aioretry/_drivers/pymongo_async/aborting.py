"""Transactions of an asynchronous client that were given up, aborted in tasks."""

from typing import Any

from pymongo.errors import PyMongoError

from aioretry import deadlines
from aioretry._drivers.engine.aborting import TRY_PATIENCE, Abort, Aborts
from aioretry._drivers.engine.ending import SessionEnding
from aioretry._drivers.pymongo_async.calls import AsyncioCalls


class TaskAborts(Aborts):
    """Aborts transactions of one client in tasks.

    Args:
        calls: The client.
        ending: Ends the sessions that can't be used again.
    """

    def __init__(self, calls: AsyncioCalls, ending: SessionEnding) -> None:
        super().__init__(calls.delegate, ending)
        self._calls = calls

    def submit(self, abort: Abort) -> None:
        """Have an abort tried in a task."""
        self._calls.start(self._attempt(abort))

    def unpin(self, session: Any) -> None:
        """Have a session keep nothing of PyMongo's."""
        self._calls.start(session._unpin())

    async def _attempt(self, abort: Abort) -> None:
        is_over = False
        try:
            is_over = abort.is_unsent or abort.is_over_after(await _try(abort.session))
        finally:
            abort.tried(is_over)


async def _try(session: Any) -> PyMongoError | None:
    try:
        with deadlines.fresh_timeout(TRY_PATIENCE):
            await session._finish_transaction_with_retry("abortTransaction")
    except PyMongoError as exc:
        return exc
    return None
