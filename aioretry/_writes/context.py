"""The parts that the writes of one client share."""

import asyncio
import contextlib
import inspect
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import anyio
from bson.binary import Binary
from pymongo.errors import InvalidOperation

from aioretry._drivers.port import (
    Address,
    ConnectionCounts,
    Driver,
    Policy,
    SessionCalls,
    ThreadCounts,
)
from aioretry._retry.budget import RetryBudget
from aioretry._retry.caution import Caution
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import TransactionWatch, Watchers
from aioretry._retry.sessions import (
    EndingLease,
    LastingLease,
    SessionLease,
    StatementLease,
)
from aioretry._writes.under_way import UnderWay
from aioretry.deadlines import Deadline, detached, nearest, validate_seconds
from aioretry.errors import refusal
from aioretry.events import Hook, RetryScheduled, log_retries, publish

CLOSE_TIMEOUT = 2.0
"""How long a command that was sent may wait for its answer when the client is closed."""

_ANOTHER_LOOP: Final = (
    "this client is bound to another event loop, the one it was first used on, and here it would "
    "be attached to a different loop; make one client for each event loop. In pytest, its fixture "
    "and the test need the same loop_scope: the fixture mongo_client of aioretry.testing has it"
)


class Aborting(Protocol):
    """A transaction that is aborted until that is certain."""

    is_asking: bool
    """Whether it waits for the one router that knows the transaction."""

    def leave(self) -> None:
        """Do nothing more."""
        ...


class Client(Protocol):
    """What the writes need of the client that they belong to."""

    def get_io_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that it is used on."""
        ...


class TransactionalSession:
    """A user's session, as far as its transactions need it."""

    _calls: SessionCalls
    """What is asked of sessions of its kind."""

    _write_path: "WritePath"

    _is_lent: bool = False
    """Whether it is a block's, which ends it."""

    _why_open: str | None = None
    """Why whoever has it must not end its transaction; None if they may."""

    _commit: Any = None
    """The commit of its latest transaction; None if that was not begun."""

    _is_given_up: bool = False
    """Whether its transaction was aborted by a drain, and not by whoever has it: they are to be
    told when they commit."""

    _first_statement: Any = None
    """A weak reference to the statement that begins the latest transaction; None before that."""

    _watch = TransactionWatch(Watchers(()))
    """Who is told of its transactions."""

    def _require_may_start(self) -> None:
        self._calls.runs_of(self).require()
        self._write_path.under_way.begin_transaction(self)

    def _begin(self) -> None:
        """Take note that a transaction was started."""
        self._commit = self._first_statement = None
        self._watch.begin()

    def _require_may_end(self) -> None:
        self._calls.runs_of(self).require()
        if self._why_open is not None:
            raise refusal(InvalidOperation(self._why_open))


