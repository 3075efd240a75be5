"""Edit one document from many tasks at once; whoever was not first is told, or tries again.

python examples/versioned_documents.py "mongodb://localhost/?replicaSet=rs0"
"""

import argparse
import asyncio
import uuid
from typing import Any

from pymongo.write_concern import WriteConcern

from aioretry.idempotent import VersionConflict, VersionedDocuments
from aioretry.pymongo import AsyncRetryClient

DURABLE = WriteConcern(w="majority", j=True)


async def rename(docs: VersionedDocuments, page: dict[str, Any], title: str) -> bool:
    try:
        await docs.save(page | {"title": title})
    except VersionConflict:  # its `stored_document` has the title that won
        return False
    return True


async def sign(docs: VersionedDocuments, page: dict[str, Any], name: str) -> None:
    def add_name(document: dict[str, Any]) -> None:
        document["editors"].append(name)

    # With the key, a call that is repeated does not sign again.
    await docs.update(page["_id"], add_name, key=name, timeout=60.0)


async def main(uri: str, number: int) -> None:
    async with AsyncRetryClient(uri) as client:
        pages = client.aioretry_examples.get_collection("pages", write_concern=DURABLE)
        docs = VersionedDocuments(pages, version_field="etag")
        draft = {"_id": uuid.uuid4().hex, "title": "", "editors": []}
        created = await asyncio.gather(*(docs.create(draft) for _ in range(number)))
        page = created[0].document
        renamed = await asyncio.gather(*(rename(docs, page, f"by {n}") for n in range(number)))
        await asyncio.gather(*(sign(docs, page, f"editor {n}") for n in range(number)))
        final = await docs.update(page["_id"], lambda _page: None)  # nothing to change
    print(f"created: {sum(result.written for result in created)}")
    print(f"renamed: {sum(renamed)}, told that another was first: {number - sum(renamed)}")
    print(f"signed: {len(final.document['editors'])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Edit one document from many tasks.")
    parser.add_argument("uri", help="of any deployment")
    parser.add_argument("--number", type=int, default=10, help="how many tasks (default: 10)")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.uri, arguments.number))
