"""How to call every public name of Motor's classes on a real server."""

import asyncio
import itertools
import uuid
import warnings

from bson import SON, DBRef
from bson.codec_options import CodecOptions
from pymongo import DeleteOne, IndexModel, InsertOne, ReadPreference, UpdateMany, UpdateOne
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

AWARE = CodecOptions(tz_aware=True)
MAJORITY = WriteConcern("majority")
LOCAL = ReadConcern("local")
OPTIONS = (AWARE, ReadPreference.SECONDARY_PREFERRED, MAJORITY, LOCAL)
SEARCH_INDEX = {"definition": {"mappings": {"dynamic": True}}}


class Side:
    """A client, and what else calls are made on."""

    def __init__(self, client, uri, plain, session, other):
        self.client, self.uri, self.session, self.other = client, uri, session, other
        self.database = client[f"surface_of_{type(client).__name__}"]
        self.collection = self.database["c"]
        self.plain = plain[self.database.name]
        self.plain.drop_collection("c")
        self.plain.c.insert_many([{"_id": n, "n": n} for n in range(3)])

    @classmethod
    async def make(cls, client, uri, plain):
        """A side with a database and a session of its own, and another one's collection."""
        return cls(client, uri, plain, await client.start_session(), plain.surface_other.c)

    @property
    def begun(self):
        """The session, in a transaction."""
        self.session.start_transaction()
        return self.session

    def wrapped(self, wrapper, *values):
        """What `wrap` makes of PyMongo's objects."""
        return [wrapper.wrap(value) for value in values]

    def another_client(self):
        """A client made like this one's, closed again."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            made = type(self.client)(self.uri, None, io_loop=asyncio.get_running_loop())
        made.close()
        return made

    async def transaction(self, session):
        """The callback of a transaction."""
        own = session.client[self.database.name].c
        await own.insert_one({"_id": uuid.uuid4().hex}, session=session)
        return [session, own, session.client]


_fresh = (f"name{n}" for n in itertools.count())


def call(kind, name, /, *args, **kwargs):
    """A call of a method of a side's client, database, collection or session."""
    return lambda side: getattr(getattr(side, kind), name)(*args, **kwargs)


def watched(kind):
    """A change stream."""
    return lambda side: getattr(side, kind).watch([{"$match": {}}], max_await_time_ms=10)


def read(*names):
    """Names that are read only."""
    return dict.fromkeys(names)


CLIENT = read(
    *("HOST", "PORT", "address", "arbiters", "codec_options", "delegate", "io_loop", "is_mongos"),
    *("is_primary", "nodes", "options", "primary", "read_concern", "read_preference"),
    *("secondaries", "topology_description", "write_concern"),
    *("__delegate_class__", "__motor_class_name__"),
) | {
    "__class_getitem__": lambda s: type(s.client)[dict],
    "__eq__": lambda s: [s.client == s.client, s.client == s.other, s.client != s.client],
    "__getattr__": lambda s: s.client.some_database,
    "__getitem__": lambda s: s.client["some_database"],
    "__hash__": lambda s: hash(s.client),
    "__init__": lambda s: s.another_client(),
    "__repr__": lambda s: repr(s.client),
    "bulk_write": call("client", "bulk_write", [InsertOne({"_id": 1}, namespace="x.y")]),
    "close": lambda s: s.another_client().close(),
    "drop_database": [
        lambda s: s.client.drop_database(s.database),
        lambda s: s.client.drop_database(s.database.name, session=s.session),
        lambda s: s.client.drop_database(name_or_database=s.database),
    ],
    "get_database": [
        call("client", "get_database"),
        call("client", "get_database", "x"),
        call("client", "get_database", "x", *OPTIONS),
        call("client", "get_database", name="x", write_concern=MAJORITY),
    ],
    "get_default_database": [
        call("client", "get_default_database"),
        call("client", "get_default_database", "x", *OPTIONS),
        call("client", "get_default_database", default="x", read_concern=LOCAL),
    ],
    "get_io_loop": call("client", "get_io_loop"),
    "list_database_names": lambda s: s.client.list_database_names(s.session),
    "list_databases": [
        call("client", "list_databases"),
        lambda s: s.client.list_databases(session=s.session, nameOnly=True),
    ],
    "server_info": call("client", "server_info"),
    "start_session": [
        call("client", "start_session"),
        call("client", "start_session", causal_consistency=False),
        call("client", "start_session", snapshot=True),
        call("client", "start_session", causal_consistency=True, snapshot=True),
    ],
    "watch": watched("client"),
    "wrap": lambda s: s.wrapped(
        s.client,
        *(s.plain, s.plain.c, s.plain.client.list_databases(), s.plain.c.find()),
        *(s.plain.client.start_session(), s.client.delegate, None, 1),
    ),
}

