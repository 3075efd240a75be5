"""What happens inside a write, told to hooks and to the logger ``aioretry``."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeAlias, cast

from aioretry.errors import Outcome

__all__ = [
    "AttemptBegan",
    "AttemptEnded",
    "Event",
    "EventHook",
    "Hook",
    "OperationBegan",
    "OperationEnded",
    "RetryScheduled",
    "SentCommand",
    "every_event",
    "log_retries",
]

_logger = logging.getLogger("aioretry")


@dataclass(frozen=True, slots=True)
class OperationBegan:
    """A write was called. Told in the context of the call.

    A transaction is told as ``transaction``, and a call of ``with_transaction`` under its own name.
    """

    operation: str
    """The operation's name, such as ``update_one``; ``resolve`` for :func:`aioretry.resolve`."""

    namespace: str
    """Database and collection, joined by a dot."""

    notes: dict[Any, Any] = field(repr=False, compare=False)
    """What hooks keep about the operation; the same in all its events, and only there."""

    within: Mapping[Any, Any] | None = field(default=None, repr=False, compare=False)
    """The notes of the transaction that it is a part of, or of the ``with_transaction`` call that
    begins it; None if it is a part of neither."""


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """An attempt of a command begins, or begins anew because its server had no room for it.

    Told in a context of the attempt's own: command listeners see the context variables that a hook
    sets here, and nobody else does. No :class:`AttemptEnded` follows if nothing was tried after
    all.
    """

    operation: str
    """The operation's name."""

    namespace: str
    """Database and collection, joined by a dot."""

    command: str
    """The command's name, such as ``findAndModify``."""

    attempt: int
    """The number of the attempt, from 1; of one command, where an operation has several."""

    sharing: Sequence[Mapping[Any, Any]] = field(repr=False, compare=False)
    """The notes of the other operations that travel in the command; they are told of its end."""

    attempt_notes: dict[Any, Any] = field(repr=False, compare=False)
    """What hooks keep about the attempt; the same when it ends, whichever operation is told."""

    notes: dict[Any, Any] = field(repr=False, compare=False)
    """What hooks keep about the operation."""


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command as an attempt sends it, as far as is known. Nothing in it is of a document."""

    name: str
    """Such as ``findAndModify``."""

    statements: int = 1
    """How many statements it has."""

    session_id: str | None = None
    """The ``lsid`` that it carries, a UUID."""

    transaction_number: int | None = None
    """The ``txnNumber`` that it carries."""

    connection_id: int | None = None
    """What the driver knows its connection by."""

    server_connection_id: int | None = None
    """What the server knows its connection by."""

    connection_wait: float | None = None
    """How long it waited for a connection, in seconds; None if it got none."""

    document: Callable[[], dict[str, Any]] = field(default=dict, repr=False, compare=False)
    """Returns what is sent, as command listeners are shown it, with what the user gave."""


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt of an operation ended, well or not."""

    operation: str
    """The operation's name."""

    namespace: str
    """Database and collection, joined by a dot."""

    address: tuple[str, int | None] | None
    """Host and port of the server; None if none was chosen."""

    attempt: int
    """The number of the attempt, from 1; of one command, where an operation has several."""

    duration: float
    """How long it took, in seconds."""

    sent: bool
    """Whether the command can have reached the server."""

    error_class: str | None
    """The class name of its error; None if the server accepted the write, or has not answered."""

    error_code: int | None
    """The server's error code; None if there is no error, or it is not the server's."""

    server_wait: float
    """How long the operation has waited for a server since the attempt before, in seconds."""

    command: SentCommand
    """What was sent, or was to be sent."""

    attempt_notes: dict[Any, Any] = field(repr=False, compare=False)
    """What hooks keep about the attempt, the same for all operations that travel in it."""

    notes: dict[Any, Any] = field(repr=False, compare=False)
    """What hooks keep about the operation."""


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """An attempt failed, and the command will be sent again.

    Or a transaction will: as ``with_transaction``, all of it is run again, and as
    ``commit_transaction`` its commit is sent again, both in the namespace ``admin``.
    """

    operation: str
    """The operation's name, such as ``update_one``."""

    namespace: str
    """Database and collection, joined by a dot."""

    address: tuple[str, int | None] | None
    """Host and port of the server that the attempt failed on; None if none was chosen."""

    error_class: str
    """The class name of the attempt's error."""

    error_code: int | None
    """The server's error code; None if the error is not the server's."""

    attempt: int
    """The number of the attempt that failed, from 1."""

    wait: float
    """The backoff before the next selection of a server, in seconds; usually 0."""

    notes: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What hooks keep about the operation; empty if several operations share the command."""


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """A write ended. Each that has begun does, once, unless the event loop ends before it."""

    operation: str
    """The operation's name."""

    namespace: str
    """Database and collection, joined by a dot."""

    outcome: Outcome
    """How it ended, as :func:`~aioretry.outcome_of` says."""

    duration: float
    """How long it took from the call on, in seconds."""

    attempts: int
    """How many attempts were made, of all its commands."""

    error_class: str | None
    """The class name of what it raised; None if it raised nothing."""

    error_code: int | None
    """The server's error code; None if there is no error, or it is not the server's.

    Of a bulk operation, the one code that all its errors have; None if they differ.
    """

    server_wait: float
    """How long it has waited for a server in all, in seconds."""

    statements: Mapping[Outcome, int] | None
    """How many statements of a bulk operation that raised ended in each way; else None."""

    address: tuple[str, int | None] | None
    """Host and port of the server of the latest attempt; None if none was chosen."""

    sent_statements: int
    """How many statements its commands have had, for which an attempt was made."""

    notes: dict[Any, Any] = field(repr=False, compare=False)
    """What hooks keep about the operation."""


