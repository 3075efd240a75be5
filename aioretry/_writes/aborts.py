"""Aborts of transactions: one command, or as many as it takes."""

import asyncio
import contextlib
import time
from contextlib import nullcontext
from contextvars import Context
from typing import Any

import anyio
from pymongo.errors import ConnectionFailure, InvalidOperation, OperationFailure, PyMongoError

from aioretry import deadlines
from aioretry._commands import transactions
from aioretry._drivers.port import Address
from aioretry._retry.monitoring import Watch
from aioretry._retry.transactions import NO_SUCH_TRANSACTION, Abort, is_unheard
from aioretry._writes.context import TransactionalSession
from aioretry._writes.statements import WithoutOutcome
from aioretry.deadlines import Deadline
from aioretry.errors import DeadlineExceeded, Outcome, WritesUnavailableError, leave_to_context

ABORT_TIMEOUT = 5.0
"""How long an abort may take, in seconds, that nobody has set a limit for.

It tells the server early what that finds out by itself later: it is worth no long wait.
"""

_GRACE = 0.1  # in which a server that is well has aborted what is late
_LATEST = 0.25  # after the deadline, as for attempts
_PATIENCE = 60.0  # after so long a server gives a transaction up by itself
_LOST_PATIENCE = 10.0  # in which a command whose connection is closed has arrived, or never will
_SHARE = 25  # of so many places one is for tries at routers that were lost, which may take seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 2.0


def time_for_abort(limit: Deadline | None) -> float | None:
    """Return how long whoever aborts waits for it, in seconds: a moment longer than the deadline.

    What a deadline that is over kept from being aborted would bar others for a minute.

    Args:
        limit: The deadline, or None, for which None is returned.
    """
    if limit is None:
        return None
    left = limit.at - limit.clock()
    return max(0.0, min(max(left, 0.0) + _GRACE, left + _LATEST, ABORT_TIMEOUT))


class AbortCall(WithoutOutcome[None]):
    """One abort."""

    __slots__ = ("router",)

    router: Address | None
    """The router that alone knows the transaction; None if any server will do."""

    @property
    def is_unheard(self) -> bool:
        """Whether that router has not said that the transaction is over, and another was asked.

        That is where a retry goes (transactions, "When to unpin").
        """
        return is_unheard(self.router, self.attempts())


async def abort(
    session: TransactionalSession, seconds: float | None, *, runs_again: bool = False
) -> None:
    """Abort a transaction; if that is cancelled or late, it goes on, and the session without it.

    Args:
        session: The user's session.
        seconds: How long it may take, or None for what the surrounding deadline says.
        runs_again: Whether another transaction is to be begun in the session. That ends what may
            begin this one still, or what its router has not heard of the abort; it is in progress
            until :func:`leave_to_next` is called.
    """
    watch = session._watch.latest
    try:
        await _abort(session, seconds, runs_again=runs_again)
    finally:
        if watch is not None:
            watch.end(None, Outcome.NOT_APPLIED)


async def _abort(session: TransactionalSession, seconds: float | None, *, runs_again: bool) -> None:
    calls, path = session._calls, session._write_path
    if not path.makes_transactions:
        await asyncio.shield(calls.drivers_abort(session))
        return
    if leave_given_up(session):
        return
    transaction = calls.begin_abort(session)
    if transaction is None:
        return
    deadline = path.deadline() if seconds is None else Deadline.after(seconds)
    left = None if deadline is None else deadline.remaining()
    if calls.has_pending(session):  # and may come after the abort
        with anyio.move_on_after(left, shield=True):
            await abort_for_certain(session)
        return
    # What is done beside the event loop knows of the surrounding deadline, too; and an attempt may
    # be waited for a moment longer.
    with (
        anyio.move_on_after(left),
        nullcontext() if seconds is None else deadlines.fresh_timeout(seconds),
    ):
        await _abort_once(session, transaction, deadline, runs_again=runs_again)


def leave_to_next(session: TransactionalSession) -> None:
    """Have the next transaction end whatever there still is of the one before it."""
    transaction = session._calls.begin_abort(session)
    if transaction is not None:
        session._calls.end_abort(transaction)


async def _abort_once(
    session: TransactionalSession, transaction: Any, deadline: Deadline | None, *, runs_again: bool
) -> None:
    call = None
    try:
        call = _begin(session, session, deadline, session._watch.latest)
        await call
    except asyncio.CancelledError as exc:
        abort_for_certain(session)
        leave_to_context(exc)
        raise
    except (DeadlineExceeded, WritesUnavailableError):
        # What was written would bar others for a minute.
        abort_for_certain(session)
        return
    except (OperationFailure, ConnectionFailure):
        # What is wrong is the server's to find out (transactions, "abortTransaction"), but for what
        # was lost on its way: that may begin the transaction still, or leave it to one router.
        is_unheard = call is not None and call.is_unheard
        if is_unheard or session._calls.may_arrive(session):
            if not runs_again:
                abort_for_certain(session, is_unheard=is_unheard)
            return
    except BaseException as exc:
        session._calls.end_abort(transaction)
        leave_to_context(exc)
        raise
    session._calls.end_abort(transaction)


