"""The sessions that the servers keep, and how many of them may be left.

A session takes one of the places of the whole cluster from its first use until it is ended, or for
half an hour. `config.system.sessions` has those of all members, once each has written down what it
has seen; `$listLocalSessions` has only what one member has not written down yet.
"""

import asyncio
import gc
import time
from collections.abc import Sequence
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from aioretry.testing import CommandFailedError, NoPrimaryError, ReplicaSet
from tests.chaos.book import Book
from tests.chaos.schedule import Kind
from tests.chaos.timeline import Happened

PARAMETERS = {"logicalSessionRefreshMillis": "200"}
"""Has the members write down all the time what was used and what was ended, as they do every five
minutes by default, so that little of it is forgotten with one that is killed."""

_TRIES = 60
_PAUSE = 0.5
_SWALLOWED = 10
_APART = 40
_OTHERS = 10  # of reads that lost their connection, which PyMongo drops too
_PATIENCE = 30.0  # seconds for what is to be ended


class Sessions:
    """Counts the sessions of a run, which are those that were not there before it.

    Args:
        servers: The run's own.
        before: The ids of the sessions that were there.
        writers: How many tasks write at once.
    """

    def __init__(self, servers: ReplicaSet, before: frozenset[bytes], writers: int) -> None:
        self._servers = servers
        self._before = before
        self._writers = writers

    async def count(self, book: Book, faults: Sequence[Happened], *, is_open: bool) -> None:
        """Wait until there are no more than may be, and note how many there are.

        Args:
            book: Where it is noted.
            faults: What was broken.
            is_open: Whether the client is still open, and no call is under way.
        """
        most = most_left(book, faults, self._writers if is_open else 0)
        gc.collect()  # whose questions nobody can ask any more are ended
        until = time.monotonic() + _PATIENCE
        while True:
            left = len(await sessions_at(self._servers) - self._before)
            if left <= most or time.monotonic() > until:
                break
            await asyncio.sleep(_PAUSE)
        when = "before the client was closed" if is_open else "after it"
        book.figures.sessions[f"{when}, of at most {most}:"] = left
        if left > most:
            book.find(f"{left} sessions are left {when}, of which {most} can be explained")


def most_left(book: Book, faults: Sequence[Happened], writers: int) -> int:
    """Return how many sessions can be explained.

    Always those of transactions that lost their connection or were cancelled, which PyMongo drops
    without ending them; and for each fault of a server as many as one usually ends at once: what it
    was told last is forgotten, or written down when others have forgotten it. A member that is
    parted from the others can write nothing down until it is back, and does so then with all that
    it has seen. While the client is open, also two for each writer, for its call and for one that
    it has left behind, which are pooled; and one for each write of unknown outcome, which may still
    be resolved.

    Args:
        book: What was told.
        faults: What was broken.
        writers: How many tasks write over an open client.
    """
    swallowed = _SWALLOWED * sum(fault.kind.is_of_processes for fault in faults)
    apart = _APART * sum(fault.kind is Kind.ISOLATE for fault in faults)
    most = book.dropped_sessions + swallowed + apart + _OTHERS
    if writers:
        most += 2 * writers + book.open_questions
    return most


async def sessions_at(servers: ReplicaSet) -> frozenset[bytes]:
    """Return the ids of the sessions that the servers keep."""
    for _ in range(_TRIES):
        try:
            return await _ask(servers)
        except (PyMongoError, CommandFailedError, NoPrimaryError, OSError):
            await asyncio.sleep(_PAUSE)
    return await _ask(servers)


async def _ask(servers: ReplicaSet) -> frozenset[bytes]:
    primary = await servers.wait_for_primary()
    for member in (primary, *servers.members):
        await member.command({"refreshLogicalSessionCacheNow": 1})
    return await asyncio.to_thread(_read, primary.direct_uri)


def _read(uri: str) -> frozenset[bytes]:
    client: MongoClient[dict[str, Any]] = MongoClient(uri, serverSelectionTimeoutMS=5000)
    with client, client.start_session() as own:
        found = client.config["system.sessions"].find(session=own)
        return frozenset({bytes(one["_id"]["id"]) for one in found} - {bytes(own.session_id["id"])})
