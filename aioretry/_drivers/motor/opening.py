"""A connection that a thread opens, for an attempt that the event loop makes then."""

from aioretry._drivers.engine.entry import Entry
from aioretry._drivers.engine.steps import Steps, time_limit
from aioretry._drivers.port import AttemptResult
from aioretry._drivers.threads import Job


class Opening(Job):
    """Opens a connection and leaves it to its pool; the event loop takes it from there.

    Args:
        steps: What it has in common with the attempts.
        entry: Who has the attempt made that it is wanted for.
    """

    __slots__ = ("_call", "_entry", "_steps")

    def __init__(self, steps: Steps, entry: Entry) -> None:
        super().__init__(self._report)
        self._steps = steps
        self._entry = entry
        self._call = entry.call

    def end(self) -> None:
        """End nothing: the connection is of use to others when it is open."""

    def _report(self) -> None:
        result = self._entry.context.copy().run(self._open)
        self._entry.opened_from_thread(result)

    def _open(self) -> AttemptResult | None:
        call, steps = self._call, self._steps
        try:
            server = steps.driver_server(call)
            call.is_waiting = True  # it may hang there, and the server be deposed meanwhile
            checkout = steps.delegate._checkout(server, None)
            with time_limit(call.deadline, server), checkout:
                pass
        except BaseException as exc:  # noqa: BLE001 - the verdict is the coordinator's
            return steps.failed(call, exc)
        return None
