"""Versioned documents that many save at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from pymongo.errors import AutoReconnect, PyMongoError

from aioretry import DeadlineExceeded
from aioretry.idempotent import VersionConflict, VersionedDocuments, _versioned
from aioretry.testing import Standalone
from tests.idempotent.points import APP_NAME
from tests.idempotent.versioning import DRIVERS, collection_of, increment, opened
from tests.lengths import in_full

WRITERS = 20
SAVES = in_full(50, otherwise=10)  # of each writer


@pytest.fixture(scope="module")
def standalone(server_version) -> Iterator[Standalone]:
    """A server without retryable writes, behind a proxy."""
    with Standalone(version=server_version, faults=True) as server:
        yield server


@pytest.fixture
async def struck(standalone, collection) -> AsyncIterator[VersionedDocuments]:
    """Documents of a standalone server, of a client that is struck by faults."""
    async with opened("motor", standalone.uri, appName=APP_NAME) as client:
        yield VersionedDocuments(collection_of(client, collection.name), history=3)


@pytest.fixture
async def others(standalone, collection) -> AsyncIterator[VersionedDocuments]:
    """The same documents, of a client that is spared."""
    async with opened("aioretry", standalone.uri) as client:
        yield VersionedDocuments(collection_of(client, collection.name), history=3)


async def saves(docs, stored, id, count, tell):
    """Read, count and save until enough saves were successes; a conflict means once more."""
    done = 0
    while done < count:
        document = await stored.find_one({"_id": id})
        document["n"] += 1
        try:
            await docs.save(document)
        except VersionConflict:
            tell("conflict")
        else:
            done += 1
            tell("saved")


@pytest.mark.long
@pytest.mark.timeout(300)
class TestManyWriters:
    @pytest.mark.sample(4)
    @pytest.mark.parametrize("driver", DRIVERS)
    @pytest.mark.parametrize("number", [1, 5])
    async def test_no_save_is_lost(self, replica_set, collection, stored, driver, number):
        """Of all that twenty writers save at once, each counts or is a conflict.

        The contents of those who save at once are equal: both have counted by one.
        """
        told = []
        async with opened(driver, replica_set.uri) as client:
            documents = collection_of(client, collection.name)
            docs = VersionedDocuments(documents)
            for n in range(number):
                await docs.create({"_id": n, "n": 0})
            async with asyncio.TaskGroup() as group:
                for writer in range(WRITERS):
                    group.create_task(saves(docs, documents, writer % number, SAVES, told.append))
        final = list(stored.find())
        assert WRITERS * SAVES == sum(document["n"] for document in final)
        assert WRITERS * SAVES == told.count("saved")
        assert told.count("conflict") > 0
        assert len(told) == told.count("saved") + told.count("conflict")
        assert all(docs.verify(document) for document in final)

    @pytest.mark.parametrize("driver", DRIVERS)
    async def test_no_update_is_lost(self, replica_set, collection, stored, driver):
        """Updates lose to each other, and win in the end."""
        async with opened(driver, replica_set.uri) as client:
            docs = VersionedDocuments(collection_of(client, collection.name))
            await docs.create({"_id": 1, "n": 0})

            async def write():
                for _ in range(5):
                    await docs.update(1, increment, timeout=120.0)

            async with asyncio.TaskGroup() as group:
                for _ in range(WRITERS):
                    group.create_task(write())
        assert WRITERS * 5 == stored.find_one()["n"]

    async def test_no_create_is_double(self, collection, stored):
        """Twenty who create the same content make one document, and one of them is told so."""
        docs = VersionedDocuments(collection)
        created = await asyncio.gather(*(docs.create({"n": 1}) for _ in range(WRITERS)))
        assert 1 == sum(result.written for result in created)
        assert [created[0].document] == list(stored.find())
        assert all(result.document == created[0].document for result in created)

    async def test_one_key(self, collection, stored):
        """Twenty updates with the same key are one."""
        docs = VersionedDocuments(collection)
        await docs.create({"_id": 1, "n": 0})
        updated = await asyncio.gather(
            *(docs.update(1, increment, key="request", timeout=60.0) for _ in range(WRITERS))
        )
        assert 1 == stored.find_one()["n"]
        assert all(result.document == updated[0].document for result in updated)


class TestLostReplyAmongOthers:
    """A reply is lost on a server without retryable writes, and others save meanwhile."""

    async def run(self, standalone, struck, others, meanwhile):
        """Update a document whose reply is lost; before it is sent again, others do something."""
        await others.create({"_id": 1, "n": 0, "by": []})
        hanging = standalone.faults.hang("findAndModify", applied=True, app_name=APP_NAME)
        losing = standalone.faults.drop_reply("findAndModify", app_name=APP_NAME)
        async with losing:
            async with hanging:
                updating = asyncio.ensure_future(struck.update(1, increment, timeout=60.0))
                await hanging.wait_until_fired()
                await meanwhile()
            return await updating

    async def test_someone_saved_since(self, standalone, struck, others):
        """A save that others have built on is a success, and is not done again."""

        async def meanwhile():
            await others.update(1, lambda document: document["by"].append("other"))

        updated = await self.run(standalone, struck, others, meanwhile)
        assert updated.written
        assert (1, ["other"]) == (updated.document["n"], updated.document["by"])

    async def test_someone_changed_it_back(self, standalone, struck, others):
        """A content that was saved and taken back is not saved a second time."""
        first = await others.create({"_id": 1, "n": 0, "by": []})

        async def meanwhile():
            await others.update(1, lambda document: document | {"n": 0})

        updated = await self.run(standalone, struck, others, meanwhile)
        assert 0 == updated.document["n"]
        assert first.version == updated.version
        assert first.document != updated.document

    async def test_too_much_was_saved_since(self, standalone, struck, others):
        """What can't be told is not told: the lost connection is raised."""

        async def meanwhile():
            for _ in range(4):
                await others.update(1, increment)

        with pytest.raises(AutoReconnect) as caught:
            await self.run(standalone, struck, others, meanwhile)
        assert not isinstance(caught.value, DeadlineExceeded)
        assert "too much has happened since" in caught.value.__notes__[0]
        (document,) = [await others.update(1, lambda _document: None)]
        assert 5 == document.document["n"]

    async def test_saved_and_changed_back(self, standalone, struck, others):
        """Nor is a content that has come back taken for a loss, and the change made once more."""

        async def meanwhile():
            for n in (5, 6, 7, 1):
                await others.update(1, lambda document, n=n: document | {"n": n})

        with pytest.raises(AutoReconnect):
            await self.run(standalone, struck, others, meanwhile)
        assert 1 == (await others.update(1, lambda _document: None)).document["n"]

    async def test_someone_deleted_it(self, standalone, struck, others):
        """A document that is gone may have been saved before: that is no conflict."""

        async def meanwhile():
            await others.delete((await others.update(1, lambda _document: None)).document)

        with pytest.raises(AutoReconnect) as caught:
            await self.run(standalone, struck, others, meanwhile)
        assert "too much has happened since" in caught.value.__notes__[0]


