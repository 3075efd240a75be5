"""A replica set: members with oplogs and terms, elections, rollbacks, and what clients ask them."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.state import (
    REMEMBERED_FOR,
    TOO_OLD,
    Command,
    CommandError,
    Entry,
    Execution,
    State,
)

NOT_PRIMARY = 10107
INTERRUPTED = 11602
STEPPED_DOWN = 189
SHUTTING_DOWN = 91
MAX_TIME = 50
CONCERN_FAILED = 64
RETRYABLE = "RetryableWriteError"

# The errors that servers label so, of commands that have a number, and from which version on.
_RETRYABLE_CODES = dict.fromkeys(
    (6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436), (4, 4)
) | {317: (5, 0), 134: (6, 0), 384: (6, 0)}

_REAPED_EVERY = 300.0

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
    """A command that was executed once more, because it was forgotten while a router had it."""

    command: Command
    at: float
    """When that was, in seconds."""

    has_slept: bool
    """Whether it lay unread at a router that slept."""


@dataclass(slots=True)
class _Waiting:
    """Somebody who waits until so many members have what was written."""

    request: Request
    index: int
    term: int
    reply: dict[str, Any]
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class Member:
    """A member of a replica set.

    Args:
        replica_set: The set.
        number: Which one it is.
    """

    def __init__(self, replica_set: "ReplicaSet", number: int) -> None:
        self.address = (f"member{number}", 27017)
        self.name = f"m{number}"
        self._set = replica_set
        self.oplog: list[Entry] = []
        self.state = State()
        self.begun: dict[bytes, int] = {}
        """The number that was begun last over a session, whether or not that has written."""

        self.forgotten: dict[bytes, float] = {}
        """The sessions of which it has forgotten what was done, and when it did, in seconds."""

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
        command = request.command
        try:
            self._begin(command)
            if self._has_outlived_memory(request):
                at = self._set.loop.time()
                self._set.belated.append(Belated(command, at, request.has_slept))
            reply = Execution(
                self._set.version, self.state, self.append, self._set.clocks.wall()
            ).run(command)
        except CommandError as exc:
            if self.is_primary:  # whoever is refused waits, too
                self._wait(request, exc.reply)
            else:
                self._answer(request, exc.reply)
            return
        self._set.seen_sessions(command)
        self._wait(request, reply)

    def _has_outlived_memory(self, request: Request) -> bool:
        """Tell whether what it asks was done, and was forgotten while a router had it."""
        session, number = request.command.session, request.command.number
        if session is None or request.since > self.forgotten.get(session, -math.inf):
            return False
        record = self.state.records.get(session)
        is_known = record is not None and record.number == number
        done = ((entry.session, entry.number) for entry in self.oplog)
        return not is_known and (session, number) in done

    def _begin(self, command: Command) -> None:
        if not self.is_primary:
            raise CommandError(
                NOT_PRIMARY,
                "NotWritablePrimary",
                *labels_of(NOT_PRIMARY, command, self._set.version),
            )
        if command.number is not None and command.session is not None:
            if command.number < self.begun.get(command.session, 0):
                raise CommandError(TOO_OLD, "TransactionTooOld")
            self.begun[command.session] = command.number

    def append(self, **what: Any) -> None:
        """Add an entry to the oplog."""
        index = self.oplog[-1].index + 1 if self.oplog else 1
        entry = Entry(term=self.term, index=index, **what)
        self.oplog.append(entry)
        self.state.apply(entry)
        self._set.has_written(self)

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
        old = self.state.forget_old(self._set.clocks.wall(), self._set.sessions)
        self.forgotten.update(dict.fromkeys(old, self._set.loop.time()))

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
            request.answer({**reply, "topologyVersion": self.topology_version})

    def become_primary(self, term: int) -> None:
        """Take office."""
        self.is_primary, self.term = True, term
        self.version += 1
        self.begun.clear()
        self.append(at=self._set.clocks.wall())

    def step_down(self, code: int = INTERRUPTED) -> None:
        """Be a secondary from now on; who waits here is told so."""
        if not self.is_primary:
            return
        self.is_primary = False
        self.version += 1
        self.begun.clear()
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            self._fail_concern(one, code, "InterruptedDueToReplStateChange")

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
        self.begun.clear()
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
        inbox, self.inbox = self.inbox, []
        for request in inbox:
            self._execute(request)

    def truncate(self, length: int) -> None:
        """Roll back what comes after so many entries."""
        if length < len(self.oplog):
            del self.oplog[length:]
            self.journaled = min(self.journaled, length)
            self.state = State()
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


def labels_of(code: int, command: Command, version: tuple[int, int]) -> list[str]:
    """Return the labels of an error that a command meets."""
    since = _RETRYABLE_CODES.get(code)
    is_labelled = command.number is not None and since is not None and since <= version
    return [RETRYABLE] if is_labelled else []


def with_concern_error(
    reply: Mapping[str, Any], command: Command, code: int, text: str, version: tuple[int, int]
) -> dict[str, Any]:
    """Return a reply that says that the write concern was not met."""
    failed = {**reply, "writeConcernError": {"code": code, "errmsg": text}}
    labels = labels_of(code, command, version)
    return {**failed, "errorLabels": labels} if labels else failed


class ReplicaSet:
    """The members, and what happens between them.

    Args:
        loop: The event loop, of virtual time.
        clocks: What the servers' clocks say.
        random: How long everything takes.
        note: Takes a line of what happens.
        size: How many members there are.
        version: That of the servers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clocks: Any,
        random: Random,
        note: Callable[[str], None],
        size: int = 3,
        version: tuple[int, int] = (6, 0),
    ) -> None:
        self.loop = loop
        self.version = version
        self.clocks = clocks
        self.note = note
        self._random = random
        self.members = [Member(self, number) for number in range(size)]
        self._committed: Entry | None = None
        self.sessions: dict[bytes, float] = {}
        """Those that the servers know, and when they were used last."""

        self.belated: list[Belated] = []
        """What came so late from a router that nobody knew that it was done."""

        self.has_changed: Callable[[Member], None] = lambda _: None
        """Told when what a member says of itself is another thing now."""

        self.elected_at = 0.0
        """When the latest primary was elected, in seconds."""

        self._elect()
        loop.call_later(_REAPED_EVERY, self._reap)

    @property
    def majority(self) -> int:
        """How many are more than a half."""
        return len(self.members) // 2 + 1

    @property
    def primary(self) -> Member | None:
        """The primary that the majority follows, or None."""
        voters = [member for member in self.members if member.votes]
        latest = max((member.seen_term for member in voters), default=0)
        return next((one for one in voters if one.is_primary and one.term >= latest), None)

    def seen_sessions(self, command: Command) -> None:
        """Note the session of a command."""
        if command.session is not None:
            self.sessions[command.session] = self.loop.time()

    def _reap(self) -> None:
        """End the sessions that nobody has used, and forget what was done over ended ones."""
        now = self.loop.time()
        for session in [one for one, at in self.sessions.items() if now - at > REMEMBERED_FOR]:
            del self.sessions[session]
        for member in self.members:
            if not member.is_frozen:
                member.forget_old()
        self.loop.call_later(_REAPED_EVERY, self._reap)

    def commit_index(self, member: Member) -> int:
        """Return up to which of a primary's entries a majority has them for good."""
        oplog = member.oplog
        have = sorted(
            (self._common(member, other) for other in self.members if other.is_up), reverse=True
        )
        length = have[self.majority - 1] if len(have) >= self.majority else 0
        if not length or oplog[length - 1].term != member.term:
            return 0
        return oplog[length - 1].index

    def _common(self, member: Member, other: Member) -> int:
        if member is other:
            return member.journaled
        length = min(len(member.oplog), other.journaled)
        while length and member.oplog[length - 1] is not other.oplog[length - 1]:
            length -= 1
        return length

    def has_written(self, member: Member) -> None:
        """Have a primary's entry in its journal soon, and at the others."""
        if member.journaled == len(member.oplog) - 1:
            self.loop.call_later(self._random.uniform(0.0, 0.03), self._journal, member)
        self._replicate(member)

    def _journal(self, member: Member) -> None:
        if member.is_up and not member.is_frozen:
            member.journaled = len(member.oplog)
            self._look_after_commits(member)

    def _replicate(self, primary: Member) -> None:
        for member in self.members:
            if member is not primary and not member.is_pulling:
                member.is_pulling = True
                self.loop.call_later(self._random.uniform(0.0005, 0.01), self._pull, member)

    def _pull(self, member: Member) -> None:
        member.is_pulling = False
        primary = self.primary
        if primary is None or primary is member or not member.votes or member.is_primary:
            return
        if member.last != primary.last or member.term != primary.term:
            member.pull(primary)
        self._look_after_commits(primary)

    def _look_after_commits(self, primary: Member) -> None:
        if primary.is_primary and primary.is_up and not primary.is_frozen:
            index = self.commit_index(primary)
            if index > (self._committed.index if self._committed else 0):
                self._committed = primary.oplog[index - 1]
            if index and not primary.is_cut_off:
                primary.has_committed(index)

    # What happens to members.

    def kill(self, member: Member, *, loses: bool) -> None:
        """End a member's process."""
        member.kill(loses=loses)
        self.has_changed(member)
        self._expect_election()

    def start(self, member: Member) -> None:
        """Start a member again."""
        member.start()
        self.has_changed(member)
        self._join(member)

    def freeze(self, member: Member) -> None:
        """Stop a member."""
        member.freeze()
        self._expect_election()

    def thaw(self, member: Member) -> None:
        """Let a member go on."""
        member.thaw()
        self._look_after_commits(member)
        self._join(member)

    def cut_off(self, member: Member) -> None:
        """Take a member from the others."""
        member.is_cut_off = True
        self._expect_election()

    def join(self, member: Member) -> None:
        """Have the others see a member again."""
        member.is_cut_off = False
        self._join(member)

    def step_down(self) -> None:
        """Have the primary step down, and another one elected."""
        primary = self.primary
        if primary is not None:
            primary.step_down(self._random.choice([INTERRUPTED, STEPPED_DOWN]))
            self.has_changed(primary)
            self.loop.call_later(self._random.uniform(0.01, 1.0), self._elect)

    def _give_up_alone(self) -> None:
        """Have who sees no majority be primary no more."""
        voters = sum(member.votes for member in self.members)
        for member in self.members:
            seen = 1 if member.is_cut_off else voters
            if member.is_primary and not member.is_frozen and seen < self.majority:
                member.step_down()
                self.has_changed(member)

    def _join(self, member: Member) -> None:
        """Have a member hear soon who the primary is."""
        self.loop.call_later(self._random.uniform(0.0, 0.5), self._hear, member)
        self._expect_election()

    def _hear(self, member: Member) -> None:
        if not member.votes:
            return
        voters = [one for one in self.members if one.votes]
        term = max(one.seen_term for one in voters)
        for one in voters:  # the others hear of it, too, and of the term that it knows
            one.seen_term = term
            if one.is_primary and one.term < term:
                one.step_down()
                self._expect_election()
                self.has_changed(one)
        self.has_changed(member)
        if self.primary is not None:  # somebody may have looked in vain meanwhile
            self._replicate(self.primary)

    def _expect_election(self) -> None:
        self.loop.call_later(10.0, self._give_up_alone)
        self.loop.call_later(self._random.uniform(0.1, 11.0), self._elect)

    def _elect(self) -> None:
        voters = [member for member in self.members if member.votes]
        if self.primary is not None or len(voters) < self.majority:
            return
        newest = max(member.last for member in voters)
        winner = self._random.choice([one for one in voters if one.last == newest])
        term = max(member.seen_term for member in self.members) + 1
        committed = self._committed
        if committed is not None and winner.oplog[committed.index - 1] is not committed:
            raise AssertionError("an elected member lacks what a majority had")
        self.note(f"{winner} is primary, term {term}")
        self.elected_at = self.loop.time()
        for member in voters:
            member.seen_term = term
            member.step_down()
        winner.become_primary(term)
        for member in voters:
            self.has_changed(member)
