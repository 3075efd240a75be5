"""Sessions of an asynchronous client that can't be used any more, ended in a task."""

from typing import Any

from aioretry import deadlines
from aioretry._drivers.engine.ending import SessionEnding
from aioretry._drivers.pymongo_async.calls import AsyncioCalls

_PATIENCE = 10.0


class TaskSessionEnding(SessionEnding):
    """Ends them in a task.

    Args:
        calls: The client.
    """

    def __init__(self, calls: AsyncioCalls) -> None:
        super().__init__(calls)
        self._calls = calls

    def _send(self) -> None:
        ids = self._taken()
        if ids:
            self._calls.start(self._end(ids))

    async def _end(self, ids: list[Any]) -> None:
        with deadlines.fresh_timeout(_PATIENCE):
            await self._delegate._end_sessions(ids)
