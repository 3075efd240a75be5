"""Counts votes: each vote once."""

from aioretry import RetryClient, RetryMotorCollection, deadline


def connect(uri: str) -> RetryClient:
    return RetryClient(uri, w="majority", journal=True)


class Votes:
    def __init__(self, collection: RetryMotorCollection) -> None:
        self._collection = collection

    async def cast(self, choice: str) -> None:
        async with deadline(20.0):
            await self._collection.update_one({"_id": choice}, {"$inc": {"votes": 1}}, upsert=True)
