"""A blocking client of PyMongo's, asked on the event loop for what takes a moment only."""

from contextlib import AbstractContextManager
from typing import Any

import pymongo

from aioretry._drivers.port import Address


class BlockingCalls:
    """A blocking client.

    Args:
        delegate: The client.
    """

    untold = ()  # its topology is told at once

    def __init__(self, delegate: pymongo.MongoClient[Any]) -> None:
        self.delegate: Any = delegate

    def topology(self) -> Any:
        """Return PyMongo's topology, which is opened with the first call."""
        return self.delegate._get_topology()

    def locked(self, pool: Any) -> AbstractContextManager[object]:
        """Keep others from a pool."""
        return pool.lock  # type: ignore[no-any-return]

    def has_perished(self, pool: Any, connection: Any) -> bool:
        """Tell whether an idle connection can't be used any more; it is closed then."""
        return pool._perished(connection)  # type: ignore[no-any-return]

    def check_in(self, pool: Any, connection: Any) -> None:
        """Give a connection back to its pool."""
        pool.checkin(connection)

    def close(self, connection: Any) -> None:
        """Close a connection."""
        connection.close_conn(None)

    def hear_time(self, cluster_time: Any) -> None:
        """Have the topology learn the cluster's time."""
        self.topology().receive_cluster_time(cluster_time)

    def handle_error(self, address: Address, news: Any) -> None:
        """Have the topology learn of a server from an error."""
        self.topology().handle_error(address, news)

    def reset_transaction(self, session: Any) -> None:
        """Have a session of the user's forget how its last transaction has ended."""
        session._transaction.reset()
