"""Transactions that were given up while something of them was under way, aborted for certain."""

import asyncio
import contextlib
import time
from typing import Any

from pymongo.errors import OperationFailure, PyMongoError

from aioretry._drivers.engine.ending import SessionEnding
from aioretry.deadlines import detached

_NO_SUCH_TRANSACTION = 251
_PATIENCE = 60.0  # after so long a server gives a transaction up by itself
TRY_PATIENCE = 5.0
_LOST_PATIENCE = 10.0  # in which a command whose connection is closed has arrived, or never will
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 2.0


class Aborts:
    """Aborts transactions of one client beside whoever waits for that.

    Args:
        delegate: The client.
        ending: Ends the sessions that can't be used again.
    """

    def __init__(self, delegate: Any, ending: SessionEnding) -> None:
        self.delegate = delegate
        self.ending = ending
        self.under_way: set[Abort] = set()

    def add(self, session: Any) -> asyncio.Future[None]:
        """Abort a transaction, and try again until that is certain or no use any more.

        Args:
            session: PyMongo's session, which nobody begins anything in any more.

        Returns:
            A future that is done after the first try; it never raises.
        """
        return Abort(self, session).first

    def submit(self, abort: "Abort") -> None:
        """Have an abort tried once; whoever does it tells it by :meth:`Abort.tried`.

        Raises:
            RuntimeError: The client was closed, or there is nobody to do it.
        """
        raise NotImplementedError

    def unpin(self, session: Any) -> None:
        """Have a session keep nothing of PyMongo's."""
        raise NotImplementedError

    def close(self) -> None:
        """Begin nothing more, and leave the sessions to be ended; called on any thread."""
        for abort in list(self.under_way):
            abort.leave()


class Abort:
    """One transaction.

    Args:
        aborts: Have it tried.
        session: PyMongo's session, which has it.
    """

    def __init__(self, aborts: Aborts, session: Any) -> None:
        self._aborts = aborts
        self.session = session
        self.loop = asyncio.get_running_loop()
        self._until = time.monotonic() + _PATIENCE
        self._lost_until = time.monotonic() + _LOST_PATIENCE
        self._pause = _FIRST_PAUSE
        self.first: asyncio.Future[None] = self.loop.create_future()
        aborts.under_way.add(self)
        self._submit()

    def leave(self) -> None:
        """Do nothing more; what was begun may go on."""
        with contextlib.suppress(KeyError):  # it has ended just now
            self._aborts.under_way.remove(self)
            self._give_back(is_over=False)

    def _submit(self) -> None:
        try:
            self._aborts.submit(self)
        except RuntimeError:  # the client was closed, or there are no threads to be had
            self._end(is_over=False)

    def is_over_after(self, error: PyMongoError | None) -> bool:
        """Tell whether it can't be in progress any more, nor begin, after it was aborted so."""
        if isinstance(error, OperationFailure):
            return error.code == _NO_SUCH_TRANSACTION and not self._may_begin()
        return error is None

    def _may_begin(self) -> bool:
        # The abort may have come before the command that begins the transaction, which goes over
        # another connection.
        air = self.session._air
        return air.is_pending or (air.has_lost and time.monotonic() < self._lost_until)

    @property
    def is_unsent(self) -> bool:
        """Whether nothing was made ready to be sent, and nothing will be."""
        return bool(self.session._starting_transaction)

    def tried(self, is_over: bool) -> None:
        """Take what came of a try; called on the event loop."""
        if not self.first.done():
            self.first.set_result(None)
        if time.monotonic() > self._until or (is_over and not self.session._air.is_pending):
            self._end(is_over=is_over)
            return
        detached(self.loop.call_later, self._pause, self._again, is_over)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _again(self, is_over: bool) -> None:
        if not is_over and self._aborts.delegate.topology_description.has_writable_server():
            self._submit()
        else:  # only its last answer is waited for, or there is nobody to ask
            self.tried(is_over)

    def _end(self, *, is_over: bool) -> None:
        if not self.first.done():
            self.first.set_result(None)
        with contextlib.suppress(KeyError):  # it was left: the client is closed
            self._aborts.under_way.remove(self)
            self._give_back(is_over=is_over)
            self.session._server_session = None
            self._aborts.unpin(self.session)

    def _give_back(self, *, is_over: bool) -> None:
        session = self.session
        server_session = session._server_session
        if not hasattr(server_session, "session_id"):
            return  # nothing was ever sent in it
        if is_over and not session._air.is_pending and not server_session.dirty:
            self._aborts.delegate._return_server_session(server_session)
        else:
            self._aborts.ending.add(server_session)