DATABASE = read(
    *("client", "codec_options", "delegate", "name", "read_concern", "read_preference"),
    *("write_concern", "__delegate_class__", "__motor_class_name__"),
) | {
    "__bool__": lambda s: bool(s.database),
    "__call__": lambda s: s.database(),
    "__class_getitem__": lambda s: type(s.database)[dict],
    "__eq__": lambda s: [s.database == s.client[s.database.name], s.database == s.client.x],
    "__getattr__": lambda s: s.database.c,
    "__getitem__": lambda s: s.database["c"],
    "__hash__": lambda s: hash(s.database),
    "__init__": lambda s: type(s.database)(s.client, "x", write_concern=MAJORITY),
    "__repr__": lambda s: repr(s.database),
    "aggregate": call("database", "aggregate", [{"$listLocalSessions": {}}, {"$limit": 1}]),
    "command": [
        call("database", "command", "ping"),
        lambda s: s.database.command({"find": "c"}, session=s.session, codec_options=AWARE),
        call("database", "command", "nonsense"),
    ],
    "create_collection": [
        lambda s: s.database.create_collection(next(_fresh)),
        lambda s: s.database.create_collection(next(_fresh), *OPTIONS, session=s.session),
        lambda s: s.database.create_collection(name=next(_fresh), capped=True, size=4096),
        call("database", "create_collection", "c"),
        call("database", "create_collection", "c", check_exists=False),
    ],
    "cursor_command": [
        call("database", "cursor_command", "find", "c"),
        lambda s: s.database.cursor_command({"find": "c"}, session=s.session),
        call("database", "cursor_command", "ping"),
    ],
    "dereference": [
        call("database", "dereference", DBRef("c", 1)),
        lambda s: s.database.dereference(DBRef("c", 1, s.database.name), session=s.session),
        call("database", "dereference", 1),
    ],
    "drop_collection": [
        lambda s: s.database.drop_collection(s.collection),
        lambda s: s.database.drop_collection("c", session=s.session),
        lambda s: s.database.drop_collection(name_or_collection=s.collection),
    ],
    "get_collection": [
        call("database", "get_collection", "c"),
        call("database", "get_collection", "c", *OPTIONS),
        call("database", "get_collection", name="c", write_concern=MAJORITY),
    ],
    "get_io_loop": call("database", "get_io_loop"),
    "list_collection_names": lambda s: s.database.list_collection_names(s.session, {"name": "c"}),
    "list_collections": [
        call("database", "list_collections"),
        lambda s: s.database.list_collections(session=s.session, filter={"name": "c"}),
    ],
    "validate_collection": [
        lambda s: s.database.validate_collection(s.collection),
        call("database", "validate_collection", "c", full=True),
    ],
    "watch": watched("database"),
    "with_options": [
        call("database", "with_options", *OPTIONS),
        call("database", "with_options", codec_options=AWARE),
    ],
    "wrap": lambda s: s.wrapped(
        s.database,
        *(s.plain, s.plain.c, s.plain.client.list_databases(), s.plain.c.find()),
        *(s.plain.client.start_session(), s.client.delegate, None, 1),
    ),
}

