"""What filters ask for, as far as a run that is repeated has to know. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bson.regex import Regex

from aioretry.idempotent._paths import EVERYTHING, Path, path_of

# Asked twice, these may answer differently, or nobody can tell.
_UNREPEATABLE = frozenset({"$rand", "$sampleRate", "$where", "$function"})


def unrepeatable_in(value: object) -> Iterator[str]:
    """Yield the operators that may choose other documents when they are asked again."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in _UNREPEATABLE:
                yield key
            yield from unrepeatable_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from unrepeatable_in(inner)


def paths_read(filter: Mapping[str, Any], within: Path = ()) -> Iterator[Path]:
    """Yield the paths of the fields that decide whether a document matches.

    Args:
        within: The path of what it is about, if that is not the whole document.
    """
    for key, condition in filter.items():
        if key == "$and" and isinstance(condition, list | tuple):
            for each in condition:
                yield from paths_read(each, within)
        elif key == "$comment":
            continue
        elif key.startswith("$"):  # of branches, or of an expression
            yield within or EVERYTHING
        else:
            yield from _paths_of_condition(within + path_of(key), condition)


def _paths_of_condition(path: Path, condition: object) -> Iterator[Path]:
    elements = condition.get("$elemMatch") if isinstance(condition, Mapping) else None
    if isinstance(elements, Mapping) and len(condition) == 1:  # type: ignore[arg-type]
        yield from paths_read(elements, path)
    else:
        yield path


def pins_of(filter: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields that have to be equal to a value, and their values.

    None if the filter asks for anything else too.
    """
    pins: dict[str, Any] = {}
    for key, condition in filter.items():
        if key == "$and" and isinstance(condition, list | tuple):
            for each in condition:
                more = pins_of(each)
                if more is None:
                    return None
                pins |= more
        elif key.startswith("$") or not _is_value(condition):
            return None
        else:
            pins[key] = _value_of(condition)
    return pins


def left_out_by(filter: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that must neither be nor hold a single value, and the values (`$ne`)."""
    for key, condition in filter.items():
        if key == "$and" and isinstance(condition, list | tuple):
            for each in condition:
                yield from left_out_by(each)
        elif not key.startswith("$") and isinstance(condition, Mapping) and "$ne" in condition:
            value = condition["$ne"]
            if not isinstance(value, Mapping | list | tuple):
                yield key, value


def _value_of(condition: Any) -> Any:
    if isinstance(condition, Mapping) and list(condition) == ["$eq"]:
        return condition["$eq"]
    return condition


def _is_value(condition: Any) -> bool:
    value = _value_of(condition)
    if isinstance(value, re.Pattern | Regex):
        return False
    return not (isinstance(value, Mapping) and any(key.startswith("$") for key in value))
