"""The operations of the official tests, as calls of a client's methods.

Each function takes what an operation was given, and returns what is to be called and awaited: an
argument that is not known is found before anything is sent.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from pymongo import (
    DeleteMany,
    DeleteOne,
    InsertOne,
    ReplaceOne,
    ReturnDocument,
    UpdateMany,
    UpdateOne,
)

from tests.spec.arguments import Arguments
from tests.spec.entities import Entities
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

_BOTH = {"Before": ReturnDocument.BEFORE, "After": ReturnDocument.AFTER}


def _same(value: Any) -> Any:
    return value


async def _shaped(
    shape: Callable[[Any], Any], method: Callable[..., Awaitable[Any]], *args: Any, **options: Any
) -> Any:
    return shape(await method(*args, **options))


async def _all_of(method: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    return list(await method(*args, **options).to_list(None))


def _insert_one(collection: Any, arguments: Arguments, _: Entities) -> Call:
    document = arguments.take("document")
    return partial(_shaped, insert_one_result, collection.insert_one, document)


def _insert_many(collection: Any, arguments: Arguments, _: Entities) -> Call:
    documents, options = arguments.take("documents"), arguments.options(ordered="ordered")
    return partial(_shaped, insert_many_result, collection.insert_many, documents, **options)


def _update(name: str, collection: Any, arguments: Arguments, _: Entities) -> Call:
    method, spec, update = (
        getattr(collection, name),
        arguments.take("filter"),
        _update_of(arguments),
    )
    return partial(_shaped, update_result, method, spec, update, **_upsert_of(arguments))


def _delete(name: str, collection: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(_shaped, delete_result, getattr(collection, name), arguments.take("filter"))


def _find_one_and(name: str, collection: Any, arguments: Arguments, _: Entities) -> Call:
    given = [arguments.take("filter")]
    if name != "find_one_and_delete":
        given.append(_update_of(arguments))
    options = arguments.options(sort="sort", return_document="returnDocument", upsert="upsert")
    if "sort" in options:
        options["sort"] = list(options["sort"].items())
    if "return_document" in options:
        options["return_document"] = _BOTH[options["return_document"]]
    return partial(getattr(collection, name), *given, **options)


def _bulk_write(collection: Any, arguments: Arguments, _: Entities) -> Call:
    requests = [_request(one) for one in arguments.take("requests")]
    options = arguments.options(ordered="ordered")
    return partial(_shaped, bulk_result, collection.bulk_write, requests, **options)


def _client_bulk_write(client: Any, arguments: Arguments, _: Entities) -> Call:
    models = [_request(one, with_namespace=True) for one in arguments.take("models")]
    options = arguments.options(verbose_results="verboseResults", ordered="ordered")
    return partial(_shaped, client_bulk_result, client.bulk_write, models, **options)


def _request(given: Mapping[str, Any], *, with_namespace: bool = False) -> Any:
    [(name, content)] = given.items()
    arguments = Arguments(name, content)
    options = arguments.options(namespace="namespace") if with_namespace else {}
    request = _REQUESTS[name](arguments, options) if name in _REQUESTS else None
    if request is None:
        raise UnsupportedError(f"the request {name}")
    arguments.require_all_taken()
    return request


def _upsert_of(arguments: Arguments) -> dict[str, Any]:
    return arguments.options(upsert="upsert")


def _update_of(arguments: Arguments) -> Any:
    update = arguments.take("update", None)
    return arguments.take("replacement") if update is None else update


_REQUESTS: dict[str, Callable[[Arguments, dict[str, Any]], Any]] = {
    "insertOne": lambda given, options: InsertOne(given.take("document"), **options),
    "updateOne": lambda given, options: UpdateOne(
        given.take("filter"), given.take("update"), **_upsert_of(given), **options
    ),
    "updateMany": lambda given, options: UpdateMany(
        given.take("filter"), given.take("update"), **_upsert_of(given), **options
    ),
    "replaceOne": lambda given, options: ReplaceOne(
        given.take("filter"), given.take("replacement"), **_upsert_of(given), **options
    ),
    "deleteOne": lambda given, options: DeleteOne(given.take("filter"), **options),
    "deleteMany": lambda given, options: DeleteMany(given.take("filter"), **options),
}


def _find(collection: Any, arguments: Arguments, _: Entities) -> Call:
    spec = arguments.take("filter")
    options = arguments.options(batch_size="batchSize", sort="sort")
    if "sort" in options:
        options["sort"] = list(options["sort"].items())
    return partial(_all_of, collection.find, spec, **options)


def _find_one(collection: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(collection.find_one, arguments.take("filter"))


def _aggregate(target: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(_all_of, target.aggregate, arguments.take("pipeline"))


def _distinct(collection: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(collection.distinct, arguments.take("fieldName"), arguments.take("filter"))


def _count_documents(collection: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(collection.count_documents, arguments.take("filter"))


def _estimated_count(collection: Any, arguments: Arguments, _: Entities) -> Call:
    return collection.estimated_document_count  # type: ignore[no-any-return]


def _count(collection: Any, arguments: Arguments, _: Entities) -> Call:
    # PyMongo has no helper for it; of everything, the estimate sends the same command.
    if arguments.take("filter"):
        raise UnsupportedError("count with a filter that is not empty")
    return collection.estimated_document_count  # type: ignore[no-any-return]


def _change_stream(target: Any, arguments: Arguments, entities: Entities) -> Call:
    stream = target.watch(arguments.take("pipeline"))

    async def call() -> None:
        entities.to_close.append(stream)
        await stream.__aenter__()

    return call


def _create_index(collection: Any, arguments: Arguments, _: Entities) -> Call:
    keys = list(arguments.take("keys").items())
    return partial(collection.create_index, keys, **arguments.options(name="name"))


def _drop_index(collection: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(collection.drop_index, arguments.take("name"))


def _drop_indexes(collection: Any, arguments: Arguments, _: Entities) -> Call:
    return collection.drop_indexes  # type: ignore[no-any-return]


def _list_indexes(collection: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(_all_of, collection.list_indexes)


def _list_index_names(collection: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(_shaped, list, collection.index_information)


def _list_collections(database: Any, arguments: Arguments, _: Entities) -> Call:
    options = arguments.options(filter="filter")
    return partial(_shaped, _same, database.list_collections, **options)


def _list_collection_names(database: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(database.list_collection_names, **arguments.options(filter="filter"))


def _list_databases(client: Any, arguments: Arguments, _: Entities) -> Call:
    return partial(client.list_databases, **arguments.options(filter="filter"))


def _list_database_names(client: Any, arguments: Arguments, _: Entities) -> Call:
    return client.list_database_names  # type: ignore[no-any-return]


def _run_command(database: Any, arguments: Arguments, _: Entities) -> Call:
    command = arguments.take("command")
    if next(iter(command)) != arguments.take("commandName"):
        raise UnsupportedError("a command whose name is not its first field")
    return partial(database.command, command)


OPERATIONS: dict[tuple[str, str], Build] = {
    ("client", "clientBulkWrite"): _client_bulk_write,
    ("client", "createChangeStream"): _change_stream,
    ("client", "listDatabases"): _list_databases,
    ("client", "listDatabaseNames"): _list_database_names,
    ("database", "aggregate"): _aggregate,
    ("database", "createChangeStream"): _change_stream,
    ("database", "listCollections"): _list_collections,
    ("database", "listCollectionNames"): _list_collection_names,
    ("database", "runCommand"): _run_command,
    ("collection", "insertOne"): _insert_one,
    ("collection", "insertMany"): _insert_many,
    ("collection", "updateOne"): partial(_update, "update_one"),
    ("collection", "updateMany"): partial(_update, "update_many"),
    ("collection", "replaceOne"): partial(_update, "replace_one"),
    ("collection", "deleteOne"): partial(_delete, "delete_one"),
    ("collection", "deleteMany"): partial(_delete, "delete_many"),
    ("collection", "findOneAndUpdate"): partial(_find_one_and, "find_one_and_update"),
    ("collection", "findOneAndReplace"): partial(_find_one_and, "find_one_and_replace"),
    ("collection", "findOneAndDelete"): partial(_find_one_and, "find_one_and_delete"),
    ("collection", "bulkWrite"): _bulk_write,
    ("collection", "find"): _find,
    ("collection", "findOne"): _find_one,
    ("collection", "aggregate"): _aggregate,
    ("collection", "distinct"): _distinct,
    ("collection", "count"): _count,
    ("collection", "countDocuments"): _count_documents,
    ("collection", "estimatedDocumentCount"): _estimated_count,
    ("collection", "createChangeStream"): _change_stream,
    ("collection", "createIndex"): _create_index,
    ("collection", "dropIndex"): _drop_index,
    ("collection", "dropIndexes"): _drop_indexes,
    ("collection", "listIndexes"): _list_indexes,
    ("collection", "listIndexNames"): _list_index_names,
}
