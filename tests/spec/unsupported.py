"""What the runner does not understand fails a test; what the driver does not have skips it."""

from collections.abc import Collection, Mapping
from typing import Any

_NO_HELPERS = {"listCollectionObjects", "listDatabaseObjects", "mapReduce"}
_COUNT_OF_ALL = {"filter": {}}


class UnsupportedError(AssertionError):
    """A test has something that the runner does not know, so that it would prove nothing."""


def require_known(what: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse fields that would be overlooked.

    Raises:
        UnsupportedError: there is one.
    """
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise UnsupportedError(f"{what} with {', '.join(unknown)}")


def what_driver_lacks(test: Mapping[str, Any]) -> str | None:
    """Say why neither Motor nor PyMongo can run a test, or None if they can."""
    for operation in test["operations"]:
        name = operation["name"]
        # The helper is gone; what is left of it is the estimate, which sends a count of all.
        counts = name == "count" and operation["arguments"] != _COUNT_OF_ALL
        if counts or name in _NO_HELPERS:
            return f"a driver with {name}"
    return None
