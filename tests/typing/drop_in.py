"""A code base annotated for Motor, after changing one import; checked, never run."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, assert_type

from bson.codec_options import CodecOptions
from motor.core import AgnosticClientSession
from motor.motor_asyncio import (
    AsyncIOMotorClientSession,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
    AsyncIOMotorGridFSBucket,
)
from pymongo import ReturnDocument
from pymongo.read_concern import ReadConcern
from pymongo.results import (
    BulkWriteResult,
    DeleteResult,
    InsertManyResult,
    InsertOneResult,
    UpdateResult,
)
from pymongo.write_concern import WriteConcern

# Before: from motor.motor_asyncio import AsyncIOMotorClient
from aioretry import RetryClient as AsyncIOMotorClient
from aioretry import RetryMotorCollection, RetryMotorDatabase

Doc = dict[str, Any]


def connect(uri: str) -> AsyncIOMotorClient[Doc]:
    """Make a client as with Motor."""
    client: AsyncIOMotorClient[Doc] = AsyncIOMotorClient(uri, tz_aware=True, retryWrites=True)
    client.get_io_loop()
    return client


def database_of(client: AsyncIOMotorClient[Doc]) -> AsyncIOMotorDatabase[Doc]:
    """Databases pass for Motor's."""
    by_name: AsyncIOMotorDatabase[Doc] = client["shop"]
    by_attribute: AsyncIOMotorDatabase[Doc] = client.shop
    with_options: AsyncIOMotorDatabase[Doc] = by_name.with_options(
        read_concern=ReadConcern("local")
    )
    default: AsyncIOMotorDatabase[Doc] = client.get_default_database("shop")
    del by_attribute, with_options, default
    return client.get_database("shop", write_concern=WriteConcern("majority"))


def orders_of(database: AsyncIOMotorDatabase[Doc]) -> AsyncIOMotorCollection[Doc]:
    """Whoever takes Motor's database gets Motor's collections, as far as types go."""
    return database.get_collection("orders", codec_options=CodecOptions(tz_aware=True))


async def unchanged(orders: AsyncIOMotorCollection[Doc]) -> Doc | None:
    """A function that knows Motor alone."""
    inserted: InsertOneResult = await orders.insert_one({"n": 1})
    await orders.update_one({"_id": inserted.inserted_id}, {"$inc": {"n": 1}}, upsert=True)
    return await orders.find_one({"_id": inserted.inserted_id})


async def calls(client: AsyncIOMotorClient[Doc]) -> None:
    """Ours are taken where Motor's are asked for."""
    await unchanged(client.shop.orders)
    await unchanged(client["shop"]["orders"])
    await unchanged(client.shop.get_collection("orders"))
    await unchanged(await client.shop.create_collection("orders"))
    await unchanged(orders_of(client.shop))
    await unchanged(orders_of(database_of(client)))
    AsyncIOMotorGridFSBucket(client.shop)
    await client.drop_database(client.shop)
    await client.shop.drop_collection(client.shop.orders)
    await client.shop.validate_collection(client.shop.orders)


class Repository:
    """What a service usually has."""

    def __init__(self, client: AsyncIOMotorClient[Doc]) -> None:
        self.orders: AsyncIOMotorCollection[Doc] = client.shop.orders
        self.ours = client.shop.orders

    async def all(self) -> AsyncIterator[Doc]:
        """Iterate over a cursor."""
        async for order in self.ours.find({"n": {"$gt": 0}}).sort("n").limit(10):
            yield order
        async for row in self.ours.aggregate([{"$match": {}}]):
            assert_type(row, Any)
        some: list[Doc] = await self.ours.find().to_list(10)
        del some

    async def one(self) -> Doc | None:
        """Read one document."""
        return await self.ours.find_one({"n": 1}, sort=[("n", -1)])

    async def take(self, session: AgnosticClientSession | None = None) -> Doc:
        """Return what a write returns, as the document type."""
        return await self.ours.find_one_and_update(
            {"n": 1}, {"$inc": {"n": 1}}, return_document=ReturnDocument.AFTER, session=session
        )

    async def swap(self) -> Doc:
        """Return the replaced document."""
        return await self.ours.find_one_and_replace({"n": 1}, {"n": 2}, projection={"n": 1})

    async def drop(self) -> Doc:
        """Return the deleted document."""
        return await self.ours.find_one_and_delete({"n": 1}, hint="n_1")


async def writes(orders: RetryMotorCollection[Doc], session: AgnosticClientSession) -> None:
    """The results of the writes, with Motor's argument types."""
    match: Mapping[str, Any] = {"n": 1}
    assert_type(await orders.insert_one({"n": 1}, session=session), InsertOneResult)
    assert_type(await orders.insert_many([{"n": 1}], ordered=False), InsertManyResult)
    assert_type(await orders.update_one(match, {"$set": {"n": 2}}, hint="n_1"), UpdateResult)
    assert_type(await orders.update_many(match, [{"$set": {"n": 2}}]), UpdateResult)
    assert_type(await orders.replace_one(match, {"n": 2}, collation={"locale": "en"}), UpdateResult)
    assert_type(await orders.delete_one(match, let={"x": 1}, comment="c"), DeleteResult)
    assert_type(await orders.delete_many(match), DeleteResult)
    assert_type(await orders.bulk_write([]), BulkWriteResult)
    assert_type(await orders.count_documents(match), int)
    assert_type(await orders.distinct("n"), list[Any])
    later: Awaitable[UpdateResult] = orders.update_one(match, {"$set": {"n": 2}})
    await later


async def transaction(client: AsyncIOMotorClient[Doc]) -> None:
    """Sessions pass for Motor's."""
    async with await client.start_session() as session:
        as_motors: AsyncIOMotorClientSession = session
        async with session.start_transaction():
            await client.shop.orders.insert_one({"n": 1}, session=as_motors)
            await client.shop.orders.insert_one({"n": 2}, session=session)


async def ours(client: AsyncIOMotorClient[Doc]) -> None:
    """Every way to a database or a collection has our type, so that `operation` is seen."""
    options: CodecOptions[Doc] = CodecOptions(tz_aware=True)
    shop = client.get_database("shop", options)
    assert_type(shop, RetryMotorDatabase[Doc])
    assert_type(client.get_default_database("shop"), RetryMotorDatabase[Doc])
    assert_type(shop.with_options(options), RetryMotorDatabase[Doc])
    assert_type(shop.get_collection("orders", options), RetryMotorCollection[Doc])
    assert_type(shop.orders.with_options(options), RetryMotorCollection[Doc])
    assert_type(await shop.create_collection("orders"), RetryMotorCollection[Doc])
    assert_type(shop.orders.database, AsyncIOMotorDatabase[Doc])
    assert_type(await shop.orders.database.command("ping"), dict[str, Any])
