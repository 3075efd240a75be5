"""Transactions of a user's session, run and committed as often as the specification says."""

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
from pymongo.errors import ConfigurationError, InvalidOperation, NetworkTimeout, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._commands.error_codes import LABELS
from aioretry._commands.transactions import DATABASE
from aioretry._commands.transactions import abort as abort_command
from aioretry._retry.monitoring import OperationWatch
from aioretry._retry.transactions import (
    RETRY_LIMIT,
    TRANSIENT,
    UNKNOWN_COMMIT,
    CommitAgain,
    Raise,
    RunAgain,
    TransactionRetries,
    asks_router,
    has_label,
)
from aioretry._writes.aborts import (
    ABORT_TIMEOUT,
    abort,
    abort_for_certain,
    leave_to_next,
    time_for_abort,
)
from aioretry._writes.commits import commit, explain, tell_retry
from aioretry._writes.context import TransactionalSession, path_of, settled
from aioretry._writes.under_way import Whole
from aioretry.deadlines import Deadline, deadline, nearest, validate_seconds
from aioretry.errors import DeadlineExceeded, Outcome, attach, links_of, outcome_of, refusal

T = TypeVar("T")

Options: TypeAlias = tuple[ReadConcern | None, WriteConcern | None, Any, int | None]

_TRANSACTION, _COMMIT = "with_transaction", "commit_transaction"
_ENDED = "the session was ended in the block of transaction(), and its transaction aborted by that"


def is_known_to_transact(client: Any) -> bool:
    """Tell whether servers of a client's were seen that have transactions."""
    return path_of(client).is_known_to_transact


async def require_transactions(client: Any, name: str) -> None:
    """Refuse a client whose servers have no transactions; wait for one, before the first of them.

    Args:
        client: The client.
        name: What needs them, as the user knows it.

    Raises:
        TypeError: It is a client of another class.
        ConfigurationError: Its servers have none; nothing was sent.
        PyMongoError: No server was found.
    """
    if is_known_to_transact(client):
        return
    path = path_of(client)
    command = replace(abort_command(WriteConcern(), None), operation=name)
    try:
        views = await path.coordinator().waits.servers(command, path.deadline())
    except BaseException as exc:
        attach(exc, Outcome.NOT_APPLIED, [])
        raise
    if not all(view.can_retry_writes for view in views):
        raise refusal(
            ConfigurationError(
                f"{name} needs transactions: a replica set or a sharded cluster; nothing was sent"
            )
        )
    path.is_known_to_transact = True


