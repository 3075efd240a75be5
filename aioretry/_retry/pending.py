"""The attempts under way: so many at once, and given up while they hang at a stale primary."""

import asyncio
import contextvars
from collections import deque

from pymongo.errors import InvalidOperation

from aioretry._drivers.port import Driver, NoServer, ServerView, TopologyView, Unprepared
from aioretry._retry.attempt import PendingAttempt

_LOOK_EVERY = 0.05
# How long an attempt may go on at a server that takes no more writes: its answer may be on its way.
_GRACE = 0.1
# The same as long as no other server takes writes, so that nothing is gained by giving it up: one
# broken connection makes the driver doubt a server until it has asked it again.
_GRACE_ALONE = 1.0


class PendingAttempts:
    """Has attempts made in their order, and looks after them. Bound to one event loop.

    Nobody looks while nothing is under way, nor at single attempts while the topology is the same.

    Args:
        driver: Makes them.
        loop: The event loop.
        size: How many may be under way at once; further ones wait.
    """

    def __init__(self, driver: Driver, loop: asyncio.AbstractEventLoop, size: int) -> None:
        self._driver = driver
        self._loop = loop
        self._size = size
        self._under_way: dict[PendingAttempt, None] = {}
        self._waiting: deque[tuple[PendingAttempt, contextvars.Context]] = deque()
        self._doubted: dict[PendingAttempt, float] = {}
        self._seen: object = None
        self._was_news = False
        self._is_closed = False
        self._context = contextvars.Context()  # nobody's
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} under_way={len(self._under_way)} "
            f"waiting={len(self._waiting)} doubted={len(self._doubted)}>"
        )

    @property
    def waiting(self) -> int:
        """How many wait until fewer are under way."""
        return len(self._waiting)

    def add(self, attempt: PendingAttempt) -> None:
        """Have an attempt made, now or in its turn.

        Raises:
            InvalidOperation: The client was closed.
        """
        if self._waiting or len(self._under_way) >= self._size:
            self._waiting.append((attempt, contextvars.copy_context()))
        else:
            self._start(attempt)

    def remove(self, attempt: PendingAttempt) -> None:
        """Let others have its place."""
        if attempt in self._under_way:
            del self._under_way[attempt]
            while self._waiting and len(self._under_way) < self._size:
                following, context = self._waiting.popleft()
                if not following.is_over:
                    context.run(self._start_late, following)

    def close(self, patience: float) -> None:
        """Give up what is not sent yet now, and the rest some seconds after the first call."""
        if self._is_closed:
            return
        self._is_closed = True
        for attempt in [*self._under_way, *(waiting for waiting, _ in self._waiting)]:
            attempt.close(patience)

    def _start(self, attempt: PendingAttempt) -> None:
        attempt.start()
        self._under_way[attempt] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_EVERY, self._look, context=self._context)

    def _start_late(self, attempt: PendingAttempt) -> None:
        try:
            self._start(attempt)
        except InvalidOperation:  # the client was closed, which the next selection finds out
            attempt.land_soon(NoServer())
        except Exception as exc:  # noqa: BLE001 - no thread, or of the user's server selector
            attempt.land_soon(Unprepared(exc))

    def _look(self) -> None:
        self._timer = None
        if not self._under_way:
            self._doubted.clear()
            return
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look, context=self._context)
        try:
            view = self._driver.view()
        except Exception:  # noqa: BLE001 - closed, or of the user's server selector
            return
        # An attempt that began with the view before is met by a second look.
        is_news = view.source is not self._seen
        if is_news or self._was_news or self._doubted:
            self._judge(view)
        self._seen, self._was_news = view.source, is_news

    def _judge(self, view: TopologyView) -> None:
        now = self._loop.time()
        doubted = {
            attempt: self._doubted.get(attempt, now)
            for attempt in self._under_way
            if attempt.server is not None and has_lost(view, attempt.server)
        }
        is_alone = not view.writable
        grace = _GRACE_ALONE if is_alone else _GRACE
        for attempt, since in doubted.items():
            if now - since >= grace and (attempt.numbered or not is_alone):
                attempt.lose_server()
        self._doubted = {
            attempt: doubted[attempt] for attempt in doubted if attempt in self._under_way
        }


def has_lost(view: TopologyView, server: ServerView) -> bool:
    """Tell whether a server takes no more writes as the one that it was."""
    known = view.writable.get(server.address)
    if known is None:
        return True
    if known.topology_version is None or server.topology_version is None:
        return False
    return known.topology_version[0] != server.topology_version[0]
