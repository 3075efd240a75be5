"""The client: a Motor client, and the parts behind its writes put together."""

import math
import warnings
from collections.abc import Iterable
from typing import Any, Self

import anyio
import anyio.to_thread
from bson.codec_options import CodecOptions
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry import deadlines
from aioretry._drivers import motor
from aioretry._drivers.motor import (
    AsyncIOMotorClient,
    ClientSession,
    Database,
    TransactionOptions,
)
from aioretry._drivers.port import DOUBT_AFTER, DocumentT
from aioretry._retry.loop import MOST_UNDER_WAY, MOST_WAITING
from aioretry._writes.context import (
    CLOSE_TIMEOUT,
    WritePath,
    all_hooks,
    connection_counts,
    patience,
    positive,
    thread_counts,
)
from aioretry._writes.kept import by_name
from aioretry.database import RetryMotorDatabase
from aioretry.events import Hook
from aioretry.session import RetryMotorClientSession

__all__ = ["RetryClient", "connection_counts", "thread_counts"]


class RetryClient(AsyncIOMotorClient[DocumentT]):
    """A Motor client whose writes survive failovers.

    It takes Motor's arguments, which are PyMongo's, and is used like a Motor client: with
    ``async with``, which closes it, or with :meth:`close`. Like a Motor client, it is bound to the
    event loop that it is first used on.

    Args:
        *args: As for ``AsyncIOMotorClient``: a connection string, or hosts, and a port.
        hooks: Callables that are told of every retry, see :class:`~aioretry.Hook`, or of everything
            that happens in a write, see :class:`~aioretry.EventHook`.
        max_concurrent_attempts: How many commands may be under way at once; further ones queue.
            Those that need a thread share at most 32 of the client's own.
        max_waiting_writes: How many writes may wait for a server at once, while none is known;
            further ones fail with :class:`~aioretry.TooManyWaiting`.
        doubt_after: How many seconds a server may be silent, over a connection of its own as well,
            while somebody waits for it, before it is taken for lost; infinity doubts none.
        fail_fast_after: After how many seconds without a server that takes writes those of which
            nothing was sent fail at once, with :class:`~aioretry.WritesUnavailableError`, until
            there is one again; infinity lets them wait.
        retry_budget: How many retries the client may have made beyond one for each ten successes;
            while there is nothing left, none is made. None sets no limit.
        listeners_may_block: Whether command listeners are called on threads, as by Motor, and not
            on the event loop, where one that blocks would hold up everybody.
        **kwargs: As for ``AsyncIOMotorClient``: what a connection string may say (``replicaSet``,
            ``w``, ``journal``, ``maxPoolSize``, ``serverSelectionTimeoutMS``, ``timeoutMS``, all
            times in milliseconds), and ``document_class``, ``tz_aware``, ``event_listeners``,
            ``auto_encryption_opts`` and ``io_loop``.

    Raises:
        TypeError: ``hooks`` is no list, or holds something that can't be called, or
            ``max_concurrent_attempts``, ``max_waiting_writes`` or ``retry_budget`` is not a whole
            number.
        ValueError: ``max_concurrent_attempts``, ``max_waiting_writes`` or ``retry_budget`` is
            less than 1, or ``doubt_after`` or ``fail_fast_after`` is not above 0.
        ConfigurationError: As for ``AsyncIOMotorClient``.
    """

    __delegate_class__: type[Any] = motor.MongoClient

    def __init__(
        self,
        *args: Any,
        hooks: Iterable[Hook] = (),
        max_concurrent_attempts: int = MOST_UNDER_WAY,
        max_waiting_writes: int = MOST_WAITING,
        doubt_after: float = DOUBT_AFTER,
        fail_fast_after: float = math.inf,
        retry_budget: int | None = None,
        listeners_may_block: bool = False,
        **kwargs: Any,
    ) -> None:
        """The arguments are described above, with the class."""
        doubt_after = patience("doubt_after", doubt_after)
        fail_fast_after = patience("fail_fast_after", fail_fast_after)
        budget = None if retry_budget is None else positive("retry_budget", retry_budget)
        uses = motor.Uses()
        hooks = all_hooks(hooks)
        at_once = positive("max_concurrent_attempts", max_concurrent_attempts)
        most_waiting = positive("max_waiting_writes", max_waiting_writes)
        with warnings.catch_warnings():
            # Motor tells everybody that it is deprecated; our users know from our own docs.
            warnings.filterwarnings("ignore", message=".*[Mm]otor.*", category=DeprecationWarning)
            super().__init__(*args, _pool_class=motor.pool_class(uses), **kwargs)
        self._known: dict[str, RetryMotorDatabase[DocumentT]] = {}
        delegate = self.delegate
        policy = motor.policy(delegate)
        self._driver = motor.MotorDriver(
            delegate, at_once, uses, doubt_after, listeners_may_block=listeners_may_block
        )
        self._write_path = WritePath(
            self._driver,
            policy,
            self,
            server_selection_timeout=delegate.options.server_selection_timeout,
            timeout=motor.timeout(delegate),
            encrypts=motor.encrypts(delegate),
            is_load_balanced=motor.is_load_balanced(delegate),
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
        # Closing tells the servers which sessions have ended, and so may wait for them.
        with anyio.CancelScope(shield=True):
            # On a thread of its own: the shared ones may be busy with the application's own calls.
            await anyio.to_thread.run_sync(self.close, limiter=anyio.CapacityLimiter(1))

    def __getitem__(self, name: str) -> RetryMotorDatabase[DocumentT]:
        return by_name(self._known, RetryMotorDatabase, self, name, "_client")

    def __getattr__(self, name: str) -> RetryMotorDatabase[DocumentT]:
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
    ) -> RetryMotorDatabase[DocumentT]:
        """Return a database with options of its own; arguments and errors as Motor's."""
        return self.wrap(  # type: ignore[no-any-return]
            self.delegate.get_database(
                name, codec_options, read_preference, write_concern, read_concern
            )
        )

    def get_default_database(
        self,
        default: str | None = None,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> RetryMotorDatabase[DocumentT]:
        """Return the database that the connection string names, or ``default``, as Motor does."""
        return self.wrap(  # type: ignore[no-any-return]
            self.delegate.get_default_database(
                default, codec_options, read_preference, write_concern, read_concern
            )
        )

    def wrap(self, obj: Any) -> Any:
        """Wrap what PyMongo returned; its databases and sessions become ours."""
        if isinstance(obj, Database):
            return RetryMotorDatabase(self, obj.name, _delegate=obj)
        if isinstance(obj, ClientSession):
            return RetryMotorClientSession(obj, self)
        return super().wrap(obj)

    async def start_session(
        self,
        causal_consistency: bool | None = None,
        default_transaction_options: TransactionOptions | None = None,
        snapshot: bool | None = False,
    ) -> RetryMotorClientSession:
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
            InvalidOperation: The client was closed.
        """
        self._write_path.coordinator()  # refuses another event loop
        session = self.delegate.start_session(
            causal_consistency=causal_consistency,
            default_transaction_options=default_transaction_options,
            snapshot=snapshot,
        )
        return RetryMotorClientSession(session, self)

    def close(self) -> None:
        """Close the connections and end the threads once what they carry has ended.

        Writes that were not sent yet end with ``InvalidOperation``; those that were have two more
        seconds for their answer, and then end so too, with the outcome ``UNKNOWN``. Telling the
        servers which sessions have ended may block for as long as two seconds if there is no
        server; ``async with`` does so without blocking the event loop.
        """
        self._driver.close()
        self._write_path.close(CLOSE_TIMEOUT)
        with deadlines.fresh_timeout(CLOSE_TIMEOUT):
            self.delegate.close()
