"""Reads, cursors, transactions and commands go on in loops while a member freezes."""

import argparse
import asyncio
import contextlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from aioretry import Outcome, outcome_of, resolve
from aioretry._writes.context import settled
from aioretry.idempotent import Keys
from aioretry.testing import ReplicaSet
from tests.benchmarks.failovers.clients import DATABASE, Kind
from tests.benchmarks.failovers.measuring import Figures, watched
from tests.benchmarks.failovers.servers import last_election
from tests.clients import close

ACCOUNTS = 1000
_WARM_UP, _AFTER = 3.0, 5.0  # seconds of load before the freeze, and after the member is back
_AFTER_AN_ERROR = 0.1
_END_WITHIN = 90.0

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Done:
    """One call, in monotonic seconds."""

    began: float
    took: float
    error: BaseException | None


class Calls:
    """The calls of one kind, in loops.

    Args:
        call: Makes one.
        callers: How many at once.
        limit: Makes the block that limits the time of one, or None.
    """

    def __init__(
        self, call: Call, callers: int, limit: Callable[[], AbstractContextManager[object]] | None
    ) -> None:
        self.done: list[Done] = []
        self._call = call
        self._limit = limit or contextlib.nullcontext
        self._is_stopped = False
        self._tasks = [asyncio.create_task(self._repeat()) for _ in range(callers)]

    async def stop(self) -> int:
        """Begin no other one, and wait for those that run; return how many have not ended."""
        self._is_stopped = True
        _, hung = await asyncio.wait(self._tasks, timeout=_END_WITHIN)
        for task in hung:
            task.cancel()
        return len(hung)

    async def _repeat(self) -> None:
        while not self._is_stopped:
            began, error = time.monotonic(), None
            try:
                with self._limit():
                    await self._call()
            except (PyMongoError, TimeoutError) as exc:
                error = exc
            self.done.append(Done(began, time.monotonic() - began, error))
            await asyncio.sleep(_AFTER_AN_ERROR if error else 0)

    def figures(self, name: str, since: float, until: float, limit: float | None) -> Figures:
        """What came of those that ran in a span of monotonic time."""
        during = [one for one in self.done if one.began + one.took >= since and one.began <= until]
        longest = max((one.took for one in during), default=math.nan)
        errors = Counter(type(one.error).__name__ for one in during if one.error)
        figures: Figures = {
            f"{name}_calls": len(during),
            f"{name}_longest_s": longest,
            f"{name}_errors": dict(errors.most_common()),
        }
        if limit is not None:
            figures[f"{name}_longest_beyond_the_deadline_s"] = max(0.0, longest - limit)
        return figures


