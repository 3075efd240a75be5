"""A connection that a thread opens, for an attempt that the event loop makes then."""

import contextvars
from typing import Protocol

from aioretry._drivers.motor.attempts import Attempts, time_limit
from aioretry._drivers.port import AttemptCall, AttemptResult
from aioretry._drivers.threads import Job


class Entry(Protocol):
    """Who has an attempt made."""

    call: AttemptCall
    context: contextvars.Context
    """That of the user's call."""

    def opened_from_thread(self, result: AttemptResult | None) -> None:
        """Go on, on whichever thread, or end with a result."""
        ...


class Opening(Job):
    """Opens a connection and leaves it to its pool; the event loop takes it from there.

    Args:
        attempts: What it has in common with the attempts.
        entry: Who has the attempt made that it is wanted for.
    """

    __slots__ = ("_attempts", "_call", "_entry")

    def __init__(self, attempts: Attempts, entry: Entry) -> None:
        super().__init__(self._report)
        self._attempts = attempts
        self._entry = entry
        self._call = entry.call

    def end(self) -> None:
        """Go on: what is opened is of use to others."""

    def _report(self) -> None:
        result = self._entry.context.copy().run(self._open)
        self._entry.opened_from_thread(result)

    def _open(self) -> AttemptResult | None:
        call, attempts = self._call, self._attempts
        try:
            server = attempts.driver_server(call)
            call.is_waiting = True  # it may hang there, and the server be deposed meanwhile
            checkout = attempts.delegate._checkout(server, None)
            with time_limit(call.deadline, server), checkout:
                pass
        except BaseException as exc:  # noqa: BLE001 - the verdict is the coordinator's
            return attempts.failed(call, exc)
        return None
