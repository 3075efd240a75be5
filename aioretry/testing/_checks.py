"""Looking at what a user declares, before it does anything."""

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import bson
from bson.errors import BSONError

_MOST: Final = 2**31 - 1  # what a field of the wire protocol holds


def require(
    is_so: bool, name: str, given: object, accepted: str, error: type[Exception] = ValueError
) -> None:
    """Raise an error unless an argument is as it has to be."""
    if not is_so:
        raise error(f"{name} is {given!r}: {accepted} is needed")


def whole(name: str, given: object, least: int = -_MOST) -> None:
    """Require a whole number that is not too small."""
    accepted = f"a whole number from {least} on" if least >= 0 else "a whole number"
    is_number = isinstance(given, int) and not isinstance(given, bool)
    require(is_number, name, given, accepted, TypeError)
    require(isinstance(given, int) and least <= given <= _MOST, name, given, accepted)


def finite(name: str, given: object, *, zero: bool) -> None:
    """Require a finite number above 0, or from 0 on."""
    accepted = f"a finite number {'from 0 on' if zero else 'above 0'}"
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    require(is_number, name, given, accepted, TypeError)
    is_fine = isinstance(given, int | float) and (0 < given < math.inf or (zero and given == 0))
    require(is_fine, name, given, accepted)


def text(name: str, given: object, accepted: str) -> None:
    """Require a text, or None."""
    require(given is None or isinstance(given, str), name, given, accepted, TypeError)


def texts(name: str, given: Any, accepted: str) -> tuple[str, ...]:
    """Require a number of texts that are not empty, and give them."""
    is_some = isinstance(given, Collection) and not isinstance(given, str)
    is_right = is_some and all(isinstance(one, str) for one in given)
    require(is_right, name, given, accepted, TypeError)
    require(all(given), name, given, accepted)
    return tuple(given)


def fields(name: str, given: Any) -> dict[str, Any]:
    """Require what can be a part of a reply, and give a copy of it."""
    accepted = "a mapping that BSON can hold"
    require(given is None or isinstance(given, Mapping), name, given, accepted, TypeError)
    try:
        bson.encode(given or {})
    except (BSONError, OverflowError, TypeError, ValueError) as exc:
        raise TypeError(f"{name} is {given!r}: {accepted} is needed: {exc}") from exc
    return dict(given or {})
