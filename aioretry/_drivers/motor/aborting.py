"""Transactions that were given up while something of them was under way, aborted for certain."""

import asyncio
import contextlib
import time
from typing import Any

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from aioretry import deadlines
from aioretry._drivers.engine.ending import SessionEnding
from aioretry._drivers.threads import Job, ThreadPool
from aioretry.deadlines import detached

_NO_SUCH_TRANSACTION = 251
_MOST_THREADS = 4
_PATIENCE = 60.0  # after so long a server gives a transaction up by itself
_TRY_PATIENCE = 5.0
_LOST_PATIENCE = 10.0  # in which a command whose connection is closed has arrived, or never will
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 2.0


class Aborts:
    """Aborts transactions of one client on threads of its own, whoever waits for that.

    Args:
        delegate: The client.
        ending: Ends the sessions that can't be used again.
    """

    def __init__(self, delegate: pymongo.MongoClient[Any], ending: SessionEnding) -> None:
        self.delegate: Any = delegate
        self.ending = ending
        self.threads = ThreadPool(_MOST_THREADS, "aioretry-abort")
        self.under_way: set[_Abort] = set()

    def add(self, session: Any) -> asyncio.Future[None]:
        """Abort a transaction, and try again until that is certain or no use any more.

        Args:
            session: PyMongo's session, which nobody begins anything in any more.

        Returns:
            A future that is done after the first try; it never raises.
        """
        return _Abort(self, session).first

    def close(self) -> None:
        """Begin nothing more, and leave the sessions to be ended; called on any thread."""
        self.threads.close()
        for abort in list(self.under_way):
            abort.leave()


class _Abort:
    """One transaction."""

    def __init__(self, aborts: Aborts, session: Any) -> None:
        self._aborts = aborts
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._until = time.monotonic() + _PATIENCE
        self._lost_until = time.monotonic() + _LOST_PATIENCE
        self._pause = _FIRST_PAUSE
        self.first: asyncio.Future[None] = self._loop.create_future()
        aborts.under_way.add(self)
        self._submit()

    def leave(self) -> None:
        """Do nothing more; what was begun may go on."""
        with contextlib.suppress(KeyError):  # it has ended just now
            self._aborts.under_way.remove(self)
            self._give_back(is_over=False)

    def _submit(self) -> None:
        try:
            self._aborts.threads.submit(Job(self._try))
        except RuntimeError:  # the client was closed, or there are no threads to be had
            self._end(is_over=False)

    def _try(self) -> None:
        is_over = False
        try:
            is_over = self._abort()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._tried, is_over)

    def _abort(self) -> bool:
        """Abort it; return whether it can't be in progress any more, nor begin."""
        session = self._session
        if session._starting_transaction:
            return True  # nothing was made ready to be sent, and nothing will be
        try:
            with deadlines.fresh_timeout(_TRY_PATIENCE):
                session._finish_transaction_with_retry("abortTransaction")
        except OperationFailure as exc:
            return exc.code == _NO_SUCH_TRANSACTION and not self._may_begin()
        except PyMongoError:
            return False
        return True

    def _may_begin(self) -> bool:
        # The abort may have come before the command that begins the transaction, which goes over
        # another connection.
        air = self._session._air
        return air.is_pending or (air.has_lost and time.monotonic() < self._lost_until)

    def _tried(self, is_over: bool) -> None:
        if not self.first.done():
            self.first.set_result(None)
        if time.monotonic() > self._until or (is_over and not self._session._air.is_pending):
            self._end(is_over=is_over)
            return
        detached(self._loop.call_later, self._pause, self._again, is_over)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _again(self, is_over: bool) -> None:
        if not is_over and self._aborts.delegate.topology_description.has_writable_server():
            self._submit()
        else:  # only its last answer is waited for, or there is nobody to ask
            self._tried(is_over)

    def _end(self, *, is_over: bool) -> None:
        if not self.first.done():
            self.first.set_result(None)
        with contextlib.suppress(KeyError):  # it was left: the client is closed
            self._aborts.under_way.remove(self)
            self._give_back(is_over=is_over)
            self._session._server_session = None
            self._session._unpin()

    def _give_back(self, *, is_over: bool) -> None:
        session = self._session
        server_session = session._server_session
        if not hasattr(server_session, "session_id"):
            return  # nothing was ever sent in it
        if is_over and not session._air.is_pending and not server_session.dirty:
            self._aborts.delegate._return_server_session(server_session)
        else:
            self._aborts.ending.add(server_session)
