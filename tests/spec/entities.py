"""What the operations of a test are called on: clients, collections, sessions, by their ids."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pymongo
from pymongo.asynchronous import client_session
from pymongo.client_session import TransactionOptions

from tests.spec.deployments import Deployment
from tests.spec.events import Recorder
from tests.spec.kinds import ClientKind, awaited
from tests.spec.options import options_of
from tests.spec.unsupported import UnsupportedError, require_known

_CLIENT = {
    "id",
    "uriOptions",
    "useMultipleMongoses",
    "observeEvents",
    "ignoreCommandMonitoringEvents",
    "awaitMinPoolSizeMS",
}
_DATABASE = {"id", "client", "databaseName", "databaseOptions"}
_COLLECTION = {"id", "database", "collectionName", "collectionOptions"}
_SESSION = {"id", "client", "sessionOptions"}
_BUCKET = {"id", "database"}
# A server that a fail point makes say that it shuts down, and which does not, tells nobody of it
# before it is asked again.
_DEFAULTS = {"heartbeatFrequencyMS": 500}


class Entities:
    """The entities of one test.

    Args:
        deployment: What the clients are clients of.
        kind: Which clients they are.
        with_login: Whether they authenticate.
    """

    def __init__(
        self, deployment: Deployment, kind: ClientKind, *, with_login: bool = False
    ) -> None:
        self.recorders: dict[str, Recorder] = {}
        self.lsids: dict[str, Any] = {}
        """Of the sessions, ended ones too."""

        self.to_close: list[Any] = []
        """Change streams that were opened."""

        self._deployment = deployment
        self._kind = kind
        self._with_login = with_login
        self._entities: dict[str, tuple[str, Any]] = {}

    def get(self, name: str, kind: str | None = None) -> tuple[str, Any]:
        """The kind and the object of an entity.

        Raises:
            UnsupportedError: There is none of this name and kind.
        """
        found = self._entities.get(name)
        if found is None or kind not in {None, found[0]}:
            raise UnsupportedError(f"no {kind or 'entity'} is called {name}")
        return found

    def pymongos_session(self, name: str) -> Any:
        """PyMongo's own session of an entity: itself, or what Motor's wraps."""
        session = self.get(name, "session")[1]
        return getattr(session, "delegate", session)

    async def create(self, descriptions: Sequence[Mapping[str, Any]]) -> None:
        """Create entities.

        Raises:
            UnsupportedError: One is not known here.
        """
        for description in descriptions:
            [(kind, content)] = description.items()
            match kind:
                case "client":
                    made = self._client(content)
                case "database":
                    made = self._database(content)
                case "collection":
                    made = self._collection(content)
                case "session":
                    made = await self._session(content)
                case "bucket":
                    made = self._bucket(content)
                case _:
                    raise UnsupportedError(f"the entity {kind}")
            self._entities[content["id"]] = (kind, made)
            if "awaitMinPoolSizeMS" in content:
                await self._fill_pool(made, content)

    def client_of(self, host: str, port: int) -> Any:
        """Make a client of one router, which is closed with the others."""
        client = self._kind.make(f"mongodb://{host}:{port}/")
        self._entities[f"{host}:{port}"] = ("client", client)
        return client

    def add(self, name: str, result: Any) -> None:
        """Keep the result of an operation."""
        self._entities[name] = ("result", result)

    async def close(self) -> None:
        """Close what is open."""
        for stream in self.to_close:
            await stream.close()
        for kind, entity in self._entities.values():
            if kind == "session":
                await entity.end_session()
        for kind, entity in self._entities.values():
            if kind == "client":
                await awaited(entity.close())

    def _client(self, content: Mapping[str, Any]) -> Any:
        require_known("a client", content, _CLIENT)
        recorder = Recorder(
            content.get("observeEvents", []), content.get("ignoreCommandMonitoringEvents", [])
        )
        several = content.get("useMultipleMongoses", False)
        options = content.get("uriOptions", {})
        self.recorders[content["id"]] = recorder
        return self._kind.make(
            self._deployment.uri(several_routers=several, with_login=self._with_login),
            event_listeners=[recorder],
            **(_DEFAULTS | options),
        )

    async def _fill_pool(self, client: Any, content: Mapping[str, Any]) -> None:
        recorder = self.recorders[content["id"]]
        count, seconds = content["uriOptions"]["minPoolSize"], content["awaitMinPoolSizeMS"] / 1000
        with pymongo.timeout(seconds):  # and not the client's own
            await client.admin.command("ping")
        await _wait_for_connections(recorder, count, seconds)
        recorder.forget()

    def _database(self, content: Mapping[str, Any]) -> Any:
        require_known("a database", content, _DATABASE)
        client = self.get(content["client"], "client")[1]
        options = options_of("databaseOptions", content.get("databaseOptions", {}))
        return client.get_database(content["databaseName"], **options)

    def _collection(self, content: Mapping[str, Any]) -> Any:
        require_known("a collection", content, _COLLECTION)
        database = self.get(content["database"], "database")[1]
        options = options_of("collectionOptions", content.get("collectionOptions", {}))
        return database.get_collection(content["collectionName"], **options)

    async def _session(self, content: Mapping[str, Any]) -> Any:
        require_known("a session", content, _SESSION)
        client = self.get(content["client"], "client")[1]
        options = options_of("sessionOptions", content.get("sessionOptions", {}))
        if (defaults := options.get("default_transaction_options")) is not None:
            given = options_of("defaultTransactionOptions", defaults)
            kind = TransactionOptions
            if isinstance(client, pymongo.AsyncMongoClient):
                kind = client_session.TransactionOptions  # another one, in PyMongo 4.17
            options["default_transaction_options"] = kind(**given)
        session = await awaited(client.start_session(**options))
        self.lsids[content["id"]] = session.session_id
        return session

    def _bucket(self, content: Mapping[str, Any]) -> Any:
        require_known("a bucket", content, _BUCKET)
        return self._kind.make_bucket(self.get(content["database"], "database")[1])


async def _wait_for_connections(recorder: Recorder, count: int, seconds: float) -> None:
    """Wait until the pool of the server that was asked has so many connections.

    Raises:
        TimeoutError: It has not in time.
    """
    ends = time.monotonic() + seconds
    while recorder.ready < count:
        if time.monotonic() > ends:
            raise TimeoutError(f"no {count} connections within {seconds:g} seconds")
        await asyncio.sleep(0.01)
