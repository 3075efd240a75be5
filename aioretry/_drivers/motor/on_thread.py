"""An attempt on a thread, over PyMongo's own command: the way that can do everything."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from bson.son import SON
from pymongo.errors import ConnectionFailure, OperationFailure

from aioretry import deadlines
from aioretry._commands.command import Command
from aioretry._drivers.motor.checkup import PATIENCE, is_break, is_well
from aioretry._drivers.motor.entry import Entry, ThreadJob
from aioretry._drivers.motor.steps import NotSentError, Steps, time_limit
from aioretry._drivers.port import (
    AttemptResult,
    Expired,
    NoServer,
    Replied,
    ServerView,
)
from aioretry.deadlines import Deadline

# In seconds: a millisecond, and what may pass until PyMongo looks at the clock.
_LEAST_TIME = 0.002


class ThreadAttempt(ThreadJob):
    """An attempt on its thread; it can be ended from another one while it waits for its answer.

    Args:
        steps: What it has in common with the others.
        entry: Who has it made.
    """

    __slots__ = ("_call", "_connection", "_entry", "_guard", "_steps")

    def __init__(self, steps: Steps, entry: Entry) -> None:
        # The loop may be inside its context for a moment more.
        super().__init__(partial(entry.context.copy().run, self._land))
        self._steps = steps
        self._entry = entry
        self._call = entry.call
        self._guard = threading.Lock()
        self._connection: Any = None

    def end(self) -> None:
        """Have the thread give up what it waits for."""
        with self._guard:
            connection = self._connection
            if connection is not None:
                connection.cancel_context.cancel()
                _hang_up(connection)

    def _land(self) -> None:
        try:
            result = self._make()
        except BaseException as exc:  # noqa: BLE001 - whatever it is, the attempt lands
            result = self._steps.failed(self._call, exc)
        self._entry.land_from_thread(result)

    def _make(self) -> AttemptResult:
        call, steps = self._call, self._steps
        try:
            server = steps.driver_server(call)
            steps.prepare(call)
            reply = self._send(call.server, server)
        except _AbandonedError as exc:
            return steps.failed(call, exc.error)
        except _BrokenError as exc:
            is_server_well = is_well(steps.delegate, exc.view)
            if not is_server_well:
                steps.learn_of(exc.error, exc.view, exc.connection)
            return steps.failed(call, exc.error, is_server_well=is_server_well)
        except BaseException as exc:  # noqa: BLE001 - the verdict is the coordinator's
            return steps.failed(call, exc)
        return Replied(reply)

    def _send(self, view: ServerView, server: Any) -> dict[str, Any]:
        # What PyMongo's own write path does once a server is selected, less its retry loop: its
        # public `Database.command` retries by itself and can't be told which server to use.
        call, steps = self._call, self._steps
        held = call.lease.carry()
        try:
            session = held.open(has_sessions=view.has_sessions)
            body = steps.body(call, held, is_watched=steps.are_watched)
            if steps.view().has_lost(view):  # meanwhile
                raise NotSentError(NoServer())
            while not call.token.is_revoked:
                checkout = steps.delegate._checkout(server, session)
                with time_limit(call.deadline, server), checkout as connection:
                    if steps.doubts.has(connection) and not self._answers(connection):
                        continue  # with another one
                    # A connection that was opened while its server changed its state believes for
                    # good that there are no sessions, and PyMongo would then write without
                    # protection.
                    connection.supports_sessions = connection.supports_sessions or view.has_sessions
                    if call.deadline is not None:
                        body = _TimedBody(body)
                    if _has_time(call.deadline, server):
                        reply = self._exchange(view, connection, body, session)
                        if reply is not None:
                            steps.learn_of_concern(reply, view, connection)
                            return reply
                break
            raise NotSentError(Expired())
        except _BrokenError:
            steps.doubts.add(server.pool)
            raise
        finally:
            call.lease.drop()

    def _answers(self, connection: Any) -> bool:
        """Ask over a connection whether it is still one; it is closed if not."""
        try:
            with deadlines.fresh_timeout(PATIENCE):
                connection.command("admin", {"ping": 1}, client=None, publish_events=False)
        except ConnectionFailure:
            return False
        except OperationFailure:
            pass  # it has answered
        self._steps.doubts.end(connection)
        return True

    def _exchange(
        self, view: ServerView, connection: Any, body: dict[str, Any], session: Any
    ) -> dict[str, Any] | None:
        command = self._call.command
        self._connection = connection
        try:
            if not self._call.token.begin_sending():
                return None
            with _admitting(connection, command, self._call.deadline):
                return connection.command(  # type: ignore[no-any-return]
                    command.database,
                    body,
                    codec_options=command.codec_options,
                    session=session,
                    client=self._steps.delegate,
                    user_fields=command.user_fields,
                )
        except ConnectionFailure as exc:
            if session is not None:
                session._server_session.mark_dirty()
            if self.is_abandoned:
                # It says nothing of a server that may be well by now; PyMongo must not learn of it.
                raise _AbandonedError(exc) from exc
            if is_break(exc):
                raise _BrokenError(exc, view, connection) from exc
            raise
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Be ended no longer; the connection may be somebody else's soon."""
        with self._guard:
            connection, self._connection = self._connection, None
        if connection.cancel_context.cancelled:
            connection.close_conn(None)


