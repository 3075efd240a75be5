"""Aggregates of tags for the tests, and what they have to equal."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pymongo.collection import Collection

from aioretry import RetryMotorCollection
from aioretry.streams import NO_WATERMARKS, Aggregator, Change, ChangeStreamSource, QueueSource
from aioretry.streams._folding import Increments

IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}


def by_tag(change: Change) -> Iterator[tuple[str, dict[str, int]]]:
    """How many documents have each tag, and how much weight these have."""
    for document, sign in ((change.before, -1), (change.after, 1)):
        if document is not None:
            for tag in document["tags"]:
                yield tag, {"count": sign, "weight": sign * document["weight"]}


def animal(key: Any, *tags: str, weight: int = 1) -> dict[str, Any]:
    """A document."""
    return {"_id": key, "tags": list(tags), "weight": weight}


def counted(documents: Collection) -> dict[Any, dict[str, int]]:
    """A fresh full count of all documents, by bucket."""
    found: dict[Any, Counter] = {}
    for document in documents.find():
        for tag in document["tags"]:
            bucket = found.setdefault(tag, Counter())
            bucket.update({"count": 1, "weight": document["weight"]})
    kept = {tag: {k: n for k, n in bucket.items() if n} for tag, bucket in found.items()}
    return {tag: bucket for tag, bucket in kept.items() if bucket}


def aggregated(target: Collection) -> dict[Any, dict[str, int]]:
    """The aggregates, by bucket."""
    return {found.pop("_id"): found for found in target.find(NO_WATERMARKS)}


def of_change_stream(
    documents: RetryMotorCollection,
    target: RetryMotorCollection,
    increments: Increments = by_tag,
    **options: Any,
) -> Aggregator:
    """The aggregator of a collection."""
    return Aggregator(target.name, ChangeStreamSource(documents), increments, target, **options)


def of_queue(
    queue: RetryMotorCollection,
    documents: RetryMotorCollection,
    target: RetryMotorCollection,
    **options: Any,
) -> Aggregator:
    """The aggregator of a queue."""
    source = QueueSource(queue, documents=documents)
    return Aggregator(target.name, source, by_tag, target, **options)
