"""Versioned documents whose recipes are cut off at each of their commands."""

from collections.abc import AsyncIterator, Iterator

import pytest

from aioretry.idempotent import VersionConflict, VersionedDocuments
from aioretry.testing import Standalone
from tests.idempotent.points import APP_NAME, at_each_kill, at_each_lost_reply
from tests.idempotent.versioning import DRIVERS, collection_of, increment, opened

PREFIX = "tests.idempotent.versioning"


@pytest.fixture(scope="module")
def standalone(server_version) -> Iterator[Standalone]:
    """A server without retryable writes, behind a proxy."""
    with Standalone(version=server_version, faults=True) as server:
        yield server


@pytest.fixture(params=["replica set", "standalone"])
def servers(request):
    """Either deployment."""
    return request.getfixturevalue(request.param.replace(" ", "_"))


@pytest.fixture(params=DRIVERS)
async def cut(request, servers, collection) -> AsyncIterator[VersionedDocuments]:
    """Documents of a client that is struck by the faults."""
    async with opened(request.param, servers.uri, appName=APP_NAME) as client:
        yield VersionedDocuments(collection_of(client, collection.name))


@pytest.fixture
async def docs(servers, collection) -> AsyncIterator[VersionedDocuments]:
    """The same documents, of a client that is spared."""
    async with opened("aioretry", servers.uri) as client:
        yield VersionedDocuments(collection_of(client, collection.name))


@pytest.fixture
async def found(servers, collection):
    """Finds the documents that are stored."""
    async with opened("aioretry", servers.uri) as client:
        stored = collection_of(client, collection.name)

        async def find(number, **more):
            return await stored.find({"run": number, **more}).to_list()

        yield find


class TestLostReplies:
    """The reply of each command is lost, one after the other."""

    async def test_create(self, servers, cut, found):
        """The document is there once, and the caller is told that it is new."""

        async def run(number):
            created = await cut.create({"run": number})
            assert created.written
            assert [created.document] == await found(number)
            assert cut.verify(created.document)

        assert 1 <= await at_each_lost_reply(servers, run)

    async def test_create_again(self, servers, cut, found):
        """A document that was created before is found."""
        first = await cut.create({"run": 0})

        async def run(_number):
            again = await cut.create({"run": 0})
            assert not again.written
            assert first.document == again.document
            assert [first.document] == await found(0)

        assert 2 <= await at_each_lost_reply(servers, run)

    async def test_save(self, servers, cut, docs, found):
        """The document is saved, and the caller is told so."""

        async def run(number):
            held = (await docs.create({"run": number, "n": 0})).document
            saved = await cut.save(held | {"n": 1})
            assert saved.written
            assert [saved.document] == await found(number, n=1)

        assert 1 <= await at_each_lost_reply(servers, run)

    async def test_save_what_is_stored(self, servers, cut, docs, found):
        """A document without changes is saved by a write that changes nothing."""
        held = (await docs.create({"run": 0})).document

        async def run(_number):
            saved = await cut.save(held)
            assert (False, held) == (saved.written, saved.document)
            assert [held] == await found(0)

        assert 1 <= await at_each_lost_reply(servers, run)

    async def test_lost_save(self, servers, cut, docs, found):
        """Who was not first is told so."""

        async def run(number):
            held = (await docs.create({"run": number, "n": 0})).document
            won = await docs.save(held | {"n": 1})
            with pytest.raises(VersionConflict) as caught:
                await cut.save(held | {"n": 2})
            assert won.document == caught.value.stored_document
            assert [won.document] == await found(number)

        assert 2 <= await at_each_lost_reply(servers, run)

    async def test_update(self, servers, cut, docs, found):
        """The change is applied once."""

        async def run(number):
            held = await docs.create({"run": number, "n": 0})
            updated = await cut.update(held.id, increment)
            assert [updated.document] == await found(number, n=1)

        assert 2 <= await at_each_lost_reply(servers, run)

    async def test_delete(self, servers, cut, docs, found):
        """The document is gone."""

        async def run(number):
            held = (await docs.create({"run": number})).document
            await cut.delete(held)
            assert [] == await found(number)

        assert 1 <= await at_each_lost_reply(servers, run)

    async def test_lost_delete(self, servers, cut, docs, found):
        """A version that nobody has read is not deleted."""

        async def run(number):
            held = (await docs.create({"run": number, "n": 0})).document
            won = await docs.save(held | {"n": 1})
            with pytest.raises(VersionConflict):
                await cut.delete(held)
            assert [won.document] == await found(number)

        assert 2 <= await at_each_lost_reply(servers, run)


class TestKills:
    """The process is killed at each command, before it and after it; another one does it again."""

    async def test_create(self, servers, collection, docs, found):
        """The document is there once."""

        def arguments(number):
            return {"name": collection.name, "content": {"run": number}}

        async def recover(number):
            created = await docs.create({"run": number}, timeout=60.0)
            assert [created.document] == await found(number)

        assert 2 <= await at_each_kill(servers, f"{PREFIX}:create", arguments, recover)

    async def test_save(self, servers, collection, docs, found):
        """The content is saved, by the same key again."""
        held = [(await docs.create({"run": n, "n": 0})).document for n in range(6)]

        def arguments(number):
            document = held[number] | {"n": 1}
            return {"name": collection.name, "document": document, "key": "request"}

        async def recover(number):
            saved = await docs.save(held[number] | {"n": 1}, key="request", timeout=60.0)
            assert [saved.document] == await found(number, n=1)

        assert 2 <= await at_each_kill(servers, f"{PREFIX}:save", arguments, recover)

    async def test_update(self, servers, collection, docs, found):
        """The change is applied once, by the same key again."""
        held = [await docs.create({"run": n, "n": 0}) for n in range(10)]

        def arguments(number):
            return {"name": collection.name, "id": held[number].id, "key": "request"}

        async def recover(number):
            updated = await docs.update(held[number].id, increment, key="request", timeout=60.0)
            assert [updated.document] == await found(number, n=1)

        assert 4 <= await at_each_kill(servers, f"{PREFIX}:update", arguments, recover)

    async def test_delete(self, servers, collection, docs, found):
        """The document is gone."""
        held = [(await docs.create({"run": n})).document for n in range(6)]

        def arguments(number):
            return {"name": collection.name, "document": held[number]}

        async def recover(number):
            await docs.delete(held[number], timeout=60.0)
            assert [] == await found(number)

        assert 2 <= await at_each_kill(servers, f"{PREFIX}:delete", arguments, recover)
