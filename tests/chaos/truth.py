"""The database past the proxies, read and prepared with PyMongo alone."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pymongo import MongoClient
from pymongo import collection as pymongo_collection
from pymongo.errors import PyMongoError

from aioretry.testing import NoPrimaryError, ReplicaSet
from tests.chaos.book import COUNTERS, SHEETS, TICKET, UNITS

T = TypeVar("T")
Documents = pymongo_collection.Collection[dict[str, Any]]

DATABASE = "chaos"
COLLECTION = "writes"
_TRIES = 60
_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Found:
    """What the database holds."""

    applied: Mapping[str, Mapping[int, int]]
    """How often each write was found, by ledger and key."""

    units: Mapping[str, Mapping[int, Mapping[int, Collection[str]]]]
    """The parts of each run, by kind, unit and run."""

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
    documents += [{"_id": f"keyed-{number}", "marks": []} for number in range(SHEETS)]
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
    applied: dict[str, dict[int, int]] = {
        name: {} for name in ("increments", "inserts", "pushes", "coalesced", "keyed")
    }
    applied["deletes"] = dict.fromkeys(range(victims), 1)
    units: dict[str, dict[int, dict[int, list[str]]]] = {name: {} for name in UNITS}
    tickets = 0
    for document in documents:
        name, _, number = document["_id"].partition("-")
        match name:
            case "counter":
                applied["increments"][int(number)] = document["n"]
            case "insert":
                applied["inserts"][int(number)] = 1
            case "coalesced":
                applied["coalesced"][int(number)] = 1
            case "sheet":
                _count_marks(applied["pushes"], document)
            case "keyed":
                _count_marks(applied["keyed"], document)
            case "victim":
                del applied["deletes"][int(number)]
            case _ if name in units:
                unit, run, part = number.split("-")
                units[name].setdefault(int(unit), {}).setdefault(int(run), []).append(part)
            case _:
                tickets = document["n"]
    return Found(applied, units, tickets)


def _count_marks(applied: dict[int, int], sheet: Mapping[str, Any]) -> None:
    for mark in sheet["marks"]:
        applied[mark] = applied.get(mark, 0) + 1


def _everything(collection: Documents) -> list[dict[str, Any]]:
    # A majority read that follows a majority write on the same server sees all that came before.
    collection.database["barrier"].insert_one({})
    return list(collection.find())


async def _ask(servers: ReplicaSet, question: Callable[[Documents], T]) -> T:
    for _ in range(_TRIES):
        try:
            primary = await servers.wait_for_primary()
            return await asyncio.to_thread(_run, primary.direct_uri, question)
        except (PyMongoError, NoPrimaryError):
            await asyncio.sleep(_PAUSE)
    primary = await servers.wait_for_primary()
    return await asyncio.to_thread(_run, primary.direct_uri, question)


def _run(uri: str, question: Callable[[Documents], T]) -> T:
    client: MongoClient[dict[str, Any]] = MongoClient(
        uri,
        readConcernLevel="majority",
        w="majority",
        journal=True,
        serverSelectionTimeoutMS=5000,
    )
    with client:
        return question(client[DATABASE][COLLECTION])
