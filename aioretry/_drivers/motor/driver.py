"""The driver's port over a Motor client's delegate."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pymongo
from bson.binary import Binary
from pymongo.errors import InvalidOperation, PyMongoError

from aioretry._drivers.motor.aborting import Aborts
from aioretry._drivers.motor.dispatch import Dispatch
from aioretry._drivers.motor.ending import SessionEnding
from aioretry._drivers.motor.entry import Entry
from aioretry._drivers.motor.options import uses_more
from aioretry._drivers.motor.prober import Prober
from aioretry._drivers.motor.sessions import ChosenSession, ImplicitSession, user_session
from aioretry._drivers.motor.steps import Steps
from aioretry._drivers.motor.views import Views, connection_counts
from aioretry._drivers.port import (
    Address,
    AttemptCall,
    ConnectionCounts,
    Receiver,
    ServerSession,
    ThreadCounts,
    TopologyView,
)
from aioretry._drivers.threads import ThreadPool

# More of them would but wait for the interpreter's lock.
_MOST_THREADS = 32
_CLOSED = "Cannot use RetryClient after close"


class MotorDriver:
    """The driver's port over a Motor client's delegate.

    Args:
        delegate: The client.
        size: How many attempts are under way at once at most.
    """

    def __init__(self, delegate: pymongo.MongoClient[Any], size: int) -> None:
        self._delegate = delegate
        self._most_on_threads = min(size, _MOST_THREADS)
        self._threads = ThreadPool(self._most_on_threads, "aioretry-attempt")
        self._prober = Prober(delegate)
        self._ending = SessionEnding(delegate)
        self._aborts = Aborts(delegate, self._ending)
        self._views = Views(delegate)
        self._steps = Steps(delegate, self._views)
        self._dispatch: Dispatch | None = None
        # What may call the user's code, or has to encrypt, is a thread's.
        self._only_threads = self._views.are_users or uses_more(delegate)

    def view(self) -> TopologyView:
        """Return what is known of the deployment.

        Raises:
            InvalidOperation: The client was closed.
            ConfigurationError: A server is too old or too new for the driver.
        """
        if self._steps.is_closed:
            raise InvalidOperation(_CLOSED)
        return self._views.look()

    def attempt(
        self, loop: asyncio.AbstractEventLoop, call: AttemptCall, receiver: Receiver
    ) -> bool:
        """Make an attempt, if there is a connection for it, or one can be opened."""
        if self._steps.is_closed:
            raise InvalidOperation(_CLOSED)
        dispatch = self._dispatch
        if dispatch is None or dispatch.loop is not loop:
            if dispatch is not None:
                dispatch.close()
            self._dispatch = dispatch = Dispatch(
                self._steps,
                loop,
                self._threads,
                most=self._most_on_threads,
                only_threads=self._only_threads,
            )
            self._ending.use(loop)
        try:
            return dispatch.add(call, receiver)
        except RuntimeError:
            if self._steps.is_closed:  # meanwhile, by another thread
                raise InvalidOperation(_CLOSED) from None
            raise

    def abandon(self, call: AttemptCall) -> bool:
        """Let another attempt take the place of one that is under way, and end that."""
        entry: Entry | None = call.carrier
        return entry is not None and entry.dispatch.abandon(entry)

    def time_out(self, call: AttemptCall) -> bool:
        """End an attempt whose deadline is over, with an error, if the event loop makes it."""
        entry: Entry | None = call.carrier
        if entry is None or entry.on_loop is None:
            return False
        entry.on_loop.time_out()
        return True

    def counts(self) -> ThreadCounts:
        """Return how the threads are doing."""
        return self._threads.counts() if self._dispatch is None else self._dispatch.counts()

    def connections(self) -> Mapping[Address, ConnectionCounts]:
        """Return how many connections there are to each server."""
        return connection_counts(self._delegate)

    def start_probing(self) -> None:
        """Make the driver look for a server."""
        self._prober.start()

    def stop_probing(self) -> None:
        """Let the driver look as it likes."""
        self._prober.stop()

    def session(self) -> ServerSession:
        """Lease a server session from PyMongo's pool."""
        return ImplicitSession(self._delegate, self._ending)

    def user_session(self, session: object) -> ServerSession:
        """Return the session that a session object of the user's is about."""
        return user_session(self._delegate, session)

    def session_of(self, session_id: Binary) -> ServerSession:
        """Return a server session of a chosen id, whose first number is 1."""
        return ChosenSession(self._delegate, session_id)

    def abort(self, session: Any) -> asyncio.Future[None]:
        """Abort a transaction that was given up, on threads of their own."""
        return self._aborts.add(session)

    def add_label(self, error: BaseException, label: str) -> None:
        """Add a label to an error of PyMongo's."""
        if isinstance(error, PyMongoError):
            error._add_error_label(label)

    def close(self) -> None:
        """End the threads once what they carry has ended; wait for none."""
        self._steps.is_closed = True
        self._prober.stop()
        self._threads.close()
        if self._dispatch is not None:
            self._dispatch.close()
        self._aborts.close()
        self._ending.close()
