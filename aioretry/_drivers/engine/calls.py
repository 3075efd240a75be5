"""What is asked of a client of PyMongo's, as plain calls on the event loop or on a thread."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any, Protocol

from aioretry._drivers.port import Address


class ClientCalls(Protocol):
    """A client whose methods may block, or one whose methods are coroutines.

    What a coroutine has to wait for goes on after the call; everything before that is done when the
    call returns.
    """

    @property
    def delegate(self) -> Any:
        """The client."""
        ...

    @property
    def untold(self) -> Collection[Address]:
        """The servers of which the topology has yet to be told that something is wrong."""
        ...

    def topology(self) -> Any:
        """Return PyMongo's topology."""
        ...

    def locked(self, pool: Any) -> AbstractContextManager[object]:
        """Keep others from a pool in a block that waits for nothing."""
        ...

    def has_perished(self, pool: Any, connection: Any) -> bool:
        """Tell whether an idle connection can't be used any more; it is closed then."""
        ...

    def check_in(self, pool: Any, connection: Any) -> None:
        """Give a connection back to its pool."""
        ...

    def close(self, connection: Any) -> None:
        """Close a connection."""
        ...

    def hear_time(self, cluster_time: Any) -> None:
        """Have the topology learn the cluster's time."""
        ...

    def handle_error(self, address: Address, news: Any) -> None:
        """Have the topology learn of a server from an error."""
        ...

    def reset_transaction(self, session: Any) -> None:
        """Have a session of the user's forget how its last transaction has ended."""
        ...
