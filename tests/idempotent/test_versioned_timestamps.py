"""An empty timestamp at the top of a document is replaced by the server when it is stored."""

import pytest
from bson.timestamp import Timestamp

from aioretry.idempotent import VersionedDocuments

EMPTY = Timestamp(0, 0)


async def test_refused(collection):
    """A document would not have the content that its version is of, and nothing is stored."""
    documents = VersionedDocuments(collection)
    made = await documents.create({"_id": 1, "at": Timestamp(1, 1)})
    writes = [
        lambda: documents.create({"_id": 2, "at": EMPTY}),
        lambda: documents.save({**made.document, "at": EMPTY}),
        lambda: documents.update(1, lambda found: {**found, "at": EMPTY}),
    ]
    for write in writes:
        with pytest.raises(ValueError, match="would replace an empty timestamp: give it a value"):
            await write()
    (stored,) = await collection.find().to_list(None)
    assert (made.document, True) == (stored, documents.verify(stored))


async def test_elsewhere(collection):
    """Inside of another value it stays as it is, and so it may where it doesn't count."""
    documents = VersionedDocuments(collection, ignored=["seen"])
    await documents.create({"_id": 1, "at": {"first": EMPTY, "all": [EMPTY]}, "seen": EMPTY})
    stored = await collection.find_one({})
    assert ({"first": EMPTY, "all": [EMPTY]}, True) == (stored["at"], documents.verify(stored))
