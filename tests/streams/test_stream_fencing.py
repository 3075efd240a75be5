"""A commit needs the lease, its number and the watermark, each of them by itself."""

import datetime as dt
from dataclasses import replace

import pytest

from aioretry.streams import Change, ChangeKind, LeaseKind, LeaseLostError
from aioretry.streams._committing import Committer
from aioretry.streams._errors import WatermarkMovedError
from aioretry.streams._folding import Fold
from aioretry.streams._leases import LEASES
from aioretry.streams._watermarks import Watermark, watermark_id
from tests.streams.tagging import animal, by_tag

LONG_AGO = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
APPLIED = {"x": {"count": 1, "weight": 1}}


@pytest.fixture
async def built(aggregator):
    """An aggregator whose watermark stays where a rebuild has put it."""
    await aggregator.rebuild()
    return aggregator._settings


@pytest.fixture
async def watermark(built, target):
    """Where it is."""
    return Watermark.of(await target.find_one({"_id": watermark_id(0)}))


@pytest.fixture
async def session(client):
    """A session of a worker."""
    async with await client.start_session(causal_consistency=False) as session:
        yield session


@pytest.fixture
async def lease(built, session):
    """Its lease."""
    return await built.leases.take(0, LeaseKind.UPDATE, "me", session)


@pytest.fixture
def commit(built, watermark, session):
    """Commit one increment, with some lease."""

    async def commit(lease) -> None:
        fold = Fold(by_tag)
        fold.add(Change(ChangeKind.INSERT, 1, None, animal(1, "x"), watermark.position))
        committer = Committer(built.target, built.leases, lease, session)
        await committer.commit(watermark, fold, watermark.position, 1)

    return commit


async def test_its_own(commit, lease, tags):
    """With the lease it is applied; once, as the watermark has moved."""
    await commit(lease)
    assert APPLIED == tags()
    with pytest.raises(WatermarkMovedError):
        await commit(lease)
    assert APPLIED == tags()


async def test_expired(commit, lease, aggregator, target, plain, tags):
    """With a lease that is over it is refused, even if nobody has taken it."""
    records = plain[target.database.name][LEASES]
    found = {"_id.aggregator": aggregator.name, "fence": lease.fence}
    assert 1 == records.update_one(found, {"$set": {"expires": LONG_AGO}}).modified_count
    with pytest.raises(LeaseLostError):
        await commit(lease)
    assert {} == tags()


@pytest.mark.parametrize("more", [-1, 1])
async def test_another_number(more, commit, lease, tags):
    """With another number it is refused, though the name is right."""
    with pytest.raises(LeaseLostError):
        await commit(replace(lease, fence=lease.fence + more))
    assert {} == tags()


async def test_another_owner(commit, lease, tags):
    """With another name it is refused, though the number is right."""
    with pytest.raises(LeaseLostError):
        await commit(replace(lease, owner="you"))
    assert {} == tags()


async def test_a_rebuild_goes_first(built, aggregator, target, session, plain):
    """While a rebuild waits for a free lease nobody gets it for updates; unless it has died."""
    leases = built.leases
    await leases.ask(0)
    assert await leases.take(0, LeaseKind.UPDATE, "me", session) is None
    rebuilds = await leases.take(0, LeaseKind.REBUILD, "you", session)
    await leases.release([rebuilds])
    follows = await leases.take(0, LeaseKind.UPDATE, "me", session)
    assert follows.fence == rebuilds.fence + 1
    await leases.release([follows])
    await leases.ask(0)
    records = plain[target.database.name][LEASES]
    records.update_one({"_id.aggregator": aggregator.name}, {"$set": {"wanted": LONG_AGO}})
    assert await leases.take(0, LeaseKind.UPDATE, "me", session) is not None