class _AbandonedError(Exception):
    """An attempt that nobody waits for any more was ended; never leaves this module."""

    def __init__(self, error: ConnectionFailure) -> None:
        super().__init__(error)
        self.error = error


class _BrokenError(Exception):
    """The connection broke; PyMongo is to learn of it later, or not; never leaves this module."""

    def __init__(self, error: ConnectionFailure, view: ServerView, connection: Any) -> None:
        super().__init__(error)
        self.error = error
        self.view = view
        self.connection = connection


class _TimedBody(SON[str, Any]):
    """A command that is never sent with a limit of 0, by which a server may take for ever.

    PyMongo computes one if less than a millisecond is left by the time that it looks. It copies
    dictionaries of other types.
    """

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, max(1, value) if key == "maxTimeMS" else value)


def _hang_up(connection: Any) -> None:
    # PyMongo looks at the context twice a second, and never while it sends.
    end = getattr(connection.conn, "sock", connection.conn)
    with contextlib.suppress(OSError, TypeError):  # it is closed; or none of the standard library's
        # Not an SSL socket's own, which takes the encryption from under whoever uses it.
        socket.socket.shutdown(end, socket.SHUT_RDWR)


class _Gate(int):
    """How large a command may be, which PyMongo looks at between building and sending it.

    To build a large one takes its time, so that this is the moment for a last look at the deadline.
    """

    deadline: Deadline | None = None

    def __add__(self, overhead: int) -> int:
        if self.deadline is not None and self.deadline.is_over:
            raise NotSentError(Expired())
        return super().__add__(overhead)


@contextlib.contextmanager
def _admitting(connection: Any, command: Command[Any], deadline: Deadline | None) -> Iterator[None]:
    # PyMongo's `command` takes the largest document for the largest command; a bulk operation has
    # looked at its documents one by one, and its commands may be as large as a message.
    if not command.may_fill_message and deadline is None:
        yield
        return
    largest = connection.max_bson_size
    gate = _Gate(connection.max_message_size if command.may_fill_message else largest)
    gate.deadline = deadline
    connection.max_bson_size = gate
    try:
        yield
    finally:
        connection.max_bson_size = largest


def _has_time(deadline: Deadline | None, server: Any) -> bool:
    # PyMongo refuses by itself to send what can't be answered in time, but its error does not tell
    # that nothing was sent; and below a millisecond it sends 0, which is no limit.
    if deadline is None or not deadline.is_limited:
        return True
    round_trip_time: float = server.description.min_round_trip_time
    return deadline.remaining() - round_trip_time > _LEAST_TIME
