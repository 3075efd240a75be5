"""The command ``python -m aioretry stream``."""

import asyncio
import re

from aioretry.streams.command import FAILED, INTERRUPTED, NEEDS_REBUILD
from tests.streams.tagging import animal
from tests.streams.workers import done, ended, start


async def test_from_nothing(replica_set, documents, fresh, tags):
    """Rebuilt, followed and asked for, as in the documents."""
    uri, name = replica_set.uri, documents.name
    await documents.insert_many([animal(1, "x", "y"), animal(2, "x")])
    code, _, why = await done(uri, name, "run", "--until-caught-up")
    assert NEEDS_REBUILD == code
    assert "NotBuiltError" in why
    code, _, told = await done(uri, name, "rebuild")
    assert 0 == code
    assert re.search(r"2 of about 2 documents, 2 buckets written", told)
    assert tags() == fresh()
    await documents.delete_one({"_id": 2})
    code, told, _ = await done(uri, name, "status")
    assert 0 == code
    assert re.fullmatch(
        r"\w+_tags, part 0: nobody holds the lease; 0 changes since the rebuild; "
        r"behind by 1 changes, \d+ s\n",
        told,
    )
    code, _, _ = await done(uri, name, "run", "--until-caught-up")
    assert 0 == code
    assert tags() == fresh()


async def test_rebuilds_when_it_has_to(replica_set, documents, fresh, tags):
    """With ``--rebuild`` it needs nobody, and a signal ends it."""
    await documents.insert_one(animal(1, "x", "y"))
    worker = await start(replica_set.uri, documents.name, "run", "--rebuild")
    while tags() != fresh():
        await asyncio.sleep(0.05)
    await documents.insert_one(animal(2, "z"))
    while tags() != fresh():
        await asyncio.sleep(0.05)
    worker.terminate()
    code, _, _ = await ended(worker)
    assert INTERRUPTED == code


async def test_wrong_targets(replica_set, documents):
    """What can't be imported, or is no aggregator, is told in one line."""
    for service, text in {
        "tests.streams.service:nothing": "can't be imported",
        "no_such_module:x": "can't be imported",
        "tests.streams.service:not_an_aggregator": "is no aioretry.streams.Aggregator",
    }.items():
        code, _, why = await done(replica_set.uri, documents.name, "status", service=service)
        assert 1 == code
        assert text in why
        assert "Traceback" not in why


async def test_an_error(replica_set, collection):
    """An error is told in one line."""
    await collection.insert_one(animal(1, "x"))
    code, _, why = await done(replica_set.uri, collection.name, "rebuild")
    assert FAILED == code
    assert "SourceError" in why
    assert "Traceback" not in why
