"""Group commit: writes that come while others are under way travel together after them."""

import asyncio
import contextvars
import heapq
import itertools
import math
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from pymongo.errors import ServerSelectionTimeoutError

from aioretry._commands.single import Travelling
from aioretry._commands.target import Target
from aioretry._retry.loop import Coordinator
from aioretry._retry.sessions import SessionLease
from aioretry._writes.group.command import SharedCommand, past
from aioretry._writes.group.kinds import INSERTS, Kind
from aioretry._writes.group.member import CoalescedWrite
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


_ALONE = Coalescing(1, 1)


class _Lane:
    """Encoded writes that wait, in the order of the calls."""

    __slots__ = ("_apart", "_members", "size")

    def __init__(self) -> None:
        # A dict, because whoever leaves is anywhere.
        self._members: dict[CoalescedWrite, None] = {}
        self._apart = 0
        self.size = 0
        """In bytes."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[CoalescedWrite]:
        return iter(self._members)

    def __contains__(self, member: CoalescedWrite) -> bool:
        return member in self._members

    def add(self, member: CoalescedWrite, size: int) -> None:
        """Have a write wait behind the others."""
        self._members[member] = None
        self._apart += member.apart is not None
        self.size += size

    def remove(self, member: CoalescedWrite) -> None:
        """Take a write out."""
        del self._members[member]
        self._apart -= member.apart is not None
        self.size -= len(member.raw)

    def take(self, coalescing: Coalescing) -> dict[CoalescedWrite, None]:
        """Take out the first ones that may travel together."""
        is_small = len(self) <= coalescing.max_documents and self.size <= coalescing.max_bytes
        if is_small and not self._apart:
            members, self._members, self.size = self._members, {}, 0
            return members
        members, size, there = {}, 0, _There()
        for member in self._members:
            size += len(member.raw)
            if members and (
                len(members) == coalescing.max_documents
                or size > coalescing.max_bytes
                or there.meets(member)
            ):
                break
            there.add(member)
            members[member] = None
        for member in members:
            self.remove(member)
        return members


class _There:
    """The documents of those that travel together."""

    def __init__(self) -> None:
        self._are_added_to: dict[Hashable, bool] = {}

    def meets(self, member: CoalescedWrite) -> bool:
        """Tell whether one would meet another one at its document, and not both only add to it."""
        apart = member.apart
        if apart is None or apart.key not in self._are_added_to:
            return False
        return not (apart.is_added_to and self._are_added_to[apart.key])

    def add(self, member: CoalescedWrite) -> None:
        """Have one travel."""
        if member.apart is not None:
            self._are_added_to[member.apart.key] = member.apart.is_added_to


class GroupQueue:
    """Writes that wait while a command is under way.

    Those with a deadline and those without are retried by different rules, and take turns.

    Args:
        coordinator: Executes the commands.
        kind: What they are.
        target: Where they go.
        lease: Makes a lease of a session.
        coalescing: How much travels together at most.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        kind: Kind,
        target: Target,
        lease: Callable[[], SessionLease],
        coalescing: Coalescing,
    ) -> None:
        self.loop = coordinator.loop
        self._coordinator = coordinator
        self._watchers = coordinator.watchers
        self._kind = kind
        self._target = target
        self._lease = lease
        self._coalescing = coalescing
        self._most_ahead = _COMMANDS_AHEAD * coalescing.max_bytes
        self._next, self._other = self._unlimited, self._limited = _Lane(), _Lane()
        # What waits as it is, because there is enough that is encoded.
        self._later: dict[CoalescedWrite, None] = {}
        self._under_way: SharedCommand | None = None
        self._outages = 0
        self._is_woken = False
        self._context = contextvars.Context()  # nobody's
        # The soonest comes first; what ends before its time stays in it for a while.
        self._ends: list[tuple[float, int, Deadline, weakref.ref[CoalescedWrite]]] = []
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
        """How many writes have not ended."""
        return sum(self._counts())

    @property
    def waiting(self) -> int:
        """How many writes wait, for the command before theirs or with theirs for a server."""
        shared = self._under_way
        return self._counts()[0] + (0 if shared is None else shared.waiting)

    def _counts(self) -> tuple[int, int]:
        waiting = len(self._unlimited) + len(self._limited) + len(self._later)
        return waiting, 0 if self._under_way is None else len(self._under_way)

    def is_for(self, kind: Kind, target: Target, coalescing: Coalescing) -> bool:
        """Tell whether it is the one for writes of a kind."""
        return (self._kind, self._target, self._coalescing) == (kind, target, coalescing)

    @property
    def is_of_use(self) -> bool:
        """Whether writes may travel together, as far as is known."""
        return self._can_ask() is not False

    def _can_ask(self) -> bool | None:
        """Tell whether a server can be asked what its sums don't say; None if that is not known."""
        if self._kind is INSERTS:
            return True
        if not self._coordinator.policy.retry_writes:
            return False
        try:
            servers = self._coordinator.driver.view().writable.values()
        except Exception:  # noqa: BLE001 - whoever sends the command meets it, too
            return None
        return all(server.can_retry_writes for server in servers) if servers else None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Nothing was tried for what waits."""
        return ()

    def add(self, arguments: Travelling[Any], deadline: Deadline | None) -> CoalescedWrite:
        """Have a write done together with others; return a future."""
        watch = self._watchers.watch(arguments.operation, self._target.namespace)
        member = CoalescedWrite(self._coordinator, self, deadline, watch)
        member.outages = self._outages
        try:
            member.take(arguments)
            self._coordinator.waits.check_room()
            if self._later or self._is_full():
                self._later[member] = None
            else:
                self._admit(member)
        except Exception as exc:  # noqa: BLE001 - raised where it is awaited, as by Motor
            member.refuse(exc)
            return member
        except BaseException as exc:
            member.as_part()  # of nothing, and never begun
            if watch is not None:
                watch.end(exc)
            raise
        if deadline is not None and deadline.is_limited:
            self._expect(deadline, member)
        # Not at once: whatever else comes in this turn of the loop travels with it.
        if self._under_way is None and not self._is_woken:
            self._wake()
        return member

    def let_go(self, member: CoalescedWrite, exc: BaseException) -> None:
        """Take a write out, and say on an exception that nothing of it was sent."""
        lane = self._lane_of(member)
        if member in lane:
            lane.remove(member)
        else:
            self._later.pop(member, None)
        attach(exc, Outcome.NOT_APPLIED, [])

    def too_late(self, member: CoalescedWrite) -> DeadlineExceeded:  # noqa: ARG002 - alike
        """Return the error that says that a write's deadline is over."""
        return past(self._kind.operation, is_sent=False)

    def _lane_of(self, member: CoalescedWrite) -> _Lane:
        return self._unlimited if member.deadline is None else self._limited

    def _is_full(self) -> bool:
        return self._unlimited.size + self._limited.size >= self._most_ahead

    def _admit(self, member: CoalescedWrite) -> None:
        size = member.encode(self._target.codec_options)
        if not member.done():
            self._lane_of(member).add(member, size)

    def _wake(self) -> None:
        self._is_woken = True
        self.loop.call_soon(self._launch, context=self._context)

    def _launch(self) -> None:
        self._is_woken = False
        self._fill_up()
        members = self._take()
        if members:
            # Listeners find the span of the first of them; each has a deadline of its own.
            context = next(iter(members)).context
            context.run(lift_deadlines)
            shared = SharedCommand(
                self._coordinator, self._kind, self._target, members, self._lease()
            )
            self._under_way = shared
            context.run(shared.begin)
            shared.write.add_done_callback(self._land, context=self._context)
            self._fill_up()
        else:
            self._rest()

    def _land(self, _: object) -> None:
        shared = self._under_way
        try:
            nobody = None if shared is None else shared.end()
            if nobody is not None:
                self._give_up(nobody)
        finally:
            if shared is None or not shared.is_asking:
                self._go_on()
            else:  # what is asked for comes before what is sent next
                shared.when_answered = self._go_on

    def _go_on(self) -> None:
        self._under_way = None
        # Those that write again as soon as they have their result travel with the others.
        if self._unlimited or self._limited or self._later:
            self._wake()
        else:
            self._rest()

    def _rest(self) -> None:
        # A timer for what has ended would keep all this until then.
        self._ends.clear()
        self._next_look = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, nobody: ServerSelectionTimeoutError) -> None:
        # One command after the other looks for a server. Who came before one began that has found
        # none has waited for long enough.
        for member in [*self._unlimited, *self._limited, *self._later]:
            if member.outages < self._outages:
                member.refuse(copy_of(nobody))
        self._outages += 1

    def _take(self) -> dict[CoalescedWrite, None]:
        lane, other = self._next, self._other
        if not lane:
            lane, other = other, lane
        self._next, self._other = other, lane
        # Of one alone, the sums say all.
        return lane.take(self._coalescing if self._can_ask() else _ALONE)

    def _fill_up(self) -> None:
        # Encoding calls code of the user's, which may do anything to whoever waits.
        while self._later and not self._is_full():
            member = next(iter(self._later))
            del self._later[member]
            try:
                self._admit(member)
            except BaseException as exc:
                member.refuse(_raisable(exc))
                if isinstance(exc, KeyboardInterrupt | SystemExit):
                    raise

    def _expect(self, deadline: Deadline, member: CoalescedWrite) -> None:
        if len(self._ends) >= 2 * self.size + _FORGOTTEN_AT_ONCE:
            self._ends = [end for end in self._ends if _is_open(end[-1]())]
            heapq.heapify(self._ends)
        heapq.heappush(self._ends, (deadline.at, next(self._count), deadline, weakref.ref(member)))
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
            member = found()
            if member is not None and not self._ends_with_others(member):
                member.expire()

    def _ends_with_others(self, member: CoalescedWrite) -> bool:
        """Tell whether a write's deadline is that of the command it is in, which ends itself."""
        shared = self._under_way
        return shared is not None and member.holder is shared and not shared.outlives(member)


def _is_open(member: CoalescedWrite | None) -> bool:
    return member is not None and not member.done()


def _raisable(exc: BaseException) -> Exception:
    """Return an exception that ends one write, and nothing else."""
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
