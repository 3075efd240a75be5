"""Locks for PyMongo's asynchronous client that no cancellation can leave locked."""

import asyncio
from typing import Any

from pymongo.lock import Condition, Lock


class OpenLock:
    """A pool's lock for which nobody has to wait.

    All use of a pool is on one event loop, and nothing is awaited while its lock is held. At
    PyMongo's own lock whoever comes waits for those who have been told that it is free; cancelled
    there, they leave connections open and counts too high, and on Python 3.11 a lock that is never
    free again.
    """

    def locked(self) -> bool:
        """Whoever asks has it."""
        return True

    async def acquire(self) -> bool:
        """Go on at once."""
        return True

    def release(self) -> None:
        """Nobody waits."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *exc_info: object) -> None:
        return None


class _Absence:
    """Somebody who waits, without the lock that he had."""

    __slots__ = ("is_for_good",)

    def __init__(self) -> None:
        self.is_for_good = False


class ReturningLock(Lock):
    """A lock that comes back from who waits for a :class:`ReturningCondition`, and is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.absent: dict[object, _Absence] = {}

    def release(self) -> None:
        """Give it back; who has not got it again leaves that to its wait."""
        absence = self.absent.pop(asyncio.current_task(), None) if self.absent else None
        if absence is None:
            super().release()
        else:
            absence.is_for_good = True


class ReturningCondition(Condition):
    """A condition with which PyMongo may wait for a while, on Python 3.11.

    There, ``asyncio.wait_for()`` waits in a task of its own. Who is cancelled while that ends,
    because the time is over, goes on without the lock, and releases it; the task takes it after
    that, and nobody would release it.

    Args:
        lock: Its lock.
    """

    def __init__(self, lock: ReturningLock) -> None:
        super().__init__(lock)
        self._returning = lock

    def wait(self) -> Any:
        """Wait to be notified; the lock is held again then."""
        return self._wait(asyncio.current_task())

    async def _wait(self, who: object) -> bool:
        if who is asyncio.current_task():
            return await super().wait()
        absence = self._returning.absent[who] = _Absence()
        try:
            return await super().wait()
        finally:
            if absence.is_for_good:
                self._returning.release()
            else:
                del self._returning.absent[who]
