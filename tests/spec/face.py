"""A blocking face over clients whose methods are awaited, for PyMongo's own runner of the tests.

It is a pytest plugin of the process that runs PyMongo's tests (`test_pymongos`); their
clients are then of the kind that `AIORETRY_SPEC_CLIENT` names.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any

from motor.core import (
    AgnosticBaseCursor,
    AgnosticChangeStream,
    AgnosticClient,
    AgnosticClientSession,
    AgnosticCollection,
    AgnosticCursor,
    AgnosticDatabase,
)
from pymongo.synchronous.change_stream import ChangeStream
from pymongo.synchronous.client_session import ClientSession
from pymongo.synchronous.collection import Collection
from pymongo.synchronous.command_cursor import CommandCursor
from pymongo.synchronous.cursor import Cursor
from pymongo.synchronous.database import Database
from pymongo.synchronous.mongo_client import MongoClient

from tests.spec.kinds import KINDS, awaited

PATIENCE = 120.0  # seconds for one call
CLIENT_VARIABLE = "AIORETRY_SPEC_CLIENT"

loop = asyncio.new_event_loop()


def pytest_configure() -> None:
    """Have the tests' clients be others; what looks at the servers stays PyMongo's own."""
    import test  # PyMongo's

    threading.Thread(target=loop.run_forever, daemon=True).start()
    make = KINDS[os.environ[CLIENT_VARIABLE]].make

    def rs_or_single_client(case: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        context = test.client_context
        defaults = {**context.default_client_options, "replicaSet": context.replica_set_name}
        client = _run(
            lambda: make(host or context.host, port or context.port, **defaults | options)
        )
        case.addCleanup(loop.call_soon_threadsafe, client.close)
        return _faced(client)

    test.PyMongoTestCase.rs_or_single_client = rs_or_single_client


def _run(function: Callable[[], Any]) -> Any:
    """Call a function on the event loop, and wait for what it returns."""

    async def call() -> Any:
        result = await awaited(function())
        if isinstance(result, AgnosticChangeStream):
            await result.__aenter__()  # which Motor opens no sooner
        return result

    return asyncio.run_coroutine_threadsafe(call(), loop).result(PATIENCE)


def _faced(value: Any) -> Any:
    return next((face(value) for kind, face in FACES.items() if isinstance(value, kind)), value)


def _bare(value: Any) -> Any:
    return value.motor if isinstance(value, Face) else value


class Face:
    """What looks like an object of PyMongo's, and is one of Motor's; what is private is its own."""

    def __init__(self, motor: Any) -> None:
        self.__dict__["motor"] = motor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return getattr(self.motor.delegate, name)
        return _faced(self.motor[name])

    def __getitem__(self, name: str) -> Any:
        return _faced(self.motor[name])

    def __del__(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return bool(self.motor == _bare(other))

    __hash__ = None


class _Listed:
    """The documents of a cursor."""

    motor: Any

    def next(self) -> Any:
        document = _run(lambda: anext(self.motor, None))
        if document is None:
            raise StopIteration
        return document

    def __next__(self) -> Any:
        return self.next()


class _Transacting:
    """A session whose callbacks block."""

    motor: Any

    def with_transaction(self, callback: Callable[[Any], Any], *args: Any, **options: Any) -> Any:
        async def call_back(_: Any) -> Any:
            return await asyncio.to_thread(callback, self)

        return _run(lambda: self.motor.with_transaction(call_back, *args, **options))


class _Connected:
    """A client that connects by itself."""

    def _connect(self) -> None:
        pass


def _forwarded(name: str) -> Any:
    def call(face: Any, *args: Any, **options: Any) -> Any:
        method = getattr(face.motor, name, None) or getattr(face.motor.delegate, name)
        given = [_bare(each) for each in args]
        named = {key: _bare(value) for key, value in options.items()}
        return _faced(_run(lambda: method(*given, **named)))

    return call


def _property(name: str) -> property:
    def get(face: Any) -> Any:
        found = getattr(face.motor, name, None)
        is_entity = isinstance(found, AgnosticClient | AgnosticDatabase)
        return _faced(found) if is_entity else getattr(face.motor.delegate, name)

    return property(get)


def _face_of(kind: type, *more: type) -> type:
    public = {name for name in dir(kind) if not name.startswith("_")}
    public -= {name for each in more for name in vars(each)}
    members = {
        name: (
            _property if isinstance(inspect.getattr_static(kind, name), property) else _forwarded
        )(name)
        for name in public
    }
    return type(kind.__name__, (Face, *more, kind), members)


FACES: dict[type, Callable[[Any], Any]] = {
    AgnosticClient: _face_of(MongoClient, _Connected),
    AgnosticDatabase: _face_of(Database),
    AgnosticCollection: _face_of(Collection),
    AgnosticClientSession: _face_of(ClientSession, _Transacting),
    AgnosticChangeStream: _face_of(ChangeStream, _Listed),
    AgnosticCursor: _face_of(Cursor, _Listed),
    AgnosticBaseCursor: _face_of(CommandCursor, _Listed),
}
