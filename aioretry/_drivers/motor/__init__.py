"""The room of Motor's client: sockets of PyMongo's pools, and threads for what may block."""

from motor.core import AgnosticClientSession
from motor.motor_asyncio import AsyncIOMotorClientSession
from pymongo.client_session import ClientSession, TransactionOptions  # type: ignore[attr-defined]
from pymongo.collection import Collection
from pymongo.database import Database

from aioretry._drivers.engine.messages import add_requests, encode_documents
from aioretry._drivers.engine.options import (
    encrypts,
    is_load_balanced,
    policy,
    timeout,
)
from aioretry._drivers.engine.silence import Uses
from aioretry._drivers.motor.delegate import MongoClient
from aioretry._drivers.motor.driver import MotorDriver
from aioretry._drivers.motor.framework import (
    AsyncIOMotorClient,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
)
from aioretry._drivers.motor.pools import pool_class
from aioretry._drivers.motor.sessions import MotorSessionCalls
from aioretry._drivers.port import SessionCalls

session_calls: SessionCalls = MotorSessionCalls()

__all__ = [
    "AgnosticClientSession",
    "AsyncIOMotorClient",
    "AsyncIOMotorClientSession",
    "AsyncIOMotorCollection",
    "AsyncIOMotorDatabase",
    "ClientSession",
    "Collection",
    "Database",
    "MongoClient",
    "MotorDriver",
    "TransactionOptions",
    "Uses",
    "add_requests",
    "encode_documents",
    "encrypts",
    "is_load_balanced",
    "policy",
    "pool_class",
    "session_calls",
    "timeout",
]