Event: TypeAlias = OperationBegan | AttemptBegan | AttemptEnded | RetryScheduled | OperationEnded
"""What a hook can be told of. No document, filter or credential is part of any, unless a hook asks
for :attr:`SentCommand.document`."""


class Hook(Protocol):
    """A callable that is told of retries, on the event loop.

    It must return quickly. What it raises is logged and otherwise ignored: a hook can't fail a
    write. Only :exc:`KeyboardInterrupt` and :exc:`SystemExit` end the event loop, in its next step.
    """

    def __call__(self, event: RetryScheduled, /) -> object:
        """Take note of a retry.

        Args:
            event: What happened.

        Returns:
            Anything; it is ignored.
        """


class EventHook(Protocol):
    """A callable that is told of every event; :func:`every_event` makes one of any callable.

    The rules of a :class:`Hook` are its rules too. One with an attribute ``wants_beginnings`` that
    is False is not told of :class:`OperationBegan` and :class:`AttemptBegan`, and costs less.
    """

    @property
    def wants_every_event(self) -> bool:
        """True; a callable without it is told of retries only, and costs other writes nothing."""
        ...

    def __call__(self, event: Event, /) -> object:
        """Take note of an event.

        Args:
            event: What happened.

        Returns:
            Anything; it is ignored.
        """


@dataclass(slots=True)
class _EveryEvent:
    """A callable that is told of every event."""

    hook: Callable[[Event], object]
    wants_every_event: bool = True

    def __call__(self, event: Event, /) -> object:
        return self.hook(event)


def every_event(hook: Callable[[Event], object]) -> EventHook:
    """Have a callable told of every event, and not of retries only.

    Args:
        hook: The callable.

    Returns:
        What to give to the client as a hook. It can be used as a decorator.
    """
    return _EveryEvent(hook)


def log_retries(event: RetryScheduled) -> None:
    """Log an event at DEBUG to the logger ``aioretry``: the hook that is always there.

    One line at WARNING tells how many writes a server has failed, a second after the first of them.

    Args:
        event: What happened. No document, filter or credential is part of it.
    """
    _logger.debug(
        "retrying %s on %s: attempt %d on %s failed with %s (code %s); waiting %.3f s",
        event.operation,
        event.namespace,
        event.attempt,
        _host(event.address),
        event.error_class,
        event.error_code,
        event.wait,
        extra={"aioretry": event},
    )


def publish(hooks: tuple[Hook, ...], event: RetryScheduled) -> None:
    """Tell hooks of a retry; a hook that fails is logged and does not fail the write."""
    for hook in hooks:
        try:
            hook(event)
        except BaseException as exc:  # noqa: BLE001 - else a write would wait for ever
            _survive(hook, exc)


def publish_to_all(hooks: tuple[EventHook, ...], event: Event) -> None:
    """Tell hooks of any event, likewise."""
    for hook in hooks:
        try:
            hook(event)
        except BaseException as exc:  # noqa: BLE001 - else a write would wait for ever
            _survive(hook, exc)


def wanting_every_event(hooks: tuple[Hook, ...]) -> tuple[EventHook, ...]:
    """Return those of some hooks that are told of every event."""
    return tuple(
        cast(EventHook, hook) for hook in hooks if getattr(hook, "wants_every_event", False) is True
    )


def wanting_beginnings(hooks: tuple[EventHook, ...]) -> tuple[EventHook, ...]:
    """Return those of some hooks that are told of beginnings."""
    return tuple(hook for hook in hooks if getattr(hook, "wants_beginnings", True) is not False)


def name_of(address: tuple[str, int | None]) -> str:
    """Return a server's address as a connection string has it."""
    host, port = address
    if port is None:  # the path of a socket
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host(address: tuple[str, int | None] | None) -> str:
    return "no server" if address is None else name_of(address)


def _survive(hook: object, exc: BaseException) -> None:
    if not isinstance(exc, KeyboardInterrupt | SystemExit):
        _logger.error("a hook failed: %r", hook, exc_info=exc)
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise exc from None
    # It ends the loop, but from a step of its own: what is being told of is brought to its end.
    loop.call_soon(_raise, exc)


def _raise(exc: BaseException) -> NoReturn:
    raise exc
