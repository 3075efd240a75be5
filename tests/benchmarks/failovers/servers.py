"""What the servers themselves know: their elections, sessions and contents."""

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry.testing import Member, ReplicaSet
from tests.benchmarks.failovers.clients import DATABASE

_PRIMARY_NOW = '"id":21331,'  # "Transition to primary complete; database writes are now permitted"
_MAJORITY_WITHIN = 30_000


@dataclass(frozen=True)
class Election:
    """One election, in seconds since the epoch by the clock of the member that won it."""

    member: Member
    writable: float
    """When it began to take writes, as its log says."""

    elected: float | None = None
    """When it had the votes, as `replSetGetStatus` says; None if it does not any more."""

    majority: float | None = None
    """When a majority had followed it."""


def elections(servers: ReplicaSet, since: float) -> list[Election]:
    """All elections from a moment on, in seconds since the epoch, in order."""
    found = [
        Election(member, when)
        for member in servers.members
        for when in _promotions(member.log.read_text(errors="replace").splitlines())
        if when >= since
    ]
    return sorted(found, key=lambda election: election.writable)


def _promotions(lines: Iterable[str]) -> Iterable[float]:
    for line in lines:
        if _PRIMARY_NOW in line:
            yield datetime.fromisoformat(json.loads(line)["t"]["$date"]).timestamp()


async def last_election(servers: ReplicaSet, since: float) -> Election:
    """The newest election from a moment on, with all that its winner tells."""
    election = elections(servers, since)[-1]
    status = await election.member.command({"replSetGetStatus": 1})
    metrics = status.get("electionCandidateMetrics", {})
    return Election(
        election.member,
        election.writable,
        _moment(metrics.get("lastElectionDate")),
        _moment(metrics.get("wMajorityWriteAvailabilityDate")),
    )


def _moment(value: Any) -> float | None:
    if value is None:
        return None
    # The test kit decodes dates as milliseconds.
    return int(value) / 1000 if not isinstance(value, datetime) else value.timestamp()


async def sessions(servers: ReplicaSet) -> int:
    """How many sessions the servers keep; those that were ended are not among them."""
    primary = await servers.primary()
    others = [member for member in servers.members if member is not primary]
    for member in (primary, *others):  # the primary has the collection that they write to
        await member.command({"refreshLogicalSessionCacheNow": 1})
    reply = await primary.command({"count": "system.sessions"}, database="config")
    return int(reply["n"])


async def marks(servers: ReplicaSet, collection: str, field: str = "w") -> dict[int, float]:
    """How often each numbered write is there, whoever wrote it: the sum of all documents' marks."""

    def read() -> dict[int, float]:
        found: dict[int, float] = {}
        with MongoClient(servers.uri, timeoutMS=_MAJORITY_WITHIN) as client:
            database = client[DATABASE]
            # Once this is acknowledged, the majority has whatever the primary had before.
            fence = database.get_collection("fence", write_concern=WriteConcern("majority", j=True))
            fence.insert_one({"at": time.time()})
            reader = database.get_collection(collection, read_concern=ReadConcern("majority"))
            for document in reader.find({}, {field: 1}):
                for number, count in document.get(field, {}).items():
                    found[int(number)] = found.get(int(number), 0) + count
        return found

    return await asyncio.to_thread(read)
