"""A PyMongo that lacks a private name: its own command does what the event loop did with it."""

import asyncio
from types import SimpleNamespace

import pytest
from pymongo import InsertOne
from pymongo.errors import BulkWriteError

from aioretry import Outcome, deadline, outcome_of
from aioretry._drivers.engine import attempt, connection, messages, private_names
from tests.integration.doubting import INCREMENT

OF_MODULES = [
    (owner, name)
    for owner, names in private_names.SENDING
    for name in names
    if isinstance(owner, type(asyncio))
]


async def write(client, collection, faults):
    things = client[collection.database.name][collection.name]
    await things.insert_many([{"_id": n, "n": 0} for n in range(20)])
    with pytest.raises(BulkWriteError) as caught:
        await things.bulk_write([InsertOne({"n": 0}), InsertOne({"_id": 1})])
    assert 1 == caught.value.details["nInserted"]
    async with faults.drop_reply("update"), deadline(20):
        await asyncio.gather(*(things.update_one({"_id": 1}, INCREMENT) for _ in range(10)))
    async with faults.drop_reply("update", times=2):
        with pytest.raises(Exception, match="connection closed") as lost:
            await things.update_one({"_id": 2}, INCREMENT)
    assert Outcome.UNKNOWN is outcome_of(lost.value)


@pytest.mark.parametrize(("owner", "name"), OF_MODULES, ids=[name for _, name in OF_MODULES])
async def test_without_a_function(
    owner, name, client_class, replica_set, collection, stored, monkeypatch
):
    """It is hidden from this package, and left to PyMongo, which still has it then."""
    rest = SimpleNamespace(**{key: value for key, value in vars(owner).items() if key != name})
    for module in (attempt, connection, messages):
        for key, value in [*vars(module).items()]:
            if value is owner:
                monkeypatch.setattr(module, key, rest)
    monkeypatch.setattr(
        private_names,
        "SENDING",
        [(rest if one is owner else one, names) for one, names in private_names.SENDING],
    )
    async with client_class(replica_set.uri) as client:
        await write(client, collection, replica_set.faults)
        assert client._driver._only_jobs
    assert 10 == stored.find_one({"_id": 1})["n"]


@pytest.mark.parametrize("of", ["OF_POOL", "OF_CONNECTION", "OF_TOPOLOGY"])
async def test_without_an_attribute(of, client_class, replica_set, collection, stored, monkeypatch):
    """What connections and pools have is known as soon as there is one."""
    monkeypatch.setattr(private_names, of, (*getattr(private_names, of), "_gone"))
    async with client_class(replica_set.uri) as client:
        await write(client, collection, replica_set.faults)
        assert client._driver._dispatch._connections.are_unusable
    assert 10 == stored.find_one({"_id": 1})["n"]
