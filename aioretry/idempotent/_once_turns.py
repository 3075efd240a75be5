"""Whose turn it is to work: calls that would only get in each other's way wait for one another."""

import asyncio
import weakref

from aioretry import Deadline
from aioretry._faces import Client
from aioretry.errors import refusal
from aioretry.idempotent._errors import NoTurnError
from aioretry.idempotent._keys_rate import Queue
from aioretry.idempotent._per_client import PerClient

# As TCP does it (RFC 5681): more while nothing is lost, and fewer at once when something is.
_FEWEST = 10
_LESS = 0.9


class Places(Queue):
    """Lets some work at once: as many as don't get in each other's way, as far as is seen."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._fewest = min(_FEWEST, most)
        self._number = float(self._fewest)
        self._taken = 0

    async def take(self, limit: Deadline | None, caller: str = "") -> None:
        """Wait for a place, and have it.

        Raises:
            NoTurnError: There is none in time.
        """
        if self._is_one_free:
            self._taken += 1
        elif not await self._wait(caller, limit):
            raise _no_turn()

    def give_back(self, *, has_conflicted: bool) -> None:
        """Leave a place.

        Args:
            has_conflicted: Whether what was done there has met a write conflict.
        """
        if has_conflicted:
            self._number = max(self._fewest, self._number * _LESS)
        elif not self._is_one_free:
            self._number = min(self._most, self._number + 1 / self._number)
        self._give_back()

    @property
    def _is_one_free(self) -> bool:
        return self._taken + 1 <= self._number

    def _give_back(self) -> None:
        self._taken -= 1
        while self._waiting and self._is_one_free:
            self._taken += 1
            self._grant()


class Turns:
    """What the calls on each client wait for."""

    def __init__(self, at_once: int) -> None:
        self._places = PerClient(lambda _: Places(at_once))
        self._locks: weakref.WeakValueDictionary[tuple[int, bytes | str], asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    def places_of(self, client: Client) -> Places:
        """Return the places of a client's calls."""
        return self._places.of(client)

    def lock_of(self, client: Client, what: bytes | str) -> asyncio.Lock:
        """Return what one call at a time has.

        Args:
            client: Whose call.
            what: The id of a key's record, or the name of a document.
        """
        return self._locks.setdefault((id(client), what), asyncio.Lock())


class Turn:
    """One call's turn: a place for its first run, and no other.

    A call that has met a write conflict runs again beside those in places, and does not wait behind
    them once more. It waits for the calls of its process that want the same document, and for them
    alone.
    """

    def __init__(self, turns: Turns, client: Client, caller: str) -> None:
        self._turns = turns
        self._client = client
        self._caller = caller
        self._place: Places | None = None
        self._is_first = True
        self._wanted: asyncio.Lock | None = None
        self._held: asyncio.Lock | None = None

    async def begin(self, limit: Deadline | None) -> None:
        """Wait until a run may begin.

        Raises:
            NoTurnError: That does not come in time.
        """
        if self._is_first:
            places = self._turns.places_of(self._client)
            await places.take(limit, self._caller)
            self._is_first, self._place = False, places
        elif self._held is not self._wanted:
            self._let_go()
            if self._wanted is not None:
                if not await acquired(self._wanted, limit):
                    raise _no_turn()
                self._held = self._wanted

    def end(self, contended: str | None = None) -> None:
        """Take note that a run has ended.

        Args:
            contended: The document about which there was a write conflict, or None.
        """
        if self._place is not None:
            self._place.give_back(has_conflicted=contended is not None)
            self._place = None
        lock = None if contended is None else self._turns.lock_of(self._client, contended)
        self._wanted = lock

    def close(self) -> None:
        """Let others have all that this call has."""
        self.end()
        self._let_go()

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None


async def acquired(lock: asyncio.Lock, limit: Deadline | None) -> bool:
    """Wait for a lock; return False if a deadline is over first."""
    if limit is None:
        return await lock.acquire()
    try:
        async with asyncio.timeout(limit.remaining()):
            return await lock.acquire()
    except TimeoutError:
        return False


def _no_turn() -> NoTurnError:
    return refusal(
        NoTurnError(
            "the deadline is over; too many calls were before this one, and nothing was done"
        )
    )
