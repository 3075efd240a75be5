"""The operations that are measured: as a client's call, and as the command that it comes to.

Each caller has documents of its own, so that no two of them meet on the server, but for counters.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bson import ObjectId
from pymongo import UpdateOne

from aioretry._writes.context import settled

STATEMENTS = 10  # of each bulk_write
COUNTERS = 100

Call = Callable[[], Awaitable[object]]
Body = Callable[[], dict[str, Any]]
_INCREMENT = {"$inc": {"n": 1}}


@dataclass(frozen=True, slots=True)
class Operation:
    """One of the operations."""

    name: str
    call: Callable[[Any, int], Call]
    """Makes the call of one caller, of a collection and the caller's number."""

    body: Callable[[str, int], Body] | None = None
    """Makes its command, of the collection's name; without what numbers and addresses it.

    None if it takes several: there is no floor then.
    """

    is_read: bool = False

    def __str__(self) -> str:
        return self.name


def _update_one(collection: Any, me: int) -> Call:
    return lambda: collection.update_one({"_id": me}, _INCREMENT, upsert=True)


def _update_one_body(name: str, me: int) -> Body:
    return lambda: {"update": name, "ordered": True, "updates": [_statement(me)]}


def _counter(collection: Any, me: int) -> Call:
    return lambda: collection.update_one({"_id": me % COUNTERS}, _INCREMENT, upsert=True)


def _counter_body(name: str, me: int) -> Body:
    return lambda: {"update": name, "ordered": True, "updates": [_statement(me % COUNTERS)]}


def _insert_one(collection: Any, me: int) -> Call:
    return lambda: collection.insert_one(_document(me))


def _insert_one_body(name: str, me: int) -> Body:
    return lambda: {
        "insert": name,
        "ordered": True,
        "documents": [{"_id": ObjectId(), **_document(me)}],
    }


def _find_one_and_update(collection: Any, me: int) -> Call:
    return lambda: collection.find_one_and_update({"_id": me}, _INCREMENT, upsert=True)


def _find_one_and_update_body(name: str, me: int) -> Body:
    return lambda: {
        "findAndModify": name,
        "query": {"_id": me},
        "new": False,
        "update": _INCREMENT,
        "upsert": True,
    }


def _bulk_write(collection: Any, me: int) -> Call:
    return lambda: collection.bulk_write(
        [UpdateOne({"_id": _part(me, n)}, _INCREMENT, upsert=True) for n in range(STATEMENTS)]
    )


def _bulk_write_body(name: str, me: int) -> Body:
    return lambda: {
        "update": name,
        "ordered": True,
        "updates": [_statement(_part(me, n)) for n in range(STATEMENTS)],
    }


def _find_one(collection: Any, me: int) -> Call:
    return lambda: collection.find_one({"_id": me})


def _find_one_body(name: str, me: int) -> Body:
    return lambda: {"find": name, "filter": {"_id": me}, "limit": 1, "singleBatch": True}


def _transfer(collection: Any, me: int) -> Call:
    """Move money between two accounts of the caller's own, and note that, in a transaction."""
    client = collection.database.client
    source, target = _part(me, 0), _part(me, 1)

    async def work(session: Any) -> None:
        await collection.update_one({"_id": source}, {"$inc": {"n": -1}}, session=session)
        await collection.update_one({"_id": target}, _INCREMENT, session=session)
        await collection.insert_one(_document(me), session=session)

    async def call() -> None:
        async with await settled(client.start_session()) as session:
            await session.with_transaction(work)

    return call


def _document(me: int) -> dict[str, Any]:
    """A document of some 100 bytes."""
    return {"n": me, "text": "hello world hello world hello world", "sub": {"x": 1.5, "y": True}}


def _statement(key: int) -> dict[str, Any]:
    return {"q": {"_id": key}, "u": _INCREMENT, "multi": False, "upsert": True}


TOGETHER = frozenset({"insert_one", "counter"})
"""Those that travel together in a coalesced view, and gain by it."""


def stored(writers: int) -> Iterator[dict[str, Any]]:
    """What is there before so many callers begin."""
    count = max(COUNTERS, writers * STATEMENTS)
    return ({**_document(key), "_id": key} for key in range(count))


def _part(me: int, number: int) -> int:
    return me * STATEMENTS + number


OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("update_one", _update_one, _update_one_body),
        Operation("insert_one", _insert_one, _insert_one_body),
        Operation("counter", _counter, _counter_body),
        Operation("find_one_and_update", _find_one_and_update, _find_one_and_update_body),
        Operation("bulk_write", _bulk_write, _bulk_write_body),
        Operation("find_one", _find_one, _find_one_body, is_read=True),
        Operation("transfer", _transfer),
    )
}
