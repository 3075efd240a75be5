"""Comparing what is with what a test expects (unified test format, "Evaluating Matches")."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

from tests.spec.unsupported import UnsupportedError

MISSING = object()
"""Stands for a field that is not there."""

_TYPES: dict[str, Callable[[Any], bool]] = {
    "double": lambda value: isinstance(value, float),
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list | tuple),
    "binData": lambda value: isinstance(value, Binary | bytes),
    "objectId": lambda value: isinstance(value, ObjectId),
    "bool": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "regex": lambda value: isinstance(value, Regex),
    "timestamp": lambda value: isinstance(value, Timestamp),
    "decimal": lambda value: isinstance(value, Decimal128),
    "minKey": lambda value: isinstance(value, MinKey),
    "maxKey": lambda value: isinstance(value, MaxKey),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool | Int64),
    "long": lambda value: isinstance(value, Int64),
    "number": lambda value: _is_number(value) or isinstance(value, Decimal128),
}


class MismatchError(AssertionError):
    """What is differs from what a test expects."""


def match(expected: Any, actual: Any, where: str, *, is_root: bool = True) -> None:
    """Compare a value with what a test expects of it.

    Args:
        expected: What the test says.
        actual: What there is, or ``MISSING``.
        where: What is compared, for the error.
        is_root: Whether it is a document by itself, which may have more fields.

    Raises:
        MismatchError: They differ.
        UnsupportedError: The test uses an operator that is not known here.
    """
    if operator := _operator_in(expected, where):
        _match_operator(operator, expected[operator], actual, where, is_root=is_root)
    elif isinstance(expected, Mapping):
        _match_document(expected, actual, where, is_root=is_root)
    elif isinstance(expected, list):
        _match_list(expected, actual, where, is_root=is_root)
    elif not _is_equal(expected, actual):
        raise _mismatch(expected, actual, where)


def _match_document(expected: Mapping[str, Any], actual: Any, where: str, *, is_root: bool) -> None:
    if not isinstance(actual, Mapping):
        raise _mismatch(expected, actual, where)
    for name, value in expected.items():
        match(value, actual.get(name, MISSING), f"{where}.{name}", is_root=False)
    extra = actual.keys() - expected.keys()
    if extra and not is_root:
        raise MismatchError(f"{where}: more fields than expected: {sorted(extra)}")


def _match_list(expected: list[Any], actual: Any, where: str, *, is_root: bool) -> None:
    if not isinstance(actual, Sequence) or isinstance(actual, str | bytes):
        raise _mismatch(expected, actual, where)
    if len(expected) != len(actual):
        raise MismatchError(f"{where}: expected {len(expected)} elements, found {len(actual)}")
    for index, (each, other) in enumerate(zip(expected, actual, strict=True)):
        # Each document of a list that stands by itself is one by itself.
        match(each, other, f"{where}[{index}]", is_root=is_root)


def _operator_in(expected: Any, where: str) -> str | None:
    if not isinstance(expected, Mapping):
        return None
    operators = [name for name in expected if name.startswith("$$")]
    if not operators:
        return None
    if len(expected) != 1:
        raise UnsupportedError(f"{where}: {operators[0]} beside other fields")
    return operators[0]


def _match_operator(operator: str, operand: Any, actual: Any, where: str, *, is_root: bool) -> None:
    match operator:
        case "$$exists":
            if operand is not (actual is not MISSING):
                raise MismatchError(f"{where}: exists is not {operand}")
        case "$$type":
            _match_type(operand, actual, where)
        case "$$matchesHexBytes":
            if actual != bytes.fromhex(operand):
                raise _mismatch(operand, actual, where)
        case "$$unsetOrMatches":
            if actual is not MISSING:
                match(operand, actual, where, is_root=is_root)
        case _:
            raise UnsupportedError(f"{where}: {operator}")


def _match_type(names: Any, actual: Any, where: str) -> None:
    wanted = [names] if isinstance(names, str) else names
    for name in wanted:
        if name not in _TYPES:
            raise UnsupportedError(f"{where}: type {name}")
    if actual is MISSING or not any(_TYPES[name](actual) for name in wanted):
        raise MismatchError(f"{where}: expected the type {names}, found {_shown(actual)}")


def _is_equal(expected: Any, actual: Any) -> bool:
    if _is_number(expected) and _is_number(actual):
        return bool(expected == actual)
    if expected is None:
        return actual is None
    return type(expected) is type(actual) and bool(expected == actual)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mismatch(expected: Any, actual: Any, where: str) -> MismatchError:
    return MismatchError(f"{where}: expected {expected!r}, found {_shown(actual)}")


def _shown(actual: Any) -> str:
    return "nothing" if actual is MISSING else repr(actual)
