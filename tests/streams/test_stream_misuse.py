"""What is wrong is refused at once, and what belongs to others is left alone."""

import math

import pytest
from pymongo.read_concern import ReadConcern

from aioretry.streams import (
    Aggregator,
    ChangeStreamSource,
    MismatchError,
    QueueSource,
    SourceError,
)
from aioretry.testing import Standalone
from tests.streams.tagging import animal, by_tag, of_change_stream


async def later(change):
    """Not a plain function."""
    del change


WRONG = [
    ({"name": ""}, ValueError, "name must be a str that is not empty"),
    ({"name": 7}, TypeError, "name must be a str, not 7"),
    ({"version": 2}, TypeError, "version must be a str, not 2"),
    ({"parts": 0}, ValueError, "parts must be at least 1, not 0"),
    ({"parts": 2.5}, TypeError, "parts must be an int, not 2.5"),
    ({"parts": True}, TypeError, "parts must be an int, not True"),
    ({"max_changes": 1.5}, TypeError, "max_changes must be an int"),
    ({"max_bytes": 0}, ValueError, "max_bytes must be at least 1"),
    ({"lease_seconds": math.inf}, ValueError, "lease_seconds must be .* finite, not inf"),
    ({"lease_seconds": 0.0001}, ValueError, "lease_seconds must be at least 0.001"),
    ({"lease_seconds": "1"}, TypeError, "lease_seconds must be a number of seconds"),
    ({"max_seconds": math.nan}, ValueError, "max_seconds must be"),
    ({"increments": None}, TypeError, "increments must be a plain function, not None"),
    ({"increments": later}, TypeError, "increments must be a plain function"),
    ({"target": "tags"}, TypeError, "target must be a collection of a RetryClient"),
]


@pytest.mark.parametrize(("given", "kind", "told"), WRONG, ids=[told for _, _, told in WRONG])
async def test_arguments(given, kind, told, collection):
    """The error names the argument, what was given and what is accepted."""
    arguments = {
        "name": "tags",
        "source": ChangeStreamSource(collection),
        "increments": by_tag,
        "target": collection.database.tags,
        **given,
    }
    with pytest.raises(kind, match=told):
        Aggregator(**arguments)


async def test_two_clients(collection, shared_set, client_class):
    """A source of another client may be another deployment's: their clocks tell nothing."""
    async with client_class(shared_set.uri) as other:
        with pytest.raises(ValueError, match="the client of the source"):
            of_change_stream(other.aioretry_tests[collection.name], collection.database.tags)


async def test_an_asynchronous_progress(aggregator):
    """Nobody would await it."""
    with pytest.raises(TypeError, match="on_progress must be a plain function"):
        await aggregator.rebuild(later)


async def test_another_version(documents, target, fresh, tags):
    """Aggregates of other increments are not followed, and are rebuilt if somebody says so."""
    await documents.insert_one(animal(1, "x"))
    await of_change_stream(documents, target, version="1").rebuild()
    second = of_change_stream(documents, target, version="2")
    with pytest.raises(MismatchError, match="by version '1', not by '2'"):
        await second.run(until_caught_up=True)
    await second.rebuild()
    await second.run(until_caught_up=True)
    assert tags() == fresh()


async def test_another_aggregators_target(documents, target, aggregator, fresh, tags):
    """One that belongs to somebody else is neither followed nor replaced."""
    await documents.insert_one(animal(1, "x"))
    await aggregator.rebuild()
    other = Aggregator("other", ChangeStreamSource(documents), by_tag, target)
    for attempt in (other.run, other.rebuild):
        with pytest.raises(MismatchError, match="not by 'other': use another target"):
            await attempt()
    assert tags() == fresh()


async def test_collections_of_others(documents, aggregator, target):
    """A rebuild drops nothing but what a rebuild has left behind."""
    database = documents.database
    names = {f"{target.name}.rebuild.log", f"{target.name}.rebuild.{'0' * 24}"}
    for name in names:
        await database[name].insert_one({"text": "mine"})
    await aggregator.rebuild()
    assert names <= set(await database.list_collection_names())


@pytest.mark.parametrize(
    "options",
    [
        {"readConcernLevel": "local"},
        {"readConcernLevel": "linearizable"},
        {"readPreference": "secondaryPreferred"},
    ],
    ids=str,
)
async def test_options_of_the_client(
    options, shared_set, documents, target, fresh, tags, client_class
):
    """What a client reads by default is no matter."""
    await documents.insert_one(animal(1, "x"))
    async with client_class(shared_set.uri, **options) as client:
        database = client.aioretry_tests
        aggregator = of_change_stream(database[documents.name], database[target.name])
        await aggregator.rebuild()
        await documents.insert_one(animal(2, "y"))
        await aggregator.run(until_caught_up=True)
        (part,) = (await aggregator.status()).parts
    assert part.problem is None
    assert tags() == fresh()


async def test_documents_of_a_read_concern(documents, target, fresh, tags):
    """Nor is that of the collection."""
    local = documents.with_options(read_concern=ReadConcern("local"))
    await documents.insert_one(animal(1, "x"))
    aggregator = of_change_stream(local, target)
    await aggregator.rebuild()
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()


async def test_a_queue_that_forgets(collection, target):
    """One with a TTL does not keep all, whatever is said of it."""
    await collection.create_index("at", expireAfterSeconds=60)
    source = QueueSource(collection, keeps_all=True)
    with pytest.raises(SourceError, match="its index 'at_1' has a TTL"):
        await Aggregator("forgets", source, by_tag, target).rebuild()


async def test_a_standalone_server(client_class):
    """It has no change streams, and that is said at once."""
    async with Standalone() as server, client_class(server.uri) as client:
        zoo = client.zoo
        aggregator = of_change_stream(zoo.animals, zoo.tags)
        for attempt in (aggregator.run, aggregator.rebuild):
            with pytest.raises(SourceError, match="make it a replica set"):
                await attempt()
