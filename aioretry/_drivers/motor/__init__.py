"""The room of Motor's client: sockets of PyMongo's pools, and threads for what may block."""

from motor.core import AgnosticClientSession
from motor.motor_asyncio import (
    AsyncIOMotorClient,
    AsyncIOMotorClientSession,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
)
from pymongo.client_session import ClientSession, TransactionOptions  # type: ignore[attr-defined]
from pymongo.collection import Collection
from pymongo.database import Database

from aioretry._drivers.engine.messages import add_requests, copy_labels, encode_documents
from aioretry._drivers.engine.options import (
    encrypts,
    policy,
    timeout,
)
from aioretry._drivers.motor import sessions
from aioretry._drivers.motor.driver import MotorDriver
from aioretry._drivers.port import SessionCalls

session_calls: SessionCalls = sessions

__all__ = [
    "AgnosticClientSession",
    "AsyncIOMotorClient",
    "AsyncIOMotorClientSession",
    "AsyncIOMotorCollection",
    "AsyncIOMotorDatabase",
    "ClientSession",
    "Collection",
    "Database",
    "MotorDriver",
    "TransactionOptions",
    "add_requests",
    "copy_labels",
    "encode_documents",
    "encrypts",
    "policy",
    "session_calls",
    "timeout",
]