COLLECTION = read(
    *("codec_options", "database", "delegate", "full_name", "name", "read_concern"),
    *("read_preference", "write_concern", "__delegate_class__", "__motor_class_name__"),
) | {
    "__bool__": lambda s: bool(s.collection),
    "__call__": lambda s: s.collection(),
    "__class_getitem__": lambda s: type(s.collection)[dict],
    "__eq__": lambda s: [s.collection == s.database.c, s.collection == s.database.x],
    "__getattr__": lambda s: s.collection.sub,
    "__getitem__": lambda s: s.collection["sub"],
    "__hash__": lambda s: hash(s.collection),
    "__init__": [
        lambda s: type(s.collection)(s.database, "x", *OPTIONS),
        lambda s: type(s.collection)(s.database, name="x", write_concern=MAJORITY),
    ],
    "__repr__": lambda s: repr(s.collection),
    "aggregate": [
        call("collection", "aggregate", [{"$match": {}}]),
        lambda s: s.collection.aggregate([{"$out": "copied"}], session=s.session, let={"x": 1}),
        call("collection", "aggregate", [{"$nonsense": 1}]),
    ],
    "aggregate_raw_batches": call("collection", "aggregate_raw_batches", [{"$match": {}}]),
    "bulk_write": [
        call("collection", "bulk_write", [InsertOne({"_id": 9}), DeleteOne({"_id": 9})]),
        lambda s: s.collection.bulk_write(
            [UpdateOne({}, {"$set": {"x": 1}}), UpdateMany({}, {"$set": {"x": 1}})],
            ordered=False,
            session=s.session,
            comment="c",
        ),
        call("collection", "bulk_write", [InsertOne({"_id": 1})]),
        call("collection", "bulk_write", []),
    ],
    "count_documents": lambda s: s.collection.count_documents({}, session=s.session),
    "create_index": lambda s: s.collection.create_index([("n", 1)], s.session, unique=True),
    "create_indexes": call("collection", "create_indexes", [IndexModel("n"), IndexModel("m")]),
    "create_search_index": call("collection", "create_search_index", SEARCH_INDEX),
    "create_search_indexes": call("collection", "create_search_indexes", [SEARCH_INDEX]),
    "delete_many": lambda s: s.collection.delete_many({"n": 1}, session=s.session, comment="c"),
    "delete_one": lambda s: s.collection.delete_one({"n": 1}, session=s.session, comment="c"),
    "distinct": lambda s: s.collection.distinct("n", {}, session=s.session),
    "drop": lambda s: s.collection.drop(s.session),
    "drop_index": [
        call("collection", "drop_index", "n_1"),
        call("collection", "drop_index", "_id_"),
    ],
    "drop_indexes": call("collection", "drop_indexes"),
    "drop_search_index": call("collection", "drop_search_index", "default"),
    "estimated_document_count": call("collection", "estimated_document_count", comment="c"),
    "find": [
        call("collection", "find", {}, {"n": 1}, sort=[("n", 1)]),
        lambda s: s.collection.find(session=s.session).sort("n").limit(2).batch_size(1),
    ],
    "find_one": lambda s: s.collection.find_one({"n": 1}, session=s.session),
    "find_one_and_delete": [
        lambda s: s.collection.find_one_and_delete({"n": 1}, session=s.session),
        call("collection", "find_one_and_delete", {"n": 77}),
    ],
    "find_one_and_replace": lambda s: s.collection.find_one_and_replace({"n": 1}, {"n": 5}),
    "find_one_and_update": lambda s: s.collection.find_one_and_update({"n": 1}, {"$inc": {"n": 1}}),
    "find_raw_batches": call("collection", "find_raw_batches", {}),
    "get_io_loop": call("collection", "get_io_loop"),
    "index_information": lambda s: s.collection.index_information(s.session),
    "insert_many": [
        call("collection", "insert_many", [{"_id": 7}, SON(_id=8)], ordered=False, comment="c"),
        call("collection", "insert_many", [{"_id": 1}]),
        call("collection", "insert_many", []),
    ],
    "insert_one": [
        lambda s: s.collection.insert_one({"_id": 7}, session=s.session),
        call("collection", "insert_one", {"_id": 1}),
    ],
    "list_indexes": lambda s: s.collection.list_indexes(s.session),
    "list_search_indexes": call("collection", "list_search_indexes"),
    "options": lambda s: s.collection.options(s.session),
    "rename": lambda s: s.collection.rename(next(_fresh), s.session, dropTarget=True),
    "replace_one": lambda s: s.collection.replace_one({"n": 1}, {"n": 5}, True, session=s.session),
    "update_many": lambda s: s.collection.update_many({}, {"$inc": {"n": 1}}, session=s.session),
    "update_one": lambda s: s.collection.update_one({}, {"$inc": {"n": 1}}, session=s.session),
    "update_search_index": call("collection", "update_search_index", "default", {}),
    "watch": watched("collection"),
    "with_options": [
        call("collection", "with_options", *OPTIONS),
        call("collection", "with_options", codec_options=AWARE),
    ],
    "wrap": lambda s: s.wrapped(
        s.collection,
        *(s.plain, s.plain.c, s.plain.client.list_databases()),
        *(s.plain.client.start_session(), s.client.delegate, None, 1),
    ),
}

SESSION = read(
    *("client", "cluster_time", "delegate", "has_ended", "in_transaction", "operation_time"),
    *("options", "session_id", "__delegate_class__", "__motor_class_name__", "__hash__"),
) | {
    "__aenter__": call("session", "__aenter__"),
    "__aexit__": call("session", "__aexit__", None, None, None),
    "__enter__": call("session", "__enter__"),
    "__exit__": call("session", "__exit__", None, None, None),
    "__eq__": lambda s: [s.session == s.session, s.session == s.client],
    "__init__": lambda s: type(s.session)(s.session.delegate, s.client),
    "__repr__": lambda s: repr(s.session),
    "abort_transaction": [call("session", "abort_transaction"), call("begun", "abort_transaction")],
    "advance_cluster_time": call("session", "advance_cluster_time", {}),
    "advance_operation_time": call("session", "advance_operation_time", 1),
    "commit_transaction": [
        call("session", "commit_transaction"),
        call("begun", "commit_transaction"),
    ],
    "end_session": call("session", "end_session"),
    "get_io_loop": call("session", "get_io_loop"),
    "start_transaction": [
        call("session", "start_transaction", LOCAL, MAJORITY, ReadPreference.PRIMARY, 1000),
        call("session", "start_transaction"),
    ],
    "with_transaction": lambda s: s.session.with_transaction(s.transaction, LOCAL, MAJORITY),
}

TABLES = {"client": CLIENT, "database": DATABASE, "collection": COLLECTION, "session": SESSION}