async def run_transaction(
    client: Any,
    callback: Callable[[Any], Awaitable[T]],
    *,
    read_concern: ReadConcern | None = None,
    write_concern: WriteConcern | None = None,
    read_preference: Any = None,
    max_commit_time_ms: int | None = None,
    timeout: float | None = None,  # noqa: ASYNC109
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
        timeout: The same.

    Returns:
        What the callback returned the last time.

    Raises:
        TypeError: It is a client of another class.
        Exception: What ``with_transaction`` raises.
    """
    session = require_ours(await settled(client.start_session()), client)
    options = read_concern, write_concern, read_preference, max_commit_time_ms
    return await transact(session, callback, options, timeout, session_per_run=True)


@asynccontextmanager
async def transaction(
    client: Any,
    timeout: float | None = None,  # noqa: ASYNC109
    *,
    read_concern: ReadConcern | None = None,
    write_concern: WriteConcern | None = None,
    read_preference: Any = None,
    max_commit_time_ms: int | None = None,
) -> AsyncIterator[Any]:
    """A block that is one transaction, in a session of its own: run once, and then committed.

    Nothing of the block is repeated. The commit is, as ``commit_transaction()`` of the session
    does: once, or under a deadline until time is over. An error of the block, a cancellation
    included, aborts the transaction; then it goes on. :func:`outcome_of` tells of whatever leaves
    the block how the transaction ended, and :func:`resolve` sends a commit of unknown outcome
    again. A block that commits or aborts by itself is left with nothing more to do.

    What the block has started and left running is no part of the transaction: whatever it still
    wants to send in the session is refused with ``InvalidOperation``.

    Args:
        client: A :class:`~aioretry.RetryClient`, or an
            :class:`~aioretry.pymongo.AsyncRetryClient`.
        timeout: How long the block and the commit may take, in seconds; a surrounding deadline that
            is nearer counts. None sets no limit of its own.
        read_concern: As for :meth:`~aioretry.RetryMotorClientSession.with_transaction`.
        write_concern: The same.
        read_preference: The same.
        max_commit_time_ms: The same.

    Yields:
        The session, to be given to each operation that is to be part of the transaction; or, with
        PyMongo's asyncio client, to be bound by ``session.bind()``.

    Raises:
        TypeError: It is a client of another class, or ``timeout`` is not a number.
        ValueError: ``timeout`` is negative or NaN.
        DeadlineExceeded: The deadline was over before the commit was sent; it is aborted.
        InvalidOperation: The block has ended the session, and so aborted the transaction.
        PyMongoError: What the commit raised.
    """
    seconds = validate_seconds("timeout", timeout)
    session = require_ours(await settled(client.start_session()), client)
    session._is_lent, outer = True, sys.exception()
    limit = session._write_path.deadline(seconds)
    options = read_concern, write_concern, read_preference, max_commit_time_ms
    try:
        async with deadline(None if limit is None else limit.remaining()):
            with Whole():
                await settled(session.start_transaction(*options))
                async with _aborted_on_error(session, limit):
                    yield session
                await _commit_block(session, limit)
    except BaseException as exc:
        explain(session, exc, outer=outer)
        raise
    finally:
        if not session.in_transaction:  # else its commit ends it, which nobody waits for any more
            session._calls.end(session)


async def _commit_block(session: Any, limit: Deadline | None) -> None:
    if session.has_ended and session._commit is None:
        raise InvalidOperation(_ENDED)
    if session.in_transaction:
        if is_late(session, limit):
            await refuse_late(session, limit, for_certain=True)
        await commit(session)


@asynccontextmanager
async def _aborted_on_error(session: Any, limit: Deadline | None) -> AsyncIterator[None]:
    try:
        with session._calls.runs_of(session).run():
            yield
    except BaseException as exc:
        if session.in_transaction:
            await _abort(session, limit, for_certain=True, is_awaited=_leaves_time(exc))
        raise


async def transact(
    session: Any,
    callback: Callable[[Any], Awaitable[T]],
    options: Options,
    timeout: float | None,  # noqa: ASYNC109
    *,
    session_per_run: bool,
) -> T:
    """Do what ``with_transaction`` and :func:`run_transaction` do."""
    path = session._write_path
    limit = path.deadline(validate_seconds("timeout", timeout))
    call = TransactionCall(
        session,
        callback,
        options,
        TransactionRetries(random.random, under_deadline=limit is not None),
        limit or Deadline.after(RETRY_LIMIT),
        session_per_run,
        path.watchers.watch(_TRANSACTION, DATABASE),
    )
    async with deadline(None if limit is None or limit == nearest() else limit.remaining()):
        with Whole():
            return await call.run()


@dataclass(slots=True)
class TransactionCall(Generic[T]):
    """One call of ``with_transaction``, or of :func:`run_transaction`.

    Args:
        session: What the callback gets.
        callback: What is to be done.
        options: What a transaction is started with.
        retries: Decides.
        limit: When retries end.
        session_per_run: Whether each run but the first gets another session like that one, and ends
            it.
        watch: Who is told of the call, or None.
    """

    session: Any
    callback: Callable[[Any], Awaitable[T]]
    options: Options
    retries: TransactionRetries
    limit: Deadline
    session_per_run: bool = False
    watch: OperationWatch | None = None
    _has_run: bool = field(default=False, init=False)
    _was_in_doubt: bool = field(default=False, init=False)
    _has_rest: bool = field(default=False, init=False)
    """Whether the latest run's transaction may still begin, or its router has not heard its end."""

    async def run(self) -> T:
        """Run the callback and commit, until that is done or nothing more may be tried."""
        before, outer = self.session._commit, sys.exception()
        try:
            result = await self._run()
        except BaseException as exc:
            if self._has_rest and self.session.in_transaction:  # nothing is run again after all
                with contextlib.suppress(RuntimeError):  # no event loop is running any more
                    abort_for_certain(self.session)
            doubt = self._was_in_doubt
            explain(self.session, exc, outer=outer, before=before, was_in_doubt=doubt)
            self._end(exc)
            raise
        self._end(None)
        return result

    def _end(self, exc: BaseException | None) -> None:
        self.session._watch.call = None
        if self.watch is not None:
            self.watch.end(exc)

    async def _run(self) -> T:
        while True:
            with self._session_of_run():
                if self._has_rest and self.session.in_transaction:  # nobody has ended it since
                    # Before that is left to it: a drain may refuse it.
                    self.session._write_path.under_way.begin_transaction(self.session)
                    leave_to_next(self.session)
                self._has_rest = False
                self.session._watch.call = self.watch
                await settled(self.session.start_transaction(*self.options))
                try:
                    with self.session._calls.runs_of(self.session).run():
                        result = await self.callback(self.session)
                except BaseException as exc:
                    decision = self.retries.after_callback(exc, time_left=self.limit.remaining())
                    await self._clean_up(exc, runs_again=isinstance(decision, RunAgain))
                    # The abort may have taken the time that there was.
                    decision = self.retries.still(decision, time_left=self.limit.remaining())
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
        if self._has_run:
            self.session = self.session._calls.renewed(self.session)
        self._has_run, own = True, self.session
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
                if is_late(self.session, self._deadline):
                    await refuse_late(
                        self.session, self._deadline, for_certain=self.session_per_run
                    )
                await commit(self.session)
            except PyMongoError as exc:
                decision = self.retries.after_commit(
                    exc,
                    time_left=self.limit.remaining(),
                    may_be_committed=outcome_of(exc) is Outcome.UNKNOWN and not self._asks_router(),
                )
                if not isinstance(decision, CommitAgain):
                    wait = self._wait(decision, exc)
                    if wait is None:
                        raise
                    self._was_in_doubt |= outcome_of(exc) is Outcome.UNKNOWN
                    return wait
                number = max(1, self._sendings())
                tell_retry(self.session, _COMMIT, exc, number, decision.wait)
            else:
                return None
            await anyio.sleep(decision.wait)

    def _asks_router(self) -> bool:
        latest = self.session._commit
        return latest is not None and asks_router(latest.progress)

    def _sendings(self) -> int:
        latest = self.session._commit
        return 0 if latest is None else len(latest.progress.sendings)

    def _wait(self, decision: RunAgain | Raise, error: BaseException) -> float | None:
        if isinstance(decision, RunAgain):
            tell_retry(self.session, _TRANSACTION, error, self.retries.retries, decision.wait)
            return decision.wait
        if decision.timed_out:
            raise self._too_late(error) from error
        return None

    def _too_late(self, error: BaseException) -> NetworkTimeout:
        # transactions-convenient-api, Note 1.
        last = f"the last error: {type(error).__name__}: {error}"
        runs = self.retries.retries + 1
        every_label = TRANSIENT, UNKNOWN_COMMIT, *LABELS
        labels = {"errorLabels": [label for label in every_label if has_label(error, label)]}
        if self.retries.under_deadline:
            text = f"the deadline of with_transaction is over after {runs} transactions; {last}"
            return DeadlineExceeded(text, labels)
        text = f"with_transaction gave up after {RETRY_LIMIT:.0f} s and {runs} transactions"
        return NetworkTimeout(f"{text}; {last}", labels)

    async def _clean_up(self, error: BaseException, *, runs_again: bool) -> None:
        if not self.session.in_transaction:
            return
        for_certain = (
            self.session_per_run
            or _has_left_something_running(error)
            # What is run again in the same session ends what it began before.
            or (not runs_again and self.session._calls.may_arrive(self.session))
        )
        await _abort(
            self.session,
            self._deadline,
            for_certain=for_certain,
            is_awaited=_leaves_time(error),
            runs_again=runs_again,
        )
        self._has_rest = runs_again and self.session.in_transaction

    @property
    def _deadline(self) -> Deadline | None:
        return self.limit if self.retries.under_deadline else None


def _leaves_time(error: BaseException) -> bool:
    # What is closed must not wait for anything.
    return not isinstance(error, GeneratorExit)


async def _abort(
    session: Any,
    limit: Deadline | None,
    *,
    for_certain: bool,
    is_awaited: bool = True,
    runs_again: bool = False,
) -> None:
    seconds = time_for_abort(limit)
    if not session._write_path.makes_transactions or not (for_certain or not is_awaited):
        await abort(session, seconds, runs_again=runs_again)
        return
    try:
        tried = abort_for_certain(session)
    except RuntimeError:  # no event loop is running any more
        return
    if is_awaited:
        with anyio.move_on_after(ABORT_TIMEOUT if seconds is None else seconds, shield=True):
            await tried


def is_late(session: Any, limit: Deadline | None) -> bool:
    """Tell whether the deadline of what may be known to a server is over before its commit."""
    is_over = limit is not None and limit.is_over
    return is_over and session._calls.has_begun_transaction(session)


async def refuse_late(session: Any, limit: Deadline | None, *, for_certain: bool = False) -> None:
    """Abort what is to be committed too late.

    Raises:
        DeadlineExceeded: It is aborted.
    """
    await _abort(session, limit, for_certain=for_certain)
    raise refusal(
        DeadlineExceeded(
            "the deadline was over before the transaction could be committed; it is aborted"
        )
    )


def commit_in_time(session: Any) -> asyncio.Future[None]:
    """Do what ``commit_transaction()`` does."""
    limit = nearest()
    if is_late(session, limit):
        return asyncio.ensure_future(refuse_late(session, limit))
    return commit(session)


def require_ours(session: Any, client: Any) -> Any:
    if not isinstance(session, TransactionalSession):
        raise TypeError(
            f"client must be a RetryClient or an AsyncRetryClient, not {type(client).__name__}"
        )
    return session


def _has_left_something_running(error: BaseException) -> bool:
    # Motor's threads go on after a cancellation, also one that a timeout in the callback made.
    # A group of them is looked at no closer, unless everything is run again, in the same session.
    if isinstance(error, ExceptionGroup):
        return not has_label(error, TRANSIENT)
    if not isinstance(error, Exception) or isinstance(error, TimeoutError):
        return True
    return any(isinstance(link, asyncio.CancelledError) for link in links_of(error))
