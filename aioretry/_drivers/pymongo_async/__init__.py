"""The room of PyMongo's asynchronous client: its own transports, and tasks for what may wait."""

from typing import TYPE_CHECKING

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from aioretry._drivers.engine.options import encrypts, is_load_balanced, policy, timeout
from aioretry._drivers.engine.silence import Uses
from aioretry._drivers.port import SessionCalls
from aioretry._drivers.pymongo_async.client import AsyncMongoClient
from aioretry._drivers.pymongo_async.driver import AsyncioDriver
from aioretry._drivers.pymongo_async.pools import pool_class
from aioretry._drivers.pymongo_async.sessions import (
    AsyncioSessionCalls,
    bound_session,
    new_session,
)

if TYPE_CHECKING:
    from pymongo.client_session_shared import TransactionOptions
else:  # PyMongo 4.17 has it here alone
    from pymongo.asynchronous.client_session import TransactionOptions

session_calls: SessionCalls = AsyncioSessionCalls()

__all__ = [
    "AsyncClientSession",
    "AsyncCollection",
    "AsyncDatabase",
    "AsyncMongoClient",
    "AsyncioDriver",
    "TransactionOptions",
    "Uses",
    "bound_session",
    "encrypts",
    "is_load_balanced",
    "new_session",
    "policy",
    "pool_class",
    "session_calls",
    "timeout",
]
