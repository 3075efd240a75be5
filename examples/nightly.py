"""Interest, credited once a night to each account, whoever starts this, and however often.

python examples/nightly.py 2026-11-27

MONGODB_URI and BANK_SECRET are in the environment.
"""

import argparse
import asyncio
import os
from datetime import date
from typing import Any

from aioretry.idempotent import Keys
from aioretry.pymongo import AsyncRetryClient, AsyncRetryClientSession

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0")
AT_ONCE = 10
LONGEST = 120_000  # ms; the transactions of one that has died bar its accounts for a minute


async def credit(client: AsyncRetryClient, keys: Keys, account: str, night: date) -> bool:
    """Credit an account; return whether nobody had done so."""
    bank = client.get_default_database("bank")

    async def work(session: AsyncRetryClientSession) -> dict[str, Any]:
        found = await bank.accounts.find_one({"_id": account}, session=session)
        interest = 0 if found is None else found["balance"] // 1000
        change = {"$inc": {"balance": interest}}
        await bank.accounts.update_one({"_id": account}, change, session=session)
        entry = {"account": account, "night": night.isoformat(), "interest": interest}
        await bank.interest.insert_one(entry, session=session)
        return {}

    answer = await keys.once(f"interest {night} {account}", work, database=bank)
    return not answer.replayed


async def main(night: date) -> None:
    secret = os.environ["BANK_SECRET"].encode()
    limit, credited = asyncio.Semaphore(AT_ONCE), 0
    async with AsyncRetryClient(URI, timeoutMS=LONGEST) as client, Keys(secret, "bank") as keys:

        async def one(account: str) -> None:
            nonlocal credited
            async with limit:
                is_first = await credit(client, keys, account, night)
            credited += is_first  # not above: what was read before an await is old after it

        accounts = await client.get_default_database("bank").accounts.distinct("_id")
        async with asyncio.TaskGroup() as tasks:
            for account in accounts:
                tasks.create_task(one(account))
    print(f"{credited} of {len(accounts)} accounts were credited for {night}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Credit interest.")
    parser.add_argument("night", type=date.fromisoformat)
    asyncio.run(main(parser.parse_args().night))