class TestPlainDrivers:
    async def test_deadline(self, standalone, struck, others):
        """Plain Motor obeys the deadline too, and the document may be saved when it is over."""
        held = (await others.create({"_id": 1, "n": 0})).document
        async with standalone.faults.hang("findAndModify", applied=True, app_name=APP_NAME):
            with pytest.raises(DeadlineExceeded) as caught:
                await struck.save(held | {"n": 1}, timeout=1.0)
        assert isinstance(caught.value.__cause__, PyMongoError)
        with pytest.raises(VersionConflict) as conflict:
            await others.save(held | {"n": 2})
        assert 1 == conflict.value.stored_document["n"]

    async def test_deleted_while_it_is_created(self, standalone, struck, others):
        """A document that was in the way, and is gone when it is looked at, is created."""
        held = (await others.create({"_id": 1, "n": 0})).document
        async with standalone.faults.hang("find", app_name=APP_NAME) as hanging:
            creating = asyncio.ensure_future(struck.create({"_id": 1, "n": 5}))
            await hanging.wait_until_fired()
            await others.delete(held)
        created = await creating
        assert created.written
        assert 5 == (await others.update(1, lambda _document: None)).document["n"]


class TestUpdate:
    async def test_deadline(self, collection):
        """A change that always loses ends with its deadline."""
        docs = VersionedDocuments(collection)
        await docs.create({"_id": 1, "n": 0})

        async def change(document):
            await docs.update(1, increment)
            return document | {"mine": True}

        with pytest.raises(DeadlineExceeded):
            await docs.update(1, change, timeout=2.0)

    async def test_tries(self, collection, monkeypatch):
        """Without a deadline it loses a hundred times."""
        monkeypatch.setattr(_versioned, "_LONGEST_WAIT", 0.0)
        docs = VersionedDocuments(collection)
        await docs.create({"_id": 1, "n": 0})
        tries = 0

        async def change(document):
            nonlocal tries
            tries += 1
            await docs.update(1, increment)
            return document | {"mine": True}

        with pytest.raises(VersionConflict):
            await docs.update(1, change)
        assert 100 == tries
