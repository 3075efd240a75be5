"""The room of PyMongo's asynchronous client: its own transports, and tasks for what may wait."""

from typing import TYPE_CHECKING

from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from aioretry._drivers.engine.options import encrypts, policy, timeout
from aioretry._drivers.port import SessionCalls
from aioretry._drivers.pymongo_async import sessions
from aioretry._drivers.pymongo_async.driver import AsyncioDriver
from aioretry._drivers.pymongo_async.sessions import bound_session, new_session

if TYPE_CHECKING:
    from pymongo.client_session_shared import TransactionOptions
else:  # PyMongo 4.17 has it here alone
    from pymongo.asynchronous.client_session import TransactionOptions

session_calls: SessionCalls = sessions

__all__ = [
    "AsyncClientSession",
    "AsyncCollection",
    "AsyncDatabase",
    "AsyncMongoClient",
    "AsyncioDriver",
    "TransactionOptions",
    "bound_session",
    "encrypts",
    "new_session",
    "policy",
    "session_calls",
    "timeout",
]
