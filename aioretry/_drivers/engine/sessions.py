"""Sessions of PyMongo's, leased and of the user's."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Protocol

from bson.binary import Binary
from bson.int64 import Int64
from pymongo.errors import InvalidOperation
from pymongo.lock import _create_lock
from pymongo.read_preferences import ReadPreference

from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.ending import SessionEnding
from aioretry._drivers.engine.transactions import at


class LoopSession(Protocol):
    """What an attempt on the event loop needs of a session."""

    def stamp(self, body: dict[str, Any], connection: Any, *, has_sessions: bool) -> None:
        """Add to a command what a session adds to it.

        Args:
            body: The command.
            connection: PyMongo's connection that it is sent over.
            has_sessions: Whether the server has sessions.

        Raises:
            InvalidOperation: The session was ended, or is in a transaction.
        """
        ...

    def hear(self, reply: Mapping[str, Any]) -> None:
        """Learn from a reply."""
        ...

    def mark_dirty(self) -> None:
        """Have PyMongo not pool it."""
        ...


class UserSession:
    """A session that the user started: its ``lsid`` and its counter, and nothing is given back.

    Args:
        calls: The client.
        session: PyMongo's session.
    """

    def __init__(self, calls: ClientCalls, session: Any) -> None:
        self._calls = calls
        self._session = session

    def next_number(self) -> int:
        """Take the next transaction number of the user's session."""
        with _numbers:  # a user may share a session between tasks
            server_session = _server_session(self._session)
            self._session._start_retryable_write()
            return int(server_session.transaction_id)

    def latest_number(self) -> int:
        """Return the one that was taken last."""
        return int(_server_session(self._session).transaction_id)

    def open(self, *, has_sessions: bool) -> Any:
        """Return the user's session, so that its times advance."""
        del has_sessions  # PyMongo says what is wrong
        if self._session.in_transaction:
            # PyMongo would make the write a part of it, where a retry is executed twice.
            raise InvalidOperation(
                "a transaction was started on the session before this write over it was sent"
            )
        # Nothing more can be done about one that has ended (transactions, "ClientSession changes").
        self._calls.reset_transaction(self._session)
        return self._session

    def stamp(self, body: dict[str, Any], connection: Any, *, has_sessions: bool) -> None:
        """Add to a command what a session adds to it."""
        session: Any = self.open(has_sessions=has_sessions)
        with at(self):
            session._apply_to(body, False, ReadPreference.PRIMARY, connection)
        connection.send_cluster_time(body, session, session.client)

    def hear(self, reply: Mapping[str, Any]) -> None:
        """Advance the session's times."""
        with at(self):
            self._session._process_response(reply)

    def mark_dirty(self) -> None:
        """Have it not pooled."""
        with contextlib.suppress(InvalidOperation):  # the user has ended it
            _server_session(self._session).mark_dirty()

    def close(self, *, discard: bool) -> None:
        """Leave it to the user; when it is ended later, it is pooled only if it is not in doubt."""
        if discard:
            self.mark_dirty()


class ImplicitSession:
    """A session from PyMongo's pool.

    Args:
        calls: The client.
        ending: Ends it if it does not go back there; None if its end is somebody else's.
    """

    __slots__ = ("__weakref__", "_calls", "_ending", "_is_kept", "_server_session")

    def __init__(self, calls: ClientCalls, ending: SessionEnding | None = None) -> None:
        self._calls = calls
        self._ending = ending
        self._is_kept = False
        self._server_session: Any = None

    def next_number(self) -> int:
        server_session = self._server_session or self._leased()
        server_session.inc_transaction_id()
        return int(server_session.transaction_id)

    def latest_number(self) -> int:
        return int(self._server_session.transaction_id)

    def open(self, *, has_sessions: bool) -> Any:
        if not has_sessions:
            return None
        # ClientSession objects are not thread-safe, and an attempt that was left behind still has
        # its own: every one gets another object over the same server session.
        session = self._calls.delegate.start_session(causal_consistency=False)
        session._server_session = self._leased()
        return session

    def stamp(self, body: dict[str, Any], connection: Any, *, has_sessions: bool) -> None:
        if has_sessions:
            server_session = self._server_session or self._leased()
            server_session.last_use = time.monotonic()
            body["lsid"] = server_session.session_id
        connection.send_cluster_time(body, None, self._calls.delegate)

    def hear(self, reply: Mapping[str, Any]) -> None:
        pass  # nobody reads over it

    def mark_dirty(self) -> None:
        if self._server_session is not None:
            self._server_session.mark_dirty()

    def close(self, *, discard: bool) -> None:
        server_session = self._server_session
        if server_session is None or self._ending is None:
            return
        if self._is_kept:
            self._ending.let_go(server_session)
        self._is_kept = discard or server_session.dirty
        if self._is_kept:
            # Not pooled, but kept: the command may be sent once more.
            self._ending.keep(self, server_session)
        else:
            self._calls.delegate._return_server_session(server_session)

    def _leased(self) -> Any:
        if self._server_session is None:
            topology = self._calls.topology()
            minutes = topology.description.logical_session_timeout_minutes
            self._server_session = topology.get_server_session(minutes)
        return self._server_session


class _ChosenServerSession:
    """What PyMongo's session objects need of a server session, with an id that was chosen."""

    def __init__(self, session_id: Binary) -> None:
        self.session_id = {"id": session_id}
        self.last_use = time.monotonic()
        self.transaction_id = Int64(0)
        self.dirty = False
        self.generation = 0

    def inc_transaction_id(self) -> None:
        """Take the next number."""
        self.transaction_id = Int64(self.transaction_id + 1)

    def mark_dirty(self) -> None:
        """Note that a command over it may still run."""
        self.dirty = True

    def timed_out(self, session_timeout_minutes: int | None) -> bool:
        """Return that it can be used: it is not kept for long."""
        del session_timeout_minutes
        return False


class ChosenSession(ImplicitSession):
    """A session of a chosen id, by which a server recognises what another process has sent.

    It is never pooled: a later write over it would be taken for a repetition, or make the server
    forget what is to be recognised.
    """

    def __init__(self, calls: ClientCalls, session_id: Binary) -> None:
        super().__init__(calls)
        self._session_id = session_id

    def _leased(self) -> Any:
        if self._server_session is None:
            self._server_session = _ChosenServerSession(self._session_id)
        return self._server_session


def _server_session(session: Any) -> Any:
    session.session_id  # noqa: B018 - takes one from the pool if there is none yet
    server_session: Any = session
    return server_session._server_session


_numbers = _create_lock()  # whole again in a forked child
