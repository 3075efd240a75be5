"""Group commit: inserts that come while others are under way travel together after them."""

import asyncio
import contextvars
import heapq
import itertools
import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pymongo.errors import ServerSelectionTimeoutError

from aioretry._commands.target import Target
from aioretry._retry.loop import Coordinator
from aioretry._retry.sessions import SessionLease
from aioretry._writes.group.command import SharedInsert, past
from aioretry._writes.group.member import CoalescedInsert
from aioretry.deadlines import Deadline, lift_deadlines
from aioretry.errors import Attempt, DeadlineExceeded, Outcome, attach, copy_of

DEFAULT_DOCUMENTS = 1000
DEFAULT_BYTES = 16 * 2**20
_MOST_DOCUMENTS = 100_000  # of any server's command
_MOST_BYTES = 40_000_000  # with all that is around them less than any server's message

# How many commands' bytes wait encoded; documents beyond that wait as they are.
_COMMANDS_AHEAD = 2
_LOOK_EVERY = 0.02  # at deadlines
_FORGOTTEN_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Coalescing:
    """How much travels together at most."""

    max_documents: int
    max_bytes: int

    @classmethod
    def of(cls, max_documents: object, max_bytes: object) -> "Coalescing":
        """Return what the user asks for.

        Raises:
            TypeError: One is not a whole number.
            ValueError: One is less than 1, or more than a server takes.
        """
        return cls(
            _whole_number("max_documents", max_documents, _MOST_DOCUMENTS),
            _whole_number("max_bytes", max_bytes, _MOST_BYTES),
        )


class _Lane:
    """Encoded inserts that wait, in the order of the calls."""

    __slots__ = ("_inserts", "size")

    def __init__(self) -> None:
        # A dict, because whoever leaves is anywhere.
        self._inserts: dict[CoalescedInsert, None] = {}
        self.size = 0
        """In bytes."""

    def __len__(self) -> int:
        return len(self._inserts)

    def __iter__(self) -> Iterator[CoalescedInsert]:
        return iter(self._inserts)

    def __contains__(self, insert: CoalescedInsert) -> bool:
        return insert in self._inserts

    def add(self, insert: CoalescedInsert, size: int) -> None:
        """Have an insert wait behind the others."""
        self._inserts[insert] = None
        self.size += size

    def remove(self, insert: CoalescedInsert) -> None:
        """Take an insert out."""
        del self._inserts[insert]
        self.size -= len(insert.raw)

    def take(self, coalescing: Coalescing) -> dict[CoalescedInsert, None]:
        """Take out the first ones that may travel together."""
        if len(self._inserts) <= coalescing.max_documents and self.size <= coalescing.max_bytes:
            inserts, self._inserts, self.size = self._inserts, {}, 0
            return inserts
        inserts, size = {}, 0
        for insert in self._inserts:
            size += len(insert.raw)
            if inserts and (
                len(inserts) == coalescing.max_documents or size > coalescing.max_bytes
            ):
                break
            inserts[insert] = None
        for insert in inserts:
            self.remove(insert)
        return inserts


