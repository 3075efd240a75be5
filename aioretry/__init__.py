"""The resilient write path for asyncio services on MongoDB, built on Motor.

A module imports only from lower ones:

    fastapi  aiohttp                    in a service: client, deadlines, problem details, keys
    _http                               what these two share
    idempotent                          recipes of writes that can be repeated safely
    streams                             aggregates that follow a collection
    telemetry                           OpenTelemetry and Prometheus, as hooks
    client  session  database  collection
                                        the wrappers around Motor's classes
    _definitions  _overload             what is passed through: overload retries of an old PyMongo
    operation                           one operation: session, deadline, history
    _keyed                              its writes, if it has a key
    _write_path                         the parts that the writes of one client share
    _coalesce                           group commit: inserts that wait, to travel together
    _coalesced  _shared_insert  _shares one of them; their command; what each is told of its end
    _write  _bulk_write                 a write of one command, and of many
    _resolution  _running               writes in doubt; what all writes are as futures
    _vague                              replies of old servers that say too little
    _plans  _bulk                       arguments, commands and result of bulk operations
    _coordinator  _racing               the one retry loop: select, attempt, judge, wait
    _motor  _flight                     the only room that knows the driver; an attempt
    _commands  _statements  _arguments  what is sent, and what users give for it
    _selection  _sessions  _replies     waiting for a server; leases; what replies say
    _watching                           one operation, as hooks are told of it
    _verdict  _transactions  _driver    what follows from an error (pure); the driver's port
    _runs                               the runs of a session's transactions, kept apart
    sources                             who says how a write with a key is sent
    errors  events  deadlines           what users see of a write, and its time limits
    _pymongo_timeout                    PyMongo's timeouts, which its own operations obey

``idempotent``, ``streams``, ``telemetry`` and what stands above are built on the public names.
``testing`` is the public test kit; it stands beside this table.
"""

from aioretry._driver import ConnectionCounts, ThreadCounts
from aioretry._resolution import resolve
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
