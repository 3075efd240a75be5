"""A command on its way through its attempts."""

import enum
import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from aioretry._commands.command import Command
from aioretry._drivers.port import Address, ServerKind, ServerView
from aioretry._retry.caution import Caution
from aioretry._retry.losses import Loss
from aioretry._retry.monitoring import Watch
from aioretry._retry.sessions import CommandNumber, SessionLease
from aioretry._retry.verdict import RetryState
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt

# A server remembers a transaction id for 30 minutes, or for as long as it remembers a session.
_TRUSTED_MINUTES = 25.0
_TRUSTED_PART = 5 / 6

_DEFAULT_IS_MAJORITY = 13  # the wire version of MongoDB 5.0
_DEFAULT_FILLS_IN = 17  # that of 6.0


class Numbering(enum.Enum):
    """Whether a command carries a transaction id."""

    NEVER = enum.auto()
    IF_SUPPORTED = enum.auto()
    """A first attempt: without one on a server that can't retry writes."""

    REQUIRED = enum.auto()
    """A retry: it must not go to a server that can't retry writes."""


class UnderWay(Protocol):
    """An attempt that has not ended yet."""

    def so_far(self) -> Attempt:
        """Return the record of it as if it ended now, without an answer."""
        ...


class TransactionEnd(Protocol):
    """A commit or an abort, however often its command is sent."""

    leaves_doubt: ClassVar[bool]
    """Whether it matters how it ended."""

    @property
    def options(self) -> Mapping[str, Any]:
        """What is sent beside the command's own fields."""
        ...

    def add(self, attempt: Attempt, server: ServerView | None, age: float) -> None:
        """Take note of an attempt.

        Args:
            attempt: The attempt.
            server: Who was asked, if anybody was.
            age: The seconds since the first one.
        """
        ...

    def replace(self, place: int, attempt: Attempt) -> None:
        """Take note of what is known now of an earlier one.

        Args:
            place: Which one, in their order.
            attempt: The attempt.
        """
        ...

    def repeat(self) -> None:
        """Take note that it is to be sent after it was sent before."""
        ...


_operation_ids = itertools.count(1)


