"""Idle connections of PyMongo's pools, taken without waiting for anything."""

import os
from typing import Any
from weakref import WeakSet

from aioretry._drivers.engine.calls import ClientCalls


class Doubts:
    """The connections of a client that were idle when another one to their server broke.

    What broke the one may have broken them too, and nobody has looked since: several servers behind
    one address, of which one is gone, or a cable on the way. Each is asked before it is used again,
    so that a write, which may have one retry only, does not find them one by one.

    Args:
        calls: The client.
    """

    def __init__(self, calls: ClientCalls) -> None:
        self._calls = calls
        self._connections: WeakSet[Any] = WeakSet()
        self.are_any = False
        """Whether there are some. A set of weak references that is empty takes a while to say."""

    def add(self, pool: Any) -> None:
        """Doubt what is idle now.

        Args:
            pool: The server's pool; the connection that broke was given back.
        """
        with self._calls.locked(pool):
            idle = [*pool.conns]
            contexts = [*pool.active_contexts]
        # Those that an event loop keeps for a moment count as used.
        idle += (getattr(context, "resting", None) for context in contexts)
        self._connections.update(connection for connection in idle if connection is not None)
        self.are_any = True

    def has(self, connection: Any) -> bool:
        """Tell whether a connection has to be asked before it is used."""
        return connection in self._connections

    def close_idle(self, pool: Any) -> None:
        """Close those that are idle, instead of asking one after the other."""
        with self._calls.locked(pool):
            doubted = [connection for connection in pool.conns if self.has(connection)]
            for connection in doubted:
                pool.conns.remove(connection)
        for connection in doubted:
            self._calls.close(connection)

    def end(self, connection: Any) -> None:
        """Trust a connection, because it has answered."""
        self._connections.discard(connection)
        self.are_any = bool(self._connections)


def take_idle(calls: ClientCalls, pool: Any) -> Any:
    """Take a connection out of a pool as a checkout does, but only one that is there.

    PyMongo's own checkout opens a connection if there is none, which blocks.

    Args:
        calls: The client.
        pool: A server's pool.

    Returns:
        The connection, to be given back by the pool's ``checkin``; None if none is idle.
    """
    while pool.conns and pool.pid == os.getpid():
        with calls.locked(pool):
            if not pool.conns or pool.requests >= pool.max_pool_size:
                return None
            connection = pool.conns.popleft()
            pool.requests += 1
            pool.active_sockets += 1
            pool.operation_count += 1
            pool.active_contexts.add(connection.cancel_context)
        connection.active = True
        if not calls.has_perished(pool, connection):
            return connection
        calls.check_in(pool, connection)
    return None
