import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from aioretry.testing import FakeMongoses, Fault, Faults, Ledger, ReplicaSet

WORRIES: dict[str, Callable[[Faults], Fault]] = {
    "request lost": lambda faults: faults.drop_request("update", times=2),
    "reply lost": lambda faults: faults.drop_reply("update", times=2),
    "reply cut short": lambda faults: faults.truncate_reply(20, "update", times=2),
    "reply late": lambda faults: faults.delay(0.5, "update", applied=True, times=2),
    "primary gone": lambda faults: faults.error(10107, "update", times=2),
}


@pytest.mark.parametrize("worry", WORRIES)
async def test_a_vote_counts_once(
    worry: str, service: Any, collection: Any, faults: Faults, ledger: Ledger
) -> None:
    votes = service.Votes(collection)
    WORRIES[worry](faults)

    await ledger.write("tea", votes.cast("tea"))
    await ledger.write("coffee", votes.cast("coffee"))

    await ledger.check_counters(collection, "votes")


@pytest.mark.mongo_replica_set(members=3, processes=True)
async def test_an_election(
    service: Any, mongo_replica_set: ReplicaSet, collection: Any, ledger: Ledger
) -> None:
    votes = service.Votes(collection)
    is_over = asyncio.Event()

    async def keep_voting(choice: str) -> None:
        while not is_over.is_set():
            await ledger.write(choice, votes.cast(choice))

    async with asyncio.TaskGroup() as voters:
        for choice in ("tea", "coffee", "water"):
            voters.create_task(keep_voting(choice))
        primary = await mongo_replica_set.primary()
        await mongo_replica_set.kill(primary)
        await mongo_replica_set.wait_for_primary(other_than=primary)
        is_over.set()

    await ledger.check_counters(collection, "votes")


async def test_a_sharded_cluster(
    service: Any, mongo_replica_set: ReplicaSet, collection: Any, ledger: Ledger
) -> None:
    async with FakeMongoses(mongo_replica_set) as cluster:
        with closing(service.connect(cluster.uri)) as client:
            votes = service.Votes(client.polls.votes)
            cluster.faults.drop_reply("update", times=2)

            await ledger.write("tea", votes.cast("tea"))

    await ledger.check_counters(collection, "votes")
