"""Sell seats from many tasks at once with Beanie 2, each write under a deadline.

python examples/beanie_seats.py "mongodb://localhost/?replicaSet=rs0"
"""

import argparse
import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable

from beanie import Document, init_beanie
from pymongo.errors import PyMongoError

from aioretry import Outcome, deadline, outcome_of, resolve
from aioretry.pymongo import AsyncRetryClient


class Show(Document):
    id: str
    sold: int = 0


class Seat(Document):
    id: str
    show: str
    buyer: int


async def ending(write: Awaitable[object]) -> Outcome | None:
    try:
        async with deadline(20.0):
            await write
    except PyMongoError as exc:
        if outcome_of(exc) is not Outcome.UNKNOWN:
            return outcome_of(exc)
        return await find_out(exc)
    return Outcome.APPLIED


async def find_out(doubt: PyMongoError) -> Outcome | None:
    try:
        await resolve(doubt, timeout=60.0)
    except PyMongoError as exc:
        return outcome_of(exc)
    return Outcome.APPLIED


async def sell(show: str, number: int, buyer: int) -> Outcome | None:
    # Who comes second gets a DuplicateKeyError: not applied, or in doubt if an answer was lost.
    outcome = await ending(Seat(id=f"{show}, seat {number}", show=show, buyer=buyer).insert())
    if outcome is Outcome.APPLIED:
        await ending(Show.find_one(Show.id == show).inc({Show.sold: 1}))
    return outcome


async def main(uri: str, number: int) -> None:
    async with AsyncRetryClient(uri, w="majority", journal=True) as client:
        await init_beanie(database=client.aioretry_examples, document_models=[Show, Seat])
        show = await Show(id=uuid.uuid4().hex).insert()
        buyers = (sell(show.id, buyer // 2, buyer) for buyer in range(2 * number))
        outcomes = Counter(await asyncio.gather(*buyers))
        await show.sync()
        stored = await Seat.find(Seat.show == show.id).count()
    for outcome in Outcome:
        print(f"{outcome.value}: {outcomes[outcome]}")
    print(f"stored: {stored}, counted: {show.sold}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sell seats with Beanie, two buyers for each.")
    parser.add_argument("uri", help="of a replica set or a sharded cluster")
    parser.add_argument("--number", type=int, default=50, help="how many seats (default: 50)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.uri, arguments.number))
