"""Take jobs from a collection, do them, and record their results; each result once.

python examples/worker/worker.py "mongodb://localhost/?replicaSet=rs0" --at-once 4

A job is a document such as {"state": "waiting", "free_from": a date, "number": 7}. One that can't
be done is taken five times, and is "failed" then. SIGTERM ends the worker when the jobs that it has
at hand are done, which takes as long as its lease at most.
"""

import argparse
import asyncio
import logging
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING
from pymongo.errors import PyMongoError

from aioretry import deadline, outcome_of
from aioretry.pymongo import AsyncRetryClient, AsyncRetryCollection

PAUSE = 0.5  # between looks at an empty collection, in seconds
TAKES = 5  # how often a job is begun

Job = dict[str, Any]

log = logging.getLogger("worker")


class Worker:
    def __init__(self, jobs: AsyncRetryCollection[Job], lease: float) -> None:
        self._jobs = jobs
        self._lease = lease

    async def run(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            try:
                if await self._do_one():
                    continue
            except (PyMongoError, TimeoutError) as exc:
                # Its lease ends, and somebody takes the job again; what is recorded stays.
                log.warning("left to others (%s): %s", outcome_of(exc), exc)
            await wait(is_over, PAUSE)

    async def _do_one(self) -> bool:
        """Do a job in the time in which it is ours; say whether there was one."""
        async with asyncio.timeout(self._lease), deadline(self._lease):
            job = await self._take()
            if job is None:
                return False
            await self._do(job)
        return True

    async def _do(self, job: Job) -> None:
        if job["takes"] > TAKES:  # its workers have died of it, or it takes longer than a lease
            await self._record(job, {"state": "failed", "error": "it never ended"})
            return
        try:
            result = await work(job)
        except Exception as exc:  # noqa: BLE001 - the other jobs go on, whatever it is
            log.warning("job %s failed, take %d: %r", job["_id"], job["takes"], exc)
            if job["takes"] == TAKES:
                await self._record(job, {"state": "failed", "error": repr(exc)})
        else:
            await self._record(job, {"state": "done", "result": result})

    async def _take(self) -> Job | None:
        now = datetime.now(UTC)
        # `by` is new each time: whoever has the job can tell whether it is still theirs.
        ours = {"by": ObjectId(), "free_from": now + timedelta(seconds=self._lease)}
        return await self._jobs.find_one_and_update(
            {"state": "waiting", "free_from": {"$lte": now}},
            {"$set": ours, "$inc": {"takes": 1}},
            sort=[("free_from", ASCENDING)],
            return_document=True,
        )

    async def _record(self, job: Job, end: dict[str, Any]) -> None:
        recorded = await self._jobs.update_one(
            {"_id": job["_id"], "by": job["by"]},
            {"$set": end, "$unset": {"by": "", "free_from": ""}},
        )
        if recorded.modified_count:
            print(job["_id"], flush=True)


async def work(job: Job) -> int:
    await asyncio.sleep(0.01)  # yours takes longer, and asks others
    number: int = job["number"]
    return number * number


async def wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def main(uri: str, at_once: int, lease: float) -> None:
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    async with AsyncRetryClient(uri, w="majority", journal=True) as client:
        jobs = client.get_default_database("aioretry_examples").jobs
        await jobs.create_index([("state", ASCENDING), ("free_from", ASCENDING)])
        worker = Worker(jobs, lease)
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(worker.run(is_over))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Do the jobs of a collection.")
    parser.add_argument("uri", help="of a replica set or a sharded cluster")
    parser.add_argument("--at-once", type=int, default=4, help="how many jobs (default: 4)")
    parser.add_argument("--lease", type=float, default=20.0, help="seconds for a job (default: 20)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main(arguments.uri, arguments.at_once, arguments.lease))
