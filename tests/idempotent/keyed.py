"""What the tests of keys share, and what they run in processes of their own."""

import json

from pymongo.write_concern import WriteConcern

from aioretry import deadline
from aioretry.idempotent import Keys
from tests.clients import chosen_client

SECRET = b"sixteen bytes or so, and more"
NAMESPACE = "tests"
MAJORITY = WriteConcern(w="majority", j=True)


def keyed_collection(client, name):
    """A collection of the tests' database."""
    return client.aioretry_tests.get_collection(name, write_concern=MAJORITY)


async def order(collection, key):
    """Write three documents under one key; give what each write gave."""
    async with collection.operation(timeout=60, key=key) as op:
        inserted = await op.insert_one({"order": 1})
        updated = await op.update_one({"_id": "stock"}, {"$inc": {"sold": 1}}, upsert=True)
        number = await op.find_one_and_update(
            {"_id": "number"}, {"$inc": {"n": 1}}, upsert=True, return_document=True
        )
    return [str(inserted.inserted_id), updated.matched_count, updated.upserted_id, number["n"]]


async def order_once(uri, collection, key, durable):
    """What a process does: write under one key, and print the answers."""
    async with chosen_client()(uri) as client, Keys(SECRET, NAMESPACE) as keys:
        answers = await order(keyed_collection(client, collection), keys(key, durable=durable))
    print(json.dumps(answers))


class SoldOutError(Exception):
    """There is none left."""


async def take_the_last(collection, keys):
    """Take the last one of the stock, once; give the order's id."""

    async def work(session):
        enough, less = {"_id": "stock", "left": {"$gte": 1}}, {"$inc": {"left": -1}}
        if not (await collection.update_one(enough, less, session=session)).modified_count:
            raise SoldOutError
        return {"id": (await collection.insert_one({"order": 1}, session=session)).inserted_id}

    async with deadline(60):
        answer = await keys.once(collection.name, work, database=collection.database)
    return answer.value["id"]


async def take_in_a_process(uri, collection):
    """What a process does: take the last one."""
    async with chosen_client()(uri) as client, Keys(SECRET, NAMESPACE) as keys:
        await take_the_last(keyed_collection(client, collection), keys)


def require_one_taken(stored, answer):
    """The final state: none left, and one order, which the answer names."""
    assert [answer] == [each["_id"] for each in stored.find({"order": 1})]
    assert [{"_id": "stock", "left": 0}] == list(stored.find({"_id": "stock"}))


def require_one_order(stored):
    """The final state: one order, sold once, with the first number."""
    assert 1 == stored.count_documents({"order": 1})
    assert {"_id": "stock", "sold": 1} == stored.find_one({"_id": "stock"})
    assert {"_id": "number", "n": 1} == stored.find_one({"_id": "number"})
    assert 3 == stored.count_documents({})
