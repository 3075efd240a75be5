"""The errors of commands for which there was no time, no server or no room."""

from pymongo.errors import AutoReconnect, InvalidOperation, ServerSelectionTimeoutError

from aioretry._drivers.port import Address
from aioretry._retry.command_execution import Execution
from aioretry.errors import DeadlineExceeded, ResolveError, TooManyWaiting, WritesUnavailableError
from aioretry.events import name_of


def too_late(execution: Execution, last: Exception | None = None) -> DeadlineExceeded:
    """Return the error that says that a command's deadline is over.

    Args:
        execution: The command.
        last: What came of it last; None for the error that would surface.
    """
    last = last or execution.last_error()
    text = f"the deadline of {execution.command.operation} is over"
    if last is None:
        if not execution.attempts:
            return DeadlineExceeded(f"{text}; {_nothing_sent(execution)}")
        return DeadlineExceeded(f"{text}; the server has not answered")
    return DeadlineExceeded(
        f"{text} after {len(execution.attempts)} attempts; the last error: "
        f"{type(last).__name__}: {last}"
    )


def nobody_found(execution: Execution, seconds: float, topology: str) -> Exception:
    """Return what surfaces when no server was found.

    Args:
        execution: The command.
        seconds: How long it has waited for one.
        topology: What is known of the deployment.
    """
    wanted = "takes writes" if execution.command.reading is None else "may be read from"
    error = execution.last_error() or ServerSelectionTimeoutError(
        f"no server that {wanted} was found within {seconds:.3g} s; "
        f"{_nothing_sent(execution)}. Topology: {topology}"
    )
    if execution.time_left() > 0:
        return error
    late = too_late(execution, error)
    late.__cause__ = error
    return late


def too_many_wait(most: int, execution: Execution | None) -> TooManyWaiting:
    """Return the error that says that too many writes wait for a server.

    Args:
        most: How many may.
        execution: The command that is one too many; None if there is none yet.
    """
    return TooManyWaiting(f"{most} writes wait for a server already; {_nothing_sent(execution)}")


def unavailable(seconds: float, execution: Execution) -> WritesUnavailableError:
    """Return what surfaces when no server has taken writes for so long that none is waited for.

    Args:
        seconds: How long that is.
        execution: The command, which was never sent.
    """
    return WritesUnavailableError(
        f"no server has taken writes for {seconds:.3g} s (fail_fast_after); "
        f"{_nothing_sent(execution)}"
    )


def router_lost(pinned: Address) -> AutoReconnect:
    """Return the error of a statement whose transaction no other router knows.

    Args:
        pinned: The router.
    """
    return AutoReconnect(
        f"{name_of(pinned)}: the router that knows the transaction is lost; nothing was sent"
    )


def ineligible(execution: Execution) -> Exception:
    """Return what surfaces when the server that was found can't retry writes."""
    return execution.last_error() or InvalidOperation(
        "the server that takes writes now knows no transaction ids"
    )


def forgotten(execution: Execution) -> Exception:
    """Return what surfaces when a server may not know any more what was sent before."""
    return execution.last_error() or ResolveError(
        "the write can't be resolved: no server was found before one may have forgotten it"
    )


def _nothing_sent(execution: Execution | None) -> str:
    if execution is not None:
        if any(attempt.sent for attempt in execution.attempts):
            return "the command was not sent again"
        if execution.command.is_one_of_many:
            return "nothing of the command that was next was sent"
    return "nothing was sent"
