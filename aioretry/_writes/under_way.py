"""What was begun with a client and has not ended; once it is drained, nothing more is begun."""

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Self
from weakref import WeakValueDictionary

from aioretry.errors import ClientDraining, refusal


class Whole:
    """A block of several operations that end together: until it ends, its next one may begin.

    It is of the client, or the clients, whose operations have begun in it.
    """

    __slots__ = ("_of", "_outer", "has_ended", "transactions")

    def __init__(self) -> None:
        self._of: list[UnderWay] = []
        self._outer: tuple[Whole, ...] = ()
        self.has_ended: bool = False
        self.transactions: set[int] = set()
        """Which were begun in it, by the identity of their sessions."""

    def __enter__(self) -> Self:
        self._outer = _open_ones()
        _wholes.set((*self._outer, self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.has_ended = True
        for each in self._of:
            each.wholes.discard(self)
        self._of, self._outer = [], ()
        # Not reset: blocks need not end in the order of a stack, nor in one task.
        _wholes.set(_open_ones())

    def join(self, under_way: "UnderWay") -> None:
        """Be of a client, too."""
        if self not in under_way.wholes:
            self._of.append(under_way)
            under_way.wholes.add(self)

    def is_inside(self, wholes: "Iterable[Whole]") -> bool:
        """Tell whether it is a part of one of others."""
        return not set(self._outer).isdisjoint(wholes)


_wholes: ContextVar[tuple[Whole, ...]] = ContextVar("aioretry_wholes", default=())


def _open_ones() -> tuple[Whole, ...]:
    return tuple([each for each in _wholes.get() if not each.has_ended])


class UnderWay:
    """What was begun with one client and has not ended."""

    def __init__(self) -> None:
        self.operations: set[Any] = set()
        """The `RunningWrite`s of the client's event loop: what one call has begun each."""

        self.wholes: set[Whole] = set()
        self._transactions: WeakValueDictionary[int, Any] = WeakValueDictionary()
        # By the sessions' identity: Motor's have no hash.

        self.is_draining = False
        self.is_over: bool = False
        """Whether what had not ended was given up."""

        self.left: Sequence[Any] = ()
        """The operations that were given up then."""

        self.blocks_left: int = 0

    def admit(self, session: Any = None) -> None:
        """Let an operation begin.

        Args:
            session: The user's session that it goes over, or None.

        Raises:
            ClientDraining: Nothing new may begin.
        """
        if not self.is_draining and not _wholes.get():
            return
        wholes = _open_ones()
        if self.is_over or (self.is_draining and not self._has_begun(wholes, session)):
            raise refusal(
                ClientDraining(
                    "the client is being drained: it ends what is under way and begins nothing new"
                )
            )
        for each in wholes:
            each.join(self)

    def _has_begun(self, wholes: Iterable[Whole], session: Any) -> bool:
        in_transaction = session is not None and getattr(session, "in_transaction", False)
        return in_transaction or not self.wholes.isdisjoint(wholes)

    def begin(self) -> Whole:
        """Return a block that is of this client from now on, to be entered.

        Raises:
            ClientDraining: Nothing new may begin.
        """
        self.admit()
        return self.end()

    def go_on(self) -> None:
        """Let something take its next step that lasts: it has to end when the client is drained.

        Raises:
            ClientDraining: It has.
        """
        if self.is_draining:
            raise refusal(ClientDraining("the client is being drained: what lasts ends"))

    def end(self) -> Whole:
        """Return a block in which the end of what was under way is written, to be entered."""
        whole = Whole()
        whole.join(self)
        return whole

    def begin_transaction(self, session: Any) -> None:
        """Let a transaction begin.

        Args:
            session: The user's session that it is begun on.

        Raises:
            ClientDraining: Nothing new may begin.
        """
        self.admit()
        for whole in _open_ones()[-1:]:
            whole.transactions.add(id(session))
        self._transactions[id(session)] = session

    def transactions(self) -> list[Any]:
        """Return the sessions whose transactions have not ended."""
        return [session for session in self._transactions.values() if session.in_transaction]

    def blocks(self) -> list[object]:
        """Return the blocks that have not ended, and the transactions that are in none of them."""
        inside = set().union(*(each.transactions for each in self.wholes))
        return [
            *[each for each in self.wholes if not each.is_inside(self.wholes)],
            *[session for session in self.transactions() if id(session) not in inside],
        ]

    def leave(self, others: int) -> None:
        """Let nothing begin any more, and take note of what has not ended.

        Args:
            others: How many blocks there are beside those that are known here.
        """
        if not self.is_over:
            self.is_over = True
            self.left = [*self.operations]
            self.blocks_left = len(self.blocks()) + others
