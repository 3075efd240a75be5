"""The life of a client in a service: its start, what probes ask, and its end."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from pymongo.errors import ConnectionFailure, InvalidOperation, ServerSelectionTimeoutError

from aioretry._writes.aborts import abort_left
from aioretry._writes.context import CLOSE_TIMEOUT, WritePath, path_of, patience, settled
from aioretry.deadlines import Deadline, deadline
from aioretry.errors import DeadlineExceeded, Outcome, outcome_of

__all__ = ["Drained", "Health", "drain", "liveness", "readiness", "ready"]

GRACE = 30.0
"""How long a client is called ready that has lost its primary, in seconds: two elections."""

_logger = logging.getLogger("aioretry")

_PAUSE = 0.1
_LOOK_EVERY = 0.01
_LAST_PATIENCE = 1.0  # for what was given up


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe is told."""

    is_well: bool
    reason: str
    """Why, for people; no address, document or credential is in it."""

    def __bool__(self) -> bool:
        return self.is_well


@dataclass(frozen=True, slots=True)
class Drained:
    """What had not ended in time."""

    errors: tuple[BaseException, ...] = ()
    """What the operations have ended with that were given up; :func:`~aioretry.outcome_of` and
    :func:`~aioretry.attempts_of` tell of each."""

    blocks: int = 0
    """How many transactions, and other blocks of several operations, were left."""

    unended: int = 0
    """How many operations have not even ended when they were given up."""

    @property
    def unknown(self) -> tuple[BaseException, ...]:
        """Those of the errors whose write may be applied or not."""
        return tuple(exc for exc in self.errors if outcome_of(exc) is Outcome.UNKNOWN)

    @property
    def is_complete(self) -> bool:
        """Whether all has ended by itself."""
        return not self.errors and not self.blocks and not self.unended


