"""Ways from one of Motor's objects to another that are no single call, and what is refused."""

import asyncio

from motor.motor_asyncio import AsyncIOMotorCollection, AsyncIOMotorGridFSBucket
from pymongo import InsertOne
from surface_calls import AWARE, MAJORITY, OPTIONS, call

# -- ways from object to object --------------------------------------------------------------------


async def uploaded(side):
    """A file in GridFS: bucket, upload stream, download stream and cursor."""
    bucket = AsyncIOMotorGridFSBucket(side.database)
    upload = bucket.open_upload_stream("name", metadata={"x": 1})
    async with upload:
        await upload.write(b"content")
    download = await bucket.open_download_stream(upload._id)
    return [bucket, upload, download, bucket.find({}), bucket.collection]


async def patched(side):
    """What the objects say after a user has replaced `get_io_loop`, as Beanie does."""
    asked = []

    def get_io_loop():
        asked.append(1)
        return asyncio.get_event_loop()

    side.client.get_io_loop = get_io_loop
    try:
        loop = asyncio.get_running_loop()
        seen = [it.get_io_loop() is loop for it in (side.client, side.database, side.collection)]
        seen.append(side.session.get_io_loop() is loop)
        for name, *args in (("insert_one", {}), ("update_one", {}, SET), ("find_one", {})):
            asked.clear()
            await getattr(side.collection, name)(*args)
            seen.append(len(asked) > 0)
        return seen
    finally:
        del side.client.get_io_loop


def equalities(side):
    """Whether wrappers of the same thing are equal, also to Motor's own."""
    client, database, collection = side.client, side.database, side.collection
    plain = AsyncIOMotorCollection(database, "c")
    return [
        client == copy_of(client),
        database == client.get_database(database.name),
        database == database.with_options(write_concern=MAJORITY),
        collection == database.get_collection("c"),
        collection == collection.with_options(write_concern=MAJORITY),
        collection == plain,
        plain == collection,
        hash(plain) == hash(collection),
        len({collection, database.c, plain}) == 1,
        len({database, client[database.name]}) == 1,
        collection != database.c,
        collection == database.d,
        collection == collection.delegate,
        database == collection,
    ]


def copy_of(client):
    """A client over the same connections."""
    made = type(client).__new__(type(client))
    vars(made).update(vars(client))
    return made


async def streams(side):
    """Change streams that see a change."""
    seen = []
    for thing in (side.client, side.database, side.collection):
        async with thing.watch() as stream:
            await side.collection.insert_one({})
            seen.append([stream, await stream.next()])
    return seen


async def in_blocks(side):
    """What `async with` gives for a session, its transaction and a cursor."""
    async with await side.client.start_session() as session:
        async with session.start_transaction() as transaction:
            await side.collection.insert_one({}, session=session)
        async with side.collection.find(session=session) as cursor:
            return [session, transaction, cursor, session.client]


BEYOND = {
    "GridFS": uploaded,
    "get_io_loop replaced": patched,
    "equality": equalities,
    "change streams": streams,
    "blocks": in_blocks,
    "same client": lambda s: [
        s.database.client is s.client,
        s.collection.database is s.database,
        s.collection.sub.database is s.database,
        s.collection.with_options(write_concern=MAJORITY).database is s.database,
        s.database.with_options(write_concern=MAJORITY).client is s.client,
        s.session.client is s.client,
        s.client.get_database("x").client is s.client,
        s.client.get_default_database("x").client is s.client,
        s.database.get_collection("x").database is s.database,
        s.collection.find().collection is s.collection,
        s.collection.aggregate([]).collection is s.collection,
    ],
    "options are kept": lambda s: [
        thing.write_concern == MAJORITY and thing.codec_options == AWARE
        for thing in (
            s.client.get_database("x", *OPTIONS),
            s.client.get_database("x", *OPTIONS).y,
            s.client.get_database("x", *OPTIONS)["y"].z,
            s.database.get_collection("y", *OPTIONS),
            s.database.get_collection("y", *OPTIONS).z,
            s.database.get_collection("y", *OPTIONS)["z"],
            s.collection.with_options(*OPTIONS),
            s.database.with_options(*OPTIONS).y,
        )
    ],
    "full names": lambda s: (
        [
            s.collection.sub.full_name == f"{s.database.name}.c.sub",
            s.collection["a.b"].name == "c.a.b",
        ]
    ),
    "deep names": lambda s: s.client.a.b.c.d["e"]["f"],
    "explained": lambda s: s.collection.find().explain(),
    "cursor distinct": lambda s: s.collection.find().distinct("n"),
}


# -- what is refused -------------------------------------------------------------------------------


def foreign(name, *args):
    """A write with a session of another client."""
    return lambda s: getattr(s.collection, name)(*args, session=s.plain.client.start_session())


def pymongos(name, *args):
    """A write with a session of PyMongo's, which passes."""
    return lambda s: getattr(s.collection, name)(*args, session=s.client.delegate.start_session())


def after_close(name, *args):
    """A write of a client that is closed."""
    return lambda s: getattr(s.another_client().x.y, name)(*args)


SET = {"$set": {"x": 1}}
WRITES = {
    "insert_one": ({"_id": 8},),
    "update_one": ({}, SET),
    "replace_one": ({}, {"x": 1}),
    "delete_one": ({},),
    "find_one_and_delete": ({},),
    "find_one_and_replace": ({}, {"x": 1}),
    "find_one_and_update": ({}, SET),
    "insert_many": ([{"_id": 8}],),
    "update_many": ({}, SET),
    "delete_many": ({},),
    "bulk_write": ([InsertOne({"_id": 8})],),
}
REFUSED = (
    {f"{n}: comment": call("collection", n, *a, comment=object()) for n, a in WRITES.items()}
    | {f"{n}: first": call("collection", n, 1, *a[1:]) for n, a in WRITES.items()}
    | {f"{n}: another's session": foreign(n, *a) for n, a in WRITES.items()}
    | {f"{n}: PyMongo's session": pymongos(n, *a) for n, a in WRITES.items()}
    | {f"{n}: closed": after_close(n, *a) for n, a in WRITES.items()}
)
