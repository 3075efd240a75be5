"""A Motor session whose transactions are retried as the specification says."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Self, TypeVar

import anyio
from pymongo.errors import NetworkTimeout, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry import deadlines
from aioretry._commands.error_codes import RETRYABLE_WRITE
from aioretry._drivers import motor
from aioretry._drivers.motor import AsyncIOMotorClient, AsyncIOMotorClientSession
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
from aioretry._writes.context import WritePath
from aioretry.deadlines import Deadline, deadline, nearest
from aioretry.errors import DeadlineExceeded, links_of, refusal

__all__ = ["RetryMotorClientSession", "run_transaction"]

T = TypeVar("T")

# An abort tells the server early what it finds out by itself later: it is worth no long wait.
_ABORT_TIMEOUT = 5.0


class RetryMotorClientSession(AsyncIOMotorClientSession):
    """A session of a :class:`~aioretry.RetryClient`: Motor's, but for :meth:`with_transaction`.

    Made by ``await client.start_session()``.
    """

    def __init__(self, delegate: Any, motor_client: Any) -> None:
        super().__init__(delegate, motor_client)
        self._write_path: WritePath = motor_client._write_path

    async def with_transaction(
        self,
        coro: "Callable[[RetryMotorClientSession], Awaitable[T]]",
        read_concern: ReadConcern | None = None,
        write_concern: WriteConcern | None = None,
        read_preference: Any = None,
        max_commit_time_ms: int | None = None,
    ) -> T:
        """Run a callback in a transaction and commit it, both as often as needed.

        What is retried (transactions-convenient-api, "Sequence of Actions"):

        - The commit, after an error with the label ``UnknownTransactionCommitResult`` that is not
          MaxTimeMSExpired. PyMongo repeats it once by itself before that. From the second time on
          there is a wait before, of the lengths below. The server commits a transaction at most
          once.
        - The whole transaction, callback included, after an error of the callback or the commit
          with the label ``TransientTransactionError``, or a group of errors (``TaskGroup``) of
          which one has it. Before the n-th time there is a wait: a random part of ``min(500 ms, 5
          ms * 1.5**(n - 1))``.
        - Any other error aborts the transaction, unless it is the commit's, and is raised.

        So the callback may run several times: whatever else it does must bear that. It must let
        errors of commands out, since they may have aborted the transaction on the server; whoever
        swallows one has the commit refused and the transaction run again until time is over. It
        passes the session to each operation that is to be part of the transaction. It should
        neither commit nor abort; if it does, nothing more is done.

        What the callback has started and left running when it ends, well or not, such as a task
        that nobody awaits or the rest of a ``gather()``, is no part of any other run: whatever it
        still wants to send in the session is refused with ``InvalidOperation``.

        Retries end 120 seconds after the call, or with the deadline that applies here: a
        surrounding :func:`~aioretry.deadline` or ``pymongo.timeout()``, or the client's
        ``timeoutMS``. Such a deadline counts for all that the callback does, operations without the
        session included. Only the abort has its own time: as much as the deadline had at the
        beginning, at most 5 seconds.

        If the call is cancelled while the callback runs, or that fails while something of it is
        still under way, the transaction is aborted, at most 5 seconds are waited for that, and the
        session gets a new ``session_id``: whatever the callback left running can't write any more.
        If the call is cancelled during the commit, the transaction may be committed or not.

        Args:
            coro: The callback; called with this session, and what it returns is awaited.
            read_concern: The transaction's read concern; None takes the session's default.
            write_concern: The transaction's write concern; None takes the session's default.
            read_preference: The transaction's read preference; None takes the session's default.
            max_commit_time_ms: How long a commit may take on the server, in milliseconds; ignored
                under a deadline that ever comes.

        Returns:
            What the callback returned the last time.

        Raises:
            DeadlineExceeded: The deadline was over when something was to be retried, or the server
                said so (MaxTimeMSExpired). The last error is the cause, and its labels are the
                exception's too: with ``UnknownTransactionCommitResult`` the transaction may be
                committed.
            NetworkTimeout: The same after 120 seconds, where there is no deadline.
            InvalidOperation: A transaction is in progress on this session, or it has ended.
            Exception: Whatever the callback or the commit raised and is not retried.
        """
        options = read_concern, write_concern, read_preference, max_commit_time_ms
        return await _transact(self, coro, options, session_per_run=False)

    def start_transaction(  # type: ignore[override]
        self,
        read_concern: ReadConcern | None = None,
        write_concern: WriteConcern | None = None,
        read_preference: Any = None,
        max_commit_time_ms: int | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """Start a transaction, which a block commits or aborts; arguments and errors as Motor's."""
        motor.runs_of(self).require()
        return super().start_transaction(
            read_concern, write_concern, read_preference, max_commit_time_ms
        )

    def commit_transaction(self) -> asyncio.Future[None]:  # type: ignore[override]
        """Commit the transaction.

        PyMongo repeats it once after an error that it can be repeated after. Under a deadline it is
        repeated after such errors until time is over, with a growing pause. If time is over before
        the first commit is sent, the transaction is aborted.

        Returns:
            A running future. It raises what Motor's does, and ``DeadlineExceeded`` if the
            transaction was aborted instead.
        """
        motor.runs_of(self).require()
        limit = nearest()
        if limit is None:
            return super().commit_transaction()  # type: ignore[return-value]
        return asyncio.ensure_future(_commit_again_before(self, limit))

    def abort_transaction(self) -> asyncio.Future[None]:  # type: ignore[override]
        """Abort the transaction; under a deadline, it has 5 seconds of its own for that.

        Returns:
            A running future; its errors are Motor's.
        """
        motor.runs_of(self).require()
        with self._own_time():
            return super().abort_transaction()  # type: ignore[return-value]

    def end_session(self) -> asyncio.Future[None]:  # type: ignore[override]
        """End the session, and abort what is in progress, as :meth:`abort_transaction` does.

        Returns:
            A running future.
        """
        with self._own_time():
            return super().end_session()  # type: ignore[return-value]

    def _own_time(self) -> AbstractContextManager[object]:
        # What a deadline that is over keeps from being aborted bars others for a minute.
        limit = nearest()
        return nullcontext() if limit is None else deadlines.fresh_timeout(_ABORT_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        if not self.delegate.in_transaction:
            await super().__aexit__(exc_type, exc_val, exc_tb)
            return
        # The transaction is aborted then, which Motor would do on the event loop.
        with anyio.CancelScope(shield=True):
            await self.end_session()


async def run_transaction(
    client: AsyncIOMotorClient[Any],
    callback: Callable[[RetryMotorClientSession], Awaitable[T]],
    *,
    read_concern: ReadConcern | None = None,
    write_concern: WriteConcern | None = None,
    read_preference: Any = None,
    max_commit_time_ms: int | None = None,
) -> T:
    """Run a callback in a transaction as ``with_transaction`` does, each run in its own session.

    Args:
        client: A :class:`~aioretry.RetryClient`.
        callback: Called with the session of the run, and what it returns is awaited.
        read_concern: As for :meth:`RetryMotorClientSession.with_transaction`.
        write_concern: The same.
        read_preference: The same.
        max_commit_time_ms: The same.

    Returns:
        What the callback returned the last time.

    Raises:
        TypeError: It is a client of another class.
        Exception: What ``with_transaction`` raises.
    """
    async with await client.start_session() as session:
        if not isinstance(session, RetryMotorClientSession):
            raise TypeError(f"client must be a RetryClient, not {type(client).__name__}")
        options = read_concern, write_concern, read_preference, max_commit_time_ms
        return await _transact(session, callback, options, session_per_run=True)


async def _transact(
    session: RetryMotorClientSession,
    callback: Callable[[RetryMotorClientSession], Awaitable[T]],
    options: tuple[ReadConcern | None, WriteConcern | None, Any, int | None],
    *,
    session_per_run: bool,
) -> T:
    limit = session._write_path.deadline()

    def start() -> None:
        transaction.session.start_transaction(*options)

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

    session: RetryMotorClientSession
    start: Callable[[], object]
    callback: Callable[[RetryMotorClientSession], Awaitable[T]]
    retries: TransactionRetries
    limit: Deadline
    session_per_run: bool = False
    _abort_time: float = field(default=_ABORT_TIMEOUT, init=False)

    async def run(self) -> T:
        """Run the callback and commit, until that is done or nothing more may be tried."""
        self._abort_time = min(self.limit.remaining(), _ABORT_TIMEOUT)
        while True:
            with self._session_of_run():
                self.start()
                try:
                    with motor.runs_of(self.session).run():
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
        self.session = motor.renewed(self.session)
        own = self.session
        try:
            yield
        finally:
            if not own.delegate.in_transaction:
                own.delegate.end_session()  # which sends nothing then

    async def _commit(self) -> float | None:
        """Commit; return how long to wait before everything is run again, None if it is done."""
        if not self.session.delegate.in_transaction:
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
            motor.copy_labels(each, late)
        return late

    async def _clean_up(self, error: BaseException) -> None:
        closed = isinstance(error, GeneratorExit)  # which leaves no time for anything
        if closed or not self.session.delegate.in_transaction:
            return
        for_certain = (
            self.session_per_run
            or _has_left_something_running(error)
            # What is run again in the same session ends what it began before.
            or (motor.has_pending(self.session) and not has_label(error, TRANSIENT))
        )
        seconds = self._abort_time if for_certain or self.retries.under_deadline else None
        await _abort(self.session, seconds, for_certain=for_certain)


async def _abort(
    session: RetryMotorClientSession, seconds: float | None, *, for_certain: bool
) -> None:
    if for_certain:
        tried = session._write_path.abort(motor.take_transaction(session))
        with anyio.move_on_after(seconds, shield=True):
            await tried
        return
    with nullcontext() if seconds is None else deadlines.fresh_timeout(seconds):
        aborted: Any = AsyncIOMotorClientSession.abort_transaction(session)
    try:
        await asyncio.shield(aborted)  # it goes on in its thread, whoever is cancelled
    except asyncio.CancelledError:
        aborted.add_done_callback(partial(_end_after, motor.take_transaction(session)))
        raise


async def _commit(
    session: RetryMotorClientSession, limit: Deadline | None, *, is_last: bool = False
) -> None:
    if limit is not None and limit.is_over and motor.has_begun_transaction(session):
        await _abort(session, _ABORT_TIMEOUT, for_certain=is_last)
        raise refusal(
            DeadlineExceeded(
                "the deadline was over before the transaction could be committed; it is aborted"
            )
        )
    commit: Any = AsyncIOMotorClientSession.commit_transaction(session)  # typed as a coroutine
    try:
        await asyncio.shield(commit)  # the same
    except asyncio.CancelledError:
        commit.add_done_callback(partial(_end_after, session.delegate if is_last else None))
        raise


def _end_after(session: Any, ending: asyncio.Future[None]) -> None:
    """End the session, if that is nobody else's, of an end that nobody waits for any more."""
    if not ending.cancelled():
        ending.exception()
    if session is not None:
        session.end_session()  # which sends nothing then


async def _commit_again_before(session: RetryMotorClientSession, limit: Deadline) -> None:
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
