"""Versioned documents on a primary that is parted from the others: what it alone has is lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from pymongo.errors import PyMongoError

from aioretry import DeadlineExceeded, Outcome, deadline, outcome_of
from aioretry.idempotent import VersionConflict, VersionedDocuments
from aioretry.testing import ReplicaSet
from tests.idempotent.points import APP_NAME
from tests.idempotent.versioning import collection_of, increment

PATIENCE = 60.0
IN_VAIN = 0.5
ELECTION_MS = 8000  # the primary that is parted must live until all is prepared

# Each comes again after an error, as a request does: it has what the document was, and reads it.
REQUESTS = {
    "create": lambda docs, held, _read: docs.create({"_id": held["_id"], "n": 1}),
    "delete": lambda docs, held, _read: docs.delete(held),
    "update": lambda docs, held, _read: docs.update(held["_id"], lambda read: {**read, "n": 1}),
    "update, key": lambda docs, held, _read: docs.update(held["_id"], increment, key="k"),
    "save": lambda docs, _held, read: docs.save(read | {"n": 1}),
    "save, key": lambda docs, _held, read: docs.save(read | {"n": 1}, key="k"),
}
# What they have read was rolled back, and they are told.
TOLD = {"save", "save, key"}


@pytest.fixture(scope="module")
def parted(server_version) -> Iterator[ReplicaSet]:
    with ReplicaSet(
        version=server_version, member_proxies=True, election_timeout_ms=ELECTION_MS
    ) as servers:
        yield servers


@pytest.fixture
async def things(parted, client_class) -> AsyncIterator[object]:
    """The collection, by a client that the faults spare."""
    async with client_class(parted.uri) as client:
        yield collection_of(client, client_class.__name__)
        await client.drop_database("aioretry_tests")
    parted.faults.clear()
    await parted.heal()


async def test_requests_that_come_again(parted, things):
    """What is there already is a success once it is there to stay, and else done anew."""
    docs, old = VersionedDocuments(things), await parted.wait_for_primary()
    held = {name: {"_id": name} for name in REQUESTS}
    for name in REQUESTS.keys() - {"create"}:
        held[name] = (await docs.create({"_id": name, "n": 0})).document

    async def request(name, seconds):
        async with deadline(seconds):
            read = await things.find_one({"_id": name})
            return await REQUESTS[name](docs, held[name], read)

    async with parted.faults.isolate(old):
        first = [request(name, IN_VAIN) for name in REQUESTS]
        for error in await asyncio.gather(*first, return_exceptions=True):
            assert isinstance(error, DeadlineExceeded)
            assert Outcome.UNKNOWN is outcome_of(error)
        assert 1 == (await things.find_one({"_id": "update, key"}))["n"]
        second = [asyncio.ensure_future(request(name, PATIENCE)) for name in REQUESTS]
        await parted.wait_for_primary(PATIENCE, other_than=old)
        ends = await asyncio.gather(*second, return_exceptions=True)
    await parted.heal()

    failures = [end for end in ends if isinstance(end, BaseException)]
    assert [VersionConflict] * len(TOLD) == [type(failure) for failure in failures], failures
    stored = {each["_id"]: each["n"] async for each in things.find()}
    assert stored == {name: int(name not in TOLD) for name in REQUESTS if name != "delete"}


async def _save(docs, others, identity, **options):
    """A save that has lost, when somebody else's, which is equal, is seen and then rolled back."""
    held = (await others.create({"_id": identity, "n": 0})).document
    won = (await others.save(held | {"n": 9})).document

    async def meanwhile():
        await others.save(won | {"n": 1}, key=options.get("key"))

    return docs.save(held | {"n": 1}, **options), [meanwhile]


async def _create(docs, others, identity):
    """A creation that has met another document, which seems to be replaced by its own."""
    won = (await others.create({"_id": identity, "n": 9})).document
    return docs.create({"_id": identity, "n": 1}), [
        lambda: others.delete(won),
        lambda: others.create({"_id": identity, "n": 1}),
    ]


async def _delete(docs, others, identity):
    """A deletion that has met another version, which seems to be deleted."""
    held = (await others.create({"_id": identity, "n": 0})).document
    won = (await others.save(held | {"n": 9})).document
    return docs.delete(held), [lambda: others.delete(won)]


async def test_what_is_seen_after_a_write_that_met_another(parted, client_class, things):
    """What has come between the write and the look at what it met may be lost, too."""
    others, old = VersionedDocuments(things), await parted.wait_for_primary()
    async with client_class(parted.uri, appName=APP_NAME) as client:
        docs = VersionedDocuments(collection_of(client, things.name))
        cases = [
            await _save(docs, others, "key", key="k"),
            await _save(docs, others, "equal", accept_equal=True),
            await _create(docs, others, "create"),
            await _delete(docs, others, "delete"),
        ]
        looks = parted.faults.hang("find", app_name=APP_NAME, times=len(cases))
        async with deadline(PATIENCE):
            calls = [asyncio.ensure_future(call) for call, _ in cases]
        await looks.wait_until_fired(len(cases))
        async with parted.faults.isolate(old):
            for _, meanwhile in cases:
                for step in meanwhile:
                    await _in_vain(step)
            looks.disarm()
            await parted.wait_for_primary(PATIENCE, other_than=old)
            ends = await asyncio.gather(*calls, return_exceptions=True)
    await parted.heal()
    assert [VersionConflict] * len(cases) == [type(end) for end in ends]
    assert [9] * len(cases) == [each["n"] async for each in things.find()]


async def _in_vain(step):
    with pytest.raises(PyMongoError) as caught:
        async with deadline(IN_VAIN):
            await step()
    assert Outcome.UNKNOWN is outcome_of(caught.value)
