"""An attempt that the event loop makes itself, over a connection that is open and idle.

It costs no thread and no switch to one, which is most of what a small write costs otherwise.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import helpers_shared, message
from pymongo.errors import (
    AutoReconnect,
    ConnectionFailure,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
)

from aioretry import deadlines
from aioretry._drivers.engine.checkup import PATIENCE, Checkups, is_break
from aioretry._drivers.engine.connection import LoopConnection
from aioretry._drivers.engine.connections import Connections
from aioretry._drivers.engine.entry import Entry
from aioretry._drivers.engine.idle import close_doubted, doubt_all, is_doubted, trust
from aioretry._drivers.engine.listening import ShownCommand
from aioretry._drivers.engine.messages import ping, reply_in, request_of
from aioretry._drivers.engine.sessions import LoopSession
from aioretry._drivers.engine.steps import NotSentError, Steps, preference_at
from aioretry._drivers.port import AttemptResult, Expired, Replied

_INTERRUPTED = "the command was given up because its server was lost, or nobody waits for it"


class LoopAttempt:
    """An attempt over an idle connection.

    Args:
        steps: What it has in common with the others.
        connections: Those of the event loop.
        checkups: Finds out whether a server is well.
        entry: Who has it made.
    """

    __slots__ = (
        "_breaks",
        "_broken",
        "_call",
        "_checkups",
        "_connection",
        "_connections",
        "_entry",
        "_is_late",
        "_loop",
        "_sent",
        "_session",
        "_shown",
        "_steps",
        "_timer",
        "has_found_full",
    )

    def __init__(
        self,
        steps: Steps,
        connections: Connections,
        checkups: Checkups,
        entry: Entry,
    ) -> None:
        self._steps = steps
        self._connections = connections
        self._checkups = checkups
        self._entry = entry
        self._loop = entry.loop
        self._call = entry.call
        self._connection: LoopConnection | None = None
        self._session: LoopSession | None = None
        self._broken: tuple[PyMongoError, Any] | None = None
        self._is_late = False
        self._shown: ShownCommand | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.has_found_full = False
        """Whether there was no connection for it, and the pool may have no more."""

    def begin(self, *, is_awaited: bool = False) -> bool:
        """Send the command.

        Args:
            is_awaited: Whether somebody is on the way to waiting for a connection in the pool.

        Returns:
            False if that has to be done in another way; nothing was done then.
        """
        call, steps = self._call, self._steps
        try:
            server = steps.driver_server(call)
            self._connection = connection = self._connections.take(
                server.pool, has_waited=self._entry.openings > 0, is_awaited=is_awaited
            )
            if connection is None:
                self.has_found_full = server.pool.requests >= server.pool.max_pool_size
                return False
            if server.pool.breaks and is_doubted(server.pool, connection.connection):
                self._ask(connection)
            else:
                self._send(connection)
        except BaseException as exc:  # noqa: BLE001 - the verdict is the coordinator's
            self._loop.call_soon(self._entry.land, self._conclude(exc))
            _let_through(exc)
        return True

    def answer(self, data: bytes | memoryview) -> None:
        """Take the reply."""
        self._entry.context.run(self._take, data)

    def _take(self, data: bytes | memoryview) -> None:
        command, held = self._call.command, self._held()
        connection = held.connection
        try:
            reply = reply_in(data, command.codec_options, command.user_fields)
            if self._breaks:
                trust(connection, self._breaks)
            self._steps.hear(reply)
            if self._session is not None:
                self._session.hear(reply)
            helpers_shared._check_command_response(reply, connection.max_wire_version)
            self._steps.learn_of_concern(reply, self._call.server, connection)
            is_write = command.reading is None  # which a server that was deposed does not do
            if is_write and self._checkups.cases and "writeConcernError" not in reply:
                self._checkups.hear(self._call.server, connection, self._sent)
        except BaseException as exc:  # noqa: BLE001 - the verdict is the coordinator's
            if not isinstance(exc, OperationFailure | NotPrimaryError):
                # Nobody can tell what else is wrong with it; as PyMongo does.
                held.close()
            self._entry.land(self._conclude(exc))
            _let_through(exc)
        else:
            self._release()
            if self._shown is not None:
                self._end_shown(reply)
            self._entry.land(Replied(reply))

    def _end_shown(
        self, reply: Mapping[str, Any] | None, error: BaseException | None = None
    ) -> None:
        """Tell listeners how it ended, if they know of it; whatever they do, it has to land."""
        shown, self._shown = self._shown, None
        if shown is not None:
            try:
                shown.end(reply, error)
            except BaseException as exc:  # noqa: BLE001 - it ends the process, and not this attempt
                self._loop.call_soon(_let_through, exc)

    def fail(self, error: Exception) -> None:
        """Take what went wrong with the connection."""
        self._end_shown(None, error)
        if self._connection is None:  # a listener has given it up
            return
        if isinstance(error, PyMongoError) and is_break(error):
            used = self._held()
            self._broken = error, used.connection
            pool, connection = used.pool, used.connection
            self._forget_session()
            self._release()
            doubt_all(pool)
            self._checkups.add(self._call.server, pool, connection, self._end_broken)
        else:
            self._entry.context.run(self._entry.land, self._conclude(error))

    def time_out(self) -> None:
        """End it because it has taken too long."""
        if self._broken is not None:
            # Whether the server is well will be known later, and is PyMongo's to learn then.
            self._is_late = True
            self._land_broken(self._broken[0], is_server_well=True)
        elif self._connection is not None:
            self.fail(self._connection.failure(TimeoutError("timed out")))

    def abandon(self) -> None:
        """End it without a result, and without a word to PyMongo of a server that may be well."""
        if self._connection is not None:
            self._connection.close()
            self._forget_session()
            self._release()
        self._broken = None
        self._end_shown(None, AutoReconnect(_INTERRUPTED))  # last of all, as it may do anything

    def _ask(self, held: LoopConnection) -> None:
        self._breaks = held.pool.breaks
        request_id, data = ping(held.connection)
        self._timer = self._loop.call_later(PATIENCE, self._hear_nothing)
        held.send(request_id, data, _Asked(self))

    def _hear_nothing(self) -> None:
        # Those that were idle beside it will be no better, and each would take as long.
        close_doubted(self._steps.calls, self._held().pool)
        self.hear_whether_open(False)

    def hear_whether_open(self, is_open: bool) -> None:
        """Go on, or have another attempt made if the connection is none any more."""
        held = self._held()
        if self._timer is not None:
            self._timer.cancel()
        if is_open:
            trust(held.connection, self._breaks)
        else:
            held.close()
        if is_open and not self._call.token.is_revoked:
            self._entry.context.run(self._go_on, held)
        else:
            self._release()
            self._entry.start_again()

    def _go_on(self, held: LoopConnection) -> None:
        try:
            self._send(held)
        except BaseException as exc:  # noqa: BLE001 - the verdict is the coordinator's
            self._entry.land(self._conclude(exc))
            _let_through(exc)

    def _send(self, held_connection: LoopConnection) -> None:
        call, steps, view = self._call, self._steps, self._call.server
        connection = held_connection.connection
        if call.command.prepare is not None:
            steps.prepare(call)
        held = call.lease.carry()
        session: Any = held
        self._session = session
        body = steps.body(call, held)
        # A connection that was opened while its server changed its state believes for good that
        # there are no sessions, and PyMongo would then write without protection.
        connection.supports_sessions = connection.supports_sessions or view.has_sessions
        connection.add_server_api(body)
        session.stamp(body, connection, has_sessions=view.has_sessions)
        try:
            request_id, data = self._stamped(session, body, connection)
        except BaseException:
            session.take_back()
            raise
        session.begin_sending()
        self._sent = self._checkups.breaks
        self._breaks = held_connection.pool.breaks
        held_connection.send(request_id, data, self, leaves_doubt=call.leaves_doubt)

    def _stamped(
        self, session: LoopSession, body: dict[str, Any], connection: Any
    ) -> tuple[int, Sequence[bytes]]:
        """Return what is to be sent now of a command that has its session."""
        call = self._call
        reading = call.command.reading
        if reading is not None:
            session.stamp_read(body, connection, reading.concern)
        if call.deadline is not None or connection.opts.socket_timeout:
            self._limit(body, connection)
        request_id, data = self._encode(body, connection)
        if call.is_watched:
            self._steps.note(call, body, connection, self._loop.time())
        if self._steps.listening.are_any:
            self._shown = self._steps.listening.show(call, body, connection, request_id)
        if call.deadline is not None and call.deadline.is_over:  # a large one takes its time
            raise NotSentError(Expired())
        if not call.token.begin_sending():
            raise NotSentError(Expired())
        return request_id, data

    def _limit(self, body: dict[str, Any], connection: Any) -> None:
        deadline = self._call.deadline
        if deadline is not None and deadline.is_limited:
            known: Any = self._call.server.source
            milliseconds = deadlines.milliseconds(deadline.remaining() - known.min_round_trip_time)
            if milliseconds <= 0:
                raise NotSentError(Expired())
            body["maxTimeMS"] = milliseconds
        elif connection.opts.socket_timeout:
            self._timer = self._loop.call_later(connection.opts.socket_timeout, self.time_out)

    def _encode(self, body: dict[str, Any], connection: Any) -> tuple[int, Sequence[bytes]]:
        command = self._call.command
        request_id, data, size = request_of(
            body, command.database, preference_at(self._call), command.codec_options
        )
        # A bulk operation has looked at its documents one by one, and its commands may be as large
        # as a message.
        most = connection.max_message_size if command.may_fill_message else connection.max_bson_size
        if size > most + message._COMMAND_OVERHEAD:
            message._raise_document_too_large(command.name, size, most + message._COMMAND_OVERHEAD)
        return request_id, data

    def _conclude(self, error: BaseException) -> AttemptResult:
        told = AutoReconnect(_INTERRUPTED) if isinstance(error, NotSentError) else error
        self._end_shown(None, told)
        if self._connection is not None:
            if isinstance(error, ConnectionFailure):
                self._forget_session()
            if isinstance(error, PyMongoError):
                self._tell_driver(error, self._connection.connection)
            self._release()
        return self._steps.failed(self._call, error)

    def _report(self, exc: Exception) -> None:
        """Tell whoever looks after the loop of what must not keep the attempt from landing."""
        message = "an attempt of aioretry's was in trouble when it landed"
        self._loop.call_exception_handler({"message": message, "exception": exc})

    def _tell_driver(self, error: PyMongoError, connection: Any) -> None:
        try:
            self._steps.learn_of(error, self._call.server, connection)
        except Exception as exc:  # noqa: BLE001 - it must land all the same
            self._report(exc)

    def _end_broken(self, *, is_server_well: bool) -> None:
        broken, self._broken = self._broken, None
        if broken is not None:
            error, connection = broken
            if not is_server_well:
                self._tell_driver(error, connection)
            if not self._is_late:
                self._land_broken(error, is_server_well=is_server_well)

    def _land_broken(self, error: PyMongoError, *, is_server_well: bool) -> None:
        result = self._steps.failed(self._call, error, is_server_well=is_server_well)
        self._entry.context.run(self._entry.land, result)

    def _forget_session(self) -> None:
        if self._session is not None:
            try:
                self._session.mark_dirty()
            except Exception as exc:  # noqa: BLE001 - it must land all the same
                self._report(exc)

    def _release(self) -> None:
        used, self._connection = self._held(), None
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._connections.put(used)
        except Exception as exc:  # noqa: BLE001 - it must land all the same
            self._report(exc)
            if used.connection is not None:
                used.close()
                used.give_back()  # or its place in the pool would be lost
        if self._session is not None:
            try:
                self._call.lease.drop()
            except Exception as exc:  # noqa: BLE001 - it must land all the same
                self._report(exc)

    def _held(self) -> LoopConnection:
        if self._connection is None:
            raise AssertionError("an attempt without a connection")
        return self._connection


class _Asked:
    """Hears for an attempt whether its connection still is one, whatever the answer is."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: LoopAttempt) -> None:
        self._attempt = attempt

    def answer(self, data: bytes | memoryview) -> None:  # noqa: ARG002
        self._attempt.hear_whether_open(True)

    def fail(self, error: Exception) -> None:  # noqa: ARG002
        self._attempt.hear_whether_open(False)


def _let_through(exc: BaseException) -> None:
    """Raise what ends the process."""
    if isinstance(exc, KeyboardInterrupt | SystemExit):
        raise exc