class Transfers:
    """Moves money between accounts in transactions, with an entry for each transfer.

    Args:
        kind: Which client it is.
        client: The client.
    """

    def __init__(self, kind: Kind, client: Any) -> None:
        self._kind, self._client = kind, client
        database = client[DATABASE]
        self._accounts, self._entries = database.accounts, database.entries
        self._numbers = itertools.count()
        self.acknowledged: set[ObjectId] = set()
        self.errors: dict[ObjectId, BaseException] = {}

    async def transfer(self) -> None:
        """Move one from an account to another."""
        entry, number = ObjectId(), next(self._numbers)
        source, target = number % ACCOUNTS, (number + ACCOUNTS // 2) % ACCOUNTS

        async def work(session: Any) -> None:
            await self._accounts.update_one({"_id": source}, {"$inc": {"n": -1}}, session=session)
            await self._accounts.update_one({"_id": target}, {"$inc": {"n": 1}}, session=session)
            await self._entries.insert_one({"_id": entry}, session=session)

        try:
            async with await settled(self._client.start_session()) as session:
                await session.with_transaction(work)
        except PyMongoError as exc:
            self.errors[entry] = exc
            raise
        self.acknowledged.add(entry)

    async def judge(self, uri: str) -> Figures:
        """Tell whether no money was lost, and whether it is true what was told."""
        outcomes = {entry: self._kind.outcome_of(exc) for entry, exc in self.errors.items()}
        wrong = []
        if self._kind.is_ours:
            for entry, outcome in outcomes.items():
                if outcome is Outcome.UNKNOWN:
                    outcomes[entry] = await _resolved(self.errors[entry])
        total, stored = await asyncio.to_thread(_stored, uri)
        if total:
            wrong.append(f"there is {total} too much money")
        if lost := self.acknowledged - stored:
            wrong.append(f"{len(lost)} acknowledged transfers are not there")
        told = Counter(outcome.value for outcome in outcomes.values())
        for entry, outcome in outcomes.items():
            if outcome is not Outcome.UNKNOWN and (outcome is Outcome.APPLIED) != (entry in stored):
                wrong.append(f"a transfer that was told as {outcome.value} is not")
        return {"transfer_outcomes_of_errors": dict(told), "wrong": wrong}


async def _resolved(exc: BaseException) -> Outcome:
    try:
        await resolve(exc, timeout=60.0)
    except PyMongoError as error:
        return outcome_of(error) or Outcome.UNKNOWN
    return Outcome.APPLIED


def _stored(uri: str) -> tuple[int, set[ObjectId]]:
    client: MongoClient[Any] = MongoClient(uri, timeoutMS=60_000)
    with client:
        database = client[DATABASE]
        database.fence.insert_one({})  # with the default concern: by a majority
        concern = ReadConcern("majority")
        accounts = database.get_collection("accounts", read_concern=concern).find()
        entries = database.get_collection("entries", read_concern=concern).find()
        return sum(one["n"] for one in accounts), {one["_id"] for one in entries}


def _seed(uri: str) -> None:
    client: MongoClient[Any] = MongoClient(uri, w=3)
    with client:
        database = client[DATABASE]
        database.accounts.insert_many({"_id": number, "n": 0} for number in range(ACCOUNTS))
        for name in ("entries", "once", "inserted", "fence"):
            database.create_collection(name)


def _kinds(client: Any, transfers: Transfers, *, is_ours: bool) -> Mapping[str, Call]:
    database = client[DATABASE]
    accounts = database.accounts
    keys = Keys(b"failovers, as a secret of a benchmark", "failovers") if is_ours else None

    async def cursor() -> None:
        await accounts.find({}, batch_size=ACCOUNTS).to_list(ACCOUNTS)

    async def aggregate() -> None:
        found = await settled(accounts.aggregate([{"$group": {"_id": 1, "n": {"$sum": "$n"}}}]))
        await found.to_list(1)

    async def once() -> None:
        async def work(session: Any) -> Mapping[str, Any]:
            await database.once.insert_one({}, session=session)
            return {}

        assert keys is not None
        await keys.once(str(ObjectId()), work, database=database)

    kinds: dict[str, Call] = {
        "find_one": lambda: accounts.find_one({"_id": 7}),
        "count": lambda: accounts.count_documents({"n": {"$gt": 0}}),
        "aggregate": aggregate,
        "cursor": cursor,
        "ping": lambda: client.admin.command("ping"),
        "insert": lambda: database.inserted.insert_one({}),
        "transfer": transfers.transfer,
    }
    if is_ours:
        kinds["once"] = once
    return kinds


async def run(kind: Kind, servers: ReplicaSet, options: argparse.Namespace) -> Figures:
    """Measure one client."""
    await asyncio.to_thread(_seed, servers.uri)
    preference = {"readPreference": "secondaryPreferred"} if options.who == "secondary" else {}
    client = kind.open(servers.uri, **preference)
    limit = None if options.timeout is None else lambda: kind.limit(options.timeout)
    transfers = Transfers(kind, client)
    all_kinds = _kinds(client, transfers, is_ours=kind.is_ours)
    if options.who == "secondary":  # what is written is not concerned
        all_kinds = {name: call for name, call in all_kinds.items() if name in _READS}
    names = [name for name in all_kinds if name in (options.only or all_kinds)]
    async with watched() as watch:
        calls = {name: Calls(all_kinds[name], options.callers, limit) for name in names}
        try:
            figures = await _freeze(servers, options, calls)
        finally:
            hung = {name: await one.stop() for name, one in calls.items()}
    figures["longest_stall_of_the_event_loop_ms"] = watch.longest_stall * 1000
    figures |= await transfers.judge(servers.uri)
    for name, number in hung.items():
        if number:
            figures["wrong"].append(f"{number} calls of {name} have not ended")  # type: ignore[attr-defined]
    await close(client)
    return figures


_READS = {"find_one", "count", "aggregate", "cursor"}


async def _freeze(
    servers: ReplicaSet, options: argparse.Namespace, calls: Mapping[str, Calls]
) -> Figures:
    await asyncio.sleep(_WARM_UP)
    primary = await servers.primary()
    secondaries = [member for member in servers.members if member is not primary]
    frozen, frozen_at = time.monotonic(), time.time()
    figures: Figures = {}
    if options.who == "secondary":
        await servers.freeze(secondaries[0])
    else:
        await (servers.kill if options.how == "kill" else servers.freeze)(primary)
        await servers.wait_for_primary(60.0, other_than=primary)
    await asyncio.sleep(options.hold)
    ended = time.monotonic()
    await servers.heal()
    if options.who == "primary":
        election = await last_election(servers, frozen_at)
        figures["new_primary_writable_after_s"] = election.writable - frozen_at
        if election.majority is not None:
            figures["majority_follows_it_after_s"] = election.majority - frozen_at
    await asyncio.sleep(_AFTER)
    for name, one in calls.items():
        figures |= one.figures(name, frozen, ended, options.timeout)
    return figures