class WritePath:
    """Puts the parts together, for the event loop that the client is used on."""

    def __init__(
        self,
        driver: Driver,
        policy: Policy,
        client: Client,
        *,
        server_selection_timeout: float,
        timeout: float | None,
        encrypts: bool,
        is_load_balanced: bool,
        hooks: tuple[Hook, ...],
        most_under_way: int,
        most_waiting: int,
        fail_fast_after: float = math.inf,
        retry_budget: int | None = None,
    ) -> None:
        self.encrypts = encrypts
        # Behind a load balancer all of one has to go over the same connection.
        self.makes_transactions: bool = not is_load_balanced
        """Whether transactions are made by attempts, and not by the driver."""

        self.is_known_to_transact: bool = False
        """Whether servers were seen that have transactions; it is asked once."""

        self._driver = driver
        self._timeout = timeout
        self._policy = policy
        self._client = client
        self._server_selection_timeout = server_selection_timeout
        self._hooks = hooks
        self.watchers: Watchers = Watchers(hooks)
        self._most_under_way = most_under_way
        self._most_waiting = most_waiting
        self._fail_fast_after = fail_fast_after
        self._budget = None if retry_budget is None else RetryBudget(retry_budget)
        self._coordinator: Coordinator | None = None
        self._caution = Caution(retry_writes=policy.retry_writes)

        self.under_way: UnderWay = UnderWay()

        self._turns: WeakKeyDictionary[Any, anyio.Lock] = WeakKeyDictionary()
        self.aborting: set[Aborting] = set()
        """The transactions that are aborted whoever waits for that."""

    def coordinator(self) -> Coordinator:
        """Return the coordinator of the client's event loop.

        Raises:
            InvalidOperation: Another loop is running.
        """
        running = _running_loop()
        # Looked up at each call: users replace it on the client.
        loop = self._client.get_io_loop()
        if running is not None and running is not loop:
            raise refusal(InvalidOperation(_ANOTHER_LOOP))
        if self._coordinator is None or self._coordinator.loop is not loop:
            self.under_way.operations = set()  # those of another loop, which has ended, never end
            self._coordinator = Coordinator(
                self._driver,
                loop,
                self._policy,
                server_selection_timeout=self._server_selection_timeout,
                hooks=self._hooks,
                deadline=self.deadline,
                most_under_way=self._most_under_way,
                most_waiting=self._most_waiting,
                running=self.under_way.operations,
                admit=self.under_way.admit,
                caution=self._caution,
                fail_fast_after=self._fail_fast_after,
                budget=self._budget,
            )
        return self._coordinator

    def require_own_loop(self) -> None:
        """Refuse another event loop than the client's, if one is running.

        Raises:
            InvalidOperation: It is another one.
        """
        if _running_loop() is not None:
            self.coordinator()

    def thread_counts(self) -> ThreadCounts:
        """Return how the threads are doing that carry attempts."""
        counts = self._driver.counts()
        if self._coordinator is None:
            return counts
        return replace(counts, queued=counts.queued + self._coordinator.pending.waiting)

    def connections(self) -> Mapping[Address, ConnectionCounts]:
        """Return how many connections there are to each server."""
        return self._driver.connections()

    def tell(self, event: RetryScheduled) -> None:
        """Tell hooks of a retry."""
        publish(self._hooks, event)

    def close(self, patience: float) -> None:
        """End what is under way, because the client is closed; from any thread.

        Args:
            patience: How long a command that was sent may wait for its answer, in seconds.
        """
        coordinator = self._coordinator
        if coordinator is not None:
            with contextlib.suppress(RuntimeError):  # its loop was closed: nobody waits any more
                detached(coordinator.loop.call_soon_threadsafe, self._close, coordinator, patience)

    def _close(self, coordinator: Coordinator, patience: float) -> None:
        if self.under_way.is_draining:
            self.leave()
        coordinator.close(patience)
        for aborting in [*self.aborting]:
            aborting.leave()

    def deadline(self, seconds: float | None = None) -> Deadline | None:
        """Return the deadline that an operation has to obey here, or None.

        Args:
            seconds: A limit from now on, or None. The surrounding deadline counts if it is nearer;
                if there is neither, the client's ``timeoutMS`` from now on.
        """
        limit = nearest()
        if seconds is not None:
            return Deadline.after(seconds).nearer(limit)
        if limit is None and self._timeout is not None:
            return Deadline.after(self._timeout)
        return limit

    def lease(self, session: object = None) -> SessionLease:
        """Return a lease of an implicit session, or of one that the user started.

        Whether that is a session of this client shows when it is first needed.
        """
        if session is None:
            return SessionLease(self._driver.session)
        return SessionLease(partial(self._driver.user_session, session), self._turn_in(session))

    def read_lease(self, session: object = None) -> SessionLease:
        """Return a lease for a read: it takes no number, and so needs no turn in a session."""
        if session is None:
            return SessionLease(self._driver.session)
        return SessionLease(partial(self._driver.user_session, session))

    def statement_lease(self, session: object) -> StatementLease:
        """Return a lease for a statement of the transaction in progress on a user's session."""
        return StatementLease(partial(self._driver.transaction_session, session))

    def ending_lease(self, session: object) -> EndingLease:
        """Return a lease for the end of the transaction in progress on a session."""
        return EndingLease(self._driver.ending_session(session))

    def discard(self, session: Any, *, is_over: bool) -> None:
        """End a session of the driver's that was taken for its transaction."""
        self._driver.discard(session, is_over=is_over)

    def writable(self) -> Collection[Address]:
        """Return the servers that take writes."""
        return self._driver.view().writable

    def is_busy(self) -> bool:
        """Tell whether anything has not ended that was begun with the client."""
        under_way = self.under_way
        return bool(under_way.operations or self.aborting or under_way.blocks())

    def leave(self) -> None:
        """Take note of what has not ended, before it is given up; nothing more may begin."""
        self.under_way.leave(len(self.aborting))

    def give_up(self) -> None:
        """End what is under way at once, as if the client were closed."""
        self.leave()
        self._driver.close()
        if self._coordinator is not None:
            self._close(self._coordinator, 0.0)

    def lasting_lease(self) -> LastingLease:
        """Return a lease of an implicit session for several writes, one after the other."""
        return LastingLease(self._driver.session)

    def lease_of(self, session_id: Binary) -> SessionLease:
        """Return a lease of a session whose id is chosen.

        Args:
            session_id: A UUID of version 4, of binary subtype 4.
        """
        return SessionLease(partial(self._driver.session_of, session_id))

    def _turn_in(self, session: object) -> anyio.Lock | None:
        # The server takes no transaction number below one that it has seen, and commands that are
        # sent at the same time arrive in any order.
        shared = getattr(session, "delegate", session)
        try:
            return self._turns.setdefault(shared, anyio.Lock(fast_acquire=True))
        except TypeError:  # no session; its first use says so
            return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def all_hooks(hooks: Iterable[Hook]) -> tuple[Hook, ...]:
    """Return who is told of what: the log, and the user's own."""
    if not isinstance(hooks, Iterable):
        raise TypeError(f"hooks must be a list of callables, such as [print], not {hooks!r}")
    listed = list(hooks)
    for hook in listed:
        if not callable(hook):
            raise TypeError(f"hooks must be callables, not {hook!r}")
    return (log_retries, *{id(hook): hook for hook in listed}.values())  # each is told once


