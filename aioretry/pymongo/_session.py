"""A session of PyMongo's asynchronous client whose transactions are retried as specified."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import anyio
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._drivers import pymongo_async
from aioretry._drivers.pymongo_async import AsyncClientSession
from aioretry._retry.monitoring import TransactionWatch
from aioretry._writes.aborts import abort, time_for_abort
from aioretry._writes.context import TransactionalSession, WritePath
from aioretry._writes.transactions import commit_in_time, transact
from aioretry.deadlines import nearest

T = TypeVar("T")


class AsyncRetryClientSession(TransactionalSession, AsyncClientSession):
    """A session of an :class:`AsyncRetryClient`: PyMongo's, but for :meth:`with_transaction`.

    Made by ``client.start_session()``.
    """

    _calls = pymongo_async.session_calls

    def __init__(self, client: Any, *args: Any) -> None:
        super().__init__(client, *args)
        self._write_path: WritePath = client._write_path
        self._watch = TransactionWatch(self._write_path.watchers)

    async def with_transaction(
        self,
        callback: "Callable[[AsyncRetryClientSession], Awaitable[T]]",
        read_concern: ReadConcern | None = None,
        write_concern: WriteConcern | None = None,
        read_preference: Any = None,
        max_commit_time_ms: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> T:
        """Run a callback in a transaction and commit it, both as often as needed.

        What is retried, when that ends, and what a cancellation does, is as for
        :meth:`aioretry.RetryMotorClientSession.with_transaction`. A callback that is cancelled ends
        what it awaits; what it left running in other tasks can't write any more.

        Args:
            callback: Called with this session, and what it returns is awaited.
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
            DeadlineExceeded: The deadline was over when something was to be retried.
            NetworkTimeout: The same after 120 seconds, where there is no deadline.
            InvalidOperation: A transaction is in progress on this session, or it has ended.
            Exception: Whatever the callback or the commit raised and is not retried.
        """
        options = read_concern, write_concern, read_preference, max_commit_time_ms
        return await transact(self, callback, options, timeout, session_per_run=False)

    async def start_transaction(
        self,
        read_concern: ReadConcern | None = None,
        write_concern: WriteConcern | None = None,
        read_preference: Any = None,
        max_commit_time_ms: int | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """Start a transaction, which a block commits or aborts; as PyMongo's."""
        self._require_may_start()
        started = await super().start_transaction(
            read_concern, write_concern, read_preference, max_commit_time_ms
        )
        self._begin()
        return started

    async def commit_transaction(self) -> None:
        """Commit the transaction.

        It is repeated once after an error that it can be repeated after, with ``w: majority``;
        under a deadline until time is over. If time is over before the first commit is sent, the
        transaction is aborted. If the call is cancelled before that, the same, and the session
        gets a new ``session_id``; if later, nothing more is sent, and the transaction may be
        committed or not.

        Raises:
            DeadlineExceeded: The transaction was aborted instead.
            PyMongoError: As PyMongo's.
        """
        self._require_may_end()
        await commit_in_time(self)

    async def abort_transaction(self) -> None:
        """Abort the transaction.

        If the call is cancelled, or takes 0.1 seconds more than a deadline, the abort goes on by
        itself, and the session gets a new ``session_id``.
        """
        self._require_may_end()
        await abort(self, time_for_abort(nearest()))

    def bind(self, end_session: bool = True) -> Any:
        """Make it the session of what is called in a block; as PyMongo's.

        Args:
            end_session: Whether to end it with the block. The session of a
                :func:`~aioretry.transaction` is not: it has to be committed after that.
        """
        return super().bind(end_session and not self._is_lent)

    async def end_session(self) -> None:
        """End the session, and abort what is in progress, as :meth:`abort_transaction` does."""
        await super().end_session()

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=self.in_transaction):
            await self.end_session()
