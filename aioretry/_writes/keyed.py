"""The writes of an operation that has a key: what a source says of each comes before it is sent."""

from collections.abc import Mapping, MutableMapping
from typing import Any, TypeVar

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.errors import ConfigurationError, InvalidOperation

from aioretry._commands.command import Command
from aioretry._commands.single import Arguments, Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import ServerKind
from aioretry._retry.command_execution import Execution, Numbering, trusted_seconds
from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._writes.context import WritePath
from aioretry._writes.single import Write
from aioretry.deadlines import Deadline, deadline
from aioretry.errors import Attempt, Outcome, attach
from aioretry.sources import KeyedStatement, KnownReply, SessionId, StatementSource

T = TypeVar("T")

_FIRST_TELLING_WIRE_VERSION = 17  # MongoDB 6.0


class KeyedWrites:
    """The writes of one operation that has a key.

    Args:
        path: What the writes of the client share.
        source: Says how each is to be sent.
    """

    def __init__(self, path: WritePath, source: StatementSource) -> None:
        self._path = path
        self._source = source
        self._index = 0
        self._has_failed = False
        self.replayed: bool | None = None
        """Whether the latest write was answered from memory; None if that can't be told."""

    def open(self, limit: Deadline | None) -> None:
        """Begin the operation.

        Args:
            limit: When all of it has to be done, or None.
        """
        with deadline(None if limit is None else limit.remaining()):
            self._source.open(limit)

    async def write(
        self,
        coordinator: Coordinator,
        arguments: Arguments[T],
        target: Target,
        limit: Deadline | None,
        attempts: list[Attempt],
        watch: Watch | None,
    ) -> T:
        """Send a write as the source says, or take the reply that it knows.

        Args:
            coordinator: What sends it.
            arguments: Make the command.
            target: Where it goes.
            limit: When it has to be done, or None.
            attempts: Gets what was tried.
            watch: Who is told of that, or None.

        Raises:
            InvalidOperation: An earlier write of the operation has failed.
        """
        if self._has_failed:
            error = InvalidOperation(
                "a write of this operation has failed; to go on, repeat the whole operation with "
                "the same key"
            )
            # Else it would be told to have ended like the one that is being handled.
            attach(error, Outcome.NOT_APPLIED, [])
            raise error
        self.replayed = None
        try:
            return await self._write(coordinator, arguments, target, limit, attempts, watch)
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._index += 1

    async def close(self, error: BaseException | None, limit: Deadline | None) -> None:
        """End the operation.

        Args:
            error: What its block ended with, or None.
            limit: When that has to be done, or None.
        """
        try:
            async with deadline(None if limit is None else limit.remaining()):
                if await self._source.close(error, failed=self._has_failed):
                    self.replayed = True
        except BaseException as exc:
            if exc is not error:
                doubt = self._source.in_doubt
                attach(exc, Outcome.UNKNOWN if doubt else Outcome.NOT_APPLIED, [])
            raise

    async def _write(
        self,
        coordinator: Coordinator,
        arguments: Arguments[T],
        target: Target,
        limit: Deadline | None,
        attempts: list[Attempt],
        watch: Watch | None,
    ) -> T:
        try:
            given: Any = arguments
            if isinstance(given, Insert):
                self._identify(given.document)
            command = arguments.command(target)
            trusted = await self._find_trusted(coordinator, command, limit, watch)
            answer = await self._ask(command, limit, trusted)
        except BaseException as exc:
            attach(exc, Outcome.NOT_APPLIED, [])
            raise
        if isinstance(answer, KnownReply):
            return self._take(command, answer)
        try:
            return await self._send(coordinator, command, limit, trusted, answer, attempts, watch)
        finally:
            self._source.end(answer)

    def _identify(self, document: Any) -> None:
        # One that has no id gets the one that it has whenever this is repeated.
        if isinstance(document, MutableMapping) and not isinstance(document, RawBSONDocument):
            document.setdefault("_id", self._source.new_id(self._index))

    async def _find_trusted(
        self,
        coordinator: Coordinator,
        command: Command[Any],
        limit: Deadline | None,
        watch: Watch | None,
    ) -> float:
        if command.holds_multi:
            raise InvalidOperation(
                f"{command.operation} can't have a key: no server recognises it when it is repeated"
            )
        views = await coordinator.waits.servers(command, limit, watch)
        if not coordinator.policy.retry_writes or not all(view.can_retry_writes for view in views):
            raise ConfigurationError(
                "a key needs retryable writes: a replica set or a sharded cluster, and a client "
                "without retryWrites=false; nothing was sent"
            )
        return min(trusted_seconds(view.session_minutes) for view in views)

    async def _ask(
        self, command: Command[Any], limit: Deadline | None, trusted: float
    ) -> SessionId | KnownReply:
        statement = KeyedStatement(
            self._index,
            command.operation,
            command.database,
            command.collection,
            dict(command.body),
            limit,
            trusted,
            self._path.encrypts,
        )
        async with deadline(None if limit is None else limit.remaining()):
            return await self._source.begin(statement)

    def _take(self, command: Command[T], known: KnownReply) -> T:
        reply = _decode(command, known.raw)
        error = command.error_in(reply)
        if error is not None:
            attach(error, Outcome.NOT_APPLIED, [])
            raise error
        self.replayed = known.replayed
        return command.result(reply)

    async def _send(
        self,
        coordinator: Coordinator,
        command: Command[T],
        limit: Deadline | None,
        trusted: float,
        answer: SessionId,
        attempts: list[Attempt],
        watch: Watch | None,
    ) -> T:
        if answer.age is not None and limit is not None:
            # Its retries must not come when a server may have forgotten it.
            limit = Deadline.after(max(0.0, trusted - answer.age)).nearer(limit)
        lease = self._path.lease_of(answer.id)
        execution = coordinator.execution(command, lease, limit, watch)
        execution.numbering = Numbering.REQUIRED
        if answer.age is not None:
            execution.began_before(coordinator.loop.time(), answer.age)
        write: Write[T] = Write(coordinator, lease, limit)
        try:
            result = await write.execute(execution)
        except Exception as exc:
            other = self._source.explain(exc)
            if other is None:
                raise
            raise other from exc
        finally:
            write.cancel()  # it has not ended if the coroutine that awaits it was closed
            attempts.extend(execution.attempts)
        self.replayed = _was_replayed(execution)
        return result


def _was_replayed(execution: Execution) -> bool | None:
    reply = execution.attempts[-1].reply or {}
    if reply.get("retriedStmtIds") or reply.get("retriedStmtId") is not None:
        # By an earlier attempt of this call, or by another call: nobody can tell.
        return None if any(attempt.sent for attempt in execution.attempts[:-1]) else True
    server = execution.server
    if server is None or server.kind is not ServerKind.PRIMARY:
        return None
    return False if server.max_wire_version >= _FIRST_TELLING_WIRE_VERSION else None


def _decode(command: Command[Any], raw: bytes) -> Mapping[str, Any]:
    # As the driver: the user's decoders are for the user's fields only.
    options = command.codec_options
    plain = options.with_options(type_registry=None)
    if not command.user_fields:
        return bson.decode(raw, plain)
    fields: dict[str, Any] = dict(RawBSONDocument(raw))
    for name in command.user_fields:
        value = fields.get(name)
        if isinstance(value, RawBSONDocument):
            fields[name] = bson.decode(value.raw, options)
    return fields
