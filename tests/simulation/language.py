"""What queries, updates and expressions mean, as far as anybody here uses them. Pure."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from bson.timestamp import Timestamp

from tests.simulation.commands import CommandError, StatementError

BAD_VALUE, FAILED_TO_PARSE = 2, 9
NO_TIME = Timestamp(0, 0)
"""In its place the server puts its own time, where a document is inserted."""


def key_of(name: Any) -> Any:
    """Return an id, as the documents are kept by it."""
    return tuple(name.items()) if isinstance(name, Mapping) else name


def date_of(seconds: float) -> dt.datetime:
    """Return a time as documents have it."""
    return dt.datetime.fromtimestamp(round(seconds, 3), dt.UTC).replace(tzinfo=None)


def is_match(document: Mapping[str, Any], query: Mapping[str, Any], now: float) -> bool:
    """Tell whether a document is among those that are looked for.

    Args:
        document: The document.
        query: What is looked for.
        now: The server's time.
    """
    return all(
        bool(value_of(wanted, document, now))
        if name == "$expr"
        else _meets(document.get(name), wanted)
        for name, wanted in query.items()
    )


def _meets(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping) or not any(name.startswith("$") for name in wanted):
        return bool(value == wanted)
    for operator, operand in wanted.items():
        match operator:
            case "$nin" if value in operand:
                return False
            case "$ne" if value == operand:
                return False
            case "$nin" | "$ne":
                pass
            case _:
                raise _unknown(operator)
    return True


def value_of(expression: Any, document: Mapping[str, Any], now: float) -> Any:
    """Return what an expression of an aggregation comes to.

    Args:
        expression: The expression.
        document: Of which its fields are.
        now: The server's time.
    """
    if isinstance(expression, str) and expression.startswith("$"):
        return date_of(now) if expression == "$$NOW" else document.get(expression[1:])
    if not isinstance(expression, Mapping) or len(expression) != 1:
        return expression
    ((operator, operands),) = expression.items()
    if operator == "$literal":
        return operands
    if not operator.startswith("$"):
        return expression
    values = [value_of(each, document, now) for each in operands]
    match operator, values:
        case "$and", _:
            return all(values)
        case "$or", _:
            return any(values)
        case "$eq", [one, other]:
            return one == other
        case "$lte", [one, other]:
            return one <= other
        case "$ifNull", [one, other]:
            return other if one is None else one
        case "$add", [dt.datetime() as one, other]:
            return one + dt.timedelta(milliseconds=other)
        case "$add", _:
            return sum(values)
        case _:
            raise _unknown(operator)


def updated(
    document: Mapping[str, Any], update: Any, now: float = 0.0, *, inserts: bool = False
) -> Mapping[str, Any]:
    """Return a document as an update leaves it.

    Args:
        document: As it is; its id alone if it is inserted.
        update: The update, or the stages of one.
        now: The server's time.
        inserts: Whether it is inserted.
    """
    changed = dict(document)
    if isinstance(update, list):
        for stage in update:
            if "$set" in stage:
                fields = stage["$set"].items()
                changed |= {name: value_of(each, changed, now) for name, each in fields}
            if "$unset" in stage:
                changed.pop(stage["$unset"], None)
        return changed
    for operator, fields in update.items():
        match operator:
            case "$inc":
                for name, amount in fields.items():
                    changed[name] = changed.get(name, 0) + amount
            case "$set":
                changed.update(fields)
            case "$setOnInsert":
                changed.update(fields if inserts else {})
            case "$unset":
                for name in fields:
                    changed.pop(name, None)
            case "$currentDate":
                changed.update(dict.fromkeys(fields, date_of(now)))
            case _ if operator.startswith("$"):
                raise StatementError(FAILED_TO_PARSE, f"unknown operator {operator}")
            case _:
                return {"_id": document["_id"], **update}
    return changed


def changes(before: Mapping[str, Any], after: Mapping[str, Any], update: Any) -> bool:
    """Tell whether an update counts as one; a replacement does, whatever is replaced."""
    is_replacement = not isinstance(update, list) and not any(one[0] == "$" for one in update)
    return before != after or is_replacement


def _unknown(operator: str) -> CommandError:
    return CommandError(BAD_VALUE, f"nobody has taught it {operator}")
