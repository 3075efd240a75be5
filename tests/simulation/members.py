"""A member of a replica set: its oplog, what clients ask it, and who waits for an answer."""

import asyncio
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bson.timestamp import Timestamp

from tests.simulation.commands import (
    ABORT,
    COMMIT,
    CONCERN_FAILED,
    INTERRUPTED,
    MAX_TIME,
    NO_SECONDARY_OK,
    NO_SUCH_TRANSACTION,
    NOT_PRIMARY,
    TOO_OLD,
    Command,
    CommandError,
    error_of,
    with_concern_error,
)
from tests.simulation.reading import answer_to
from tests.simulation.state import REMEMBERED_FOR, Documents, Entry, Execution, State, Work
from tests.simulation.transactions import Status, Transaction, Transactions

if TYPE_CHECKING:
    from tests.simulation.replica_set import ReplicaSet

_FIRST_ABORTING_AT_ONCE = (5, 0)
"""Before this version, an abort waits for its write concern."""

# transactionLifetimeLimitSeconds, and half of that between two looks.
LIFETIME = (60.0, 90.0)

Answer = Callable[[Mapping[str, Any]], None]


@dataclass(slots=True, weakref_slot=True)
class Request:
    """A command at a member."""

    command: Command
    majority: bool
    wtimeout: float | None
    max_time: float | None
    answer: Answer
    """Takes the reply."""

    is_over: bool = False
    """Whether nobody waits for an answer any more. It is executed all the same."""

    since: float = math.inf
    """When a router got it, in seconds."""

    until: float = math.inf
    """When that is to give it up, in seconds."""

    has_slept: bool = False
    """Whether it lay unread at a router that slept."""


@dataclass(frozen=True, slots=True)
class Belated:
    """A command that was executed once more, because it was forgotten meanwhile."""

    command: Command
    at: float
    """When that was, in seconds."""

    has_slept: bool
    """Whether it lay unread at a router that slept."""

    was_early: bool
    """Whether it was forgotten before its time, by a wall clock that was set ahead."""


@dataclass(slots=True)
class _Waiting:
    """Somebody who waits until so many members have what was written."""

    request: Request
    index: int
    term: int
    reply: dict[str, Any]
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


@dataclass(slots=True)
class _HeldUp:
    """Somebody who waits for something else to happen."""

    request: Request
    work: Work[dict[str, Any]]
    may_be_given_up: bool


