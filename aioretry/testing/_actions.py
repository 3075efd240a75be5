"""What faults do. Each is a plain description; the conversation and the links carry it out."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_STATE_CHANGES: Final = (91, 189, 10107, 11600, 11602, 13435, 13436)
_NETWORK_ERRORS: Final = frozenset({6, 7, 89, 262, 9001})


@dataclass(frozen=True, slots=True)
class DropRequest:
    """The command never reaches the server; the client's connection is closed."""


@dataclass(frozen=True, slots=True)
class DropReply:
    """The server runs the command and answers; the client's connection is closed instead."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing goes on until the fault is disarmed; then what was held goes on."""

    applied: bool


@dataclass(frozen=True, slots=True)
class Delay:
    """Nothing goes on for a while, in seconds, and for at most the jitter longer."""

    seconds: float
    applied: bool
    jitter: float

    def draw(self) -> float:
        """Give how long this time."""
        return self.seconds + random.uniform(0, self.jitter)


@dataclass(frozen=True, slots=True)
class TruncateReply:
    """The client gets the beginning of the reply, in bytes; then its connection is closed."""

    size: int


@dataclass(frozen=True, slots=True)
class CorruptReply:
    """The client gets a reply of the right length that holds no document."""


@dataclass(frozen=True, slots=True)
class Error:
    """The client gets an error: instead of the command's run, or instead of its answer."""

    body: Mapping[str, Any]
    labels: tuple[str, ...] | None  # None: those that a server would give
    applied: bool


@dataclass(frozen=True, slots=True)
class WriteConcernError:
    """The server runs the command, and a write concern error is put into its answer."""

    body: Mapping[str, Any]
    labels: tuple[str, ...] | None  # None: those that a server would give


@dataclass(frozen=True, slots=True)
class Slow:
    """Command and answer trickle."""

    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Observe:
    """Nothing is done; it is counted."""


@dataclass(frozen=True, slots=True)
class RefuseConnections:
    """New connections are reset as soon as they are made."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Nothing passes in either direction; what was sent waits.

    Attributes:
        isolated: the ports of the members that are parted from the others; None to part whoever
            connects from the server.
    """

    isolated: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Throttle:
    """So much passes in a second in each direction, and is read no faster."""

    bytes_per_second: float


Action = (
    DropRequest
    | DropReply
    | Hang
    | Delay
    | TruncateReply
    | CorruptReply
    | Error
    | WriteConcernError
    | Slow
    | Observe
    | RefuseConnections
    | Partition
    | Throttle
)


def labels_for(command: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the labels of a server from 4.4 on for an error that is worth another try."""
    if "commitTransaction" in command or "abortTransaction" in command:
        return ("RetryableWriteError",)
    if "autocommit" in command:
        return ("TransientTransactionError",)
    return ("RetryableWriteError",) if "txnNumber" in command else ()


def is_retryable(error: Mapping[str, Any]) -> bool:
    """Say whether a server labels an error."""
    return is_state_change(error) or error.get("code") in _NETWORK_ERRORS


def is_state_change(error: Mapping[str, Any]) -> bool:
    """Say whether an error tells that a server is no primary any more, or is shutting down."""
    return error.get("code") in _STATE_CHANGES
