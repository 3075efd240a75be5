"""The resilient write path for asyncio services on MongoDB.

A write is retried through failovers and executed at most once; its error says what became of it.

    aioretry.pymongo.AsyncRetryClient   an AsyncMongoClient, with writes that survive failovers
    RetryClient                         the same on Motor: an AsyncIOMotorClient
    deadline(seconds)                   a block whose writes are retried for as long as time allows
    outcome_of(exc), Outcome            whether a write that raised was applied, or nobody knows
    resolve(exc)                        finds that out, and ends the write
    attempts_of(exc)                    which servers were tried, when, and what came of it
    partial_result_of(exc)              what a bulk operation has done before it raised
    transaction(client)                 a block that is one transaction, run once
    run_transaction(client, callback)   a transaction that is run again when it has to be
    ready(client), drain(client)        the start and the end of a service

Further: ``aioretry.idempotent``, ``aioretry.streams`` and ``aioretry.outbox`` (recipes),
``aioretry.fastapi``, ``aioretry.aiohttp`` and ``aioretry.asgi`` (web services),
``aioretry.telemetry``, and ``aioretry.testing`` (real servers, and faults for them, in tests).
``python -m aioretry`` says which commands there are. The pages, from a tutorial to errors by their
text, are in the folder ``docs`` of the source; ``docs/index.md`` has all of them.
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
