"""PyMongo's asynchronous client, and the parts behind its writes put together."""

import asyncio
import math
from collections.abc import Iterable
from typing import Any, Self

import anyio
from bson.codec_options import CodecOptions
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry import deadlines
from aioretry._drivers import pymongo_async
from aioretry._drivers.port import DOUBT_AFTER, DocumentT
from aioretry._drivers.pymongo_async import AsyncMongoClient, TransactionOptions
from aioretry._retry.loop import MOST_UNDER_WAY, MOST_WAITING
from aioretry._writes.context import CLOSE_TIMEOUT, WritePath, all_hooks, patience, positive
from aioretry._writes.kept import by_name
from aioretry.events import Hook
from aioretry.pymongo._database import AsyncRetryDatabase
from aioretry.pymongo._session import AsyncRetryClientSession


class AsyncRetryClient(AsyncMongoClient[DocumentT]):
    """PyMongo's asynchronous client, whose writes survive failovers.

    It takes PyMongo's arguments and is used like an ``AsyncMongoClient``: with ``async with``,
    which closes it, or with ``await client.close()``. It is bound to the event loop that it is
    first used on.

    Args:
        *args: As for ``AsyncMongoClient``: a connection string, or hosts, and a port.
        hooks: Callables that are told of every retry, see :class:`~aioretry.Hook`, or of everything
            that happens in a write, see :class:`~aioretry.EventHook`.
        max_concurrent_attempts: How many commands may be under way at once; further ones queue.
        max_waiting_writes: How many writes may wait for a server at once, while none is known;
            further ones fail with :class:`~aioretry.TooManyWaiting`.
        doubt_after: How many seconds a server may be silent, over a connection of its own as well,
            while somebody waits for it, before it is taken for lost; infinity doubts none.
        fail_fast_after: After how many seconds without a server that takes writes those of which
            nothing was sent fail at once, with :class:`~aioretry.WritesUnavailableError`, until
            there is one again; infinity lets them wait.
        retry_budget: How many retries the client may have made beyond one for each ten successes;
            while there is nothing left, none is made. None sets no limit.
        **kwargs: As for ``AsyncMongoClient``: what a connection string may say (``replicaSet``,
            ``w``, ``journal``, ``maxPoolSize``, ``serverSelectionTimeoutMS``, ``timeoutMS``, all
            times in milliseconds), and ``document_class``, ``tz_aware``, ``event_listeners`` and
            ``auto_encryption_opts``.

    Raises:
        TypeError: ``hooks`` is no list, or holds something that can't be called, or
            ``max_concurrent_attempts``, ``max_waiting_writes`` or ``retry_budget`` is not a whole
            number.
        ValueError: ``max_concurrent_attempts``, ``max_waiting_writes`` or ``retry_budget`` is
            less than 1, or ``doubt_after`` or ``fail_fast_after`` is not above 0.
        ConfigurationError: As for ``AsyncMongoClient``.
    """

    _databases: type[AsyncRetryDatabase[Any]] = AsyncRetryDatabase

    def __init__(
        self,
        *args: Any,
        hooks: Iterable[Hook] = (),
        max_concurrent_attempts: int = MOST_UNDER_WAY,
        max_waiting_writes: int = MOST_WAITING,
        doubt_after: float = DOUBT_AFTER,
        fail_fast_after: float = math.inf,
        retry_budget: int | None = None,
        **kwargs: Any,
    ) -> None:
        """The arguments are described above, with the class."""
        doubt_after = patience("doubt_after", doubt_after)
        fail_fast_after = patience("fail_fast_after", fail_fast_after)
        budget = None if retry_budget is None else positive("retry_budget", retry_budget)
        uses = pymongo_async.Uses()
        hooks = all_hooks(hooks)
        at_once = positive("max_concurrent_attempts", max_concurrent_attempts)
        most_waiting = positive("max_waiting_writes", max_waiting_writes)
        super().__init__(*args, _pool_class=pymongo_async.pool_class(uses), **kwargs)
        self._known: dict[str, AsyncRetryDatabase[DocumentT]] = {}
        self._driver = pymongo_async.AsyncioDriver(self, at_once, uses, doubt_after)
        self._write_path = WritePath(
            self._driver,
            pymongo_async.policy(self),
            _OwnLoop(),
            server_selection_timeout=self.options.server_selection_timeout,
            timeout=pymongo_async.timeout(self),
            encrypts=pymongo_async.encrypts(self),
            is_load_balanced=pymongo_async.is_load_balanced(self),
            hooks=hooks,
            most_under_way=at_once,
            most_waiting=most_waiting,
            fail_fast_after=fail_fast_after,
            retry_budget=budget,
        )

    async def __aenter__(self) -> Self:
        self._write_path.coordinator()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    def __getitem__(self, name: str) -> AsyncRetryDatabase[DocumentT]:
        return by_name(self._known, self._databases, self, name, "_client")

    def __getattr__(self, name: str) -> AsyncRetryDatabase[DocumentT]:
        if name.startswith("_"):
            super().__getattr__(name)  # raises
        return self[name]

    def get_database(
        self,
        name: str | None = None,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> AsyncRetryDatabase[DocumentT]:
        """Return a database with options of its own; arguments and errors as PyMongo's."""
        options = codec_options, read_preference, write_concern, read_concern
        return self._databases(self, super().get_database(name).name, *options)

    def get_default_database(
        self,
        default: str | None = None,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> AsyncRetryDatabase[DocumentT]:
        """Return the database that the connection string names, or ``default``."""
        options = codec_options, read_preference, write_concern, read_concern
        return self._databases(self, super().get_default_database(default).name, *options)

    def start_session(
        self,
        causal_consistency: bool | None = None,
        default_transaction_options: TransactionOptions | None = None,
        snapshot: bool | None = False,
    ) -> AsyncRetryClientSession:
        """Start a session, to be used with ``async with``.

        Args:
            causal_consistency: Whether its reads see what it has read and written before; None
                means so unless ``snapshot`` is true.
            default_transaction_options: What its transactions take where they are not told.
            snapshot: Whether its reads all see the same point in time.

        Returns:
            The session.

        Raises:
            ConfigurationError: Both ``causal_consistency`` and ``snapshot`` are true.
        """
        self._write_path.require_own_loop()
        options = {
            "causal_consistency": causal_consistency,
            "default_transaction_options": default_transaction_options,
            "snapshot": snapshot,
        }
        return pymongo_async.new_session(AsyncRetryClientSession, self, options)

    async def close(self) -> None:
        """Close the connections.

        Writes that were not sent yet end with ``InvalidOperation``; those that were have two more
        seconds for their answer, and then end so too, with the outcome ``UNKNOWN``. Telling the
        servers which sessions have ended may take as long as two seconds if there is no server.
        """
        self._driver.close()
        self._write_path.close(CLOSE_TIMEOUT)
        with deadlines.fresh_timeout(CLOSE_TIMEOUT):
            await super().close()
        await self._driver.wait_closed()

    aclose = close


class _OwnLoop:
    """The event loop that a client is first used on."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def get_io_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop
