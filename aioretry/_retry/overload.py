"""Overload retries of what is passed through to Motor, for a PyMongo that has none of its own."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
from pymongo.errors import PyMongoError, ServerSelectionTimeoutError

from aioretry._drivers.port import Policy
from aioretry._retry.verdict import Failure, GiveUp, RetryState, may_be_retryable
from aioretry.deadlines import Deadline, driver_timeout

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_is_repeated: ContextVar[bool] = ContextVar("aioretry_is_repeated", default=False)
"""Whether what is called is repeated already, reads that it consists of included."""


class OverloadRetries:
    """Calls Motor again after an overload error (client-backpressure, "Overload retry policy").

    What the server refuses so was not executed, so that it may be sent again without transaction
    id. Inside a transaction nothing is repeated: an older PyMongo takes a refused first command for
    the beginning of the transaction all the same.

    Args:
        policy: What the client's options say about retries; None if PyMongo backs off by itself.
        deadline: Finds the deadline that holds where a call is made.
    """

    def __init__(self, policy: Policy | None, deadline: Callable[[], Deadline | None]) -> None:
        self._policy = policy
        self._deadline = deadline

    def start(self, call: Callable[[], asyncio.Future[T]], session: object) -> asyncio.Future[T]:
        """Begin a call of Motor's, and repeat it as the policy says.

        Args:
            call: The call; it returns a running future.
            session: The session that the user gave, or None.

        Returns:
            A running future of what the call gives in the end.
        """
        if self._policy is None or _in_transaction(session):
            return call()
        deadline = self._deadline()
        with driver_timeout(deadline), _repeating():
            first = call()
        repeated = self._repeat(call, first, self._policy, deadline)
        task = first.get_loop().create_task(repeated)
        # A task that is cancelled before its first step doesn't wait for anything.
        task.add_done_callback(lambda _: first.cancel())
        return task

    async def run(self, call: Callable[[], Awaitable[T]], session: object) -> T:
        """Make a call of Motor's that is a coroutine, and repeat it as the policy says.

        Args:
            call: The call.
            session: The session that the user gave, or None.

        Returns:
            What it gives in the end.

        Raises:
            PyMongoError: What the policy lets through.
        """
        if self._policy is None or _in_transaction(session):
            return await call()
        return await self._repeat(call, None, self._policy, self._deadline())

    async def _repeat(
        self,
        call: Callable[[], Awaitable[T]],
        attempt: Awaitable[T] | None,
        policy: Policy,
        deadline: Deadline | None,
    ) -> T:
        retries = RetryState(policy, deadline is not None, random.random)
        while True:
            try:
                if attempt is not None:
                    return await attempt
                with driver_timeout(deadline), _repeating():
                    return await call()
            except PyMongoError as exc:
                wait = _wait_after(exc, retries, deadline)
            attempt = None
            await anyio.sleep(wait)


def repeat_reads(
    read: Callable[Concatenate[S, Any, Any, P], T],
    policy: Policy,
    deadline: Callable[[], Deadline | None],
) -> Callable[Concatenate[S, Any, Any, P], T]:
    """Return what repeats a read, of which a cursor makes several, on the thread that makes it.

    Args:
        read: Makes a read: with what it sends, a read preference and a session.
        policy: What the client's options say about retries of reads.
        deadline: Finds the deadline that holds where a read is made.
    """

    def repeat(send: S, preference: Any, session: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if _is_repeated.get() or _in_transaction(session):
            return read(send, preference, session, *args, **kwargs)
        limit = deadline()
        retries = RetryState(policy, limit is not None, random.random)
        while True:
            try:
                return read(send, preference, session, *args, **kwargs)
            except PyMongoError as exc:
                wait = _wait_after(exc, retries, limit)
            time.sleep(wait)

    return repeat


def writes(pipeline: object) -> bool:
    """Tell whether an aggregation writes its result somewhere."""
    if not isinstance(pipeline, Sequence) or not pipeline:
        return False
    last: Any = pipeline[-1]
    return isinstance(last, Mapping) and ("$out" in last or "$merge" in last)


@contextlib.contextmanager
def _repeating() -> Iterator[None]:
    token = _is_repeated.set(True)
    try:
        yield
    finally:
        _is_repeated.reset(token)


def _wait_after(error: PyMongoError, retries: RetryState, deadline: Deadline | None) -> float:
    if not retries.retries and not may_be_retryable(error):
        raise error
    sent = not isinstance(error, ServerSelectionTimeoutError)
    left = float("inf") if deadline is None else deadline.remaining()
    verdict = retries.judge(Failure(error, sent, numbered=False), time_left=left)
    if isinstance(verdict, GiveUp):
        raise verdict.error
    return verdict.wait


def _in_transaction(session: object) -> bool:
    return session is not None and bool(getattr(session, "in_transaction", False))
