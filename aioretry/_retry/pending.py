"""The attempts under way: so many at once, and given up while they hang at a stale primary."""

import asyncio
import contextvars
from collections import OrderedDict

from pymongo.errors import InvalidOperation, WaitQueueTimeoutError

from aioretry._drivers.port import Address, Failed, NoServer, TopologyView, Unprepared
from aioretry._retry.attempt import Lane, PendingAttempt
from aioretry._retry.budget import RetryBudget
from aioretry._retry.lookout import Lookout

_LOOK_EVERY = 0.05
# How long an attempt may go on at a server that takes no more writes: its answer may be on its way.
_AFTER_LOSS = 0.1
# The same as long as no other server takes writes, so that nothing is gained by giving it up: one
# broken connection makes the driver doubt a server until it has asked it again.
_AFTER_LOSS_OF_ALL = 1.0


class PendingAttempts:
    """Has attempts made in their order, and looks after them. Bound to one event loop.

    Nobody looks while nothing is under way, nor at single attempts while the topology is the same.

    Args:
        loop: The event loop.
        lookout: Looks at what the driver knows of the servers.
        size: How many may be under way at once; further ones wait.
        patience: How long they wait at most, in seconds; None sets no limit.
        sharing: All that use the same connections; this one is added. Whoever frees something there
            lets the others try, too, or those of one kind would have it among themselves.
        budget: What successes earn for, if retries cost something.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lookout: Lookout,
        size: int,
        patience: float | None = None,
        sharing: "list[PendingAttempts] | None" = None,
        budget: RetryBudget | None = None,
    ) -> None:
        self.budget = budget
        self._sharing = [] if sharing is None else sharing
        self._sharing.append(self)
        self._loop = loop
        self._lookout = lookout
        self.size: int = size
        self._patience = patience
        self._under_way: dict[PendingAttempt, None] = {}
        # In lanes, so that who needs a thread, or a router of its own, holds up nobody else.
        self._lanes: dict[Lane, OrderedDict[PendingAttempt, contextvars.Context]] = {}
        self._doubted: dict[PendingAttempt, float] = {}
        self._seen: object = None
        self._was_news = False
        self._is_closed = False
        self._is_watching = False

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} under_way={len(self._under_way)} "
            f"waiting={self.waiting} doubted={len(self._doubted)}>"
        )

    @property
    def waiting(self) -> int:
        """How many wait until fewer are under way, or their server has a connection for them."""
        return sum(map(len, self._lanes.values()))

    @property
    def has_waiting(self) -> bool:
        """Whether anybody waits."""
        return any(self._lanes.values())

    def at(self, address: Address) -> int:
        """Return how many attempts are under way at a server."""
        return sum(attempt.address == address for attempt in self._under_way)

    def add(self, attempt: PendingAttempt) -> None:
        """Have an attempt made, now or in its turn.

        Raises:
            InvalidOperation: The client was closed.
        """
        lane = self._lanes.get(attempt.lane) if self._lanes else None
        if lane or len(self._under_way) >= self.size or not self._start(attempt):
            self._lane_of(attempt)[attempt] = contextvars.copy_context()
            if not self._is_watching:
                self._watch()

    def remove(self, attempt: PendingAttempt) -> None:
        """Let others have its place, or its place among those who wait for one."""
        self._under_way.pop(attempt, None)
        for lane in [*self._lanes.values()]:  # what its context holds may end with it, and do more
            lane.pop(attempt, None)
        for one in self._sharing:
            if one.has_waiting:
                self.pump()
                break

    def wait_again(self, attempt: PendingAttempt) -> None:
        """Have one wait, before others, because its server had no room after all."""
        self._under_way.pop(attempt, None)
        self._put_first(attempt, contextvars.copy_context())
        self.pump()

    def pump(self) -> None:
        """Let those who wait try, those of each kind in their order."""
        for one in [*self._sharing]:
            if one.pump_own():  # the others go first the next time
                self._sharing.remove(one)
                self._sharing.append(one)

    def pump_own(self) -> bool:
        """Let those who wait here try; return whether one has started."""
        has_started = False
        for name in [*self._lanes]:
            # By its name each time: what starts may end at once, and have others pumped.
            while (lane := self._lanes.get(name)) and len(self._under_way) < self.size:
                attempt, context = lane.popitem(last=False)
                if context.run(self._start_late, attempt):
                    has_started = True
                    if name in self._lanes:  # the others go first the next time
                        self._lanes[name] = self._lanes.pop(name)
                    continue
                self._put_first(attempt, context)
                if attempt.lane == name:  # else its session was given a router meanwhile
                    break
        for name in [name for name, lane in self._lanes.items() if not lane]:
            del self._lanes[name]
        return has_started

    def _lane_of(self, attempt: PendingAttempt) -> OrderedDict[PendingAttempt, contextvars.Context]:
        return self._lanes.setdefault(attempt.lane, OrderedDict())

    def close(self, patience: float) -> None:
        """Give up what is not sent yet now, and the rest some seconds after the first call."""
        if self._is_closed:
            return
        self._is_closed = True
        for attempt in [*self._under_way, *(one for lane in self._lanes.values() for one in lane)]:
            attempt.close(patience)

    def _put_first(self, attempt: PendingAttempt, context: contextvars.Context) -> None:
        lane = self._lane_of(attempt)
        lane[attempt] = context
        lane.move_to_end(attempt, last=False)

    def _start(self, attempt: PendingAttempt) -> bool:
        # First: what fails here must not be taken for the failure of a command that was sent.
        if not self._is_watching:
            self._watch()
        if not attempt.start():
            return False
        self._under_way[attempt] = None
        return True

    def _watch(self) -> None:
        self._lookout.add(self, _LOOK_EVERY)
        self._is_watching = True

    def _start_late(self, attempt: PendingAttempt) -> bool:
        try:
            return self._start(attempt)
        except InvalidOperation:  # the client was closed, which the next selection finds out
            attempt.land_soon(NoServer())
        except Exception as exc:  # noqa: BLE001 - no thread is left, or a user's selector raised
            attempt.land_soon(Unprepared(exc))
        except BaseException:  # the process may survive it, and then somebody waits for the attempt
            attempt.land_soon(NoServer())
            raise
        return True

    def look(self, view: TopologyView | None) -> float | None:
        """Give up what hangs at a stale primary, and let those who wait try at a new server."""
        if not self._under_way and not self.waiting:
            self._doubted.clear()
            self._is_watching = False
            return None
        if view is None:
            return _LOOK_EVERY
        # Once more after a change: an attempt that began before it may not have been prepared yet
        # at the first look, and what is not prepared does not wait for its server.
        is_news = view.source is not self._seen
        if is_news or self._was_news or self._doubted:
            self._judge(view)
        self.pump()  # there may be another server, or a connection that somebody else gave back
        self._refuse_late()
        self._seen, self._was_news = view.source, is_news
        return _LOOK_EVERY

    def _refuse_late(self) -> None:
        """Let those wait no longer who have waited as long as PyMongo would let them."""
        if self._patience is None:
            return
        began = self._loop.time() - self._patience
        for lane in self._lanes.values():
            while lane and (first := next(iter(lane))).added_at <= began:
                del lane[first]
                error = WaitQueueTimeoutError(
                    f"no connection was free for waitQueueTimeoutMS, {self._patience:.3g} s"
                )
                first.land_soon(Failed(error, sent=False))

    def _judge(self, view: TopologyView) -> None:
        now = self._loop.time()
        doubted = {
            attempt: self._doubted.get(attempt, now)
            for attempt in self._under_way
            if attempt.server is not None and view.has_lost(attempt.server)
        }
        is_alone = not view.writable
        grace = _AFTER_LOSS_OF_ALL if is_alone else _AFTER_LOSS
        for attempt, since in doubted.items():
            if now - since >= grace and (attempt.may_be_repeated or not is_alone):
                attempt.lose_server()
        self._doubted = {
            attempt: doubted[attempt] for attempt in doubted if attempt in self._under_way
        }
