"""Bookings that a task queue delivers, each done once, however often it is delivered.

arq examples.task_queue.WorkerSettings

MONGODB_URI, REDIS (host:port) and BANK_SECRET are in the environment.
"""

import os
from typing import Any

from arq import Retry
from arq.connections import RedisSettings
from pymongo.errors import ConnectionFailure

from aioretry import drain
from aioretry.idempotent import KeyInUseError, Keys
from aioretry.pymongo import AsyncRetryClient, AsyncRetryClientSession

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0")
HOST, _, PORT = os.environ.get("REDIS", "localhost:6379").partition(":")


async def book(ctx: dict[str, Any], customer: str, amount: int) -> int:
    bank = ctx["client"].get_default_database("bank")

    async def work(session: AsyncRetryClientSession) -> dict[str, Any]:
        return await bank.accounts.find_one_and_update(
            {"_id": customer},
            {"$inc": {"balance": amount}},
            upsert=True,
            return_document=True,
            session=session,
        )

    try:
        answer = await ctx["keys"].once(ctx["job_id"], work, database=bank)
    except (ConnectionFailure, KeyInUseError) as exc:
        # Delivered again with the same id, it is not booked again.
        raise Retry(defer=5 * ctx["job_try"]) from exc
    return answer.value["balance"]


async def startup(ctx: dict[str, Any]) -> None:
    ctx["client"] = AsyncRetryClient(URI, timeoutMS=20_000)
    ctx["keys"] = Keys(os.environ["BANK_SECRET"].encode(), "bank")


async def shutdown(ctx: dict[str, Any]) -> None:
    await drain(ctx["client"], timeout=10.0)
    await ctx["keys"].close()
    await ctx["client"].close()


class WorkerSettings:
    functions = (book,)
    on_startup = startup
    on_shutdown = shutdown
    redis_settings = RedisSettings(HOST, int(PORT))
    job_timeout = 30  # a worker that has died is followed ten seconds after that
    max_tries = 20  # those that are killed count, too