class InsertQueue:
    """Inserts that wait while a command is under way.

    Those with a deadline and those without are retried by different rules, and take turns.

    Args:
        coordinator: Executes the commands.
        target: Where they go.
        lease: Makes a lease of a session.
        coalescing: How much travels together at most.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        target: Target,
        lease: Callable[[], SessionLease],
        coalescing: Coalescing,
    ) -> None:
        self.loop = coordinator.loop
        self._coordinator = coordinator
        self._watchers = coordinator.watchers
        self._target = target
        self._lease = lease
        self._coalescing = coalescing
        self._most_ahead = _COMMANDS_AHEAD * coalescing.max_bytes
        self._next, self._other = self._unlimited, self._limited = _Lane(), _Lane()
        # What waits as it is, because there is enough that is encoded.
        self._later: dict[CoalescedInsert, None] = {}
        self._under_way: SharedInsert | None = None
        self._outages = 0
        self._is_woken = False
        self._context = contextvars.Context()  # nobody's
        # The soonest comes first; what ends before its time stays in it for a while.
        self._ends: list[tuple[float, int, Deadline, weakref.ref[CoalescedInsert]]] = []
        self._count = itertools.count()
        coordinator.waits.queues.add(self)
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = math.inf
        self._last_look = -math.inf

    def __repr__(self) -> str:
        waiting, under_way = self._counts()
        return f"<{type(self).__name__} waiting={waiting} under_way={under_way}>"

    @property
    def size(self) -> int:
        """How many inserts have not ended."""
        return sum(self._counts())

    @property
    def waiting(self) -> int:
        """How many inserts wait, for the command before theirs or with theirs for a server."""
        shared = self._under_way
        return self._counts()[0] + (0 if shared is None else shared.waiting)

    def _counts(self) -> tuple[int, int]:
        waiting = len(self._unlimited) + len(self._limited) + len(self._later)
        return waiting, 0 if self._under_way is None else len(self._under_way)

    def is_for(self, target: Target, coalescing: Coalescing) -> bool:
        """Tell whether it is the one for inserts of this kind."""
        return (self._target, self._coalescing) == (target, coalescing)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Nothing was tried for what waits."""
        return ()

    def insert(self, document: Any, deadline: Deadline | None) -> CoalescedInsert:
        """Insert a document together with others; return a future."""
        watch = self._watchers.watch("insert_one", self._target.namespace)
        insert = CoalescedInsert(self.loop, self, document, deadline, watch)
        insert.outages = self._outages
        try:
            insert.identify()
            self._coordinator.waits.check_room()
            if self._later or self._is_full():
                self._later[insert] = None
            else:
                self._admit(insert)
        except Exception as exc:  # noqa: BLE001 - raised where it is awaited, as by Motor
            insert.refuse(exc)
            return insert
        if deadline is not None and deadline.is_limited:
            self._expect(deadline, insert)
        # Not at once: whatever else inserts in this turn of the loop travels with it.
        if self._under_way is None and not self._is_woken:
            self._wake()
        return insert

    def let_go(self, insert: CoalescedInsert, exc: BaseException) -> None:
        """Take an insert out, and say on an exception that nothing of it was sent."""
        lane = self._lane_of(insert)
        if insert in lane:
            lane.remove(insert)
        else:
            self._later.pop(insert, None)
        attach(exc, Outcome.NOT_APPLIED, [])

    def too_late(self, insert: CoalescedInsert) -> DeadlineExceeded:  # noqa: ARG002 - the same for all
        """Return the error that says that an insert's deadline is over."""
        return past(is_sent=False)

    def _lane_of(self, insert: CoalescedInsert) -> _Lane:
        return self._unlimited if insert.deadline is None else self._limited

    def _is_full(self) -> bool:
        return self._unlimited.size + self._limited.size >= self._most_ahead

    def _admit(self, insert: CoalescedInsert) -> None:
        size = insert.encode(self._target.codec_options)
        if not insert.done():
            self._lane_of(insert).add(insert, size)

    def _wake(self) -> None:
        self._is_woken = True
        self.loop.call_soon(self._launch, context=self._context)

    def _launch(self) -> None:
        self._is_woken = False
        self._fill_up()
        inserts = self._take()
        if inserts:
            # Listeners find the span of the first of them; each has a deadline of its own.
            context = next(iter(inserts)).context
            context.run(lift_deadlines)
            shared = SharedInsert(self._coordinator, self._target, inserts, self._lease())
            self._under_way = shared
            context.run(shared.begin)
            shared.write.add_done_callback(self._land, context=self._context)
            self._fill_up()

    def _land(self, _: object) -> None:
        shared, self._under_way = self._under_way, None
        try:
            nobody = None if shared is None else shared.end()
            if nobody is not None:
                self._give_up(nobody)
        finally:
            # Those that insert again as soon as they have their result travel with the others.
            if self._unlimited or self._limited or self._later:
                self._wake()

    def _give_up(self, nobody: ServerSelectionTimeoutError) -> None:
        # One command after the other looks for a server. Who came before one began that has found
        # none has waited for long enough.
        for insert in [*self._unlimited, *self._limited, *self._later]:
            if insert.outages < self._outages:
                insert.refuse(copy_of(nobody))
        self._outages += 1

    def _take(self) -> dict[CoalescedInsert, None]:
        lane, other = self._next, self._other
        if not lane:
            lane, other = other, lane
        self._next, self._other = other, lane
        return lane.take(self._coalescing)

    def _fill_up(self) -> None:
        # Encoding calls code of the user's, which may do anything to whoever waits.
        while self._later and not self._is_full():
            insert = next(iter(self._later))
            del self._later[insert]
            try:
                self._admit(insert)
            except BaseException as exc:
                insert.refuse(_raisable(exc))
                if isinstance(exc, KeyboardInterrupt | SystemExit):
                    raise

    def _expect(self, deadline: Deadline, insert: CoalescedInsert) -> None:
        if len(self._ends) >= 2 * self.size + _FORGOTTEN_AT_ONCE:
            self._ends = [end for end in self._ends if _is_open(end[-1]())]
            heapq.heapify(self._ends)
        heapq.heappush(self._ends, (deadline.at, next(self._count), deadline, weakref.ref(insert)))
        if deadline.at < self._next_look:
            self._look_at(deadline)

    def _look_at(self, deadline: Deadline) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_look = deadline.at
        pause = self._last_look + _LOOK_EVERY - self.loop.time()
        wait = max(deadline.remaining(), pause)
        self._timer = self.loop.call_later(wait, self._look, context=self._context)

    def _look(self) -> None:
        self._timer, self._next_look = None, math.inf
        self._last_look = self.loop.time()
        while self._ends:
            _, _, deadline, found = self._ends[0]
            if not deadline.is_over:
                self._look_at(deadline)
                return
            heapq.heappop(self._ends)
            insert = found()
            if insert is not None and not self._ends_with_others(insert):
                insert.expire()

    def _ends_with_others(self, insert: CoalescedInsert) -> bool:
        """Tell whether an insert's deadline is that of the command it is in, which ends itself."""
        shared = self._under_way
        return shared is not None and insert.holder is shared and not shared.outlives(insert)


def _is_open(insert: CoalescedInsert | None) -> bool:
    return insert is not None and not insert.done()


def _raisable(exc: BaseException) -> Exception:
    """Return an exception that ends one insert, and nothing else."""
    if isinstance(exc, Exception):
        return exc
    error = RuntimeError(f"encoding the document raised {exc!r}")
    error.__cause__ = exc
    return error


def _whole_number(name: str, given: object, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} must be a whole number, not {type(given).__name__}: {given!r}")
    if not 1 <= given <= most:
        raise ValueError(f"{name} must be from 1 to {most}, not {given}")
    return given
