"""Whoever hands on the entries of an outbox: one worker at a time, several keys at once."""

import asyncio
import inspect
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, cast

import anyio
from anyio.abc import TaskGroup
from pymongo.errors import PyMongoError

from aioretry import deadline
from aioretry._faces import Database, under_way_of
from aioretry.outbox._outbox import Entry, Outbox, OutboxStatus, text_of
from aioretry.streams._checks import require_numbers, require_seconds
from aioretry.streams._holding import hold, new_owner, until_done, while_renewed
from aioretry.streams._leases import Lease, LeaseKind, Leases

Deliver: TypeAlias = Callable[[Entry], Awaitable[object]]

_log = logging.getLogger("aioretry.outbox")

_PAGES: Final = 5  # entries that are read at once, for each that may be handed on at once
_MOST_DELAYED: Final = 1000  # keys; then the receivers are ill, and no more are tried
_STATUS_SECONDS: Final = 10.0


class Undeliverable(Exception):  # noqa: N818 - it says what an entry is
    """Raised by whoever delivers: the entry is given up at once, with this as its reason."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """A relay's arguments, checked."""

    outbox: Outbox
    deliver: Deliver
    at_once: int
    timeout: float
    max_attempts: int
    first_pause: float
    longest_pause: float
    poll_seconds: float
    leases: Leases


class Relay:
    """Hands the entries of an outbox on: each at least once, those of a key in their order.

    Of all relays of an outbox, whatever their processes, one is at work, under a lease; the others
    wait to take it over. One that dies or freezes is followed by another after ``lease_seconds``.
    What was under way then is delivered once more, with the same id. An entry that fails is handed
    on again after a pause that doubles, and those of its key after it wait for it.

    Args:
        outbox: Whose entries.
        deliver: Called with each entry, and awaited. When it returns, the entry is delivered. When
            it raises, that is tried again later; with :class:`Undeliverable` it is not.
        at_once: How many entries are handed on at the same time, each of another key.
        timeout: How long one call may take, in seconds; then it is cancelled, and has failed.
        max_attempts: After so many failures an entry is given up, and those after it go on.
        first_pause: How long to wait after the first failure, in seconds, or a bit less.
        longest_pause: How long at most.
        poll_seconds: How often to look for new entries when there are none.
        lease_seconds: How long a relay that is dead or frozen holds up the next one. At best more
            than an election takes.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is out of its range.
    """

    def __init__(
        self,
        outbox: Outbox,
        deliver: Deliver,
        *,
        at_once: int = 20,
        timeout: float = 30.0,
        max_attempts: int = 20,
        first_pause: float = 1.0,
        longest_pause: float = 300.0,
        poll_seconds: float = 0.5,
        lease_seconds: float = 15.0,
    ) -> None:
        if not isinstance(outbox, Outbox):
            raise TypeError(f"outbox must be an Outbox, not {outbox!r}")
        if not callable(deliver):
            raise TypeError(f"deliver must be an async function, not {deliver!r}")
        require_numbers(at_once=at_once, max_attempts=max_attempts)
        require_seconds(
            timeout=timeout,
            first_pause=first_pause,
            longest_pause=longest_pause,
            poll_seconds=poll_seconds,
            lease_seconds=lease_seconds,
        )
        self.outbox = outbox
        name = f"outbox {outbox.collection.name}"
        self._settings = _Settings(
            outbox,
            deliver,
            at_once,
            timeout,
            max_attempts,
            first_pause,
            longest_pause,
            poll_seconds,
            Leases(cast(Database, outbox.collection.database), name, lease_seconds),
        )
        self._delayed: dict[str, float] = {}
        self.deliveries: Counter[tuple[str, str]] = Counter()
        """How many calls have ended, by kind and result, which is delivered, failed or dead."""

        self.status: OutboxStatus | None = None
        """How the outbox was ten seconds ago or later; None while another relay is at work."""

    async def run(self) -> None:
        """Hand entries on, for as long as nobody cancels it.

        Raises:
            ClientDraining: The client is being drained. What was being delivered was waited for,
                and another relay may go on at once.
            DeadlineExceeded: The surrounding deadline is over.
            TypeError: ``deliver`` is no async function.
            PyMongoError: An error that does not pass by itself.
        """
        owner, is_prepared = new_owner(), False
        leases = self._settings.leases

        async def serve(lease: Lease) -> None:
            try:
                await _Shift(self._settings, lease, self._delayed, self).run()
            finally:
                self.status = None

        async def once() -> bool:
            nonlocal is_prepared
            if not is_prepared:
                await self.outbox.prepare()
                is_prepared = True
            await hold(leases, 0, LeaseKind.RELAY, owner, serve)
            return False

        def tell(error: PyMongoError) -> None:
            _log.info("%s is served again, after a %s", leases.name, type(error).__name__)

        await until_done(self.outbox.client, once, tell, leases.seconds / 3)


