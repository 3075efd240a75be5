"""What was begun with a client and has not ended; once it is drained, nothing more is begun."""

import contextlib
from collections.abc import Collection
from contextvars import ContextVar, Token
from typing import Any, Self
from weakref import WeakValueDictionary

from aioretry.errors import ClientDraining, refusal


class Whole:
    """A block of several operations that end together: until it ends, its next one may begin.

    It is of the client, or the clients, whose operations have begun in it.
    """

    __slots__ = ("_of", "_token", "has_ended")

    def __init__(self) -> None:
        self._of: list[UnderWay] = []
        self._token: Token[tuple[Whole, ...]] | None = None
        self.has_ended = False

    def __enter__(self) -> Self:
        self._token = _wholes.set((*_wholes.get(), self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.has_ended = True
        for each in self._of:
            each.wholes.discard(self)
        if self._token is not None:
            with contextlib.suppress(ValueError):  # it is left in another task
                _wholes.reset(self._token)

    def join(self, under_way: "UnderWay") -> None:
        """Be of a client, too."""
        self._of.append(under_way)
        under_way.wholes.add(self)


_wholes: ContextVar[tuple[Whole, ...]] = ContextVar("aioretry_wholes", default=())


class UnderWay:
    """What was begun with one client and has not ended."""

    def __init__(self) -> None:
        self.operations: set[Any] = set()
        """The `RunningWrite`s: what one call has begun each."""

        self.wholes: set[Whole] = set()
        self.transactions: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """The sessions on which one was begun, by identity: Motor's have no hash."""

        self.is_draining = False

    def admit(self, session: Any = None) -> None:
        """Let an operation begin.

        Args:
            session: The user's session that it goes over, or None.

        Raises:
            ClientDraining: Nothing new may begin.
        """
        wholes = _wholes.get()
        if not wholes and not self.is_draining:
            return
        if any(each in self.wholes for each in wholes):
            return
        if not self.is_draining:
            if not wholes[-1].has_ended:  # else it was left running by one that has
                wholes[-1].join(self)
            return
        if session is None or not getattr(session, "in_transaction", False):
            raise refusal(
                ClientDraining(
                    "the client is being drained: it ends what is under way and begins nothing new"
                )
            )

    def blocks(self) -> Collection[object]:
        """Return the blocks and the transactions that have not ended."""
        open_ones = [session for session in self.transactions.values() if session.in_transaction]
        return [*self.wholes, *open_ones]
