"""What PyMongo's own command is told of limits: how long it may take, and how large it may be."""

import contextlib
from collections.abc import Iterator
from typing import Any

from bson.son import SON

from aioretry._commands.command import Command
from aioretry._drivers.engine.steps import NotSentError
from aioretry._drivers.port import Expired
from aioretry.deadlines import Deadline

# In seconds: a millisecond, and what may pass until PyMongo looks at the clock.
_LEAST_TIME = 0.002


class TimedBody(SON[str, Any]):
    """A command that is never sent with a limit of 0, by which a server may take for ever.

    PyMongo computes one if less than a millisecond is left by the time that it looks. It copies
    dictionaries of other types.
    """

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, max(1, value) if key == "maxTimeMS" else value)


class _Gate(int):
    """How large a command may be, which PyMongo looks at between building and sending it.

    To build a large one takes its time, so that this is the moment for a last look at the deadline.
    """

    deadline: Deadline | None = None

    def __add__(self, overhead: int) -> int:
        if self.deadline is not None and self.deadline.is_over:
            raise NotSentError(Expired())
        return super().__add__(overhead)


@contextlib.contextmanager
def admitting(connection: Any, command: Command[Any], deadline: Deadline | None) -> Iterator[None]:
    """Have a connection take a command as large as it may be, and in time.

    Args:
        connection: PyMongo's connection.
        command: What is sent inside.
        deadline: When it may no longer be sent.
    """
    # PyMongo's `command` takes the largest document for the largest command; a bulk operation has
    # looked at its documents one by one, and its commands may be as large as a message.
    if not command.may_fill_message and deadline is None:
        yield
        return
    largest = connection.max_bson_size
    gate = _Gate(connection.max_message_size if command.may_fill_message else largest)
    gate.deadline = deadline
    connection.max_bson_size = gate
    try:
        yield
    finally:
        connection.max_bson_size = largest


def has_time(deadline: Deadline | None, server: Any) -> bool:
    """Tell whether a server can answer before a deadline."""
    # PyMongo refuses by itself to send what can't be answered in time, but its error does not tell
    # that nothing was sent; and below a millisecond it sends 0, which is no limit.
    if deadline is None or not deadline.is_limited:
        return True
    round_trip_time: float = server.description.min_round_trip_time
    return deadline.remaining() - round_trip_time > _LEAST_TIME
