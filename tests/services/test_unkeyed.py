"""Requests without a key, where none is required: nothing is left of them but what they write."""

import uuid

import pytest

from aioretry.idempotent import Keys
from tests.services.apps import DATABASE

LEFT = ["aioretry.answers", "aioretry.keys"]


@pytest.fixture
def records(plain):
    """How many records of keys there are."""

    def count():
        return [plain[DATABASE][name].count_documents({}) for name in LEFT]

    return count


def new_key():
    """The header of a request that has a key."""
    return {"Idempotency-Key": uuid.uuid4().hex}


async def test_leave_no_answer(start, stored, records):
    """The answer of a request that nobody can repeat is not kept; one with a key is."""
    service = await start()
    await service.post("/optional", headers=new_key())
    before = records()
    answers = [await service.post("/optional") for _ in range(3)]
    assert [201] * 3 == [answer.status_code for answer in answers]
    assert "Idempotent-Replayed" not in {*answers[0].headers}
    assert 4 == stored.count_documents({})
    assert before == records()
    await service.post("/optional", headers=new_key())
    assert [before[0] + 1, before[1]] == records()


async def test_are_one_transaction(start, scene, replica_set, stored):
    """What their work writes is a transaction all the same, which begins anew where it has to."""
    service = await start()
    await service.post("/optional")
    async with replica_set.fail_command(
        "insert", error_code=112, error_labels=["TransientTransactionError"]
    ):
        assert 201 == (await service.post("/optional")).status_code

    async def failing(collection, session):
        await collection.insert_one({}, session=session)
        raise LookupError

    scene.work = failing
    assert 500 == (await service.post("/optional")).status_code
    assert 2 == stored.count_documents({})


async def test_single_writes_leave_no_record(start, records):
    """Nor is the kind of a write noted that nobody can repeat."""
    service = await start()
    before = records()
    assert [1, 2] == [(await service.post("/counted-optional")).json() for _ in range(2)]
    assert before == records()


async def test_once_without_a_key(collection, plain):
    """`once(None, ...)` is a transaction, and no more."""
    name = f"{collection.name}.answers"

    async def work(session):
        await collection.insert_one({"_id": "written"}, session=session)
        return {"n": 1}

    async with Keys(b"0123456789abcdef", "tests", answer_records=name) as keys:
        answer = await keys.once(None, work, database=collection.database)
    assert ({"n": 1}, False) == (answer.value, answer.replayed)
    stored = plain[collection.database.name][collection.name]
    assert [{"_id": "written"}] == list(stored.find())
    assert name not in await collection.database.list_collection_names()