class Member:
    """A member of a replica set.

    Args:
        replica_set: The set.
        number: Which one it is.
    """

    is_router = False

    def __init__(self, replica_set: "ReplicaSet", number: int) -> None:
        self.address = (f"member{number}", 27017)
        self.name = f"m{number}"
        self._set = replica_set
        self.oplog: list[Entry] = []
        self.state = State()
        self.transactions = Transactions(replica_set.version, self._expect_end, replica_set.tick)
        self.held_up: list[_HeldUp] = []
        """What waits for the end of a transaction, or for what it has to see, oldest first."""

        self._committed = State()
        self._committed_length = 0

        self.forgotten: dict[bytes, float] = {}
        """The sessions of which it has forgotten what was done, and when it did, in seconds.

        That is never over where it was too early: who sends something again relies on it still.
        """

        self.journaled = 0
        self.term = 0
        self.seen_term = 0
        """The latest that it has heard of; it follows no primary of an earlier one."""

        self.is_primary = False
        self.is_up = True
        self.is_frozen = False
        self.is_cut_off = False
        """Whether the other members don't see it; clients still do."""

        self.process = number
        self.version = 0
        self.inbox: list[Request] = []
        self.waiting: list[_Waiting] = []
        self.is_pulling = False

    def __repr__(self) -> str:
        return self.name

    @property
    def last(self) -> tuple[int, int]:
        """How far its oplog goes: term and index."""
        return (self.oplog[-1].term, self.oplog[-1].index) if self.oplog else (0, 0)

    @property
    def votes(self) -> bool:
        """Whether it takes part in elections now."""
        return self.is_up and not self.is_frozen and not self.is_cut_off

    @property
    def topology_version(self) -> tuple[int, int]:
        """What its hello says: its process, and how often it has changed since that began."""
        return self.process, self.version

    def receive(self, request: Request) -> None:
        """Take a command; whoever is down takes none."""
        if not self.is_up:
            return
        if self.is_frozen:
            self.inbox.append(request)
        else:
            self._execute(request)

    def _execute(self, request: Request) -> None:
        self._go_on(request, self._work_on(request))
        if request.max_time and any(one.request is request for one in self.held_up):
            later = self._set.loop.call_later
            later(request.max_time, self._give_up_held, weakref.ref(request))

    def _go_on(self, request: Request, work: Work[dict[str, Any]]) -> None:
        command = request.command
        try:
            may_be_given_up = next(work)
        except StopIteration as stop:
            reply = stop.value
            self._set.seen_sessions(command)
        except CommandError as exc:
            reply = exc.reply
        else:
            self.held_up.append(_HeldUp(request, work, may_be_given_up))
            return
        if self._waits(command, reply):
            self._wait(request, reply)
        else:
            self._answer(request, reply)

    def _waits(self, command: Command, reply: Mapping[str, Any]) -> bool:
        """Tell whether a write concern counts; whoever is refused waits, too."""
        if command.reads or not self.is_primary or reply.get("code") == TOO_OLD:
            return False
        if command.name == ABORT and reply["ok"]:
            return self._set.version < _FIRST_ABORTING_AT_ONCE
        return command.ends_transaction or not command.in_transaction

    def _work_on(self, request: Request) -> Work[dict[str, Any]]:
        command = request.command
        if command.name == "endSessions":
            self._set.end_sessions(one["id"] for one in command.body["endSessions"])
            return {"ok": 1.0}
        if command.reads and not command.in_transaction:
            return (yield from self._read(command))
        if not self.is_primary:
            raise error_of(NOT_PRIMARY, "NotWritablePrimary", command, self._set.version)
        if command.in_transaction:
            return self._go_on_with_transaction(request)
        while command.number is not None and self._is_busy(command.session):
            yield True
        self.transactions.begin_write(command, self.state)
        if self._has_outlived_memory(request):
            at = self._set.loop.time()
            was_early = self.forgotten[command.session] == math.inf
            self._set.belated.append(Belated(command, at, request.has_slept, was_early))
        began, loop = self._set.loop.time(), self._set.loop
        execution = Execution(
            self._set.version,
            self.state,
            self.append,
            self._set.clocks.wall(),
            self._set.tick,
            self.transactions.are_barring,
            lambda: request.max_time is not None and loop.time() >= began + request.max_time,
        )
        return (yield from execution.run(command))

    def _is_busy(self, session: bytes | None) -> bool:
        """Tell whether something of a session is held up; it does one thing at a time."""
        return any(one.request.command.session == session for one in self.held_up)

    def _go_on_with_transaction(self, request: Request) -> dict[str, Any]:
        command, transactions = request.command, self.transactions
        is_last_word = request.majority and command.ends_transaction
        changes = transactions.to_commit(command, self.state)
        if changes:
            self.append(
                changes=changes,
                session=command.session,
                number=command.number,
                commits=True,
                at=self._set.clocks.wall(),
            )
        try:
            has_read = transactions.is_in_progress(command)
            reply = transactions.run(command, self.state)
        except CommandError as exc:
            # Whoever is the primary no more can't say so: others have to hear of it, too.
            if is_last_word and exc.reply["code"] == NO_SUCH_TRANSACTION:
                self.append(at=self._set.clocks.wall())
            raise
        else:
            if is_last_word and has_read and not changes and command.name == COMMIT:
                self.append(at=self._set.clocks.wall())
            return reply
        finally:
            self.resume()

    def _read(self, command: Command) -> Work[dict[str, Any]]:
        if not self.is_primary and not command.reads_anywhere:
            raise error_of(NO_SECONDARY_OK, "NotPrimaryNoSecondaryOk", command, self._set.version)
        after = command.concern.get("afterClusterTime")
        while after is not None and self.last < (after.time, after.inc):
            yield True
        is_of_majority = command.concern.get("level") == "majority"
        seen = self.committed if is_of_majority else self.state.documents
        return answer_to(command, seen, self._set.clocks.wall())

    def committed(self, collection: str) -> Documents:
        """Return the documents of a collection that a majority has, as far as this one has them."""
        agreed, length = self._set.committed, self._committed_length
        most = min(len(self.oplog), len(agreed))
        while length < most and self.oplog[length] is agreed[length]:
            self._committed.apply(agreed[length])
            length += 1
        self._committed_length = length
        return self._committed.documents(collection)

    def _give_up_held(self, reference: "weakref.ref[Request]") -> None:
        request = reference()
        for one in [*self.held_up]:
            if one.request is request and one.may_be_given_up and not self.is_frozen:
                self.held_up.remove(one)
                exc = error_of(MAX_TIME, "MaxTimeMSExpired", request.command, self._set.version)
                self._answer(request, exc.reply)

    def resume(self) -> None:
        """Have what was held up go on, if it can."""
        if self.held_up and not self.is_frozen:
            held_up, self.held_up = self.held_up, []
            for one in held_up:
                # It may be held up once more, behind those that were before it.
                self._go_on(one.request, one.work)

    def _expect_end(self, transaction: Transaction) -> None:
        seconds = self._set.random.uniform(*LIFETIME)
        self._set.loop.call_later(seconds, self._expire, transaction)

    def _expire(self, transaction: Transaction) -> None:
        if transaction.status is not Status.IN_PROGRESS:
            return
        if self.is_frozen:
            self._set.loop.call_later(1.0, self._expire, transaction)
            return
        self._set.note(f"{self} aborts {transaction.session!r}/{transaction.number}: too old")
        self._set.expired.append(transaction)
        transaction.end(Status.ABORTED)
        self.resume()

    def _has_outlived_memory(self, request: Request) -> bool:
        """Tell whether what it asks was done, and was forgotten too early, or on its way."""
        session, number = request.command.session, request.command.number
        if session is None or request.since > self.forgotten.get(session, -math.inf):
            return False
        record = self.state.records.get(session)
        is_known = record is not None and record.number == number
        done = ((entry.session, entry.number) for entry in self.oplog)
        return not is_known and (session, number) in done

    def append(self, **what: Any) -> None:
        """Add an entry to the oplog."""
        index = self.oplog[-1].index + 1 if self.oplog else 1
        entry = Entry(term=self.term, index=index, **what)
        self.oplog.append(entry)
        self.state.apply(entry)
        self._set.versions.update((id(document), document) for _, _, document in entry.changes)
        self._set.has_written(self)
        if self.held_up:  # by what has to see this
            self._set.loop.call_soon(self.resume)

    def _wait(self, request: Request, reply: dict[str, Any]) -> None:
        """Answer when the write concern is met. What changed nothing waits for all before it."""
        index = self.oplog[-1].index if self.oplog else 0
        if not request.majority or index <= self._set.commit_index(self):
            self._answer(request, reply)
            return
        waiting = _Waiting(request, index, self.term, reply)
        self.waiting.append(waiting)
        for seconds, code, name in [
            (request.wtimeout, CONCERN_FAILED, "WriteConcernFailed"),
            (request.max_time, MAX_TIME, "MaxTimeMSExpired"),
        ]:
            if seconds:
                later = self._set.loop.call_later
                waiting.timers.append(later(seconds, self._give_up, waiting, code, name))

    def _give_up(self, waiting: _Waiting, code: int, name: str) -> None:
        if waiting in self.waiting and not self.is_frozen:
            self.waiting.remove(waiting)
            self._fail_concern(waiting, code, name)

    def _fail_concern(self, waiting: _Waiting, code: int, name: str) -> None:
        for timer in waiting.timers:
            timer.cancel()
        request, version = waiting.request, self._set.version
        failed = with_concern_error(waiting.reply, request.command, code, name, version)
        self._answer(request, failed)

    def forget_old(self) -> None:
        """Forget what was done long ago over sessions that there are no more."""
        clocks = self._set.clocks
        for session, at in self.state.forget_old(clocks.wall(), self._set.sessions).items():
            is_early = clocks.real_age(at) <= REMEMBERED_FOR
            self.forgotten[session] = math.inf if is_early else self._set.loop.time()
            self.transactions.forget(session)

    def has_committed(self, index: int) -> None:
        """Answer those whose writes a majority has."""
        done = [one for one in self.waiting if one.index <= index and one.term == self.term]
        for one in done:
            self.waiting.remove(one)
            for timer in one.timers:
                timer.cancel()
            self._answer(one.request, one.reply)

    def _answer(self, request: Request, reply: Mapping[str, Any]) -> None:
        if not request.is_over:
            now = Timestamp(*self.last)
            times = {"operationTime": now, "$clusterTime": {"clusterTime": now}}
            request.answer({**reply, **times, "topologyVersion": self.topology_version})

    def become_primary(self, term: int) -> None:
        """Take office."""
        self.is_primary, self.term = True, term
        self.version += 1
        self.transactions.clear()
        self.append(at=self._set.clocks.wall())

    def step_down(self, code: int = INTERRUPTED) -> None:
        """Be a secondary from now on; who waits here is told so."""
        if not self.is_primary:
            return
        self.is_primary = False
        self.version += 1
        self.transactions.clear()
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            self._fail_concern(one, code, "InterruptedDueToReplStateChange")
        held_up, self.held_up = self.held_up, []
        for one in held_up:
            if one.request.command.reads:
                self.held_up.append(one)
            else:
                exc = error_of(code, "Interrupted", one.request.command, self._set.version)
                self._answer(one.request, exc.reply)

    def kill(self, *, loses: bool) -> None:
        """Die at once.

        Args:
            loses: Whether what is not in its journal is lost.
        """
        self.is_up = self.is_primary = self.is_frozen = False
        self.inbox.clear()
        for one in self.waiting:
            for timer in one.timers:
                timer.cancel()
        self.waiting.clear()
        self.held_up.clear()
        self.transactions.clear()
        if loses:
            self.truncate(self.journaled)

    def start(self) -> None:
        """Begin again, as a secondary."""
        self.is_up = True
        self.process += 10
        self.version = 0
        self.journaled = len(self.oplog)

    def freeze(self) -> None:
        """Do nothing, and hear nothing, for a while."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on, with what has come meanwhile, as whoever one was."""
        self.is_frozen = False
        self.journaled = len(self.oplog)
        self.resume()
        inbox, self.inbox = self.inbox, []
        for request in inbox:
            self._execute(request)

    def truncate(self, length: int) -> None:
        """Roll back what comes after so many entries."""
        if length < len(self.oplog):
            del self.oplog[length:]
            self.journaled = min(self.journaled, length)
            self.state = State()
            if length < self._committed_length:
                self._committed, self._committed_length = State(), 0
            for entry in self.oplog:
                self.state.apply(entry)

    def pull(self, source: "Member") -> None:
        """Take over what another member has, and roll back what that has not."""
        common = min(len(self.oplog), len(source.oplog))
        while common and self.oplog[common - 1] is not source.oplog[common - 1]:
            common -= 1
        if common < len(self.oplog):
            self._set.note(f"{self} rolls back {len(self.oplog) - common}")
        self.truncate(common)
        for entry in source.oplog[common:]:
            self.oplog.append(entry)
            self.state.apply(entry)
        self.journaled = len(self.oplog)
        self.term = source.term
        self.resume()
