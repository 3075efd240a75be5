"""A rebuild replaces its target, and so nothing but aggregates may be there."""

import pytest

from aioretry.streams import Aggregator, ChangeStreamSource, QueueSource, TargetError
from aioretry.streams._leases import LEASES
from tests.streams.tagging import animal, by_tag, of_change_stream
from tests.streams.workers import done


@pytest.mark.parametrize("what", ["watched", "documents", "queue", "all", "leases"])
async def test_what_is_counted(what, collection):
    """The collection that is followed, or read, or that has the leases, is refused at once."""
    database = collection.database
    documents, queue = collection, database[f"{collection.name}_queue"]
    source, target = {
        "watched": (ChangeStreamSource(documents), database[documents.name]),
        "documents": (QueueSource(queue, documents=documents), documents),
        "queue": (QueueSource(queue, documents=documents), queue),
        "all": (QueueSource(queue, keeps_all=True), queue),
        "leases": (ChangeStreamSource(documents), database[LEASES]),
    }[what]
    with pytest.raises(ValueError, match="target must be a collection of its own"):
        Aggregator("tags", source, by_tag, target)


async def test_full_of_others(replica_set, documents, target, aggregator, fresh, tags):
    """Documents that no rebuild has made stay, until somebody takes them away."""
    await documents.insert_one(animal(1, "x"))
    await target.insert_one({"_id": "mine"})
    with pytest.raises(TargetError, match="use a target of its own, or empty this one"):
        await aggregator.rebuild()
    code, _, said = await done(replica_set.uri, documents.name, "run", "--rebuild")
    assert (1, True) == (code, "holds documents that are no aggregates" in said)
    assert [{"_id": "mine"}] == await target.find().to_list(None)
    await target.delete_many({})
    await aggregator.rebuild()
    assert tags() == fresh()


async def test_its_own(documents, target, fresh, tags):
    """What an aggregator has built itself, in whatever version, it replaces."""
    await documents.insert_one(animal(1, "x"))
    await of_change_stream(documents, target, version="1", parts=2).rebuild()
    await target.insert_one({"_id": "wrong", "count": 1})
    await of_change_stream(documents, target, version="2").rebuild()
    assert tags() == fresh()
