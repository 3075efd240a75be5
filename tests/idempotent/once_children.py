"""What processes run that are killed in the middle of it."""

from typing import Any

from aioretry.idempotent import delete_many, insert_once, update_many
from tests.idempotent.drivers import collection_of


async def insert(uri: str, *, driver: str, name: str, document: dict[str, Any]) -> None:
    """Insert a document once."""
    async with collection_of(driver, uri, name) as collection:
        await insert_once(collection, document, timeout=20.0)


async def update(uri: str, *, driver: str, name: str, run: int) -> None:
    """Update the documents of a run."""
    async with collection_of(driver, uri, name) as collection:
        await update_many(
            collection, {"run": run}, {"$set": {"state": "done"}, "$max": {"n": 5}}, timeout=20.0
        )


async def delete(uri: str, *, driver: str, name: str, run: int) -> None:
    """Delete the documents of a run that are old."""
    async with collection_of(driver, uri, name) as collection:
        await delete_many(collection, {"run": run, "state": "old"}, timeout=20.0)
