"""A connection that a thread opens, for an attempt that the event loop makes then."""

from collections.abc import Callable

from aioretry._drivers.motor.attempts import Attempts, time_limit
from aioretry._drivers.port import AttemptCall, AttemptResult
from aioretry._drivers.threads import Job


class Opening(Job):
    """Opens a connection and leaves it to its pool; the event loop takes it from there.

    Args:
        attempts: What it has in common with the attempts.
        call: What the connection is wanted for.
        deliver: Gets the result on the thread: None, or that of an attempt that ends here.
        run: Calls what it is given, in the context of the user's call.
    """

    __slots__ = ("_attempts", "_call")

    def __init__(
        self,
        attempts: Attempts,
        call: AttemptCall,
        deliver: Callable[[AttemptResult | None], None],
        run: Callable[[Callable[[], AttemptResult | None]], AttemptResult | None],
    ) -> None:
        super().__init__(lambda: deliver(run(self._open)))
        self._attempts = attempts
        self._call = call

    def end(self) -> None:
        """Go on: what is opened is of use to others."""

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
