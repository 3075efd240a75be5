"""Transactions of a user's session, run and committed as often as the specification says."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
from pymongo.errors import NetworkTimeout, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry import deadlines
from aioretry._commands.error_codes import RETRYABLE_WRITE
from aioretry._drivers.engine.messages import copy_labels
from aioretry._drivers.port import SessionCalls
from aioretry._retry.transactions import (
    RETRY_LIMIT,
    TRANSIENT,
    CommitAgain,
    Raise,
    RunAgain,
    TransactionRetries,
    errors_in,
    has_label,
)
from aioretry._writes.context import WritePath, settled
from aioretry.deadlines import Deadline, deadline
from aioretry.errors import DeadlineExceeded, links_of, refusal

T = TypeVar("T")

# An abort tells the server early what it finds out by itself later: it is worth no long wait.
ABORT_TIMEOUT = 5.0


class TransactionalSession:
    """A user's session, as far as its transactions need it."""

    _calls: SessionCalls
    """What is asked of sessions of its kind."""

    _write_path: WritePath


async def run_transaction(
    client: Any,
    callback: Callable[[Any], Awaitable[T]],
    *,
    read_concern: ReadConcern | None = None,
    write_concern: WriteConcern | None = None,
    read_preference: Any = None,
    max_commit_time_ms: int | None = None,
) -> T:
    """Run a callback in a transaction as ``with_transaction`` does, each run in its own session.

    Args:
        client: A :class:`~aioretry.RetryClient`, or an
            :class:`~aioretry.pymongo.AsyncRetryClient`.
        callback: Called with the session of the run, and what it returns is awaited.
        read_concern: As for :meth:`~aioretry.RetryMotorClientSession.with_transaction`.
        write_concern: The same.
        read_preference: The same.
        max_commit_time_ms: The same.

    Returns:
        What the callback returned the last time.

    Raises:
        TypeError: It is a client of another class.
        Exception: What ``with_transaction`` raises.
    """
    async with await settled(client.start_session()) as session:
        if not isinstance(session, TransactionalSession):
            raise TypeError(
                f"client must be a RetryClient or an AsyncRetryClient, not {type(client).__name__}"
            )
        options = read_concern, write_concern, read_preference, max_commit_time_ms
        return await transact(session, callback, options, session_per_run=True)


async def transact(
    session: Any,
    callback: Callable[[Any], Awaitable[T]],
    options: tuple[ReadConcern | None, WriteConcern | None, Any, int | None],
    *,
    session_per_run: bool,
) -> T:
    """Do what ``with_transaction`` and :func:`run_transaction` do."""
    limit = session._write_path.deadline()

    def start() -> object:
        return transaction.session.start_transaction(*options)

    transaction = TransactionCall(
        session,
        start,
        callback,
        TransactionRetries(random.random, under_deadline=limit is not None),
        limit or Deadline.after(RETRY_LIMIT),
        session_per_run,
    )
    async with deadline(None if limit is None else limit.remaining()):
        return await transaction.run()


