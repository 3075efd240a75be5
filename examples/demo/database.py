"""What the database itself says, asked past the proxies."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import sleep, to_thread
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import PyMongoError

from aioretry.testing import NoPrimaryError
from examples.demo.strategies import DATABASE, MAJORITY

T = TypeVar("T")

_PATIENCE = 30.0  # a set that has just been through a failover may be through another one
_PAUSE = 0.25


class DatabaseInUseError(RuntimeError):
    """The set has a database of the demo's name already."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one collection holds."""

    counter: int
    """What its counters add up to."""

    times: Mapping[int, int]
    """How often each event was counted, by its number."""


class Truth:
    """The demo's database, read and written without any fault in between.

    Args:
        find_uri: Returns the URI to ask at the moment.
    """

    def __init__(self, find_uri: Callable[[], Awaitable[str]]) -> None:
        self._find_uri = find_uri

    async def prepare(self, collections: Iterable[str]) -> str:
        """Make the collections, so that the first event of each does not have to.

        Args:
            collections: Their names.

        Returns:
            The version of the server.

        Raises:
            DatabaseInUseError: There is such a database already.
            PyMongoError: The set can't be written to.
        """
        names = list(collections)
        return await self._ask(lambda database: _prepare(database, names), patience=0.0)

    async def count(self, collections: Iterable[str]) -> dict[str, Counted]:
        """Read what was counted, with read concern majority.

        Args:
            collections: Their names.

        Raises:
            PyMongoError: The set can't be read for half a minute.
        """
        names = list(collections)
        return await self._ask(lambda database: _count(database, names))

    async def drop(self) -> None:
        """Drop the database.

        Raises:
            PyMongoError: The set can't be written to.
        """
        await self._ask(lambda database: database.client.drop_database(DATABASE))

    async def _ask(
        self, question: Callable[[Database[dict[str, Any]]], T], *, patience: float = _PATIENCE
    ) -> T:
        until = time.monotonic() + patience
        while True:
            try:
                uri = await self._find_uri()
                return await to_thread.run_sync(_run, uri, question)
            except (PyMongoError, NoPrimaryError):
                if time.monotonic() > until:
                    raise
            await sleep(_PAUSE)


def _run(uri: str, question: Callable[[Database[dict[str, Any]]], T]) -> T:
    options: dict[str, Any] = {"readConcernLevel": "majority", "serverSelectionTimeoutMS": 5000}
    client: MongoClient[dict[str, Any]] = MongoClient(uri, **options, **MAJORITY)
    with client:
        return question(client[DATABASE])


def _prepare(database: Database[dict[str, Any]], names: list[str]) -> str:
    if database.list_collection_names():
        raise DatabaseInUseError(f"the set has a database {DATABASE} already: drop it first")
    for name in names:
        database.create_collection(name)
    return str(database.client.server_info()["version"])


def _count(database: Database[dict[str, Any]], names: list[str]) -> dict[str, Counted]:
    # A majority read that follows a majority write on the same server sees all that came before.
    database.client[DATABASE]["barrier"].insert_one({})
    return {name: _count_one(list(database[name].find())) for name in names}


def _count_one(days: list[dict[str, Any]]) -> Counted:
    return Counted(
        sum(day["counter"] for day in days),
        {int(number): times for day in days for number, times in day["events"].items()},
    )
