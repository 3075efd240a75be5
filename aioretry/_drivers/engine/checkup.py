"""Whether a server is well although one of its connections broke."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from pymongo.errors import ConnectionFailure, NetworkTimeout, NotPrimaryError, ProtocolError

from aioretry._drivers.port import Address, ServerKind, ServerView
from aioretry.deadlines import detached

# How long a server may take for it. A dead one refuses at once, and one that does not answer is
# left to the driver.
PATIENCE = 0.25

# How long other attempts may take to show it, and how often it is looked whether there are any.
_WAIT = 0.1
_LOOK_EVERY = 0.005


class Tell(Protocol):
    """Is told whether a server is well."""

    def __call__(self, *, is_server_well: bool) -> None:
        """Take the answer."""
        ...


class Asker(Protocol):
    """Asks a server over another connection whether it is still the one that it was."""

    def ask(self, view: ServerView, tell: Callable[[bool], None]) -> None:
        """Ask, and tell in a later turn of the event loop.

        Args:
            view: What is known of the server.
            tell: Gets the answer.

        Raises:
            RuntimeError: There is nobody to do it.
        """
        ...


class Checkups:
    """Finds out for an event loop whether the servers are well whose connections broke.

    PyMongo takes a server for lost when one connection breaks: it closes all of them, and looks at
    the server again after half a second. Many breaks are of one connection alone.

    What answers a command that was sent after the break, over a connection that was there before
    it, is the same server. If nobody waits for such an answer, or it does not come, it is asked.

    Args:
        loop: The event loop.
        asker: Asks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, asker: Asker) -> None:
        self.breaks = 0
        """How many connections broke until now."""

        self.cases: dict[Address, _Case] = {}
        """The servers that are in doubt."""

        self._loop = loop
        self._asker = asker
        self._timer: asyncio.TimerHandle | None = None

    def add(self, view: ServerView, pool: Any, connection: Any, tell: Tell) -> None:
        """Have somebody told, in a later turn of the loop.

        Args:
            view: What is known of the server.
            pool: Its connections; the one that broke was given back.
            connection: The one that broke.
            tell: Gets the answer.
        """
        self.breaks += 1
        case = self.cases.get(view.address)
        if case is None:
            self.cases[view.address] = case = _Case(view, pool)
        service = connection.service_id
        now = self._loop.time()
        case.breaks.append(_Break(self.breaks, now, pool.next_connection_id, service, tell))
        self._look()

    def hear(self, view: ServerView, connection: Any, sent: int) -> None:
        """Take it for a sign of health that a server has done a write.

        Args:
            view: What is known of the server.
            connection: Where the answer came from.
            sent: What :attr:`breaks` was when the write was sent.
        """
        case = self.cases.get(view.address)
        if case is not None:
            proven = [one for one in case.breaks if one.is_before(connection, sent)]
            self._tell(case, proven, is_server_well=True)

    def _look(self) -> None:
        for case in list(self.cases.values()):
            if not case.is_asked and case.is_hopeless(self._loop.time()):
                self._ask(case)
        if self._timer is None and not all(case.is_asked for case in self.cases.values()):
            self._timer = detached(self._loop.call_later, _LOOK_EVERY, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._look()

    def _ask(self, case: "_Case") -> None:
        case.is_asked = True
        asked = self.breaks
        try:
            self._asker.ask(case.view, partial(self._take_answer, case, asked))
        except RuntimeError:
            self._loop.call_soon(self._take_answer, case, asked, False)

    def _take_answer(self, case: "_Case", asked: int, answer: bool) -> None:
        answered = [one for one in case.breaks if not answer or one.turn <= asked]
        self._tell(case, answered, is_server_well=answer)
        if case.breaks:
            # Of connections that broke after the question; the answer may have been given before.
            case.is_asked = False
            self._look()

    def _tell(self, case: "_Case", breaks: "list[_Break]", *, is_server_well: bool) -> None:
        for one in breaks:
            case.breaks.remove(one)
            self._loop.call_soon(partial(one.tell, is_server_well=is_server_well))
        if not case.breaks and self.cases.get(case.view.address) is case:
            del self.cases[case.view.address]


class _Case:
    """A server that is in doubt.

    Args:
        view: What is known of it.
        pool: Its connections.
    """

    __slots__ = ("breaks", "is_asked", "pool", "view")

    def __init__(self, view: ServerView, pool: Any) -> None:
        self.view = view
        self.pool = pool
        self.breaks: list[_Break] = []
        """The oldest is the first."""

        self.is_asked = False

    def is_hopeless(self, now: float) -> bool:
        """Tell whether no attempt will show it, or none has in good time."""
        return self.pool.active_sockets == 0 or now - self.breaks[0].at >= _WAIT


class _Break(NamedTuple):
    """A connection that broke, and whoever waits to be told of its server."""

    turn: int
    """How many had broken by then, itself included."""

    at: float
    """When, by the loop's clock."""

    next_connection: int
    """The first connection that can have been opened after it."""

    service: Any
    tell: Tell

    def is_before(self, connection: Any, sent: int) -> bool:
        """Tell whether an answer was asked for after it, and comes from the same server."""
        return (
            self.turn <= sent
            and connection.id < self.next_connection
            and connection.service_id == self.service
        )


def is_break(error: BaseException) -> bool:
    """Tell whether an error says that a connection broke, and nothing of its server."""
    return isinstance(error, ConnectionFailure) and not isinstance(
        error, NetworkTimeout | NotPrimaryError | ProtocolError
    )


def is_the_same(hello: Mapping[str, Any], view: ServerView) -> bool:
    """Tell whether a server that has answered is the one that it was, a primary or a secondary."""
    if view.kind is ServerKind.MONGOS:
        is_same = hello.get("msg") == "isdbgrid"
    elif view.kind is ServerKind.OTHER:
        is_same = bool(hello.get("secondary"))
    else:
        is_same = bool(hello.get("isWritablePrimary", hello.get("ismaster")))
    version = hello.get("topologyVersion")
    known = view.topology_version
    return (
        is_same
        and hello.get("maxWireVersion", 0) == view.max_wire_version
        and (view.session_minutes is None) is (hello.get("logicalSessionTimeoutMinutes") is None)
        and (version is None or known is None or version["processId"] == known[0])
    )
