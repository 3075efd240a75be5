"""Field paths: which of them touch the same fields. Pure."""

import re
from typing import TypeAlias

Path: TypeAlias = tuple[str, ...]

EVERYTHING: Path = ()
"""The path of the whole document."""

_ELEMENT = re.compile(r"\$|\$\[\w*\]|\d+")  # of an array, by place or by array filter


def path_of(name: str) -> Path:
    """Return the path that a dotted name means, whatever elements of arrays it goes through."""
    return tuple(part for part in name.split(".") if not _ELEMENT.fullmatch(part))


def overlap(one: Path, other: Path) -> bool:
    """Tell whether two paths are the same, or one of them leads to the other."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
