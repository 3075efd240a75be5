"""Databases and collections that are asked for by name, again and again."""

from typing import Any, TypeVar

T = TypeVar("T")

_MOST = 100


def by_name(known: dict[str, T] | None, kind: type[Any], owner: Any, name: str, owned_as: str) -> T:
    """Return what has a name: of the first hundred of an owner, a copy of what was made once.

    Each caller has one of its own, as of the driver: what it does to that is nothing to others.

    Args:
        known: What was made for the owner; None if nothing is kept for that.
        kind: What it is; made of the owner and the name.
        owner: A client, or a database.
        name: A text. Of the user's own kinds of text nothing is kept: equal ones may make other
            names. Of anything else ``kind`` says what is wrong.
        owned_as: The attribute by which it knows its owner.
    """
    made: T
    if known is None or type(name) is not str:
        made = kind(owner, name)
        return made
    found = known.get(name)
    if found is None:
        made = kind(owner, name)
        if len(known) >= _MOST:
            return made
        ready: Any = made
        ready._be_kept()
        del vars(ready)[owned_as]  # of the first caller's nothing is kept
        known[name] = found = made
    copy: T = object.__new__(kind)
    vars(copy).update(vars(found), **{owned_as: owner})
    return copy
