"""What the runner does not understand fails a test; what the driver does not have skips it."""

from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from typing import Any

import pymongo

_NO_HELPERS = {"listCollectionObjects", "listDatabaseObjects", "mapReduce"}
_COUNT_OF_ALL = {"filter": {}}
# What these are about the oldest PyMongo that is allowed does not have, with Motor either.
_NEWEST = (4, 20)
_OF_NEWEST = (
    "crud/bulkWrite-*-sort",
    "crud/find",
    "retryable-reads/gridfs-*",
    "transactions/backpressure-*",
    "transactions/commit",
    "transactions/retryable-writes",
    "transactions-convenient-api/callback-aborts",
    "transactions-convenient-api/callback-commits",
)


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


def what_driver_lacks(
    file: str, test: Mapping[str, Any], version: tuple[Any, ...] = pymongo.version_tuple
) -> str | None:
    """Say why neither Motor nor PyMongo can run a test, or None if they can.

    Args:
        file: Where it is: its folder and its file.
        test: The test.
        version: PyMongo's.
    """
    if version < _NEWEST and any(fnmatch(file, pattern) for pattern in _OF_NEWEST):
        return "a newer PyMongo"
    for operation in test["operations"]:
        name = operation["name"]
        # The helper is gone; what is left of it is the estimate, which sends a count of all.
        counts = name == "count" and operation["arguments"] != _COUNT_OF_ALL
        if counts or name in _NO_HELPERS:
            return f"a driver with {name}"
    return None
