"""The clients that are compared, by the names that they have in figures."""

from types import TracebackType
from typing import Any, Self

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient

from tests.clients import close, ours

DATABASE = "benchmarks"

OURS, COALESCED = "aioretry", "coalesced"
MOTOR, PYMONGO, FLOOR = "motor", "pymongo", "floor"
TITLES = {
    OURS: "aioretry",
    COALESCED: "aioretry, coalesced",
    MOTOR: "Motor",
    PYMONGO: "AsyncMongoClient",
    FLOOR: "floor",
}
PEERS = (MOTOR, PYMONGO)

MAKERS: dict[str, Any] = {MOTOR: AsyncIOMotorClient, PYMONGO: AsyncMongoClient}


def concern(w: str) -> int | str:
    """A write concern as clients and servers take it."""
    return int(w) if w.isdigit() else w


def make(key: str, uri: str, w: str, **options: Any) -> Any:
    """Make a client; what is not said here is its default."""
    maker = MAKERS.get(key) or ours()
    return maker(uri, w=concern(w), retryWrites=True, **options)


class Clients:
    """The clients of one run, all connected to the same servers; an ``async with`` block.

    Args:
        uri: The servers.
        w: The write concern.
    """

    def __init__(self, uri: str, w: str) -> None:
        self._uri, self._w = uri, w
        self._made: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for client in self._made.values():
            await close(client)

    def collection(self, key: str, name: str) -> Any:
        """A collection as one of them sees it; aioretry's views share its one client."""
        made = OURS if key == COALESCED else key
        if made not in self._made:
            self._made[made] = make(made, self._uri, self._w)
        return view(key, self._made[made][DATABASE][name])


def view(key: str, collection: Any) -> Any:
    """A collection, or its coalesced view."""
    return collection.coalesced() if key == COALESCED else collection
