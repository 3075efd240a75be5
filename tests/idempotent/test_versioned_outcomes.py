"""What versioned documents say of a call whose first command may have been applied, unheard."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure

from aioretry import Outcome, deadline, outcome_of
from aioretry.idempotent import VersionConflict, VersionedDocuments
from tests.idempotent.points import APP_NAME
from tests.idempotent.versioning import collection_of, increment, opened

UNAUTHORIZED = 13
CALLS = {
    "insert": lambda docs, _held: docs.create({"_id": 2, "n": 1}),
    "findAndModify": lambda docs, held: docs.save(held | {"n": 1}),
}


@pytest.fixture
async def struck(replica_set, collection) -> AsyncIterator[VersionedDocuments]:
    """Documents of a client that is struck by faults, and leaves all repetitions to the recipe."""
    async with opened("aioretry", replica_set.uri, appName=APP_NAME, retryWrites=False) as client:
        yield VersionedDocuments(collection_of(client, collection.name), history=3)


@pytest.fixture
def others(collection):
    """The same documents, of a client that is spared."""
    return VersionedDocuments(collection, history=3)


@pytest.fixture
async def held(others):
    """A document that was read."""
    return (await others.create({"_id": 1, "n": 0})).document


@pytest.mark.parametrize("seconds", [None, 30.0])
@pytest.mark.parametrize("command", CALLS)
async def test_a_later_denial(replica_set, struck, held, stored, command, seconds):
    """That a repetition was refused does not say that nothing was written."""
    faults = replica_set.faults
    with (
        faults.drop_reply(command, app_name=APP_NAME),
        faults.error(UNAUTHORIZED, command, nth=2, app_name=APP_NAME),
        pytest.raises(AutoReconnect) as caught,
    ):
        async with deadline(seconds):
            await CALLS[command](struck, held)
    assert outcome_of(caught.value) is Outcome.UNKNOWN
    assert any("ended with OperationFailure" in note for note in caught.value.__notes__)
    assert 1 == stored.count_documents({"n": 1})


@pytest.mark.parametrize("is_timeout", [False, True])
async def test_a_cancellation(replica_set, struck, held, stored, is_timeout):
    """Who is cancelled while he finds out what became of his save is told that it is unknown."""
    faults, scope = replica_set.faults, asyncio.timeout(None)

    async def save():
        async with scope:
            await struck.save(held | {"n": 1})

    with faults.drop_reply("findAndModify", app_name=APP_NAME):
        async with faults.hang("find", app_name=APP_NAME) as looking:
            saving = asyncio.create_task(save())
            await looking.wait_until_fired()
            if is_timeout:
                scope.reschedule(0)
            else:
                saving.cancel()
            with pytest.raises(TimeoutError if is_timeout else asyncio.CancelledError) as caught:
                await saving
    assert outcome_of(caught.value) is Outcome.UNKNOWN
    assert 1 == stored.find_one()["n"]


async def test_a_duplicate_after_doubt(replica_set, struck, collection):
    """An error of the second run, which the caller needs, speaks for the first one too."""
    await collection.create_index("mail", unique=True)
    await collection.insert_one({"_id": 5, "mail": "a"})
    with replica_set.faults.drop_request("insert", app_name=APP_NAME):
        with pytest.raises(DuplicateKeyError) as caught:
            await struck.create({"_id": 6, "mail": "a"})
    assert outcome_of(caught.value) is Outcome.UNKNOWN


class TestConflicts:
    """Where the document's history tells that this call has written nothing, the outcome does."""

    @pytest.mark.parametrize("is_lost", [False, True])
    @pytest.mark.parametrize(
        "call",
        [
            lambda docs, held: docs.save(held | {"n": 2}),
            lambda docs, held: docs.delete(held),
        ],
        ids=["save", "delete"],
    )
    async def test_of_a_save_in_between(self, replica_set, struck, others, held, call, is_lost):
        """Somebody has built on what was held: a request that was lost changed nothing."""
        await others.save(held | {"n": 1})
        losing = replica_set.faults.drop_request(
            "findAndModify", app_name=APP_NAME, must_fire=is_lost
        )
        if not is_lost:
            losing.disarm()
        with losing, pytest.raises(VersionConflict) as caught:
            await call(struck, held)
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED

    async def test_of_a_document_made_anew(self, replica_set, struck, others, held):
        """A document that is not what was held may have been deleted by this call."""
        with replica_set.faults.hang("findAndModify", app_name=APP_NAME, nth=2) as again:
            with replica_set.faults.drop_reply("findAndModify", app_name=APP_NAME):
                deleting = asyncio.create_task(struck.delete(held))
                await again.wait_until_fired()
            await others.create({"_id": 1, "n": 0})
        with pytest.raises(VersionConflict) as caught:
            await deleting
        assert outcome_of(caught.value) is Outcome.UNKNOWN

    @pytest.mark.parametrize("is_lost", [False, True])
    async def test_of_a_creation(self, replica_set, struck, held, is_lost):
        """A document may have been created by this call, deleted, and replaced by another."""
        losing = replica_set.faults.drop_request("insert", app_name=APP_NAME, must_fire=is_lost)
        if not is_lost:
            losing.disarm()
        with losing, pytest.raises(VersionConflict) as caught:
            await struck.create({"_id": 1, "n": 7})
        expected = Outcome.UNKNOWN if is_lost else Outcome.NOT_APPLIED
        assert outcome_of(caught.value) is expected

    async def test_look_that_failed(self, replica_set, struck, others, held):
        """A save that found nothing has written nothing, though what it lost to was not seen."""
        await others.update(1, increment)
        with replica_set.faults.error(UNAUTHORIZED, "find", app_name=APP_NAME):
            with pytest.raises(OperationFailure) as caught:
                await struck.save(held | {"n": 2})
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED
