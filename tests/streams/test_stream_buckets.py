"""What can be a bucket, as the servers see it."""

import asyncio
import datetime as dt
import re
from decimal import Decimal

import pytest
from bson import Decimal128, Int64, ObjectId

from aioretry.streams import NO_WATERMARKS
from tests.streams.tagging import animal, of_change_stream

NESTED = {"year": 2026, "day": {"month": 11, "hours": [1, 2]}}
OF_ANY_TYPE = [
    *(None, True, False, "x", "a.b", "$x", "a$b.c", ""),
    *(1, 1.0, Int64(1), Decimal128("1"), 2**40, 1.5, Decimal128("1.5")),
    *(NESTED, {**NESTED, "year": 2026.0}, {"day": NESTED["day"], "year": 2026}),
    *(b"x", ObjectId("0" * 24), dt.datetime(2026, 11, 22, tzinfo=dt.UTC)),
]
NUMBERS = [(1, 4), (1.5, 2), (NESTED, 2)]


def plain_key(key) -> str:
    """A bucket without the type of its numbers."""
    match key:
        case bool() | None:
            return repr(key)
        case Decimal128():
            return plain_key(key.to_decimal())
        case dict():
            return str([(name, plain_key(each)) for name, each in key.items()])
        case float() | int() | Decimal():
            return repr(float(key))
        case _:
            return repr(key)


@pytest.fixture
def grouped(stored):
    """A fresh count of the documents with each tag, by the server."""

    def grouped() -> dict[str, int]:
        groups = [{"$unwind": "$tags"}, {"$group": {"_id": "$tags", "count": {"$sum": 1}}}]
        return {plain_key(each["_id"]): each["count"] for each in stored.aggregate(groups)}

    return grouped


@pytest.fixture
def buckets(plain, target):
    """The aggregates."""

    def buckets() -> dict[str, int]:
        found = list(plain[target.database.name][target.name].find(NO_WATERMARKS))
        counts = {plain_key(each["_id"]): each["count"] for each in found}
        assert len(counts) == len(found)
        return counts

    return buckets


@pytest.mark.parametrize("parts", [1, 3])
async def test_of_any_type(parts, documents, target, grouped, buckets):
    """What a server takes for equal is one bucket, whoever writes it."""
    aggregator = of_change_stream(documents, target, parts=parts)

    async def follow() -> None:
        await asyncio.gather(*(aggregator.run(n, until_caught_up=True) for n in range(parts)))

    await documents.insert_one(animal(1, *OF_ANY_TYPE))
    await aggregator.rebuild()
    assert buckets() == grouped()
    for key, count in NUMBERS:
        assert count == buckets()[plain_key(key)]
    await documents.insert_many([animal(n, *OF_ANY_TYPE) for n in (2, 3)])
    await follow()
    assert buckets() == grouped()
    await documents.delete_many({})
    await follow()
    assert {} == buckets()


@pytest.mark.parametrize(
    "key", [re.compile("^a"), {"$gt": ""}, {"$ne": 1}, {"$in": ["x"]}, [1, 2]], ids=repr
)
async def test_refused(key, documents, aggregator, tags):
    """What would be a filter is refused, by followers and by rebuilds, and nothing is applied."""
    await documents.insert_one(animal(1, "apple", "zebra"))
    await aggregator.rebuild()
    before = tags()
    await documents.insert_one(animal(2, "fine", key))
    with pytest.raises((TypeError, ValueError), match="bucket"):
        await aggregator.run(until_caught_up=True)
    assert tags() == before
    with pytest.raises((TypeError, ValueError), match="bucket"):
        await aggregator.rebuild()
    assert tags() == before
