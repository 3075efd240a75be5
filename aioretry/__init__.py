"""The resilient write path for asyncio services on MongoDB, built on Motor.

A module imports only from lower lines; those above the public names import from these alone:

    __main__  _demo  _doctor             the command line, the demo, the doctor
    aiohttp  fastapi  _web               in a service: client, deadlines, problem details, keys
    idempotent  streams  telemetry       safe repetitions, aggregates that follow, hooks
    -                                    the public names
    client                               Motor's classes, their writes retried
    database  session
    collection
    operation                            one operation: session, deadline, history
    _writes                              what a caller holds: single, bulk, group commit, resolve
    _retry                               what is retried: the loop, selection, sessions, verdict
    _drivers                             how it is sent: the port, and Motor behind it
    _commands                            how it is built, and its reply read; pure
    events  sources                      what hooks and keys are told
    deadlines  errors                    what users see of a write, and its time limit

``testing`` is the public test kit; it stands beside this table.
"""

from aioretry._drivers.port import ConnectionCounts, ThreadCounts
from aioretry._writes.resolve import resolve
from aioretry.client import RetryClient, connection_counts, thread_counts
from aioretry.collection import RetryMotorCollection
from aioretry.database import RetryMotorDatabase
from aioretry.deadlines import Deadline, deadline, detached
from aioretry.errors import (
    Attempt,
    DeadlineExceeded,
    Outcome,
    PartialResult,
    ResolveError,
    TooManyWaiting,
    attempts_of,
    outcome_of,
    partial_result_of,
)
from aioretry.events import (
    AttemptEnded,
    Event,
    EventHook,
    Hook,
    OperationBegan,
    OperationEnded,
    RetryScheduled,
    every_event,
)
from aioretry.operation import Operation
from aioretry.session import RetryMotorClientSession, run_transaction
from aioretry.sources import (
    KeyedStatement,
    KnownReply,
    OperationKey,
    SessionId,
    StatementSource,
)

__all__ = [
    "Attempt",
    "AttemptEnded",
    "ConnectionCounts",
    "Deadline",
    "DeadlineExceeded",
    "Event",
    "EventHook",
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
    "SessionId",
    "StatementSource",
    "ThreadCounts",
    "TooManyWaiting",
    "attempts_of",
    "connection_counts",
    "deadline",
    "detached",
    "every_event",
    "outcome_of",
    "partial_result_of",
    "resolve",
    "run_transaction",
    "thread_counts",
]

__version__ = "0.1.0"