async def ready(client: Any, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - as drain() has it
    """Wait until a client can write: a server answers, with as many connections as are to be kept.

    Args:
        client: A :class:`~aioretry.RetryClient`, or an
            :class:`~aioretry.pymongo.AsyncRetryClient`.
        timeout: How long that may take, in seconds; a surrounding deadline that is nearer counts.

    Raises:
        ConnectionFailure: No server that takes writes was found, or has answered, in time.
        DeadlineExceeded: The ``minPoolSize`` connections could not be made in time.
        OperationFailure: The server refuses the client, such as for its credentials.
        ClientDraining: The client is being drained.
        InvalidOperation: The client was closed, or is used on another event loop.
        TypeError: ``client`` is of another class, or ``timeout`` no number.
        ValueError: ``timeout`` is not above 0.
    """
    path = path_of(client)
    seconds = patience("timeout", timeout)
    path.coordinator()
    path.under_way.admit()
    async with deadline(seconds) as found:
        limit = found or Deadline.after(seconds)
        while not await _answers(client, limit):  # noqa: ASYNC110 - it asks a server
            await anyio.sleep(_PAUSE)
        availability = path.coordinator().availability
        if not await _comes(lambda: availability.seconds_without() == 0, limit):
            text = "the server that was found takes no writes"
            raise ServerSelectionTimeoutError(text)
        least = (await settled(client.options)).pool_options.min_pool_size
        if not await _comes(lambda: not _missing(path, least), limit):
            text = f"{_missing(path, least)} of the minPoolSize={least} connections are not made"
            raise DeadlineExceeded(text)
    path.under_way.admit()  # it may be drained since


async def _answers(client: Any, limit: Deadline) -> bool:
    try:
        await client.admin.command("ping")
    except ConnectionFailure:
        if limit.remaining() <= _PAUSE:
            raise
        return False
    return True


def _missing(path: WritePath, least: int) -> int:
    counts = path.connections()
    made = [
        counts[address].used + counts[address].idle
        for address in path.writable()
        if address in counts
    ]
    return max(0, least - min(made, default=0))


def readiness(client: Any, *, grace: float = GRACE) -> Health:
    """Tell whether a service with this client should get requests, by what is known already.

    It should as long as a server takes writes, and for some time after that was so: an election
    takes all of a service's processes at once, and is over in seconds, while a deployment that has
    no primary for longer is a reason to send requests elsewhere. It does no I/O; a client that
    nobody has used yet begins to look for its servers. Time in which nobody has looked, because the
    process was stopped or nobody has asked for long, does not count.

    Args:
        client: A :class:`~aioretry.RetryClient`, or an
            :class:`~aioretry.pymongo.AsyncRetryClient`.
        grace: For how many seconds it is called ready without a server that takes writes; infinity
            calls it so for ever after it has had one.

    Returns:
        Whether it should, and why.

    Raises:
        RuntimeError: It is asked on a thread without an event loop, which knows nothing of the
            client's.
        TypeError: ``client`` is of another class, or ``grace`` no number.
        ValueError: ``grace`` is not above 0.
    """
    path = path_of(client)
    asyncio.get_running_loop()
    seconds = patience("grace", grace)
    try:
        if path.under_way.is_draining:
            return Health(False, "the client is being drained")
        without = path.coordinator().availability.seconds_without()
    except InvalidOperation as exc:
        return Health(False, str(exc))
    except Exception as exc:  # noqa: BLE001 - servers of another age, or the user's selector
        return Health(False, f"no server can be chosen: {type(exc).__name__}")
    if without is None:
        return Health(False, "no server that takes writes was found yet")
    if without == 0:
        return Health(True, "a server takes writes")
    reason = f"no server has taken writes for {without:.0f} s"
    return Health(without <= seconds, f"{reason}, of {seconds:g} s of grace")


def liveness(client: Any) -> Health:
    """Tell whether a process with this client is of use, or has to be started anew.

    Whoever is answered knows that the event loop moves. A deployment without a primary is no reason
    to start anew: what waits for one would be lost.

    Args:
        client: A :class:`~aioretry.RetryClient`, or an
            :class:`~aioretry.pymongo.AsyncRetryClient`.

    Returns:
        Not so if the client was closed, belongs to another event loop, or does not look after its
        servers any more.

    Raises:
        RuntimeError: It is asked on a thread without an event loop, which knows nothing of the
            client's.
        TypeError: ``client`` is of another class.
    """
    path = path_of(client)
    asyncio.get_running_loop()
    try:
        is_unattended = path.coordinator().availability.is_unattended()
    except InvalidOperation as exc:
        return Health(False, str(exc))
    if is_unattended:
        return Health(False, "the client does not look after its servers any more")
    return Health(True, "the event loop moves, and the client looks after its servers")


async def drain(client: Any, timeout: float = 10.0) -> Drained:  # noqa: ASYNC109 - not of the caller
    """End what is under way with a client, and begin nothing more; then close the client.

    From now on, operations that are no part of a transaction, or of another block that has begun
    before, are refused with :class:`~aioretry.ClientDraining`. What travels together and waits is
    sent. A block goes on until it ends, whatever it begins. Cursors, GridFS and commands are
    neither refused nor waited for; writes that nobody acknowledges are refused, and not waited for.

    Args:
        client: A :class:`~aioretry.RetryClient`, or an
            :class:`~aioretry.pymongo.AsyncRetryClient`.
        timeout: How long it may take, in seconds. What has not ended then is given up as by
            ``close()``: transactions are aborted, for which there is a second more, and whatever
            was sent is ``UNKNOWN``.

    Returns:
        What was given up, by this call, by another one at the same time, or by ``close()``. It is
        logged as well, as a warning that names outcomes and no content.

    Raises:
        InvalidOperation: The client is used on another event loop.
        TypeError: ``client`` is of another class, or ``timeout`` no number.
        ValueError: ``timeout`` is not above 0.
    """
    path = path_of(client)
    limit = Deadline.after(patience("timeout", timeout))
    path.coordinator()
    under_way = path.under_way
    under_way.is_draining = True
    await _comes(lambda: under_way.is_over or not path.is_busy(), limit)
    seconds = _LAST_PATIENCE
    if under_way.is_over:  # by another drain, which may still abort; or by close()
        seconds += CLOSE_TIMEOUT
    elif path.is_busy():
        await _give_up(path)
    left = under_way.left
    await _comes(lambda: all(each.done() for each in left), Deadline.after(seconds))
    failures = [each.failure for each in left if each.done()]
    drained = Drained(
        tuple(exc for exc in failures if exc is not None),
        under_way.blocks_left,
        len(left) - len(failures),
    )
    if not drained.is_complete:
        _log(drained, timeout)
    return drained


async def _give_up(path: WritePath) -> None:
    path.leave()
    aborts = [abort_left(session) for session in path.under_way.transactions()]
    tried = [abort for abort in aborts if abort is not None]
    try:
        if tried:  # else they would bar others for a minute
            await asyncio.wait(tried, timeout=_LAST_PATIENCE)
    finally:  # nobody else does, should this be cancelled
        path.give_up()


async def _comes(what: Callable[[], bool], limit: Deadline) -> bool:
    while not what() and not limit.is_over:  # noqa: ASYNC110 - nobody tells of it
        await anyio.sleep(min(_LOOK_EVERY, max(limit.remaining(), 0.0)))
    return what()


def _log(drained: Drained, seconds: float) -> None:
    outcomes = Counter(str(getattr(outcome_of(exc), "value", "none")) for exc in drained.errors)
    listed = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    _logger.warning(
        "drain: after %g s %d operations were given up (outcomes: %s), and %d blocks left",
        seconds,
        len(drained.errors) + drained.unended,
        listed or "none",
        drained.blocks,
    )
