"""Leases of server sessions: begun late, given back when the last attempt that has one ends."""

import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import anyio
from pymongo.errors import InvalidOperation

from aioretry._drivers.port import Address, ServerSession, TransactionSession
from aioretry.errors import DeadlineExceeded, ResolveError


class SessionLease:
    """An operation's hold on one server session (sessions, "Implicit sessions").

    The session is taken by the first attempt when it begins, so that whoever waits for a server or
    for its turn holds none.

    Args:
        open_session: Takes the session.
        turn: Held by each command for as long as it is under way, if the session is not the
            operation's own.
        is_asked: Whether it is for what was sent before, over a session that is not given back.
    """

    __slots__ = (
        "_carriers",
        "_finished",
        "_in_doubt",
        "_is_asked",
        "_is_given_back",
        "_lock",
        "_open_session",
        "_session",
        "turn",
    )

    def __init__(
        self,
        open_session: Callable[[], ServerSession],
        turn: anyio.Lock | None = None,
        *,
        is_asked: bool = False,
    ) -> None:
        self.turn: anyio.Lock | None = turn
        self._open_session = open_session
        # Guards what is below: threads carry and drop, the event loop finishes.
        self._lock = threading.Lock()
        self._session: ServerSession | None = None
        self._carriers = 0
        self._finished = False
        self._in_doubt = False
        self._is_asked = is_asked
        self._is_given_back = False

    @property
    def session(self) -> ServerSession | None:
        """The session, also after the end of the lease; None if no attempt has needed it."""
        return self._session

    @property
    def has_begun(self) -> bool:
        """Whether a server may know of the session's transaction; False if there is none."""
        return False

    @property
    def pinned(self) -> Address | None:
        """The router that alone knows the session's transaction; None if there is none."""
        return None

    def pin(self, address: Address) -> bool:
        """Have all that comes in the transaction go to a router; return whether that is news."""
        raise NotImplementedError

    def unpin(self) -> None:
        """Have what comes next go to any."""

    @property
    def is_given_back(self) -> bool:
        """Whether others may write over the session by now."""
        return self._is_given_back

    @property
    def is_asked(self) -> bool:
        """Whether what was sent over the session may be asked for once more by now."""
        return self._is_asked

    def carry(self) -> ServerSession:
        """Take part in the lease for one attempt.

        Raises:
            InvalidOperation: The operation has ended, so that nothing more may be sent for it.
        """
        with self._lock:
            if self._finished:
                raise InvalidOperation("the operation has ended")
            if self._session is None:
                self._session = self._open_session()
            self._carriers += 1
            return self._session

    def drop(self) -> None:
        """End taking part; the last one to leave a finished lease gives the session back."""
        with self._lock:
            self._carriers -= 1
            self._close_if_unused()

    def end_write(self, exc: BaseException | None, *, in_doubt: bool) -> None:
        """End the hold with the one write that it was for.

        Args:
            exc: What the write ended with, or None.
            in_doubt: Whether what was sent over the session is in doubt.
        """
        del exc
        self.finish(discard=in_doubt)

    def finish(self, *, discard: bool) -> None:
        """End the operation's hold.

        Args:
            discard: Whether the session must not be leased again, because what was sent over it is
                in doubt.
        """
        with self._lock:
            self._finished = True
            self._in_doubt = self._in_doubt or discard
            self._close_if_unused()

    def settle(self) -> None:
        """Give the session back after all: what was in doubt over it was answered late."""
        with self._lock:
            self._in_doubt = False
            self._close_if_unused()

    def settle_asked(self) -> None:
        """Give the session back although something was asked over it: all of it was answered."""
        with self._lock:
            self._is_asked = self._in_doubt = False
            self._close_if_unused()

    def again(self) -> "SessionLease":
        """Return a lease for what is to be asked once more over the same session.

        Once that has begun, the session is leased to nobody else, however each of both ends.
        """
        return SessionLease(self._open_again, self.turn, is_asked=True)

    def _open_again(self) -> ServerSession:
        with self._lock:
            if self._session is None:
                raise AssertionError("nothing was sent over this lease")
            if self._is_given_back:
                raise ResolveError(
                    "the write can't be resolved any more: its session was given back, because it "
                    "was answered, or was never sent"
                )
            self._is_asked = True
            return self._session

    def _close_if_unused(self) -> None:
        is_unused = self._finished and self._carriers == 0 and not self._is_given_back
        if is_unused and self._session is not None:
            self._is_given_back = not (self._in_doubt or self._is_asked)
            self._session.close(discard=not self._is_given_back)


