"""The operations of the official tests, as calls of a client's methods.

Each function takes what an operation was given, and returns what is to be called and awaited: an
argument that is not known is found before anything is sent.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

from pymongo import (
    DeleteMany,
    DeleteOne,
    InsertOne,
    ReplaceOne,
    UpdateMany,
    UpdateOne,
)

from tests.spec.arguments import Arguments
from tests.spec.entities import Entities
from tests.spec.kinds import awaited
from tests.spec.options import options_of
from tests.spec.results import (
    bulk_result,
    client_bulk_result,
    delete_result,
    insert_many_result,
    insert_one_result,
    update_result,
)
from tests.spec.unsupported import UnsupportedError

Call = Callable[[], Awaitable[Any]]
Build = Callable[[Any, Arguments, Entities], Call]


def _same(value: Any) -> Any:
    return value


async def _shaped(
    shape: Callable[[Any], Any], method: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    return shape(await awaited(method(*args, **options)))


async def _all_of(method: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    cursor = await awaited(method(*args, **options))
    return list(await cursor.to_list(None))


def _calls(
    name: str,
    *required: str,
    shape: Callable[[Any], Any] = _same,
    as_they_are: Collection[str] = (),
) -> Build:
    """Build calls of a method, with some arguments by their places and the others by name."""

    def build(target: Any, arguments: Arguments, entities: Entities) -> Call:
        given = [arguments.take(each) for each in required]
        options = _options(arguments, entities, as_they_are)
        return partial(_shaped, shape, getattr(target, name), *given, **options)

    return build


def _options(
    arguments: Arguments, entities: Entities, as_they_are: Collection[str] = ()
) -> dict[str, Any]:
    session = arguments.take("session", None)
    options = options_of(arguments.operation, arguments.take_rest(), as_they_are=as_they_are)
    return (
        options if session is None else {**options, "session": entities.get(session, "session")[1]}
    )


def _lists(name: str, *required: str, as_they_are: Collection[str] = ()) -> Build:
    """Build calls of a method that gives a cursor."""

    def build(target: Any, arguments: Arguments, entities: Entities) -> Call:
        given = [arguments.take(each) for each in required]
        options = _options(arguments, entities, as_they_are)
        return partial(_all_of, getattr(target, name), *given, **options)

    return build


def _bulk_write(collection: Any, arguments: Arguments, entities: Entities) -> Call:
    requests = [_request(one) for one in arguments.take("requests")]
    options = _options(arguments, entities)
    return partial(_shaped, bulk_result, collection.bulk_write, requests, **options)


def _client_bulk_write(client: Any, arguments: Arguments, entities: Entities) -> Call:
    models = [_request(one) for one in arguments.take("models")]
    options = _options(arguments, entities)
    return partial(_shaped, client_bulk_result, client.bulk_write, models, **options)


def _request(given: Mapping[str, Any]) -> Any:
    [(name, content)] = given.items()
    if name not in _REQUESTS:
        raise UnsupportedError(f"the request {name}")
    make, *required = _REQUESTS[name]
    arguments = Arguments(name, content)
    values = [arguments.take(each) for each in required]
    return make(*values, **options_of(name, arguments.take_rest()))


_REQUESTS: dict[str, tuple[Any, ...]] = {
    "insertOne": (InsertOne, "document"),
    "updateOne": (UpdateOne, "filter", "update"),
    "updateMany": (UpdateMany, "filter", "update"),
    "replaceOne": (ReplaceOne, "filter", "replacement"),
    "deleteOne": (DeleteOne, "filter"),
    "deleteMany": (DeleteMany, "filter"),
}


def _count(collection: Any, arguments: Arguments, _: Entities) -> Call:
    # PyMongo has no helper for it; of everything, the estimate sends the same command.
    if arguments.take("filter"):
        raise UnsupportedError("count with a filter that is not empty")
    return collection.estimated_document_count  # type: ignore[no-any-return]


def _change_stream(target: Any, arguments: Arguments, entities: Entities) -> Call:
    pipeline = arguments.take("pipeline")

    async def call() -> Any:
        stream = await awaited(target.watch(pipeline))
        entities.to_close.append(stream)
        return await stream.__aenter__()

    return call


def _create_index(collection: Any, arguments: Arguments, entities: Entities) -> Call:
    keys = list(arguments.take("keys").items())
    return partial(collection.create_index, keys, **_options(arguments, entities))


def _create_collection(database: Any, arguments: Arguments, entities: Entities) -> Call:
    name = arguments.take("collection")
    # Without looking for it first: that would be a command more than the test expects.
    options = _options(arguments, entities) | {"check_exists": False}
    return partial(database.create_collection, name, **options)


def _modify_collection(database: Any, arguments: Arguments, _: Entities) -> Call:
    name, validator = arguments.take("collection"), arguments.take("validator")
    return partial(database.command, {"collMod": name, "validator": validator})


def _run_command(database: Any, arguments: Arguments, entities: Entities) -> Call:
    name, command = arguments.take("commandName"), arguments.take("command")
    options = _options(arguments, entities)
    return partial(database.command, {name: command[name], **command}, **options)


def _download(name: str, argument: str, bucket: Any, arguments: Arguments, _: Entities) -> Call:
    async def call() -> Any:
        stream = await getattr(bucket, name)(of)
        return await stream.read()

    of = arguments.take(argument)
    return call


_TO_SERVER = ("allowDiskUse", "batchSize", "bypassDocumentValidation", "maxTimeMS")
OPERATIONS: dict[tuple[str, str], Build] = {
    ("client", "clientBulkWrite"): _client_bulk_write,
    ("client", "createChangeStream"): _change_stream,
    ("client", "listDatabases"): _calls("list_databases"),
    ("client", "listDatabaseNames"): _calls("list_database_names"),
    ("database", "aggregate"): _lists("aggregate", "pipeline", as_they_are=_TO_SERVER),
    ("database", "createChangeStream"): _change_stream,
    ("database", "createCollection"): _create_collection,
    ("database", "dropCollection"): _calls("drop_collection", "collection"),
    ("database", "modifyCollection"): _modify_collection,
    ("database", "listCollections"): _calls("list_collections"),
    ("database", "listCollectionNames"): _calls("list_collection_names"),
    ("database", "runCommand"): _run_command,
    ("collection", "insertOne"): _calls("insert_one", "document", shape=insert_one_result),
    ("collection", "insertMany"): _calls("insert_many", "documents", shape=insert_many_result),
    ("collection", "updateOne"): _calls("update_one", "filter", "update", shape=update_result),
    ("collection", "updateMany"): _calls("update_many", "filter", "update", shape=update_result),
    ("collection", "replaceOne"): _calls(
        "replace_one", "filter", "replacement", shape=update_result
    ),
    ("collection", "deleteOne"): _calls("delete_one", "filter", shape=delete_result),
    ("collection", "deleteMany"): _calls("delete_many", "filter", shape=delete_result),
    ("collection", "findOneAndUpdate"): _calls(
        "find_one_and_update", "filter", "update", as_they_are=_TO_SERVER
    ),
    ("collection", "findOneAndReplace"): _calls(
        "find_one_and_replace", "filter", "replacement", as_they_are=_TO_SERVER
    ),
    ("collection", "findOneAndDelete"): _calls("find_one_and_delete", "filter"),
    ("collection", "bulkWrite"): _bulk_write,
    ("collection", "find"): _lists("find", "filter"),
    ("collection", "findOne"): _calls("find_one", "filter"),
    ("collection", "aggregate"): _lists("aggregate", "pipeline", as_they_are=_TO_SERVER),
    ("collection", "distinct"): _calls("distinct", "fieldName", "filter"),
    ("collection", "count"): _count,
    ("collection", "countDocuments"): _calls("count_documents", "filter"),
    ("collection", "estimatedDocumentCount"): _calls(
        "estimated_document_count", as_they_are=_TO_SERVER
    ),
    ("collection", "createChangeStream"): _change_stream,
    ("collection", "createIndex"): _create_index,
    ("collection", "dropIndex"): _calls("drop_index", "name"),
    ("collection", "dropIndexes"): _calls("drop_indexes"),
    ("collection", "listIndexes"): _lists("list_indexes"),
    ("collection", "listIndexNames"): _calls("index_information", shape=list),
    ("session", "startTransaction"): _calls("start_transaction"),
    ("session", "commitTransaction"): _calls("commit_transaction"),
    ("session", "abortTransaction"): _calls("abort_transaction"),
    ("session", "endSession"): _calls("end_session"),
    ("bucket", "download"): partial(_download, "open_download_stream", "id"),
    ("bucket", "downloadByName"): partial(_download, "open_download_stream_by_name", "filename"),
}
