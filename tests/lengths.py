"""How long the long tests are: in full with ``AIORETRY_FULL`` in the environment."""

import os
from typing import Final, TypeVar

T = TypeVar("T")

FULL: Final = bool(os.environ.get("AIORETRY_FULL"))


def in_full(full: T, *, otherwise: T) -> T:
    """Choose a length; who has one that depends on it is marked ``long``."""
    return full if FULL else otherwise
