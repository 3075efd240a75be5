"""Choosing loopback ports that nobody else gets."""

import random
import socket
import sys
from typing import Final

HOST: Final = "127.0.0.1"

# Below what Linux (32768) and macOS (49152) hand out to outgoing connections. Else a dead server's
# port could become the near end of somebody's connection: the server could not come back there,
# and a client that tries again and again to reach it could even get connected to itself.
_FIRST: Final = 20_000
_LAST: Final = 32_000
_TRIES: Final = 200

# A socket that is bound and does not listen leaves its port to a server, if both allow it.
_CAN_SHARE: Final = sys.platform == "linux"


class ReservedPort:
    """A port of the loopback address, for a server that starts, and may come back there.

    Nobody else chooses it until it is closed, also while no server has it. Not so on other systems
    than Linux: there somebody may be quicker than the server.

    Raises:
        OSError: no port is free.
    """

    def __init__(self) -> None:
        self._socket = _bind()
        self.number: int = self._socket.getsockname()[1]
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not _CAN_SHARE:
            self._socket.close()

    def close(self) -> None:
        """Leave it to others; fine to repeat."""
        self._socket.close()


def _bind() -> socket.socket:
    for _ in range(_TRIES):
        bound = socket.socket()
        try:
            # Without SO_REUSEADDR, it meets those that are reserved.
            bound.bind((HOST, random.randint(_FIRST, _LAST)))
        except OSError:
            bound.close()
        else:
            return bound
    raise OSError(f"no free port on {HOST} between {_FIRST} and {_LAST}")
