"""Choosing loopback ports that nobody else gets."""

import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"

# Below what Linux (32768) and macOS (49152) hand out to outgoing connections. Else a dead server's
# port could become the near end of somebody's connection: the server could not come back there,
# and a client that tries again and again to reach it could even get connected to itself.
_FIRST: Final = 20_000
_LAST: Final = 32_000
_TRIES: Final = 200


def free_port() -> int:
    """Choose a port of the loopback address that nobody listens on at the moment.

    Returns:
        A number between 20000 and 32000.

    Raises:
        OSError: none was found.
    """
    for _ in range(_TRIES):
        port = random.randint(_FIRST, _LAST)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on {HOST} between {_FIRST} and {_LAST}")
