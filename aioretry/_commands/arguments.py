"""What users may give as arguments, and what of it is refused. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from pymongo.collation import Collation

Document: TypeAlias = Mapping[str, Any]
Update: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
CollationIn: TypeAlias = Mapping[str, Any] | Collation
Sort: TypeAlias = Sequence[str | tuple[str, int | str | Mapping[str, Any]]] | Mapping[str, Any]
Hint: TypeAlias = str | Sort
Projection: TypeAlias = Mapping[str, Any] | Iterable[str]


def require_bool(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, was: {name}={value}")


def hint_of(hint: Hint | None) -> str | Mapping[str, Any] | None:
    """Return an index as a command names it."""
    return hint if hint is None or isinstance(hint, str) else index_document(hint)


def index_document(keys: Sort) -> dict[str, Any]:
    """Return the keys of an index, or of a sort order, as a document."""
    if not isinstance(keys, list | tuple | Mapping):
        raise TypeError(f"must use a dictionary or a list of (key, direction) pairs, not: {keys!r}")
    if not keys:
        raise ValueError("key_or_list must not be empty")
    if isinstance(keys, Mapping):
        pairs = list(keys.items())
    else:
        pairs = [(key, 1) if isinstance(key, str) else key for key in keys]
    for key, direction in pairs:
        _validate_pair(key, direction)
    return dict(pairs)


def _validate_pair(key: object, direction: object) -> None:
    if not isinstance(key, str):
        raise TypeError(f"first item in each key pair must be an instance of str, not {type(key)}")
    if not isinstance(direction, str | int | Mapping):
        raise TypeError(
            "second item in each key pair must be 1, -1, '2d', or another valid "
            f"MongoDB index specifier., not {type(direction)}"
        )


def fields_of(projection: Projection) -> Mapping[str, Any]:
    """Return a projection as a document."""
    if isinstance(projection, Mapping):
        return projection
    if not isinstance(projection, Sequence | AbstractSet):
        raise TypeError("projection must be a mapping or list of key names")
    if not all(isinstance(field, str) for field in projection):
        raise TypeError("projection must be a list of key names, each an instance of str")
    return dict.fromkeys(projection, 1)
