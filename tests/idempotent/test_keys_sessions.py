"""Sessions of keys: what they cost the cluster, and that ending them loses nothing."""

import pytest
from pymongo.errors import OperationFailure

from aioretry.idempotent import Keys
from aioretry.idempotent._keys_derived import Names, key_of
from aioretry.testing import ReplicaSet
from tests.idempotent.keyed import NAMESPACE, SECRET, keyed_collection

_TOO_MANY = 261
_ROOM = 50


@pytest.fixture
def small_set(server_version):
    """A set that has room for few sessions, and that can be told to tidy up."""
    parameters = {"enableTestCommands": "1", "maxSessions": str(_ROOM)}
    with ReplicaSet(1, server_version, parameters=parameters) as servers:
        yield servers


@pytest.fixture
async def small_client(small_set, client_class):
    """A client of that set."""
    async with client_class(small_set.uri) as client:
        yield client


async def insert(client, keys, number):
    """Insert a document under a key; tell whether it was replayed."""
    async with keyed_collection(client, "c").operation(key=keys(f"key {number}")) as op:
        await op.insert_one({"n": number})
    return op.replayed


async def insert_all(client, keys, number):
    """Insert so many."""
    for n in range(number):
        await insert(client, keys, n)


async def tidy_up(client, keys):
    """End what is to be ended, and have the server forget it, as it does every five minutes."""
    await keys.close()
    await client.admin.command("refreshLogicalSessionCacheNow")
    await client.admin.command("reapLogicalSessionCacheNow")


async def test_ended_sessions_make_room_and_are_remembered(small_client):
    """More writes than there is room for go through, and all of them are replayed afterwards."""
    number = 3 * _ROOM
    async with Keys(SECRET, NAMESPACE, batch=10) as keys:
        for n in range(2 * number):
            was_replayed = await insert(small_client, keys, n % number)
            assert was_replayed is (n >= number) or was_replayed is None
            if n % 30 == 29:
                await tidy_up(small_client, keys)
    assert number == await keyed_collection(small_client, "c").count_documents({})
    active = (await small_client.admin.command("serverStatus"))["logicalSessionRecordCache"]
    assert active["activeSessionsCount"] < _ROOM


async def test_without_ending_there_is_no_room(small_set, small_client, client_class):
    """Where sessions are left to themselves, the cluster refuses every client before long."""
    keys = Keys(SECRET, NAMESPACE, batch=10_000)
    with pytest.raises(OperationFailure) as caught:
        await insert_all(small_client, keys, _ROOM + 1)
    assert _TOO_MANY == caught.value.code
    async with client_class(small_set.uri) as other:
        with pytest.raises(OperationFailure) as caught:
            await other.aioretry_tests.c.insert_one({})
    assert _TOO_MANY == caught.value.code
    await tidy_up(small_client, keys)
    assert await insert(small_client, keys, 0) in {True, None}


async def test_no_session_of_a_key_is_pooled(client, collection):
    """They are never leased for another write."""
    pool = client.delegate._topology._session_pool
    async with Keys(SECRET, NAMESPACE) as keys:
        for number in range(5):
            async with collection.operation(key=keys(f"key {number}")) as op:
                await op.insert_one({})
    names = [
        Names(SECRET, NAMESPACE, collection.full_name, key_of(f"key {number}"))
        for number in range(5)
    ]
    of_keys = {bytes(each.session_id(0)) for each in names}
    assert set() == of_keys & {bytes(session.session_id["id"]) for session in pool}


async def test_a_client_that_is_gone(replica_set, collection, client_class):
    """Sessions of a client that was closed before are left to end by themselves."""
    keys = Keys(SECRET, NAMESPACE)
    async with client_class(replica_set.uri) as client:
        mine = keyed_collection(client, collection.name)
        async with mine.operation(key=keys(collection.name)) as op:
            await op.insert_one({})
    await keys.close()
