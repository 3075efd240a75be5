"""Idle connections of PyMongo's pools, taken without waiting for anything."""

import os
from typing import Any

from aioretry._drivers.engine.calls import ClientCalls


def doubt_all(pool: Any) -> None:
    """Doubt the connections of a pool, because one of them broke.

    What broke the one may have broken others that nobody has heard of since: several servers behind
    one address, of which one is gone, or a cable on the way. Each is asked before it is used again,
    so that a write, which may have one retry only, does not find them one by one. That goes for
    those in use, too, and those that are being opened: their answers may have been on the way.

    Args:
        pool: The server's pool.
    """
    pool.doubted_below = pool.next_connection_id
    pool.breaks += 1


def is_doubted(pool: Any, connection: Any) -> bool:
    """Tell whether a connection has to be asked before it is used."""
    is_older = connection.id < pool.doubted_below
    return bool(is_older and getattr(connection, "proven", 0) < pool.breaks)


def trust(connection: Any, breaks: int) -> None:
    """Trust a connection, because it has answered.

    Args:
        connection: The connection.
        breaks: What the pool's ``breaks`` was when it was asked.
    """
    connection.proven = breaks


def close_doubted(calls: ClientCalls, pool: Any) -> None:
    """Close those that are idle, instead of asking one after the other."""
    with calls.locked(pool):
        doubted = [connection for connection in pool.conns if is_doubted(pool, connection)]
        for connection in doubted:
            pool.conns.remove(connection)
    for connection in doubted:
        calls.close(connection)


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
