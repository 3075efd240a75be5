"""What a recipe keeps for each client."""

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerClient(Generic[T]):
    """Something for each client, until that is gone, or this is.

    By identity: clients of the same servers are equal, also those of two event loops.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._kept: dict[int, tuple[weakref.ref[Any], T]] = {}

    def of(self, client: Any) -> T:
        """Return that of a client."""
        number = id(client)
        if number not in self._kept:
            # No finalizer, which would be there for as long as the client, and no cycle.
            own = weakref.ref(self)
            reference: weakref.ref[Any] = weakref.ref(client, lambda _: _forget(own(), number))
            self._kept[number] = reference, self._make(client)
        return self._kept[number][1]

    def forget(self, number: int) -> None:
        """Keep nothing for a client that is gone, known by its ``id()``."""
        self._kept.pop(number, None)

    def all(self) -> list[T]:
        """Return those of all clients."""
        return [each for _, each in list(self._kept.values())]


def _forget(kept: PerClient[Any] | None, number: int) -> None:
    if kept is not None:
        kept.forget(number)
