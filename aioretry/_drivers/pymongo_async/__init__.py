"""The room of PyMongo's asynchronous client: its own transports, and tasks for what may wait."""

from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.client_session_shared import TransactionOptions

from aioretry._drivers.engine.options import encrypts, policy, timeout
from aioretry._drivers.port import SessionCalls
from aioretry._drivers.pymongo_async import sessions
from aioretry._drivers.pymongo_async.driver import AsyncioDriver
from aioretry._drivers.pymongo_async.sessions import bound_session, new_session

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
