"""One line of log for the loss of a server, however many operations meet it."""

import asyncio
import contextvars
import logging
from collections import Counter
from dataclasses import dataclass, field

from aioretry.events import RetryScheduled, name_of

_logger = logging.getLogger("aioretry")

# Those that are under way at one server fail within the time that it takes to find out about it.
_GATHER_FOR = 1.0


@dataclass(slots=True, eq=False)
class Loss:
    """What happened at one server since somebody failed there."""

    first: RetryScheduled
    timer: asyncio.TimerHandle
    operations: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Losses:
    """Gathers the retries of a moment, and logs them at WARNING. Bound to one event loop.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._losses: dict[tuple[str, int | None] | None, Loss] = {}
        self._context = contextvars.Context()  # nobody's

    def add(self, event: RetryScheduled, operations: int, before: Loss | None) -> Loss:
        """Take note of a retry.

        Args:
            event: What happened.
            operations: How many operations the command is for.
            before: What this returned for the same command the last time.

        Returns:
            The loss that the command is counted in.
        """
        loss = self._losses.get(event.address)
        if loss is None:
            timer = self._loop.call_later(
                _GATHER_FOR, self._tell, event.address, context=self._context
            )
            self._losses[event.address] = loss = Loss(event, timer)
        if loss is not before:
            loss.operations += operations
        loss.errors[_cause_of(event)] += 1
        return loss

    def close(self) -> None:
        """Log what is gathered now."""
        for address in list(self._losses):
            self._tell(address)

    def _tell(self, address: tuple[str, int | None] | None) -> None:
        loss = self._losses.pop(address)
        loss.timer.cancel()
        _logger.warning(
            "retrying %d %s after failures on %s (%s), first %s on %s",
            loss.operations,
            "operation" if loss.operations == 1 else "operations",
            "no server" if address is None else name_of(address),
            ", ".join(f"{cause}: {times}" for cause, times in loss.errors.most_common()),
            loss.first.operation,
            loss.first.namespace,
            extra={"aioretry": loss.first},
        )


def _cause_of(event: RetryScheduled) -> str:
    code = "" if event.error_code is None else f" {event.error_code}"
    return f"{event.error_class}{code}"
