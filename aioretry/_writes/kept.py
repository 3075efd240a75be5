"""Databases and collections that are asked for by name, again and again."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_MOST = 100


def by_name(known: dict[str, T] | None, make: Callable[[Any, str], T], owner: Any, name: str) -> T:
    """Return what has a name; the first hundred are made once.

    Args:
        known: What was made for the owner, and is gone with it; None if nothing is kept for that.
        make: Makes it of the owner and the name.
        owner: A client, or a database.
        name: A text; of anything else ``make`` says what is wrong.
    """
    if known is None or not isinstance(name, str):
        return make(owner, name)
    found = known.get(name)
    if found is None:
        found = make(owner, name)
        if len(known) < _MOST:
            known[name] = found
    return found


def database_of(client: Any, make: Callable[[Any, str], T], name: str) -> T:
    """Return a client's database of a name, which keeps its collections if the client keeps it.

    One that is made for a call keeps none: they would refer to each other.
    """
    found: Any = by_name(client._known, make, client, name)
    if found._known is None and found is client._known.get(name):
        found._known = {}
    return found  # type: ignore[no-any-return]
