"""Sessions of a blocking client that can't be used any more, ended on a thread."""

import contextlib

from aioretry import deadlines
from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.ending import SessionEnding
from aioretry._drivers.threads import Job, ThreadPool

_PATIENCE = 10.0


class ThreadSessionEnding(SessionEnding):
    """Ends them on a thread of its own.

    Args:
        calls: The client.
    """

    def __init__(self, calls: ClientCalls) -> None:
        super().__init__(calls)
        self._threads = ThreadPool(1, "aioretry-sessions")

    def close(self) -> None:
        """Leave all of them to PyMongo."""
        self._threads.close()
        super().close()

    def _send(self) -> None:
        with contextlib.suppress(RuntimeError):  # the client was closed, or no thread is to be had
            self._threads.submit(Job(self._end))

    def _end(self) -> None:
        ids = self._taken()
        if ids:
            with deadlines.fresh_timeout(_PATIENCE):
                self._delegate._end_sessions(ids)