@dataclass(slots=True)
class _Shift:
    """A relay for as long as it holds its lease.

    Args:
        settings: The relay's.
        lease: The lease.
        delayed: Until when nothing of a key is handed on, by the monotonic clock.
        told: Is told what has become of entries.
    """

    settings: _Settings
    lease: Lease
    delayed: dict[str, float]
    told: Relay
    _busy: set[str] = field(default_factory=set, init=False)
    _found: dict[str, list[Entry]] = field(default_factory=dict, init=False)
    _next_read: float = field(default=0.0, init=False)
    _news: anyio.Event = field(default_factory=anyio.Event, init=False)
    _renewed: tuple[float, float] = field(default=(-math.inf, -math.inf), init=False)
    """When the latest renewal began, by the monotonic clock and by the wall's."""

    _asked: float = field(default=-_STATUS_SECONDS, init=False)
    _error: Exception | None = field(default=None, init=False)

    async def run(self) -> None:
        """Hand entries on, and renew the lease meanwhile.

        Raises:
            ClientDraining: The client is being drained.
            LeaseLostError: The lease is somebody else's.
            PyMongoError: The outbox could not be read or written.
        """
        await self._renew()  # nobody knows how long ago it was taken, if that was retried
        await while_renewed(self._renew, self.settings.leases.seconds / 6, self._serve)

    async def _renew(self) -> None:
        began = time.monotonic(), time.time()
        async with deadline(self.settings.leases.seconds):
            await self.settings.leases.renew(self.lease)
        self._renewed = began

    async def _serve(self) -> None:
        async with anyio.create_task_group() as group:
            await self._watched(group, self._look(group))
        if self._error is not None:
            raise self._error
        under_way_of(self.settings.outbox.client).go_on()

    async def _watched(self, group: TaskGroup, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as exc:  # noqa: BLE001 - raised when nothing is under way, and in no group
            self._error = self._error or exc
            group.cancel_scope.cancel()

    async def _look(self, group: TaskGroup) -> None:
        while not self._is_ending:
            self._news = anyio.Event()
            if not self._found and time.monotonic() >= self._next_read:
                await self._read()
            while self._found and len(self._busy) < self.settings.at_once:
                key = next(iter(self._found))
                self._busy.add(key)
                group.start_soon(self._watched, group, self._serve_key(key, self._found.pop(key)))
            pause = (
                self.settings.poll_seconds if self._found else self._next_read - time.monotonic()
            )
            with anyio.move_on_after(pause):
                await self._news.wait()

    async def _read(self) -> None:
        now, outbox = time.monotonic(), self.settings.outbox
        for key in [key for key, until in self.delayed.items() if until <= now]:
            del self.delayed[key]
        self._next_read = now + self.settings.poll_seconds
        async with deadline(self.settings.leases.seconds):
            if len(self.delayed) < _MOST_DELAYED:
                without = {*self._busy, *self.delayed}
                limit = _PAGES * self.settings.at_once
                self._found = await outbox.pending(without, limit)
                if sum(map(len, self._found.values())) == limit:  # there may be more
                    self._next_read = now
            if now - self._asked > _STATUS_SECONDS:
                self._asked, self.told.status = now, await outbox.status()

    async def _serve_key(self, key: str, entries: list[Entry]) -> None:
        try:
            for entry in entries:
                if self._is_ending or not await self._deliver(key, entry):
                    return
        finally:
            self._busy.discard(key)
            self._news.set()

    @property
    def _is_ending(self) -> bool:
        return under_way_of(self.settings.outbox.client).is_draining

    async def _deliver(self, key: str, entry: Entry) -> bool:
        """Hand an entry on; return whether those of its key after it may follow."""
        await self._hold_surely()
        error = await self._failure(replace(entry, fence=self.lease.fence))
        tries = entry.attempts + 1
        is_dead = isinstance(error, Undeliverable) or tries >= self.settings.max_attempts
        async with deadline(self.settings.leases.seconds):
            if error is None:
                await self.settings.outbox.end(entry)
            else:
                await self.settings.outbox.fail(entry, text_of(error), is_dead=is_dead)
        result = "delivered" if error is None else "dead" if is_dead else "failed"
        self.told.deliveries[entry.kind, result] += 1
        if error is None:
            return True
        _log.log(
            logging.WARNING if is_dead else logging.INFO,
            "entry %s (%s) %s at attempt %d: %s",
            *(entry.id, entry.kind, "is given up" if is_dead else "failed", tries),
            type(error).__name__,
        )
        if not is_dead:
            first, longest = self.settings.first_pause, self.settings.longest_pause
            self.delayed[key] = time.monotonic() + pause_after(tries, first, longest)
        return is_dead

    async def _hold_surely(self) -> None:
        """Wait until the lease can't be over: whoever has it may be at work on the next entries."""
        half = self.settings.leases.seconds / 2
        while self._age() > half:  # noqa: ASYNC110 - or it is cancelled
            await anyio.sleep(0.05)

    def _age(self) -> float:
        # One clock may stand still while the machine sleeps, and the other one may be set.
        monotonic, wall = self._renewed
        return max(time.monotonic() - monotonic, time.time() - wall)

    async def _failure(self, entry: Entry) -> BaseException | None:
        seconds, is_async = self.settings.timeout, True
        try:
            # It cancels until that is obeyed, which some of PyMongo's methods don't at once.
            with anyio.fail_after(seconds):
                async with deadline(seconds):
                    delivering = self.settings.deliver(entry)
                    is_async = inspect.isawaitable(delivering)
                    if is_async:
                        await delivering
        except Exception as exc:  # noqa: BLE001 - whatever it is, the entry is not delivered
            return exc
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return exc
        if not is_async:  # it has done its work, and would at each attempt
            raise TypeError(f"deliver must be an async function, not {self.settings.deliver!r}")
        return None


def pause_after(tries: int, first: float, longest: float) -> float:
    """Return how long to wait after so many failures, in seconds.

    Args:
        tries: How many there were.
        first: How long to wait after the first one; after each other one twice as long.
        longest: How long at most. Up to half of it is left to chance.
    """
    return min(first * 2.0 ** min(tries - 1, 32), longest) * random.uniform(0.5, 1.0)