@dataclass(slots=True)
class TransactionCall(Generic[T]):
    """One call of ``with_transaction``, or of :func:`run_transaction`.

    Args:
        session: What the callback gets.
        start: Starts a transaction on it.
        callback: What is to be done.
        retries: Decides.
        limit: When retries end.
        session_per_run: Whether each run gets another session like that one.
    """

    session: Any
    start: Callable[[], object]
    callback: Callable[[Any], Awaitable[T]]
    retries: TransactionRetries
    limit: Deadline
    session_per_run: bool = False
    _abort_time: float = field(default=ABORT_TIMEOUT, init=False)

    async def run(self) -> T:
        """Run the callback and commit, until that is done or nothing more may be tried."""
        self._abort_time = min(self.limit.remaining(), ABORT_TIMEOUT)
        while True:
            with self._session_of_run():
                await settled(self.start())
                try:
                    with self.session._calls.runs_of(self.session).run():
                        result = await self.callback(self.session)
                except BaseException as exc:
                    await self._clean_up(exc)
                    decision = self.retries.after_callback(exc, time_left=self.limit.remaining())
                    wait = self._wait(decision, exc)
                    if wait is None:
                        raise
                else:
                    wait = await self._commit()
                    if wait is None:
                        return result
            await anyio.sleep(wait)

    @contextlib.contextmanager
    def _session_of_run(self) -> Iterator[None]:
        if not self.session_per_run:
            yield
            return
        self.session = own = self.session._calls.renewed(self.session)
        try:
            yield
        finally:
            if not own.in_transaction:
                own._calls.end(own)

    async def _commit(self) -> float | None:
        """Commit; return how long to wait before everything is run again, None if it is done."""
        if not self.session.in_transaction:
            return None  # the callback has ended it
        while True:
            try:
                limit = self.limit if self.retries.under_deadline else None
                await _commit(self.session, limit, is_last=self.session_per_run)
            except PyMongoError as exc:
                decision = self.retries.after_commit(exc, time_left=self.limit.remaining())
                if not isinstance(decision, CommitAgain):
                    wait = self._wait(decision, exc)
                    if wait is None:
                        raise
                    return wait
            else:
                return None
            await anyio.sleep(decision.wait)

    def _wait(self, decision: RunAgain | Raise, error: BaseException) -> float | None:
        if isinstance(decision, RunAgain):
            return decision.wait
        if decision.timed_out:
            raise self._too_late(error) from error
        return None

    def _too_late(self, error: BaseException) -> NetworkTimeout:
        # transactions-convenient-api, Note 1.
        last = f"the last error: {type(error).__name__}: {error}"
        runs = self.retries.retries + 1
        if self.retries.under_deadline:
            text = f"the deadline of with_transaction is over after {runs} transactions; {last}"
            late: NetworkTimeout = DeadlineExceeded(text)
        else:
            text = f"with_transaction gave up after {RETRY_LIMIT:.0f} s and {runs} transactions"
            late = NetworkTimeout(f"{text}; {last}")
        for each in errors_in(error):
            copy_labels(each, late)
        return late

    async def _clean_up(self, error: BaseException) -> None:
        closed = isinstance(error, GeneratorExit)  # which leaves no time for anything
        if closed or not self.session.in_transaction:
            return
        for_certain = (
            self.session_per_run
            or _has_left_something_running(error)
            # What is run again in the same session ends what it began before.
            or (self.session._calls.has_pending(self.session) and not has_label(error, TRANSIENT))
        )
        seconds = self._abort_time if for_certain or self.retries.under_deadline else None
        await _abort(self.session, seconds, for_certain=for_certain)


async def _abort(session: Any, seconds: float | None, *, for_certain: bool) -> None:
    if for_certain:
        tried = session._write_path.abort(session._calls.take_transaction(session))
        with anyio.move_on_after(seconds, shield=True):
            await tried
        return
    with nullcontext() if seconds is None else deadlines.fresh_timeout(seconds):
        aborted = session._calls.abort(session)
    try:
        await asyncio.shield(aborted)  # it goes on in its thread, whoever is cancelled
    except asyncio.CancelledError:
        taken = session._calls.take_transaction(session)
        aborted.add_done_callback(partial(_end_after, session._calls, taken))
        raise


async def _commit(session: Any, limit: Deadline | None, *, is_last: bool = False) -> None:
    if limit is not None and limit.is_over and session._calls.has_begun_transaction(session):
        await _abort(session, ABORT_TIMEOUT, for_certain=is_last)
        raise refusal(
            DeadlineExceeded(
                "the deadline was over before the transaction could be committed; it is aborted"
            )
        )
    commit = session._calls.commit(session)
    try:
        await asyncio.shield(commit)  # the same
    except asyncio.CancelledError:
        last = session if is_last else None
        commit.add_done_callback(partial(_end_after, session._calls, last))
        raise


def _end_after(calls: SessionCalls, session: Any, ending: asyncio.Future[None]) -> None:
    """End the session, if that is nobody else's, of an end that nobody waits for any more."""
    if not ending.cancelled():
        ending.exception()
    if session is not None:
        calls.end(session)


async def commit_again_before(session: Any, limit: Deadline) -> None:
    retries = TransactionRetries(random.random)
    while True:
        try:
            return await _commit(session, limit)
        except PyMongoError as exc:
            decision = retries.after_commit(exc, time_left=limit.remaining())
            if not isinstance(decision, CommitAgain) or not exc.has_error_label(RETRYABLE_WRITE):
                raise
        await anyio.sleep(decision.wait)


def _has_left_something_running(error: BaseException) -> bool:
    # Motor's threads go on after a cancellation, also one that a timeout in the callback made.
    # A group of them is looked at no closer, unless everything is run again, in the same session.
    if isinstance(error, ExceptionGroup):
        return not has_label(error, TRANSIENT)
    if not isinstance(error, Exception) or isinstance(error, TimeoutError):
        return True
    return any(isinstance(link, asyncio.CancelledError) for link in links_of(error))
