"""What happens inside a write, told to hooks and to the logger ``aioretry``."""

import logging
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Hook", "RetryScheduled", "log_retries"]

_logger = logging.getLogger("aioretry")


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """An attempt failed, and the command will be sent again."""

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


class Hook(Protocol):
    """A callable that is told of every event, on the event loop.

    It must return quickly. What it raises is logged and otherwise ignored: a hook can't fail a
    write.
    """

    def __call__(self, event: RetryScheduled, /) -> object:
        """Take note of an event.

        Args:
            event: What happened.

        Returns:
            Anything; it is ignored.
        """


def log_retries(event: RetryScheduled) -> None:
    """Log an event at WARNING to the logger ``aioretry``: the hook that is always there.

    Args:
        event: What happened. No document, filter or credential is part of it.
    """
    _logger.warning(
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
    """Tell every hook of an event; a hook that fails is logged and does not fail the write."""
    for hook in hooks:
        try:
            hook(event)
        except Exception:
            _logger.exception("a hook failed: %r", hook)


def _host(address: tuple[str, int | None] | None) -> str:
    return "no server" if address is None else f"{address[0]}:{address[1]}"
