"""Workers in two processes, while the primary and one of them are killed."""

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest
from pymongo import WriteConcern

from tests.examples.services import PATIENCE, running

SERVICE = "examples/worker/worker.py"
JOBS = 600
AT_ONCE = 4


@pytest.mark.slow
@pytest.mark.usefixtures("three_members")
async def test_each_job_once(uri, replica_set, stored_database, tmp_path):
    """Each job is done, and recorded once; only those of the killed worker were taken again."""
    jobs = stored_database.get_collection("jobs", write_concern=WriteConcern("majority"))
    now = datetime.now(UTC)
    numbers = itertools.count()

    def add(count: int) -> None:
        jobs.insert_many(
            {"_id": n, "state": "waiting", "free_from": now, "number": n}
            for n in itertools.islice(numbers, count)
        )

    async def until_done(number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while jobs.count_documents({"state": "done"}) < min(number, jobs.count_documents({})):
                await asyncio.sleep(0.05)

    async with AsyncExitStack() as stack:
        command = (SERVICE, uri, "--at-once", str(AT_ONCE), "--lease", "10")
        unlucky, *others = [
            await stack.enter_async_context(running(tmp_path, *command)) for _ in range(2)
        ]
        async with asyncio.timeout(PATIENCE):
            while not all(worker.output for worker in (unlucky, *others)):  # both have begun
                add(AT_ONCE)
                await asyncio.sleep(0.05)
        add(JOBS)
        killed = await replica_set.primary()
        await replica_set.kill(killed)
        await replica_set.wait_for_primary(other_than=killed)
        await until_done(jobs.count_documents({"state": "done"}) + JOBS // 10)
        await unlucky.kill()
        await until_done(jobs.count_documents({}))

    found = list(jobs.find())
    assert {n: n * n for n in range(len(found))} == {job["_id"]: job["result"] for job in found}
    # Where the time of a lease was not enough, the worker says so.
    left = AT_ONCE + sum(worker.log.count("left to others") for worker in (unlucky, *others))
    assert sum(job["takes"] - 1 for job in found) <= left
    reported = Counter(line for worker in (unlucky, *others) for line in worker.output.split())
    assert {1} == set(reported.values())
    assert len(found) - left <= reported.total() <= len(found)


async def test_jobs_that_cannot_be_done(uri, replica_set, stored_database, tmp_path):
    """A job that always fails is given up in the end; the worker goes on with the others."""
    now = datetime.now(UTC)
    waiting = {"state": "waiting", "free_from": now}
    stored_database.jobs.insert_many(
        [
            {"_id": "wrong", "number": "text", "takes": 4, **waiting},
            {"_id": "without", "takes": 4, **waiting},
            {"_id": "endless", "number": 1, "takes": 5, **waiting},
            {"_id": "begun", "number": "text", **waiting},
            {"_id": "good", "number": 3, **waiting},
        ]
    )
    async with running(tmp_path, SERVICE, uri, "--at-once", "1", "--lease", "60") as worker:
        async with asyncio.timeout(PATIENCE):
            while stored_database.jobs.count_documents({"state": "waiting"}) > 1:
                assert not worker.has_ended, worker.log
                await asyncio.sleep(0.05)
    found = {job["_id"]: job for job in stored_database.jobs.find()}
    assert (9, "done") == (found["good"]["result"], found["good"]["state"])
    failed = {name for name, job in found.items() if job["state"] == "failed"}
    assert {"wrong", "without", "endless"} == failed
    assert "TypeError" in found["wrong"]["error"]
    assert ("waiting", True) == (found["begun"]["state"], "by" in found["begun"])
