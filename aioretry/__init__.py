"""The resilient write path for asyncio services on MongoDB.

A module imports only from lower lines; those above the public names import from these alone:

    __main__  _demo  _doctor             the command line, the demo, the doctor
    fastapi                              on asgi, in FastAPI's words
    aiohttp  asgi  _web                  in a service: client, deadlines, problems, probes, keys
    telemetry                            hooks for spans and metrics
    outbox                               effects outside the database
    idempotent  streams                  safe repetitions, aggregates that follow
    _cli  _faces                         what commands share; either driver's client, to these
    -                                    the public names
    client  pymongo                      Motor's or PyMongo's classes, their writes retried
    database  session
    collection
    lifecycle  operation                 start, probes, end; one operation and its history
    _writes                              what a caller holds: single, bulk, group commit, resolve
    _retry                               what is retried: the loop, selection, sessions, verdict
    _drivers                             how it is sent: the port, the engine, two drivers
    _commands                            how it is built, and its reply read; pure
    events  sources                      what hooks and keys are told
    deadlines  errors                    what users see of a write, and its time limit
    _installed                           whether it is this package that is installed

``testing`` is the public test kit; it stands beside this table.
"""

__distribution__ = "aioretry-mongo"

import importlib
from typing import TYPE_CHECKING

from aioretry import _installed
from aioretry._drivers.port import ConnectionCounts, ThreadCounts
from aioretry._writes.context import connection_counts, thread_counts
from aioretry._writes.resolve import resolve
from aioretry._writes.transactions import run_transaction, transaction
from aioretry.deadlines import Deadline, deadline, detached
from aioretry.errors import (
    Attempt,
    ClientDraining,
    DeadlineExceeded,
    Outcome,
    PartialResult,
    ResolveError,
    TooManyWaiting,
    WritesUnavailableError,
    attempts_of,
    outcome_of,
    partial_result_of,
)
from aioretry.events import (
    AttemptBegan,
    AttemptEnded,
    Event,
    EventHook,
    Hook,
    OperationBegan,
    OperationEnded,
    RetryScheduled,
    SentCommand,
    every_event,
)
from aioretry.lifecycle import Drained, Health, drain, liveness, readiness, ready
from aioretry.operation import Operation
from aioretry.sources import (
    KeyedStatement,
    KnownReply,
    OperationKey,
    SessionId,
    StatementSource,
)

if TYPE_CHECKING:
    from aioretry.client import RetryClient
    from aioretry.collection import RetryMotorCollection
    from aioretry.database import RetryMotorDatabase
    from aioretry.session import RetryMotorClientSession

__all__ = [
    "Attempt",
    "AttemptBegan",
    "AttemptEnded",
    "ClientDraining",
    "ConnectionCounts",
    "Deadline",
    "DeadlineExceeded",
    "Drained",
    "Event",
    "EventHook",
    "Health",
    "Hook",
    "KeyedStatement",
    "KnownReply",
    "Operation",
    "OperationBegan",
    "OperationEnded",
    "OperationKey",
    "Outcome",
    "PartialResult",
    "ResolveError",
    "RetryClient",
    "RetryMotorClientSession",
    "RetryMotorCollection",
    "RetryMotorDatabase",
    "RetryScheduled",
    "SentCommand",
    "SessionId",
    "StatementSource",
    "ThreadCounts",
    "TooManyWaiting",
    "WritesUnavailableError",
    "attempts_of",
    "connection_counts",
    "deadline",
    "detached",
    "drain",
    "every_event",
    "liveness",
    "outcome_of",
    "partial_result_of",
    "readiness",
    "ready",
    "resolve",
    "run_transaction",
    "thread_counts",
    "transaction",
]

__version__ = "0.1.0"

_OF_MOTOR = {
    "RetryClient": "client",
    "RetryMotorClientSession": "session",
    "RetryMotorCollection": "collection",
    "RetryMotorDatabase": "database",
}


def __getattr__(name: str) -> object:
    """Import what needs Motor when it is first asked for, so that all else works without it."""
    if name not in _OF_MOTOR:
        raise _installed.missing(name)
    try:
        found: object = getattr(importlib.import_module(f"aioretry.{_OF_MOTOR[name]}"), name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "motor":
            raise
        raise ImportError(
            f"aioretry.{name} needs Motor: pip install motor. Without it there is "
            "aioretry.pymongo.AsyncRetryClient, on PyMongo's own asyncio client."
        ) from exc
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
