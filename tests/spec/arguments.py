"""The arguments of an operation, each of which has to be used."""

from collections.abc import Mapping
from typing import Any

from tests.spec.unsupported import UnsupportedError

_REQUIRED = object()


class Arguments:
    """What an operation was given.

    Args:
        operation: Its name.
        given: Its arguments.
    """

    def __init__(self, operation: str, given: Mapping[str, Any]) -> None:
        self.operation = operation
        self._left = dict(given)

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Take an argument; without a default it has to be there."""
        if default is _REQUIRED:
            return self._left.pop(name)
        return self._left.pop(name, default)

    def take_rest(self) -> dict[str, Any]:
        """Take all that were not taken yet."""
        rest, self._left = self._left, {}
        return rest

    def require_all_taken(self) -> None:
        """Refuse what would be overlooked.

        Raises:
            UnsupportedError: An argument was not taken.
        """
        if self._left:
            left = ", ".join(sorted(self._left))
            raise UnsupportedError(f"{self.operation} with {left}")
