"""The database past the proxies, read and prepared with PyMongo alone."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from aioretry.testing import NoPrimaryError, ReplicaSet
from tests.chaos.book import COUNTERS, SHEETS, TICKET

T = TypeVar("T")

DATABASE = "chaos"
COLLECTION = "writes"
_TRIES = 60
_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Found:
    """What the database holds."""

    applied: Mapping[str, Mapping[int, int]]
    """How often each write was found, by ledger and key."""

    tickets: int
    """The last ticket that was given."""


async def prepare(servers: ReplicaSet, victims: int) -> None:
    """Make all documents that the load finds there.

    Args:
        servers: The set.
        victims: How many documents there are to delete.
    """
    documents: list[dict[str, Any]] = [{"_id": TICKET, "n": 0}]
    documents += [{"_id": f"counter-{number}", "n": 0} for number in range(COUNTERS)]
    documents += [{"_id": f"sheet-{number}", "marks": []} for number in range(SHEETS)]
    documents += [{"_id": f"victim-{number}"} for number in range(victims)]
    primary = await servers.wait_for_primary()
    await asyncio.to_thread(
        _run, primary.direct_uri, lambda collection: collection.insert_many(documents)
    )


async def read(servers: ReplicaSet, victims: int) -> Found:
    """Read what came of all writes, once every acknowledged one is visible.

    Args:
        servers: The set.
        victims: How many documents there were to delete.

    Raises:
        PyMongoError: It can't be read.
    """
    return await _ask(servers, lambda collection: counted(_everything(collection), victims))


def counted(documents: Iterable[Mapping[str, Any]], victims: int) -> Found:
    """Count the writes in the documents of the load.

    Args:
        documents: All of them.
        victims: How many documents there were to delete.
    """
    increments: dict[int, int] = {}
    inserts: dict[int, int] = {}
    pushes: dict[int, int] = {}
    deletes = dict.fromkeys(range(victims), 1)
    tickets = 0
    for document in documents:
        name, _, number = document["_id"].partition("-")
        match name:
            case "counter":
                increments[int(number)] = document["n"]
            case "insert":
                inserts[int(number)] = 1
            case "sheet":
                for mark in document["marks"]:
                    pushes[mark] = pushes.get(mark, 0) + 1
            case "victim":
                del deletes[int(number)]
            case _:
                tickets = document["n"]
    applied = {"increments": increments, "inserts": inserts, "pushes": pushes, "deletes": deletes}
    return Found(applied, tickets)


def _everything(collection: Collection[dict[str, Any]]) -> list[dict[str, Any]]:
    # A majority read that follows a majority write on the same server sees all that came before.
    collection.database["barrier"].insert_one({})
    return list(collection.find())


async def _ask(servers: ReplicaSet, question: Callable[[Collection[dict[str, Any]]], T]) -> T:
    for _ in range(_TRIES):
        try:
            primary = await servers.wait_for_primary()
            return await asyncio.to_thread(_run, primary.direct_uri, question)
        except (PyMongoError, NoPrimaryError):
            await asyncio.sleep(_PAUSE)
    primary = await servers.wait_for_primary()
    return await asyncio.to_thread(_run, primary.direct_uri, question)


def _run(uri: str, question: Callable[[Collection[dict[str, Any]]], T]) -> T:
    client: MongoClient[dict[str, Any]] = MongoClient(
        uri,
        readConcernLevel="majority",
        w="majority",
        journal=True,
        serverSelectionTimeoutMS=5000,
    )
    with client:
        return question(client[DATABASE][COLLECTION])
