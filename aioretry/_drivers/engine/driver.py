"""The driver's port over a client of PyMongo's, whether its methods block or are coroutines."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from bson.binary import Binary
from pymongo.errors import InvalidOperation, PyMongoError

from aioretry._drivers.engine import private_names
from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.dispatch import Dispatch, Room
from aioretry._drivers.engine.ending import SessionEnding
from aioretry._drivers.engine.entry import Entry
from aioretry._drivers.engine.options import uses_more
from aioretry._drivers.engine.sessions import (
    ChosenSession,
    EndingSession,
    ImplicitSession,
    TransactionSession,
    UserSession,
)
from aioretry._drivers.engine.silence import ServerWatch
from aioretry._drivers.engine.steps import Steps
from aioretry._drivers.engine.views import Views, connection_counts
from aioretry._drivers.port import (
    Address,
    AttemptCall,
    ConnectionCounts,
    Receiver,
    ServerSession,
    ThreadCounts,
    TopologyView,
)


class Prober(Protocol):
    """Keeps PyMongo looking for a server while somebody waits for one."""

    def start(self) -> None:
        """Begin, if it has not begun."""
        ...

    def stop(self) -> None:
        """End."""
        ...


class EngineDriver(ABC):
    """The driver's port over a client of PyMongo's.

    Args:
        calls: The client.
        name: What its class is called, for errors.
        most_jobs: How many attempts are made beside the event loop at once at most.
        prober: Keeps PyMongo looking for a server.
        ending: Ends the sessions that can't be used again.
        session: A session of PyMongo's, which is looked at.
        listeners_may_block: Whether command listeners are not to be called on the event loop.

    Raises:
        ConfigurationError: This PyMongo does not have what is used of it.
    """

    _watch: ServerWatch

    def __init__(
        self,
        calls: ClientCalls,
        name: str,
        most_jobs: int,
        prober: Prober,
        ending: SessionEnding,
        session: object,
        *,
        listeners_may_block: bool = False,
    ) -> None:
        private_names.check(calls.delegate, session)
        self._calls = calls
        self._closed = f"Cannot use {name} after close"
        self._most_jobs = most_jobs
        self._prober = prober
        self._ending = ending
        self._views = Views(calls)
        self._steps = Steps(calls, self._views, listeners_may_block=listeners_may_block)
        self._dispatch: Dispatch | None = None
        # What may call the user's code, has to encrypt, or lacks a private name, is a job's.
        self._only_jobs = bool(
            private_names.missing(private_names.SENDING)
            or self._views.are_users
            or uses_more(calls.delegate)
        )

    @abstractmethod
    def _room(self, loop: asyncio.AbstractEventLoop) -> Room:
        """Return what the attempts of an event loop are made with."""

    @abstractmethod
    def _own(self, session: object) -> Any:
        """Return PyMongo's session that a session object of the user's is about.

        Raises:
            TypeError: It is not a session.
            InvalidOperation: It is another client's session.
        """

    @abstractmethod
    def _close_own(self) -> None:
        """Close what a kind of client has beside all this."""

    @abstractmethod
    def _can_use(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether an event loop can make attempts itself."""

    def view(self) -> TopologyView:
        """Return what is known of the deployment.

        Raises:
            InvalidOperation: The client was closed.
            ConfigurationError: A server is too old or too new for the driver.
        """
        if self._steps.is_closed:
            raise InvalidOperation(self._closed)
        return self._views.look()

    def unattended(self) -> float | None:
        """Return for how many seconds no server was looked at, if PyMongo should have; or None.

        Raises:
            InvalidOperation: The client was closed.
        """
        if self._steps.is_closed:
            raise InvalidOperation(self._closed)
        return self._views.unattended()

    def attempt(
        self, loop: asyncio.AbstractEventLoop, call: AttemptCall, receiver: Receiver
    ) -> bool:
        """Make an attempt, if there is a connection for it, or one can be opened."""
        if self._steps.is_closed:
            raise InvalidOperation(self._closed)
        self._watch.note()
        dispatch = self._dispatch
        if dispatch is None or dispatch.loop is not loop:
            if dispatch is not None:
                dispatch.close()
            self._dispatch = dispatch = Dispatch(
                self._steps,
                loop,
                self._room(loop),
                most=self._most_jobs,
                only_jobs=self._only_jobs or not self._can_use(loop),
            )
            self._ending.use(loop)
        try:
            return dispatch.add(call, receiver)
        except RuntimeError:
            if self._steps.is_closed:  # meanwhile, by another thread
                raise InvalidOperation(self._closed) from None
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
        return ThreadCounts(0, 0, 0, 0) if self._dispatch is None else self._dispatch.counts()

    def connections(self) -> Mapping[Address, ConnectionCounts]:
        """Return how many connections there are to each server."""
        return connection_counts(self._calls.delegate)

    def start_probing(self) -> None:
        """Make the driver look for a server."""
        self._prober.start()

    def stop_probing(self) -> None:
        """Let the driver look as it likes."""
        self._prober.stop()

    def session(self) -> ServerSession:
        """Lease a server session from PyMongo's pool."""
        return ImplicitSession(self._calls, self._ending)

    def user_session(self, session: object) -> ServerSession:
        """Return the session that a session object of the user's is about.

        Raises:
            TypeError: It is not a session.
            InvalidOperation: It is another client's session.
        """
        return UserSession(self._calls, self._own(session))

    def transaction_session(self, session: object) -> TransactionSession:
        """Return the same for a statement of the transaction that is in progress on it."""
        return TransactionSession(self._calls, self._own(session))

    def ending_session(self, session: object) -> EndingSession:
        """Return a session of the transaction in progress on one, by which it can be ended."""
        return EndingSession(self._calls, self._own(session), self._ending)

    def session_of(self, session_id: Binary) -> ServerSession:
        """Return a server session of a chosen id, whose first number is 1."""
        return ChosenSession(self._calls, session_id)

    def discard(self, session: Any, *, is_over: bool) -> None:
        """End a session of PyMongo's that was taken for its transaction."""
        server_session, session._server_session = session._server_session, None
        if not hasattr(server_session, "session_id"):
            return  # nothing was ever sent in it
        if is_over and not server_session.dirty:
            self._calls.delegate._return_server_session(server_session)
        else:
            self._ending.add(server_session)

    def add_label(self, error: BaseException, label: str) -> None:
        """Add a label to an error of PyMongo's."""
        if isinstance(error, PyMongoError):
            error._add_error_label(label)

    def close(self) -> None:
        """Begin nothing more; what is under way may go on, and is not waited for."""
        self._steps.is_closed = True
        self._steps.listening.close()
        self._prober.stop()
        if self._dispatch is not None:
            self._dispatch.close()
        self._close_own()
        self._ending.close()
