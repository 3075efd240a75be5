"""A Motor session whose transactions are retried as the specification says."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

import anyio
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._drivers import motor
from aioretry._drivers.motor import AsyncIOMotorClientSession
from aioretry._retry.monitoring import TransactionWatch
from aioretry._writes.aborts import abort, time_for_abort
from aioretry._writes.context import TransactionalSession, WritePath
from aioretry._writes.transactions import commit_in_time, run_transaction, transact
from aioretry.deadlines import nearest

__all__ = ["RetryMotorClientSession", "run_transaction"]

T = TypeVar("T")


class RetryMotorClientSession(TransactionalSession, AsyncIOMotorClientSession):
    """A session of a :class:`~aioretry.RetryClient`: Motor's, but for :meth:`with_transaction`.

    Made by ``await client.start_session()``.
    """

    _calls = motor.session_calls

    def __init__(self, delegate: Any, motor_client: Any) -> None:
        super().__init__(delegate, motor_client)
        self._write_path: WritePath = motor_client._write_path
        self._watch = TransactionWatch(self._write_path.watchers)

    async def with_transaction(
        self,
        coro: "Callable[[RetryMotorClientSession], Awaitable[T]]",
        read_concern: ReadConcern | None = None,
        write_concern: WriteConcern | None = None,
        read_preference: Any = None,
        max_commit_time_ms: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> T:
        """Run a callback in a transaction and commit it, both as often as needed.

        What is retried (transactions-convenient-api, "Sequence of Actions"):

        - The commit, after an error with the label ``UnknownTransactionCommitResult`` that is not
          MaxTimeMSExpired; it was repeated once, as below, before that. From the second time on
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
        session included. What is not aborted 0.1 seconds later is aborted without the caller, and
        the session gets a new ``session_id``.

        If the call is cancelled while the callback runs, or that fails while something of it is
        still under way, the transaction is aborted, at most 5 seconds are waited for that, and the
        session gets a new ``session_id``: whatever the callback left running can't write any more.
        If the call is cancelled during the commit, the transaction may be committed or not.
        :func:`~aioretry.outcome_of` tells of whatever is raised how the transaction ended, and
        :func:`~aioretry.resolve` commits again what is in doubt.

        Args:
            coro: The callback; called with this session, and what it returns is awaited.
            read_concern: The transaction's read concern; None takes the session's default.
            write_concern: The transaction's write concern; None takes the session's default.
            read_preference: The transaction's read preference; None takes the session's default.
            max_commit_time_ms: How long a commit may take on the server, in milliseconds; ignored
                under a deadline that ever comes.
            timeout: How long all of this may take, in seconds; a surrounding deadline that is
                nearer counts. None sets no limit of its own.

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
        return await transact(self, coro, options, timeout, session_per_run=False)

    def start_transaction(  # type: ignore[override]
        self,
        read_concern: ReadConcern | None = None,
        write_concern: WriteConcern | None = None,
        read_preference: Any = None,
        max_commit_time_ms: int | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """Start a transaction, which a block commits or aborts; arguments and errors as Motor's."""
        self._require_may_start()
        started = super().start_transaction(
            read_concern, write_concern, read_preference, max_commit_time_ms
        )
        self._begin()
        return started

    def commit_transaction(self) -> asyncio.Future[None]:  # type: ignore[override]
        """Commit the transaction.

        It is repeated once after an error that it can be repeated after, with ``w: majority``;
        under a deadline until time is over. If time is over before the first commit is sent, the
        transaction is aborted. If the future is cancelled before that, the same, and the session
        gets a new ``session_id``; if later, nothing more is sent, and the transaction may be
        committed or not.

        Returns:
            A running future. It raises what Motor's does, and ``DeadlineExceeded`` if the
            transaction was aborted instead.
        """
        self._require_may_end()
        return commit_in_time(self)

    def abort_transaction(self) -> asyncio.Future[None]:  # type: ignore[override]
        """Abort the transaction; what takes 0.1 seconds more than a deadline goes on by itself.

        The session gets a new ``session_id`` then.

        Returns:
            A running future. Errors of servers are ignored, as by Motor.
        """
        self._require_may_end()
        return asyncio.ensure_future(abort(self, time_for_abort(nearest())))

    def end_session(self) -> asyncio.Future[None]:  # type: ignore[override]
        """End the session, and abort what is in progress, as :meth:`abort_transaction` does.

        Returns:
            A running future.
        """
        return asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        try:
            if self.delegate.in_transaction:
                await abort(self, time_for_abort(nearest()))
        finally:
            self._calls.end(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        if self.delegate.in_transaction:
            with anyio.CancelScope(shield=True):
                await self._end()
        else:
            self._calls.end(self)
