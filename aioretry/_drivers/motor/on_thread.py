"""An attempt on a thread, over PyMongo's own command: the way that can do everything."""

import contextlib
import socket
import threading
from functools import partial
from typing import Any

from pymongo.errors import ConnectionFailure, OperationFailure

from aioretry import deadlines
from aioretry._drivers.engine.checkup import PATIENCE, is_break
from aioretry._drivers.engine.entry import Entry
from aioretry._drivers.engine.idle import doubt_all, is_doubted, trust
from aioretry._drivers.engine.limits import TimedBody, admitting, has_time
from aioretry._drivers.engine.steps import NotSentError, Steps, reading_at, shown_as, time_limit
from aioretry._drivers.motor.asking import is_well
from aioretry._drivers.port import (
    AttemptResult,
    Expired,
    NoServer,
    Replied,
    ServerView,
)
from aioretry._drivers.threads import Job


class ThreadAttempt(Job):
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
            is_server_well = is_well(steps.calls, exc.view)
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
            if call.command.reading is None and steps.view().has_lost(view):  # meanwhile
                raise NotSentError(NoServer())
            while not call.token.is_revoked:
                checkout = steps.delegate._checkout(server, None)
                with time_limit(call.deadline, server), checkout as connection:
                    if not self._answers(server.pool, connection):
                        continue  # with another one
                    # A connection that was opened while its server changed its state believes for
                    # good that there are no sessions, and PyMongo would then write without
                    # protection.
                    connection.supports_sessions = connection.supports_sessions or view.has_sessions
                    if call.deadline is not None:
                        body = TimedBody(body)
                    if has_time(call.deadline, server):
                        reply = self._exchange(view, connection, body, session)
                        if reply is not None:
                            steps.learn_of_concern(reply, view, connection)
                            return reply
                break
            raise NotSentError(Expired())
        except _BrokenError:
            doubt_all(server.pool)
            raise
        finally:
            call.lease.drop()

    def _answers(self, pool: Any, connection: Any) -> bool:
        """Ask over a connection that is in doubt whether it still is one; it is closed if not."""
        if not is_doubted(pool, connection):
            return True
        asked = pool.breaks
        try:
            with deadlines.fresh_timeout(PATIENCE):
                connection.command("admin", {"ping": 1}, client=None, publish_events=False)
        except ConnectionFailure:
            return False
        except OperationFailure:
            pass  # it has answered
        trust(connection, asked)
        return True

    def _exchange(
        self, view: ServerView, connection: Any, body: dict[str, Any], session: Any
    ) -> dict[str, Any] | None:
        command = self._call.command
        self._connection = connection
        try:
            if not self._call.token.begin_sending():
                return None
            if self._call.is_watched:
                self._steps.note(self._call, body, connection, self._entry.loop.time())
            with (
                shown_as(self._call.operation_id),
                admitting(connection, command, self._call.deadline),
            ):
                return connection.command(  # type: ignore[no-any-return]
                    command.database,
                    body,
                    codec_options=command.codec_options,
                    session=session,
                    client=self._steps.delegate,
                    user_fields=command.user_fields,
                    **reading_at(self._call),
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


def _hang_up(connection: Any) -> None:
    # PyMongo looks at the context twice a second, and never while it sends.
    end = getattr(connection.conn, "sock", connection.conn)
    with contextlib.suppress(OSError, TypeError):  # it is closed; or none of the standard library's
        # Not an SSL socket's own, which takes the encryption from under whoever uses it.
        socket.socket.shutdown(end, socket.SHUT_RDWR)
