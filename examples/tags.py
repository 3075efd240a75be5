"""Count animals by tag, and keep the counts up to date by what changes.

python examples/tags.py "mongodb://localhost/?replicaSet=rs0"
"""

import argparse
import asyncio
from collections.abc import Iterator

from pymongo.write_concern import WriteConcern

from aioretry.pymongo import AsyncRetryClient, AsyncRetryCollection
from aioretry.streams import NO_WATERMARKS, Aggregator, Change, ChangeStreamSource


def by_tag(change: Change) -> Iterator[tuple[str, dict[str, int]]]:
    for document, sign in ((change.before, -1), (change.after, 1)):
        if document is not None:
            for tag in document["tags"]:
                yield tag, {"animals": sign}


async def show(what: str, tags: AsyncRetryCollection) -> None:
    found = await tags.find(NO_WATERMARKS).sort("_id").to_list(None)
    print(f"{what}: " + ", ".join(f"{tag['_id']} {tag['animals']}" for tag in found))


async def main(uri: str) -> None:
    async with AsyncRetryClient(uri) as client:
        zoo = client.get_database("aioretry_examples", write_concern=WriteConcern("majority"))
        await zoo.animals.drop()
        await zoo.tags.drop()
        animals = await zoo.create_collection(
            "animals", changeStreamPreAndPostImages={"enabled": True}
        )
        await animals.insert_many(
            [{"_id": "Rex", "tags": ["dog", "house"]}, {"_id": "Tom", "tags": ["cat", "house"]}]
        )
        aggregator = Aggregator("tags", ChangeStreamSource(animals), by_tag, zoo.tags)
        await aggregator.rebuild()
        await show("built", zoo.tags)
        await animals.update_one({"_id": "Rex"}, {"$set": {"tags": ["dog", "backyard"]}})
        await animals.delete_one({"_id": "Tom"})
        # A service leaves this out, and never ends: await aggregator.run()
        await aggregator.run(until_caught_up=True)
        await show("followed", zoo.tags)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count animals by tag.")
    parser.add_argument("uri", help="of a replica set of servers from 6.0 on")
    asyncio.run(main(parser.parse_args().uri))
