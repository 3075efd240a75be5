"""What the runner does not understand fails a test."""

from collections.abc import Collection, Mapping
from typing import Any


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
