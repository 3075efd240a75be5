"""Change streams of either driver: read on the event loop, or on a thread where that blocks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import anyio
from anyio import to_thread

from aioretry._faces import Collection, Session, settled
from aioretry.pymongo import AsyncRetryClientSession, AsyncRetryCollection

T = TypeVar("T")


class Stream(Protocol):
    """What is used of PyMongo's change streams; of the asynchronous one, calls are awaited."""

    @property
    def resume_token(self) -> Any:
        """Where it would go on."""
        ...

    def try_next(self) -> Any:
        """Wait for an event, but not for long."""
        ...

    def close(self) -> Any:
        """End it."""
        ...


async def opened(collection: Collection, session: Session | None = None, **options: Any) -> Stream:
    """Open a change stream; in what :func:`where_it_waits` does."""
    in_session = None if session is None else _drivers_own(session)
    stream: Stream = await settled(_drivers_own(collection).watch(session=in_session, **options))
    return stream


async def where_it_waits(
    collection: Collection,
    work: Callable[[], Coroutine[Any, Any, T]],
    limiter: anyio.CapacityLimiter | None = None,
) -> T:
    """Do something with a change stream, and nothing else that is waited for.

    Args:
        collection: What is watched.
        work: What to do. If the call is cancelled, it goes on on a thread, and may in a task.
        limiter: Has the place for a thread.
    """
    if isinstance(collection, AsyncRetryCollection):
        return await _in_a_task(work())
    return await to_thread.run_sync(_at_once, work, abandon_on_cancel=True, limiter=limiter)


async def _in_a_task(work: Coroutine[Any, Any, T]) -> T:
    # A cancellation that comes right after the sending is lost in PyMongo under Python 3.11, whose
    # `wait_for` takes the result then.
    task = asyncio.create_task(work)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    return task.result()


def _at_once(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        work().send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waited for something that does not block")


def _drivers_own(ours: Any) -> Any:
    is_pymongos = isinstance(ours, AsyncRetryCollection | AsyncRetryClientSession)
    return ours if is_pymongos else ours.delegate