class TransactionLease(SessionLease):
    """A hold on the session of a transaction, for one statement of it.

    Args:
        open_session: Takes the session.
    """

    __slots__ = ()

    @property
    def has_begun(self) -> bool:
        """Whether a server may know of the transaction."""
        return self._opened().has_begun

    @property
    def pinned(self) -> Address | None:
        """The router that alone knows the transaction; None if any server will do."""
        return self._opened().pinned

    def pin(self, address: Address) -> bool:
        """Have all that comes in the transaction go to a router; return whether that is news."""
        session = self._opened()
        is_news = session.pinned is None
        if is_news:
            session.pin(address)
        return is_news

    def unpin(self) -> None:
        """Have what comes next go to any."""
        self._opened().unpin()

    def _opened(self) -> TransactionSession:
        if self._session is None:
            self._session = self._open_session()  # which costs nothing, and can be done twice
        return cast(TransactionSession, self._session)


class StatementLease(TransactionLease):
    """That of one statement: the session is somebody else's to end, and no statement is in doubt.

    Args:
        open_session: Takes the session.
    """

    __slots__ = ()

    def carry(self) -> ServerSession:
        """Take part in the hold for one attempt."""
        if self._finished:
            raise InvalidOperation("the operation has ended")
        return self._opened()

    def drop(self) -> None:
        """End taking part."""

    def end_write(self, exc: BaseException | None, *, in_doubt: bool) -> None:
        """End the hold."""
        del exc, in_doubt
        self._finished = True


class EndingLease(TransactionLease):
    """A hold on the session of a transaction for its end, which may be asked for more than once.

    Args:
        session: The session.
    """

    __slots__ = ()

    def __init__(self, session: TransactionSession) -> None:
        super().__init__(_refuse)
        self._session = session

    def carry(self) -> ServerSession:
        """Take part in the hold for one attempt."""
        with self._lock:
            self._finished = self._is_given_back = self._in_doubt = False
        return super().carry()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the session given back to nobody meanwhile, whatever is answered."""
        with self._lock:
            self._carriers += 1
        try:
            yield
        finally:
            self.drop()

    def finish(self, *, discard: bool) -> None:
        """End the hold until it is asked for again; at once, if there is a doubt.

        The user's session goes on meanwhile, and may be ended before an attempt has.
        """
        with self._lock:
            if discard and self._carriers and self._session is not None:
                self._session.close(discard=True)
        super().finish(discard=discard)


class LastingLease(SessionLease):
    """A hold for writes one after the other, until one of them spoils the session."""

    __slots__ = ()

    @property
    def is_over(self) -> bool:
        """Whether the next write needs another one."""
        return self._finished

    def end_write(self, exc: BaseException | None, *, in_doubt: bool) -> None:
        """End the hold if a later write over the session could be barred, or meet an earlier one.

        What was given up may still use it, and what was sent may still arrive.

        Args:
            exc: What a write ended with, or None.
            in_doubt: Whether what was sent over the session is in doubt.
        """
        if in_doubt or isinstance(exc, CancelledError | DeadlineExceeded):
            self.finish(discard=in_doubt)


def _refuse() -> ServerSession:
    raise AssertionError("nothing is sent over this lease")


NO_LEASE = SessionLease(_refuse)
"""For what only waits."""


class CommandNumber:
    """The transaction number of one command: taken once, sent with every attempt."""

    __slots__ = ("_number", "_session")

    def __init__(self) -> None:
        self._number: int | None = None
        self._session: ServerSession | None = None

    @property
    def is_taken(self) -> bool:
        """Whether there is one."""
        return self._number is not None

    def is_latest_of(self, session: ServerSession) -> bool:
        """Tell whether it was taken, and no other from the session's counter after it.

        Raises:
            InvalidOperation: The session was ended.
        """
        return self._number is not None and session.latest_number() == self._number

    def take(self, session: ServerSession) -> int:
        """Return the number, taking it from the session's counter the first time.

        Raises:
            InvalidOperation: It was taken from another session: a server would execute the command
                again.
        """
        if self._number is None:
            self._number, self._session = session.next_number(), session
        elif session is not self._session:
            raise InvalidOperation("a command was to be retried on another session")
        return self._number
