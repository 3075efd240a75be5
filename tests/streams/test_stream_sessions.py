"""Sessions of leases and readers: which are killed and ended, and are nobody else's."""

import asyncio
import datetime as dt

import pytest
from bson.codec_options import TypeDecoder, TypeRegistry
from bson.decimal128 import Decimal128
from bson.errors import InvalidBSON

from aioretry.streams import ChangeStreamSource
from aioretry.streams._committing import load
from aioretry.streams._leases import LEASES
from aioretry.streams._reading import Reader
from tests.streams.tagging import of_change_stream

EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


@pytest.fixture
async def owner(replica_set, client_class):
    """A client whose worker is to lose its lease."""
    async with client_class(replica_set.uri) as client:
        yield client


async def test_the_session_of_an_old_lease_is_nobodys(
    owner, replica_set, documents, target, aggregator, following, plain
):
    """A takeover that was begun before the lease was given back kills no stranger's transaction."""
    await aggregator.rebuild()
    others = owner.aioretry_tests.get_collection(
        f"{documents.name}_others", write_concern=documents.write_concern
    )
    await others.insert_one({"_id": 1})
    old = of_change_stream(owner.aioretry_tests[documents.name], owner.aioretry_tests[target.name])
    worker = following(old)
    await until_held(old)
    async with replica_set.faults.hang("killSessions") as killing:
        plain.aioretry_tests[LEASES].update_one(  # as if the worker had been frozen
            {"_id.aggregator": target.name}, {"$set": {"expires": EPOCH}}
        )
        taking = asyncio.create_task(aggregator.run(until_caught_up=True))
        await killing.wait_until_fired()
        worker.cancel()
        await asyncio.wait([worker])
        async with await owner.start_session() as session:
            session.start_transaction()
            await others.insert_one({"_id": 2}, session=session)
            killing.disarm()
            await taking
            await session.commit_transaction()
    assert 2 == plain.aioretry_tests[others.name].count_documents({})


async def test_leases_are_given_back_at_once(replica_set, documents, target):
    """A rebuild of many parts ends in one command and another one, and not in two for each part."""
    aggregator = of_change_stream(documents, target, parts=8)
    faults = replica_set.faults
    async with faults.hang("find", namespace=documents.full_name) as reading:
        rebuilding = asyncio.create_task(aggregator.rebuild())
        await reading.wait_until_fired()
        async with (
            faults.watch(
                "update", namespace=f"{target.database.name}.{LEASES}", times=None
            ) as giving,
            faults.watch("endSessions", times=None) as ending,
        ):
            rebuilding.cancel()
            await asyncio.wait([rebuilding])
            assert (1, 1) == (giving.fired, ending.fired)
    assert not any(part.owner for part in (await aggregator.status()).parts)


async def test_the_session_of_a_reader_that_fails(replica_set, documents, aggregator):
    """It is ended, and nothing is killed, whatever the reading thread has raised."""
    await aggregator.rebuild()
    watermark = await load(aggregator._settings.target, 0)
    await documents.insert_one({"_id": 1, "n": Decimal128("1")})
    options = documents.codec_options.with_options(type_registry=TypeRegistry([Failing()]))
    source = ChangeStreamSource(documents.with_options(codec_options=options))
    reader = Reader(source, watermark.position, patience=60.0)
    sessions = []

    async def read():
        async with reader:
            sessions.append(reader._session)
            while True:
                await reader.read(10, 1.0)

    with replica_set.faults.watch("killSessions", must_fire=False) as killing:
        with pytest.raises(InvalidBSON, match="no such number"):
            await read()
    assert [True] == [session.has_ended for session in sessions]
    assert not killing.fired


class Failing(TypeDecoder):
    """Decodes no number."""

    bson_type = Decimal128

    def transform_bson(self, _value):
        raise ValueError("no such number")


async def until_held(aggregator):
    """Wait until somebody holds the lease."""
    while (await aggregator.status()).parts[0].owner is None:
        await asyncio.sleep(0.02)
