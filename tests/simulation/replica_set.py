"""A replica set: what happens between its members, elections, commits, rollbacks."""

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from bson.timestamp import Timestamp

from tests.simulation.commands import INTERRUPTED, STEPPED_DOWN, Command
from tests.simulation.members import Belated, Member
from tests.simulation.state import REMEMBERED_FOR, Entry
from tests.simulation.transactions import Transaction

_REAPED_EVERY = 300.0


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
        self.random = random
        self.members = [Member(self, number) for number in range(size)]
        self.committed: list[Entry] = []
        """What a majority has for good, oldest first."""

        self.sessions: dict[bytes, float] = {}
        """Those that the servers know, and when they were used last."""

        self.belated: list[Belated] = []
        """What came so late from a router that nobody knew that it was done."""

        self.versions: dict[int, Any] = {}
        """Every document that there ever was, by the id of the object."""

        self.expired: list[Transaction] = []
        """The transactions that nobody has ended in time."""

        self.has_changed: Callable[[Member], None] = lambda _: None
        """Told when what a member says of itself is another thing now."""

        self.has_frozen: Callable[[Member], None] = lambda _: None
        """Told when a member says nothing any more."""

        self.elected_at = 0.0
        """When the latest primary was elected, in seconds."""

        self._ticks = 0
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

    def tick(self) -> Timestamp:
        """Return the next time that documents have of the servers: it only grows."""
        self._ticks += 1
        return Timestamp(1, self._ticks)

    def seen_sessions(self, command: Command) -> None:
        """Note the session of a command."""
        if command.session is not None:
            self.sessions[command.session] = self.loop.time()

    def end_sessions(self, sessions: Iterable[bytes]) -> None:
        """Forget sessions that nobody uses any more."""
        for session in sessions:
            self.sessions.pop(bytes(session), None)

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
            self.loop.call_later(self.random.uniform(0.0, 0.03), self._journal, member)
        self._replicate(member)

    def _journal(self, member: Member) -> None:
        if member.is_up and not member.is_frozen:
            member.journaled = len(member.oplog)
            self._look_after_commits(member)

    def settle(self) -> None:
        """Have all members have for good what the primary has, as if it were from long ago."""
        primary = self.primary
        if primary is None:
            raise AssertionError("there is no primary")
        primary.journaled = len(primary.oplog)
        for member in self.members:
            if member is not primary:
                member.pull(primary)
        self._look_after_commits(primary)

    def _replicate(self, primary: Member) -> None:
        for member in self.members:
            if member is not primary and not member.is_pulling:
                member.is_pulling = True
                self.loop.call_later(self.random.uniform(0.0005, 0.01), self._pull, member)

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
            self.committed += primary.oplog[len(self.committed) : index]
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
        self.has_frozen(member)
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
            primary.step_down(self.random.choice([INTERRUPTED, STEPPED_DOWN]))
            self.has_changed(primary)
            self.loop.call_later(self.random.uniform(0.01, 1.0), self._elect)

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
        self.loop.call_later(self.random.uniform(0.0, 0.5), self._hear, member)
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
        self.loop.call_later(self.random.uniform(0.1, 11.0), self._elect)

    def _elect(self) -> None:
        voters = [member for member in self.members if member.votes]
        if self.primary is not None or len(voters) < self.majority:
            return
        newest = max(member.last for member in voters)
        winner = self.random.choice([one for one in voters if one.last == newest])
        term = max(member.seen_term for member in self.members) + 1
        committed = self.committed
        if committed and winner.oplog[len(committed) - 1] is not committed[-1]:
            raise AssertionError("an elected member lacks what a majority had")
        self.note(f"{winner} is primary, term {term}")
        self.elected_at = self.loop.time()
        for member in voters:
            member.seen_term = term
            member.step_down()
        winner.become_primary(term)
        for member in voters:
            self.has_changed(member)
