"""Members that are behind hold up no rebuild, and end no worker too early."""

import asyncio

import pytest
from pymongo import ReadPreference
from pymongo.monitoring import CommandListener

from aioretry.testing import ReplicaSet
from tests.streams.tagging import IMAGES, aggregated, animal, counted, of_change_stream


class Streams(CommandListener):
    """Notes what a change stream is opened with."""

    def __init__(self):
        self.concerns = []

    def started(self, event):
        pipeline = event.command.get("pipeline")
        if pipeline and "$changeStream" in pipeline[0]:
            self.concerns.append(dict(event.command["readConcern"]))

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


async def test_caught_up_with_what_was_acknowledged(
    shared_set, documents, target, fresh, tags, client_class
):
    """A new primary has to know of all that was acknowledged before the call, to say so."""
    streams = Streams()
    async with client_class(shared_set.uri, event_listeners=[streams]) as client:
        database = client.aioretry_tests
        aggregator = of_change_stream(database[documents.name], database[target.name])
        await aggregator.rebuild()
        async with await documents.database.client.start_session() as session:
            await documents.insert_one(animal(1, "x"), session=session)
        await aggregator.run(until_caught_up=True)
    (concern,) = streams.concerns
    assert ("majority", True) == (
        concern["level"],
        concern["afterClusterTime"] >= session.operation_time,
    )
    assert tags() == fresh()


@pytest.fixture
async def delayed(server_version, client_class):
    """A set with a member that is an hour behind, and the options by which a client reads it."""
    with ReplicaSet(version=server_version) as servers:
        async with client_class(servers.uri) as client:
            primary = (await client.admin.command("hello"))["primary"]
            config = (await client.admin.command("replSetGetConfig"))["config"]
            late = next(each for each in config["members"] if each["host"] != primary)
            late.update(priority=0, secondaryDelaySecs=3600, tags={"late": "1"})
            config["version"] += 1
            await client.admin.command({"replSetReconfig": config})
        yield f"{servers.uri}&readPreference=secondary&readPreferenceTags=late:1"


async def test_a_delayed_member(delayed, client_class):
    """A client that reads from one rebuilds all the same, and follows."""
    async with asyncio.timeout(60.0), client_class(delayed) as client:
        database = client.aioretry_tests
        await database.create_collection("animals", **IMAGES)
        documents, target = database.animals, database.tags
        aggregator = of_change_stream(documents, target)
        await documents.insert_one(animal(1, "x"))
        for number in (2, 3):
            await aggregator.rebuild()
            await documents.insert_one(animal(number, "x"))
            await aggregator.run(until_caught_up=True)
        on_primary = client.delegate.get_database("aioretry_tests").with_options(
            read_preference=ReadPreference.PRIMARY
        )
        assert counted(on_primary.animals) == aggregated(on_primary.tags)