def abort_for_certain(
    session: TransactionalSession, *, is_unheard: bool = False
) -> asyncio.Future[None]:
    """Take a session's transaction, of which something may be under way, and have it aborted.

    Args:
        session: The user's session.
        is_unheard: Whether another router than its own was asked before, and knows nothing of it.

    Returns:
        A future that is done after the first try; it never raises.
    """
    if leave_given_up(session):
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done
    aborting = Aborting(session, is_unheard=is_unheard)
    aborting.begin()
    return aborting.first


def abort_left(session: TransactionalSession) -> asyncio.Future[None] | None:
    """Abort a transaction that its owner has no more time for; None if there is nothing to abort.

    Its owner is still in it, and can't commit it any more.

    Returns:
        A future that is done after the first try; it never raises.
    """
    if not session._write_path.makes_transactions:
        return None
    is_begun = session._calls.begin_abort(session) is not None
    first = abort_for_certain(session) if is_begun else None
    if session._commit is None:  # else whoever commits it is told what becomes of that
        session._is_given_up = True
        session._calls.keep_open(session)
    return first


def leave_given_up(session: TransactionalSession) -> bool:
    """Have a session end what a drain has aborted; return whether there was anything."""
    is_given_up = session._is_given_up and session._calls.has_begun_transaction(session)
    if is_given_up:
        leave_to_next(session)
    return is_given_up


def _begin(
    session: TransactionalSession,
    own: Any,
    deadline: Deadline | None,
    within: Watch | None,
    *,
    is_unheard: bool = False,
) -> AbortCall:
    calls, path = session._calls, session._write_path
    given, coordinator = calls.transaction_options(own), path.coordinator()
    options = transactions.options(given.write_concern, under_deadline=deadline is not None)
    command = transactions.abort(given.write_concern, given.recovery_token)
    lease = path.ending_lease(own)
    watch = coordinator.watchers.watch(command.operation, command.namespace, within)
    call = AbortCall(coordinator, lease, deadline, watch)
    call.router = given.router
    if is_unheard and given.router is not None:
        lease.pin(given.router)
    return call.execute(coordinator.ending(command, lease, deadline, Abort(options), watch))


class Aborting:
    """A transaction that is aborted until that is certain, or no use any more.

    Args:
        session: The user's session, which goes on without the transaction.
        is_unheard: Whether only the router that knows the transaction can be of use. A router that
            is asked for it may hang.
    """

    def __init__(self, session: TransactionalSession, *, is_unheard: bool = False) -> None:
        self._session = session
        self._watch = session._watch.latest
        self._calls, self._path = session._calls, session._write_path
        self._own = self._calls.take_transaction(session)
        self._is_unheard = is_unheard
        self.is_asking = False
        self._patience = _PATIENCE
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic()
        self._is_over = False
        self.first: asyncio.Future[None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Do so, whoever waits for it, and with nobody's deadline."""
        # Not by the loop's factory, which may begin it at once.
        self._task = asyncio.Task(self._run(), loop=self._loop, context=Context())
        self._task.add_done_callback(self._end)
        self._path.aborting.add(self)

    def leave(self) -> None:
        """Do nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            if not self._is_over:
                await self._ask()
            self._tell()
            if self._is_over and not self._calls.has_pending(self._own):
                return
            if time.monotonic() - self._began > self._patience:
                return
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _ask(self) -> None:
        """Try once, if there is something to abort, and somebody who can."""
        if not self._calls.has_begun_transaction(self._own):
            self._is_over = True
        elif self._is_there():
            self._patience = _PATIENCE
            if not self._are_many():
                self._is_over = await self._try()
        elif self._is_unheard:  # a router that is gone for longer has forgotten it
            self._patience = _LOST_PATIENCE

    def _is_there(self) -> bool:
        servers = self._path.writable()
        if not self._is_unheard:
            return bool(servers)
        return self._calls.transaction_options(self._own).router in servers

    def _are_many(self) -> bool:
        if not self._is_unheard:
            return False
        most = max(1, self._path.coordinator().pending.size // _SHARE)
        return sum(each.is_asking for each in self._path.aborting) >= most

    async def _try(self) -> bool:
        """Send an abort; return whether nothing can be in progress, nor begin, after it."""
        # The abort may come before the command that begins the transaction, which goes over another
        # connection, and which may be answered before the abort is.
        may_begin = self._may_begin()
        limit = Deadline.after(ABORT_TIMEOUT)
        is_unheard = self._is_unheard
        call = _begin(self._session, self._own, limit, self._watch, is_unheard=is_unheard)
        self.is_asking = is_unheard
        try:
            await call.as_part()
        except InvalidOperation:  # the client was closed
            raise
        except OperationFailure as exc:
            self._is_unheard = call.is_unheard
            return exc.code == NO_SUCH_TRANSACTION and not may_begin and not self._is_unheard
        except PyMongoError:
            return False
        finally:
            self.is_asking = False
        return True

    def _may_begin(self) -> bool:
        if time.monotonic() - self._began > _LOST_PATIENCE:
            return self._calls.has_pending(self._own)
        return self._calls.may_arrive(self._own)

    def _tell(self) -> None:
        if not self.first.done():
            self.first.set_result(None)
            if self._watch is not None:
                self._watch.end(None, Outcome.NOT_APPLIED)

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # that the client is closed
        self._tell()
        self._path.aborting.discard(self)
        is_over = self._is_over and not self._calls.has_pending(self._own)
        with contextlib.suppress(InvalidOperation):
            self._path.discard(self._own, is_over=is_over)
