"""Whether a server is well although one of its connections broke."""

import time
from collections.abc import Mapping
from typing import Any

import pymongo
from pymongo.errors import ConnectionFailure, NetworkTimeout, NotPrimaryError, ProtocolError

from aioretry import _pymongo_timeout
from aioretry._driver import ServerKind, ServerView

# How long a server may take for it. A dead one refuses at once, and one that does not answer is
# left to the driver.
_PATIENCE = 0.25


def is_break(error: BaseException) -> bool:
    """Tell whether an error says that a connection broke, and nothing of its server."""
    return isinstance(error, ConnectionFailure) and not isinstance(
        error, NetworkTimeout | NotPrimaryError | ProtocolError
    )


def is_well(delegate: pymongo.MongoClient[Any], view: ServerView) -> bool:
    """Ask a server, over another connection, whether it is still the one that it was; this blocks.

    PyMongo takes a server for lost when one connection breaks: it closes all of them, and looks at
    the server again after half a second. Many breaks are of one connection alone.
    """
    ends = time.monotonic() + _PATIENCE
    while (seconds := ends - time.monotonic()) > 0:
        server: Any = delegate._get_topology().get_server_by_address(view.address)
        if server is None:
            return False
        is_open = False
        try:
            with _pymongo_timeout.fresh(seconds), server.pool.checkout() as connection:
                is_open = True
                hello = connection.command(
                    "admin", connection.hello_cmd(), client=None, publish_events=False
                )
        except ConnectionFailure:
            # Idle connections may have broken together; the next one is another, or new.
            if not is_open:
                return False
        except Exception:  # noqa: BLE001 - it does not matter what is wrong
            return False
        else:
            return _is_the_same(hello, view)
    return False


def _is_the_same(hello: Mapping[str, Any], view: ServerView) -> bool:
    if view.kind is ServerKind.MONGOS:
        takes_writes = hello.get("msg") == "isdbgrid"
    else:
        takes_writes = bool(hello.get("isWritablePrimary", hello.get("ismaster")))
    version = hello.get("topologyVersion")
    known = view.topology_version
    return (
        takes_writes
        and hello.get("maxWireVersion", 0) == view.max_wire_version
        and (view.session_minutes is None) is (hello.get("logicalSessionTimeoutMinutes") is None)
        and (version is None or known is None or version["processId"] == known[0])
    )