@dataclass(slots=True)
class Execution:
    """A command on its way, with all that its attempts share."""

    command: Command[Any]
    lease: SessionLease
    deadline: Deadline | None
    numbering: Numbering
    options: Mapping[str, Any] = field(default_factory=dict)
    """What is sent beside the command's own fields: its write concern."""

    operation_id: int = field(default_factory=_operation_ids.__next__)
    """What those who are shown its commands know an operation by: each attempt has the same."""

    retries: RetryState | None = None
    """None as long as no attempt has failed."""

    number: CommandNumber = field(default_factory=CommandNumber)
    deprioritized: frozenset[Address] = frozenset()
    """The servers that are chosen only if there is no other."""

    attempts: list[Attempt] = field(default_factory=list)
    began: float | None = None
    """When the first attempt began, in seconds of the event loop's clock."""

    began_at: float = 0.0
    """The same, in seconds since the epoch."""

    server: ServerView | None = None
    """The server of the latest attempt for which one was chosen."""

    has_transaction_id: bool = False
    """Whether that one carried a transaction id."""

    watch: Watch | None = None
    """Who is told of the attempts; None if nobody wants to know."""

    pending: UnderWay | None = None
    """The attempt under way, which is not among the attempts yet."""

    caution: Caution | None = None
    """Is shown who got it; None where no server could retry it."""

    is_paid: bool = False
    """Whether a retry of it was paid for."""

    loss: Loss | None = None
    """What the log tells its latest retry with."""

    in_transaction: bool = False
    """Whether it is a statement of a transaction, which is repeated as a whole, or ends one."""

    transaction_end: "TransactionEnd | None" = None
    """The end of a transaction that it brings about; None if it is something else."""

    is_shared: bool = False
    """Whether inserts of several calls travel in it."""

    is_late: bool = False
    """Whether a timer has ended at the deadline; its clock may say so a little later."""

    def follow(self, earlier: "Execution") -> None:
        """Be another sending of the same command, with one history."""
        self.number, self.attempts = earlier.number, earlier.attempts
        self.began, self.began_at = earlier.began, earlier.began_at
        self.server = earlier.server

    def add(self, attempt: Attempt, server: ServerView | None, now: float) -> None:
        """Make an attempt part of the history.

        Args:
            attempt: The attempt.
            server: Who was asked, if anybody was.
            now: What the event loop's clock says.
        """
        self.attempts.append(attempt)
        # Not before: what a bulk operation sends is chosen for its server.
        is_shown = attempt.sent and not self.command.holds_multi
        if self.caution is not None and server is not None and is_shown:
            self.caution.look(server)
        if self.transaction_end is not None:
            self.transaction_end.add(attempt, server, self.age(now))

    def replace(self, noted: Attempt, attempt: Attempt) -> None:
        """Put what is known now of an attempt into the place of what was known before."""
        place = self.attempts.index(noted)
        self.attempts[place] = attempt
        if self.transaction_end is not None:
            self.transaction_end.replace(place, attempt)

    def history(self) -> list[Attempt]:
        """Return the attempts, with the one under way as far as it has come."""
        under_way = [] if self.pending is None else [self.pending.so_far()]
        return self.attempts + under_way

    @property
    def is_in_doubt_unanswered(self) -> bool:
        """Whether somebody has to find out what became of an attempt that gets no answer."""
        if self.transaction_end is not None:
            return self.transaction_end.leaves_doubt
        return self.command.reading is None and not self.in_transaction

    @property
    def pinned(self) -> Address | None:
        """The router that alone knows the transaction; None if any server will do."""
        return self.lease.pinned if self.in_transaction else None

    def pin(self, server: ServerView) -> bool:
        """Have all that comes in the transaction go to the router that is asked first.

        Returns:
            Whether that was not said yet.
        """
        if not self.in_transaction or server.kind is not ServerKind.MONGOS:
            return False
        return self.lease.pin(server.address)

    def settle(self) -> None:
        """Have the session used again if the only sending was answered late, and by no error."""
        sent = [attempt for attempt in self.attempts if attempt.sent]
        reply = sent[0].reply if len(sent) == 1 else None
        if reply is None or self.leaves_doubt(reply):
            return
        if not reply.get("writeErrors"):  # whoever was refused may have that sent once more
            self.lease.settle()

    def leaves_doubt(self, reply: Mapping[str, Any]) -> bool:
        """Tell whether a reply leaves some of those in doubt that share the command."""
        if reply.get("writeConcernError"):
            return True
        if not reply.get("writeErrors"):
            return False
        # An earlier sending may still be executed, once whatever refused it now is gone.
        return sum(attempt.sent for attempt in self.attempts) > 1

    def time_left(self) -> float:
        """Return the seconds until the deadline; infinite if there is none."""
        if self.deadline is None:
            return math.inf
        # uvloop's timers are early by up to a millisecond.
        return 0.0 if self.is_late else self.deadline.remaining()

    @property
    def is_sharded(self) -> bool:
        """Whether a router, and not a server of the data, was asked last."""
        kinds = {ServerKind.MONGOS, ServerKind.LOAD_BALANCER}
        return self.server is not None and self.server.kind in kinds

    @property
    def is_by_majority(self) -> bool:
        """Whether an answer has to hold at a majority of the members.

        From 5.0 on a server sees to that by itself, unless its owner or an arbiter has made its
        default a weaker one; if other fields of a write concern are given, from 6.0 on.
        """
        concern: Mapping[str, Any] = self.options.get("writeConcern", {})
        if "w" in concern:
            return bool(concern["w"] == "majority")
        version = 0 if self.server is None else self.server.max_wire_version
        return version >= (_DEFAULT_IS_MAJORITY if not concern else _DEFAULT_FILLS_IN)

    @property
    def trusted_seconds(self) -> float:
        """How long a server remembers the command's transaction id for sure."""
        return trusted_seconds(None if self.server is None else self.server.session_minutes)

    def age(self, now: float) -> float:
        """Return the seconds since the first attempt began, if there was one.

        Args:
            now: What the event loop's clock says.
        """
        if self.began is None:
            return 0.0
        # That clock may stand still while the machine sleeps, and the other one may be set.
        return max(now - self.began, time.time() - self.began_at)

    def began_before(self, now: float, age: float) -> None:
        """Note that another process may have made the first attempt.

        Args:
            now: What the event loop's clock says.
            age: How long ago, in seconds.
        """
        self.began, self.began_at = now - age, time.time() - age

    def may_be_forgotten(self, now: float) -> bool:
        """Tell whether a server may take the command's next attempt for its first.

        Args:
            now: What the event loop's clock says.
        """
        is_known = self.number.is_taken and any(attempt.sent for attempt in self.attempts)
        return is_known and self.age(now) >= self.trusted_seconds

    def last_error(self) -> Exception | None:
        """Return the error that surfaces if nothing more is tried; None if nothing failed."""
        return None if self.retries is None else self.retries.surfacing()


def trusted_seconds(session_minutes: float | None) -> float:
    """Return for how long a server remembers a transaction id for sure, in seconds.

    Args:
        session_minutes: How long it remembers a session that is not used, if that is known.
    """
    if session_minutes is None:
        return _TRUSTED_MINUTES * 60
    return min(_TRUSTED_MINUTES, session_minutes * _TRUSTED_PART) * 60