def positive(name: str, value: object) -> int:
    """Return a whole number that the user gave."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value!r}")
    return value


def patience(name: str, seconds: object) -> float:
    """Return a number of seconds above 0 that the user gave."""
    valid = validate_seconds(name, seconds)
    if not valid:
        raise ValueError(f"{name} must be a number of seconds above 0, not {seconds!r}")
    return valid


async def settled(given: Any) -> Any:
    """Wait for what one driver gives at once, and the other when it is awaited; return it."""
    return await given if inspect.isawaitable(given) else given


def thread_counts(client: Any) -> ThreadCounts:
    """Tell how the threads are doing that carry a client's attempts.

    Args:
        client: The client, of any driver.

    Returns:
        How many there are, how many of them are idle, how many attempts wait, and how many
        are held up by an attempt that was given up. They are figures of one moment.
    """
    return path_of(client).thread_counts()


def connection_counts(
    client: Any,
) -> Mapping[tuple[str, int | None], ConnectionCounts]:
    """Tell how many connections a client has to each server it knows, its monitors' apart.

    Args:
        client: The client, of any driver.

    Returns:
        The figures of one moment, by host and port.
    """
    return path_of(client).connections()


def path_of(client: Any) -> WritePath:
    """Return what the writes of a client share.

    Raises:
        TypeError: It is a client of another class.
    """
    path = getattr(client, "_write_path", None)
    if not isinstance(path, WritePath):
        kind = type(client).__name__
        raise TypeError(f"client must be a RetryClient or an AsyncRetryClient, not {kind}")
    return path
