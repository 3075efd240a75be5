"""What a primary denies that a majority does not follow, and that may come back.

The first primary has the write, and loses the other members and its clients. The next one has
another document under the same key, and has nobody either: it refuses the retry. Then the first
one's document is what the set goes on with.
"""

import asyncio
import time
from collections.abc import Iterator

import pymongo
import pytest
from pymongo import WriteConcern
from pymongo.errors import DuplicateKeyError

from aioretry import Outcome, attempts_of, outcome_of
from aioretry.testing import Member, ReplicaSet

PATIENCE = 30.0


@pytest.fixture(scope="module")
def parted() -> Iterator[ReplicaSet]:
    with ReplicaSet(member_proxies=True) as servers:
        yield servers


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("concern", "name"),
    [(WriteConcern(1), "one"), (WriteConcern("majority", wtimeout=500), "majority")],
    ids=["w: 1", "w: majority"],
)
async def test_a_denial_that_is_rolled_back(client_class, parted: ReplicaSet, concern, name):
    """It is not told of a write that it was not applied, and it is there in the end."""
    faults, old = parted.faults, await parted.wait_for_primary()
    others = [member for member in parted.members if member is not old]
    async with client_class(parted.uri) as client:
        things = client.minorities.get_collection(
            f"{client_class.__name__}_{name}", write_concern=concern
        )
        await things.with_options(write_concern=WriteConcern("majority")).create_index(
            "key", unique=True
        )
        alone = faults.isolate(old)
        held = [faults.hang("insert", member=member, must_fire=False) for member in others]
        unheard = faults.hang("insert", applied=True, member=old)
        writing = asyncio.ensure_future(things.insert_one({"_id": "ours", "key": 1}))
        await asyncio.to_thread(_await_document, old, things.name)
        gone = faults.partition(old, must_fire=False)

        new = await parted.wait_for_primary(other_than=old)
        alone_too = faults.isolate(new)
        await asyncio.to_thread(_insert, new, things.name, {"_id": "theirs", "key": 1})
        for hang in held:
            hang.disarm()
        with pytest.raises(DuplicateKeyError) as caught:
            await writing

        for fault in (unheard, gone, alone):
            fault.disarm()
        await parted.wait_for_primary(PATIENCE, other_than=new)
        alone_too.disarm()
        faults.clear()
        await parted.heal()
        assert [member.address for member in (old, new)] == [
            f"{host}:{port}" for host, port in (each.address for each in attempts_of(caught.value))
        ]
        assert "ours" == (await things.find_one({}))["_id"]
        assert Outcome.UNKNOWN is outcome_of(caught.value)


def _await_document(member: Member, name: str) -> None:
    with pymongo.MongoClient(member.direct_uri) as direct:
        end = time.monotonic() + PATIENCE
        while direct.minorities[name].find_one({}) is None:
            assert time.monotonic() < end, "the write did not arrive"
            time.sleep(0.01)


def _insert(member: Member, name: str, document: dict[str, object]) -> None:
    with pymongo.MongoClient(member.direct_uri) as direct:
        things = direct.minorities.get_collection(name, write_concern=WriteConcern(1))
        things.insert_one(document)
