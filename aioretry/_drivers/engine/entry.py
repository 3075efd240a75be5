"""An attempt under way, for whoever makes it and for whoever has it made."""

import asyncio
import contextlib
import contextvars
from typing import Any, Protocol, TypeAlias

from aioretry._drivers.port import Address, AttemptCall, AttemptResult, NoRoom, Receiver

Held: TypeAlias = tuple[Any, Any]
"""A pool, and a connection that was checked out of it."""


class Dispatcher(Protocol):
    """Has attempts made."""

    loop: asyncio.AbstractEventLoop

    def free(self, entry: "Entry") -> None:
        """Have room for another attempt."""
        ...

    def opened(
        self, entry: "Entry", result: AttemptResult | None, held: Held | None = None
    ) -> None:
        """Go on with an attempt for which a connection was opened, or end it with a result."""
        ...

    def abandon(self, entry: "Entry") -> bool:
        """End an attempt without a result; return False if it must be waited for."""
        ...


class Ender(Protocol):
    """An attempt that the event loop makes, as far as it can be ended before its time."""

    def abandon(self) -> None:
        """End it without a result."""
        ...

    def time_out(self) -> None:
        """End it because it has taken too long."""
        ...


class Job(Protocol):
    """What a thread or a task does for an attempt."""

    def end(self) -> None:
        """Give up what it waits for, if anybody gains by it."""
        ...


class Entry:
    """An attempt under way.

    Args:
        dispatch: Has it made.
        call: What is tried.
        receiver: Is told the result.
    """

    __slots__ = (
        "_receiver",
        "call",
        "context",
        "dispatch",
        "is_under_way",
        "job",
        "loop",
        "on_loop",
        "opening",
        "openings",
    )

    def __init__(self, dispatch: Dispatcher, call: AttemptCall, receiver: Receiver) -> None:
        self.dispatch = dispatch
        self.loop = dispatch.loop
        self.call = call
        self._receiver = receiver
        self.context = contextvars.copy_context()
        self.openings = 0
        """How many connections were opened for it before."""

        self.opening: Address | None = None
        """Where a connection is being opened for it."""

        self.is_under_way = False
        self.on_loop: Ender | None = None
        self.job: Job | None = None

    def land(self, result: AttemptResult) -> None:
        """Have room for another attempt, and tell the result of this one."""
        self.dispatch.free(self)
        self.on_loop = self.job = self.call.carrier = None
        self._receiver.land(result)

    def make_way(self) -> None:
        """Let others try who found no room."""
        self._receiver.make_way()

    def land_from_thread(self, result: AttemptResult) -> None:
        """Do as :meth:`land` on the event loop; called by a thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self.loop.call_soon_threadsafe(self.land, result)

    def opened_from_thread(self, result: AttemptResult | None) -> None:
        """Go on with it on the event loop, or end with a result; called by a thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self.loop.call_soon_threadsafe(self.dispatch.opened, self, result)

    def start_again(self) -> None:
        """Have the attempt begun anew, because its connection was gone."""
        self.context.run(self.land, NoRoom())
