"""What both kinds of telemetry say of events, and of clients."""

import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from aioretry import (
    AttemptEnded,
    OperationEnded,
    Outcome,
    RetryScheduled,
    connection_counts,
    thread_counts,
)
from aioretry._faces import Client
from aioretry.events import name_of

T = TypeVar("T")

BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
"""The bounds of durations, in seconds, that the semantic conventions advise."""

WAIT_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The bounds of times that were spent waiting for a server, in seconds."""

_COMMANDS: Final = {
    "find_one": "find",
    "count_documents": "aggregate",
    "estimated_document_count": "estimatedDocumentCount",
    "insert_one": "insert",
    "insert_many": "insert",
    "update_one": "update",
    "update_many": "update",
    "replace_one": "update",
    "delete_one": "delete",
    "delete_many": "delete",
    "find_one_and_delete": "findAndModify",
    "find_one_and_replace": "findAndModify",
    "find_one_and_update": "findAndModify",
    "bulk_write": "bulkWrite",
    "commit_transaction": "commitTransaction",
    "abort_transaction": "abortTransaction",
    "with_transaction": "withTransaction",
}


def command_of(operation: str) -> str:
    """Return how other drivers call an operation (OpenTelemetry, "Covered operations")."""
    return _COMMANDS.get(operation, operation)


def reason_of(event: AttemptEnded | RetryScheduled | OperationEnded) -> str:
    """Return an error's code, or its class if it is not the server's; empty if there is none."""
    return event.error_class or "" if event.error_code is None else str(event.error_code)


def outcome_of_event(event: OperationEnded) -> str:
    """Return the outcome; ``partial`` if parts of a bulk operation are known to differ."""
    statements = event.statements
    if event.outcome is Outcome.UNKNOWN and statements and Outcome.UNKNOWN not in statements:
        return "partial"
    return event.outcome.name.lower()


def is_first_told(event: AttemptEnded, who: object) -> bool:
    """Tell whether an attempt's end is told for the first time, whatever operations share it."""
    told: set[int] = event.attempt_notes.setdefault("told", set())
    is_first = id(who) not in told
    told.add(id(who))
    return is_first


def waited_in_vain(event: AttemptEnded) -> bool:
    """Tell whether an attempt ended because no connection was free for it in time."""
    return event.error_class == "WaitQueueTimeoutError"


class Observed(Generic[T]):
    """What is looked at, for as long as anybody else has it."""

    def __init__(self) -> None:
        # By identity: clients of one deployment are equal.
        self._known: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, one: T) -> None:
        """Look at it from now on."""
        self._known[id(one)] = one

    def all(self) -> list[T]:
        """Return what is still there."""
        # Another thread may ask, and so they may come and go meanwhile.
        known = [reference() for reference in self._known.valuerefs()]
        return [one for one in known if one is not None]


class Clients(Observed[Client]):
    """Clients that are looked at."""

    def add(self, one: Client) -> None:
        """Look at a client from now on.

        Raises:
            TypeError: It is a client of another class.
        """
        connection_counts(one)  # else all that is read with it would fail, time after time
        super().add(one)

    def connections(self) -> Mapping[tuple[str, str], int]:
        """Return how many connections there are, by server and state."""
        found: Counter[tuple[str, str]] = Counter()
        for client in self.all():
            for address, counts in connection_counts(client).items():
                server = name_of(address)
                found[server, "used"] += counts.used
                found[server, "idle"] += counts.idle
        return found

    def most_connections(self) -> Mapping[str, int]:
        """Return how many connections there may be, by server; where there is no limit, nothing."""
        found: Counter[str] = Counter()
        for client in self.all():
            for address, counts in connection_counts(client).items():
                found[name_of(address)] += counts.most
        return +found

    def pending(self) -> Mapping[str, int]:
        """Return how many attempts wait for a connection, by all servers that their client has."""
        found: Counter[str] = Counter()
        for client in self.all():
            servers = ",".join(sorted(map(name_of, connection_counts(client))))
            found[servers] += thread_counts(client).queued
        return found

    def threads(self) -> Mapping[str, int]:
        """Return how many threads there are, by state."""
        found = Counter({"busy": 0, "idle": 0, "abandoned": 0})
        for client in self.all():
            counts = thread_counts(client)
            found["idle"] += counts.idle
            found["abandoned"] += counts.abandoned
            found["busy"] += max(0, counts.threads - counts.idle - counts.abandoned)
        return found

    def queued(self) -> int:
        """Return how many attempts wait for a connection or a thread."""
        return sum(thread_counts(client).queued for client in self.all())
