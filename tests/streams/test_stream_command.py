"""The command ``python -m aioretry stream``."""

import asyncio
import json
import re
import signal

import pytest

from aioretry._cli import FAILED, INTERRUPTED, USAGE
from aioretry.streams.command import DONE, NEEDS_REBUILD
from tests.streams.tagging import animal
from tests.streams.workers import done, ended, start


async def test_from_nothing(replica_set, documents, fresh, tags):
    """Rebuilt, followed and asked for, as in the documents."""
    uri, name = replica_set.uri, documents.name
    await documents.insert_many([animal(1, "x", "y"), animal(2, "x")])
    code, _, why = await done(uri, name, "run", "--until-caught-up")
    assert NEEDS_REBUILD == code
    assert "NotBuiltError" in why
    code, told, _ = await done(uri, name, "status")
    assert NEEDS_REBUILD == code
    assert "it was never built" in told
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
    """With ``--rebuild`` it needs nobody, and it ends well when it is asked to."""
    await documents.insert_one(animal(1, "x", "y"))
    worker = await start(replica_set.uri, documents.name, "run", "--rebuild")
    while tags() != fresh():
        await asyncio.sleep(0.05)
    await documents.insert_one(animal(2, "z"))
    while tags() != fresh():
        await asyncio.sleep(0.05)
    worker.terminate()
    code, _, told = await ended(worker)
    assert DONE == code
    assert 1 == len(re.findall(r"1 of about 1 documents, 2 buckets written", told))
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("verb", "number"), [("run", signal.SIGINT), ("rebuild", signal.SIGTERM)], ids=repr
)
async def test_interrupted(verb, number, replica_set, documents, aggregator):
    """Who is interrupted, or asked to end what is not done, says that it was."""
    await documents.insert_one(animal(1, "x"))
    await aggregator.rebuild()
    async with replica_set.faults.hang(
        "find" if verb == "rebuild" else "aggregate", namespace=documents.full_name
    ) as read:
        worker = await start(replica_set.uri, documents.name, verb)
        await read.wait_until_fired(timeout=60.0)
        worker.send_signal(number)
    code, _, told = await ended(worker)
    assert INTERRUPTED == code
    assert "Traceback" not in told


async def test_no_such_part(replica_set, documents):
    """A part that is not there is told in one line."""
    code, _, why = await done(replica_set.uri, documents.name, "run", "--part", "9")
    assert (USAGE, "--part is one of 0 to 0, not 9\n") == (code, why)


async def test_json(replica_set, documents, aggregator):
    """A status can be read by programs."""
    await aggregator.rebuild()
    code, told, _ = await done(replica_set.uri, documents.name, "status", "--json")
    (part,) = json.loads(told)["parts"]
    assert (DONE, 0, True, None, 0) == (
        code,
        part["part"],
        part["is_built"],
        part["problem"],
        part["lag"]["changes"],
    )


async def test_what_others_have_built(replica_set, documents, aggregator, fresh, tags):
    """It does not rebuild by itself what was built for another number of parts."""
    await documents.insert_one(animal(1, "x"))
    await aggregator.rebuild()
    service = "tests.streams.service:divided"
    uri, name = replica_set.uri, documents.name
    code, _, why = await done(uri, name, "run", "--rebuild", service=service)
    assert NEEDS_REBUILD == code
    assert "MismatchError" in why
    await documents.insert_one(animal(2, "y"))
    await aggregator.run(until_caught_up=True)
    assert tags() == fresh()
    code, _, _ = await done(uri, name, "rebuild", service=service)
    assert DONE == code
    assert tags() == fresh()


@pytest.mark.slow
@pytest.mark.parametrize("service", ["aggregator", "divided"])
async def test_many_workers_rebuild_once(service, replica_set, documents, client, fresh, tags):
    """However many find out at once that only a rebuild helps, one does it."""
    await documents.insert_one(animal(1, "x", "y"))
    arguments = ("run", "--rebuild", "--until-caught-up")
    parts = ["0", "1"] if service == "divided" else ["0", "0"]
    async with replica_set.faults.watch(
        "renameCollection", where=lambda c: documents.name in c["renameCollection"]
    ) as renames:
        ends = await asyncio.gather(
            *(
                done(
                    *(replica_set.uri, documents.name, *arguments, "--part", part),
                    service=f"tests.streams.service:{service}",
                )
                for part in parts
            )
        )
    assert [DONE, DONE] == [code for code, _, _ in ends]
    assert 1 == renames.fired
    assert tags() == fresh()


async def test_wrong_targets(replica_set, documents):
    """What can't be imported, or is no aggregator, is told in one line."""
    for service, text in {
        "tests.streams.service:nothing": "can't be imported",
        "no_such_module:x": "can't be imported",
        "tests.streams.service": "is not of the form MODULE:NAME",
        "json:dumps": "json:dumps() fails: TypeError",
        "tests.streams.service:broken": "service.py, line",
        "tests.streams.service:not_an_aggregator": "is no aioretry.streams.Aggregator",
    }.items():
        code, _, why = await done(replica_set.uri, documents.name, "status", service=service)
        assert (USAGE, 1) == (code, why.count("\n"))
        assert text in why
        assert "; " in why


async def test_an_error(replica_set, collection):
    """An error is told in one line."""
    await collection.insert_one(animal(1, "x"))
    code, _, why = await done(replica_set.uri, collection.name, "rebuild")
    assert FAILED == code
    assert "SourceError" in why
    assert "Traceback" not in why
