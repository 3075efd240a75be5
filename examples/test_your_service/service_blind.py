"""Counts votes: each vote once, or so its author thought."""

import asyncio

from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorCollection
from pymongo.errors import AutoReconnect


def connect(uri: str) -> AsyncIOMotorClient:
    return AsyncIOMotorClient(uri, w="majority", journal=True)


class Votes:
    def __init__(self, collection: AsyncIOMotorCollection) -> None:
        self._collection = collection

    async def cast(self, choice: str) -> None:
        for tries_left in (2, 1, 0):
            try:
                await self._collection.update_one(
                    {"_id": choice}, {"$inc": {"votes": 1}}, upsert=True
                )
            except AutoReconnect:
                if not tries_left:
                    raise
                await asyncio.sleep(0.1)
            else:
                return
