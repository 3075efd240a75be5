"""Who works while there is a lease: it is taken, renewed meanwhile, and given back."""

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import anyio
from pymongo.errors import PyMongoError

from aioretry import detached
from aioretry._faces import Client, Session, under_way_of
from aioretry.streams._errors import LeaseLostError, passes_by_itself
from aioretry.streams._leases import Lease, LeaseKind, Leases
from aioretry.streams._pace import pause

T = TypeVar("T")

_log = logging.getLogger("aioretry.streams")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_RELEASE_SECONDS = 2.0


def new_owner() -> str:
    """Return a name that no other worker has, and that tells people where it is."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


async def obeying(work: Callable[[], Awaitable[T]]) -> T:
    """Do some work that ends when it is cancelled, whatever it waits for.

    PyMongo's asyncio client forgets cancellations: with a time limit it sends by
    ``asyncio.wait_for()``, which does so before Python 3.12. A task group repeats them.
    """
    failed: list[Exception] = []
    done: list[T] = []

    async def run() -> None:
        try:
            done.append(await work())
        except Exception as exc:  # noqa: BLE001 - raised below, and not in a group
            failed.append(exc)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    for error in failed:
        raise error
    if not done:  # what it waited for was cancelled, and a task group says nothing of that
        raise asyncio.CancelledError
    return done[0]


async def until_done(
    client: Client,
    once: Callable[[], Awaitable[bool]],
    failed: Callable[[PyMongoError], None],
    longest_pause: float,
) -> None:
    """Do something again and again, also after errors that pass by themselves.

    Args:
        client: Where it is done; when that is drained, nothing is begun again.
        once: Does it; returns whether that is all.
        failed: Told of each error.
        longest_pause: How long to wait at most before the next time, in seconds.

    Raises:
        DeadlineExceeded: The surrounding deadline is over.
        ClientDraining: The client is being drained.
        Exception: Any other error.
    """
    seconds = _FIRST_PAUSE
    while True:
        began, error = time.monotonic(), None
        try:
            with under_way_of(client).begin():
                if await obeying(once):
                    return
        except PyMongoError as exc:
            if not passes_by_itself(exc):
                raise
            failed(exc)
            error = exc
        if time.monotonic() - began > _LONGEST_PAUSE:
            seconds = _FIRST_PAUSE
        await pause(seconds, error)
        seconds = min(2 * seconds, _LONGEST_PAUSE, longest_pause)


async def hold(
    leases: Leases,
    part: int,
    kind: LeaseKind,
    owner: str,
    work: Callable[[Lease], Awaitable[T]],
    session: Session | None = None,
) -> T | None:
    """Take a lease, do some work, and give it back.

    Args:
        work: What to do; it renews the lease.
        session: What its transactions are in, if there are any; it is ended.

    Returns:
        What the work returned; None if the lease is somebody else's.
    """
    try:
        lease = await to_its_end(leases.take(part, kind, owner, session))
    except asyncio.CancelledError:  # it may have got it
        await release(leases, partial(leases.give_up, owner, kind, [part]), session)
        raise
    if lease is None:
        if session is not None:
            await session.end_session()
        return None
    _log.info("%s holds %s, part %d", owner, leases.name, part)
    try:
        return await work(lease)
    finally:
        await release(leases, partial(leases.release, [lease]), session)


async def while_renewed(
    renew: Callable[[], Awaitable[object]], pause: float, work: Callable[[], Awaitable[T]]
) -> T:
    """Do some work, and renew leases meanwhile.

    Args:
        renew: Renews them.
        pause: How long to wait between two renewals, in seconds.
        work: What to do; it is cancelled when a lease is lost.

    Raises:
        LeaseLostError: A lease was lost.
    """
    lost: LeaseLostError | None = None
    failed: Exception | None = None
    done: list[T] = []

    async def keep() -> None:
        nonlocal lost
        while True:
            await anyio.sleep(pause)
            try:
                await renew()
            except LeaseLostError as exc:
                lost = exc
                group.cancel_scope.cancel()
            except PyMongoError as exc:
                # What the work does next will tell whether that is more than a passing trouble.
                level = logging.INFO if passes_by_itself(exc) else logging.WARNING
                _log.log(level, "a lease could not be renewed: %s", type(exc).__name__)

    async with anyio.create_task_group() as group:
        group.start_soon(keep)
        try:
            done.append(await work())
        except Exception as exc:  # noqa: BLE001 - raised below, and not in a group
            failed = exc
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
    if lost is not None and not done:
        raise lost
    return done[0]


async def to_its_end(call: Coroutine[Any, Any, T]) -> T:
    """Wait for a call, and for a while also when cancelled, so that nothing of it comes later."""
    task = asyncio.create_task(call)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        with anyio.move_on_after(_RELEASE_SECONDS, shield=True):
            await asyncio.wait({task})
        task.cancel()
        raise
    return task.result()


async def release(
    leases: Leases, giving: Callable[[], Awaitable[None]], session: Session | None
) -> None:
    """Give leases back, if that can be done at once; they end by themselves otherwise.

    Args:
        leases: What they are of.
        giving: Gives them back; it is not called if there is no time to begin.
        session: What their transactions were in, if there were any.
    """
    with anyio.move_on_after(_RELEASE_SECONDS, shield=True):
        try:
            # The deadline that may have ended the work is not the release's.
            await detached(asyncio.create_task, _give_back(leases, giving, session))
        except PyMongoError as exc:
            _log.info("leases of %s could not be given back: %s", leases.name, type(exc).__name__)


async def _give_back(
    leases: Leases, giving: Callable[[], Awaitable[None]], session: Session | None
) -> None:
    with under_way_of(leases.client).end():
        try:
            await giving()
        finally:
            if session is not None:
                await leases.retire(session)
