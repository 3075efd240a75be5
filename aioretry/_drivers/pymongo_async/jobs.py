"""What an attempt has done in a task: PyMongo's own command, or a connection opened."""

import asyncio
import contextvars
from abc import ABC, abstractmethod
from typing import Any

from pymongo.errors import ConnectionFailure, OperationFailure

from aioretry import deadlines
from aioretry._drivers.engine.checkup import PATIENCE, is_break
from aioretry._drivers.engine.entry import Entry, Held
from aioretry._drivers.engine.idle import doubt_all, is_doubted, trust
from aioretry._drivers.engine.limits import TimedBody, admitting, has_time
from aioretry._drivers.engine.steps import NotSentError, Steps, reading_at, shown_as, time_limit
from aioretry._drivers.port import AttemptResult, Expired, NoServer, Replied, ServerView
from aioretry._drivers.pymongo_async.asking import is_well
from aioretry._drivers.pymongo_async.calls import AsyncioCalls


class TaskJob(ABC):
    """Something that is done for an attempt.

    Args:
        calls: The client.
        steps: What it has in common with the others.
        entry: Who has it done.
    """

    def __init__(self, calls: AsyncioCalls, steps: Steps, entry: Entry) -> None:
        self._calls = calls
        self._steps = steps
        self._entry = entry
        self._call = entry.call
        self._is_abandoned = False
        # Not by the loop's factory, which may begin it at once.
        self._task = asyncio.Task(self._run(), loop=entry.loop, context=self._own_context())
        calls.tasks.add(self._task)
        self._task.add_done_callback(calls.tasks.discard)
        self._task.add_done_callback(self._ended)

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end."""
        return self._task.done()

    def end(self) -> None:
        """Give up what it waits for."""
        self._is_abandoned = True
        self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() or self._is_abandoned:
            return
        # By a stranger, before it had begun, or while the server was asked after a break.
        result: AttemptResult = NoServer()
        if self._call.token.is_sending:
            result = self._steps.failed(self._call, asyncio.CancelledError())
        self._entry.context.run(self._entry.land, result)

    def _own_context(self) -> contextvars.Context:
        """Return what it is done in."""
        return self._entry.context.copy()

    @abstractmethod
    async def _run(self) -> None:
        """Do it, and tell."""


class TaskOpening(TaskJob):
    """Opens a connection for the event loop's use.

    It is not left to its pool before: where that is full, others would have it.
    """

    _held: Held | None = None

    def end(self) -> None:
        """End nothing: the connection is of use to others when it is open."""
        self._is_abandoned = True

    def _own_context(self) -> contextvars.Context:
        # An encrypted one is read from in the context that it was opened in, for all of its life.
        return contextvars.Context()

    async def _run(self) -> None:
        result = await self._open()
        if not self._is_abandoned:
            # In a turn of its own: what comes next is not this task's.
            self._entry.loop.call_soon(self._entry.dispatch.opened, self._entry, result, self._held)
        elif self._held is not None:
            self._calls.check_in(*self._held)

    async def _open(self) -> AttemptResult | None:
        call, steps = self._call, self._steps
        try:
            server = steps.driver_server(call)
            call.is_waiting = True  # it may hang there, and the server be deposed meanwhile
            with time_limit(call.deadline, server):
                async with steps.delegate._checkout(server, None) as connection:
                    connection.active = False  # else the end of the block would give it back
                connection.active = True
                self._held = server.pool, connection
        except BaseException as exc:  # noqa: BLE001 - the verdict is the coordinator's
            return steps.failed(call, exc)
        return None


class TaskAttempt(TaskJob):
    """An attempt over PyMongo's own command: the way that can do everything."""

    async def _run(self) -> None:
        result = await self._make()
        if not self._is_abandoned:
            self._entry.loop.call_soon(self._entry.land, result, context=self._entry.context)

    async def _make(self) -> AttemptResult:
        call, steps = self._call, self._steps
        try:
            server = steps.driver_server(call)
            steps.prepare(call)
            reply = await self._send(call.server, server)
        except _BrokenError as exc:
            is_server_well = await is_well(self._calls, call.server)
            if not is_server_well:
                steps.learn_of(exc.error, call.server, exc.connection)
            return steps.failed(call, exc.error, is_server_well=is_server_well)
        except BaseException as exc:  # noqa: BLE001 - the verdict is the coordinator's
            return steps.failed(call, exc)
        return Replied(reply)

    async def _send(self, view: ServerView, server: Any) -> dict[str, Any]:
        # See ThreadAttempt: what PyMongo's own write path does, less its retry loop.
        call, steps = self._call, self._steps
        held = call.lease.carry()
        try:
            if call.command.reading is None and steps.view().has_lost(view):  # meanwhile
                raise NotSentError(NoServer())
            call.is_waiting = True  # see TaskOpening
            while True:
                with time_limit(call.deadline, server):
                    async with steps.delegate._checkout(server, None) as connection:
                        if not await self._answers(server.pool, connection):
                            continue  # with another one
                        if call.token.is_revoked or not has_time(call.deadline, server):
                            break
                        # Not before: whoever waits for a connection holds none (Driver Sessions).
                        session = held.open(has_sessions=view.has_sessions)
                        body = steps.body(call, held, is_watched=steps.are_watched)
                        # See LoopAttempt.
                        connection.supports_sessions |= view.has_sessions
                        if call.deadline is not None:
                            body = TimedBody(body)
                        reply = await self._exchange(connection, body, session)
                        if reply is None:
                            break
                        steps.learn_of_concern(reply, view, connection)
                        return reply
            raise NotSentError(Expired())
        except _BrokenError:
            doubt_all(server.pool)
            raise
        finally:
            call.lease.drop()

    async def _answers(self, pool: Any, connection: Any) -> bool:
        """Ask over a connection that is in doubt whether it still is one; it is closed if not."""
        if not is_doubted(pool, connection):
            return True
        asked = pool.breaks
        try:
            with deadlines.fresh_timeout(PATIENCE):
                await connection.command("admin", {"ping": 1}, client=None, publish_events=False)
        except ConnectionFailure:
            return False
        except OperationFailure:
            pass  # it has answered
        trust(connection, asked)
        return True

    async def _exchange(
        self, connection: Any, body: dict[str, Any], session: Any
    ) -> dict[str, Any] | None:
        command = self._call.command
        if not self._call.token.begin_sending():
            return None
        if self._call.is_watched:
            self._steps.note(self._call, body, connection, self._entry.loop.time())
        try:
            with (
                shown_as(self._call.operation_id),
                admitting(connection, command, self._call.deadline),
            ):
                return await connection.command(  # type: ignore[no-any-return]
                    command.database,
                    body,
                    codec_options=command.codec_options,
                    session=session,
                    client=self._steps.delegate,
                    user_fields=command.user_fields,
                    **reading_at(self._call),
                )
        except (ConnectionFailure, asyncio.CancelledError) as exc:
            if session is not None:
                session._server_session.mark_dirty()
            if isinstance(exc, ConnectionFailure) and is_break(exc):
                raise _BrokenError(exc, connection) from exc
            raise


class _BrokenError(Exception):
    """The connection broke; PyMongo is to learn of it later, or not; never leaves this module."""

    def __init__(self, error: ConnectionFailure, connection: Any) -> None:
        super().__init__(error)
        self.error = error
        self.connection = connection
