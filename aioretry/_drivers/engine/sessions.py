"""Sessions of PyMongo's, leased and of the user's."""

import contextlib
import time
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from bson.binary import Binary
from bson.int64 import Int64
from pymongo.errors import InvalidOperation
from pymongo.lock import _create_lock
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference

from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.ending import SessionEnding
from aioretry._drivers.engine.transactions import router_of, tell_times, twin
from aioretry._drivers.port import Address


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

    def stamp_read(self, body: dict[str, Any], connection: Any, concern: ReadConcern) -> None:
        """Add to a read what it is to see.

        Args:
            body: The command.
            connection: PyMongo's connection that it is sent over.
            concern: The read concern that it was given.
        """
        ...

    def begin_sending(self) -> None:
        """Take note that what was stamped is sent now."""
        ...

    def take_back(self) -> None:
        """Take note that it is not."""
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
        self._numbered: Any = None

    def next_number(self) -> int:
        """Take the next transaction number of the user's session."""
        with _numbers:  # a user may share a session between tasks
            self._session._start_retryable_write()
            self._numbered = server_session = _server_session(self._session)
            return int(server_session.transaction_id)

    def latest_number(self) -> int:
        """Return the one that was taken last; -1 if the session has another ``lsid`` since."""
        server_session = _server_session(self._session)
        return int(server_session.transaction_id) if server_session is self._numbered else -1

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
        sender = (self,) if "_air" in vars(session) else ()
        session._apply_to(body, False, ReadPreference.PRIMARY, connection, *sender)
        connection.send_cluster_time(body, session, session.client)

    def stamp_read(self, body: dict[str, Any], connection: Any, concern: ReadConcern) -> None:
        """Add the read concern, and what the session has seen before."""
        if concern.level:
            body["readConcern"] = concern.document
        session: Any = self._session
        session._update_read_concern(body, connection)

    def begin_sending(self) -> None:
        """There is nothing to note."""

    def take_back(self) -> None:
        """Leave nothing in the air."""
        air = vars(self._session).get("_air")
        if air is not None:
            air.remove(self)

    def hear(self, reply: Mapping[str, Any]) -> None:
        """Advance the session's times."""
        sender = (self,) if "_air" in vars(self._session) else ()
        self._session._process_response(reply, *sender)

    def mark_dirty(self) -> None:
        """Have it not pooled."""
        with contextlib.suppress(InvalidOperation):  # the user has ended it
            _server_session(self._session).mark_dirty()

    def close(self, *, discard: bool) -> None:
        """Leave it to the user; when it is ended later, it is pooled only if it is not in doubt."""
        if discard:
            self.mark_dirty()


class TransactionSession(UserSession):
    """A session that the user started, for one statement of the transaction in progress on it."""

    def open(self, *, has_sessions: bool) -> Any:
        """Return the user's session, so that PyMongo makes the statement a part of it."""
        del has_sessions
        session = self._session
        if not session.in_transaction:
            raise InvalidOperation("the transaction ended before this statement of it was sent")
        return session

    @property
    def has_begun(self) -> bool:
        """Whether a server may know of the transaction."""
        return not self._session._starting_transaction

    @property
    def pinned(self) -> Address | None:
        """The router that alone knows the transaction; None if any server will do."""
        pinned: Address | None = self._session._transaction.pinned_address
        return pinned

    def pin(self, address: Address) -> None:
        """Have all that comes in the transaction go to a router."""
        transaction = self._session._transaction
        transaction.sharded, transaction.pinned_address = True, address

    def unpin(self) -> None:
        """Have what comes next go to any."""
        transaction = self._session._transaction
        if self.has_begun:
            transaction.router = router_of(transaction)
        transaction.pinned_address = None

    def begin_sending(self) -> None:
        """Begin the transaction at the server, if it has not begun."""
        if self._session._starting_transaction:
            self._session._transaction.set_in_progress()

    def stamp_read(self, body: dict[str, Any], connection: Any, concern: ReadConcern) -> None:
        """Add nothing: the transaction's first statement says what all of them see."""


class EndingSession(TransactionSession):
    """A session of the transaction in progress on one of the user's, by which it can be ended.

    Args:
        calls: The client.
        session: PyMongo's session that the user has.
        ending: Ends the server session if the outcome remains unknown and nobody can ask any more.
    """

    def __init__(self, calls: ClientCalls, session: Any, ending: SessionEnding) -> None:
        super().__init__(calls, twin(session))
        self._user = weakref.ref(session)  # which may be what has the commit that has this one
        self._ending = ending
        self._is_kept = self._was_dirty = False

    def close(self, *, discard: bool) -> None:
        """Have it leased to nobody, and the user's session go on with another; or as before."""
        session, user = self._session, self._user()
        server_session = session._server_session
        if user is not None:
            tell_times(session, user)
        if discard and not self._is_kept:
            self._is_kept, self._was_dirty = True, server_session.dirty
            server_session.mark_dirty()
            self._ending.keep(self, server_session)
        elif self._is_kept and not discard and not self._was_dirty:
            self._is_kept = server_session.dirty = False
            self._ending.let_go(server_session)
            if user is None or user._server_session is not server_session:
                self._calls.delegate._return_server_session(server_session)
        if user is not None and user._server_session is server_session:
            user._is_spent = self._is_kept


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

    def stamp_read(
        self,
        body: dict[str, Any],
        connection: Any,  # noqa: ARG002
        concern: ReadConcern,
    ) -> None:
        if concern.level:
            body["readConcern"] = concern.document

    def begin_sending(self) -> None:
        pass

    def take_back(self) -> None:
        pass

    def hear(self, reply: Mapping[str, Any]) -> None:
        pass  # it is used for one command

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
