"""Either driver's client, as what stands above the public names takes it."""

from typing import TYPE_CHECKING, Any, TypeAlias

from aioretry._writes.contention import contended
from aioretry._writes.context import WritePath, settled
from aioretry._writes.transactions import is_known_to_transact, require_transactions
from aioretry._writes.under_way import UnderWay, Whole
from aioretry._writes.writing import WritingCollection

__all__ = [
    "Client",
    "Collection",
    "Database",
    "MotorClient",
    "MotorDatabase",
    "Session",
    "Whole",
    "WritingCollection",
    "contended",
    "is_known_to_transact",
    "require_transactions",
    "settled",
    "under_way_of",
]

if TYPE_CHECKING:
    from aioretry import RetryClient, RetryMotorCollection, RetryMotorDatabase
    from aioretry.pymongo import AsyncRetryClient, AsyncRetryCollection, AsyncRetryDatabase

    Client: TypeAlias = RetryClient[Any] | AsyncRetryClient[Any]
    Collection: TypeAlias = RetryMotorCollection[Any] | AsyncRetryCollection[Any]
    Database: TypeAlias = RetryMotorDatabase[Any] | AsyncRetryDatabase[Any]
    MotorClient: TypeAlias = RetryClient[dict[str, Any]]
    MotorDatabase: TypeAlias = RetryMotorDatabase[dict[str, Any]]
else:  # Motor may not be installed
    Client = Collection = Database = MotorClient = MotorDatabase = Any

Session: TypeAlias = Any  # of the same client as the rest, which a union would not say


def under_way_of(client: Any) -> UnderWay:
    """Return what was begun with a client and has not ended: of a driver's own, nothing."""
    path = getattr(client, "_write_path", None)
    return path.under_way if isinstance(path, WritePath) else UnderWay()
