"""Command listeners, called on the event loop, and what is told of one that blocks it."""

import contextvars
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from pymongo.errors import NotPrimaryError, OperationFailure
from pymongo.monitoring import CommandListener

from aioretry._commands.encoded import shown
from aioretry._drivers.port import AttemptCall
from aioretry.deadlines import detached

_LONG = 0.05
_FOR_EVER = 1.0
_NOT_AGAIN_FOR = 60.0
_LINGER = 5.0  # after the last command, so long a thread looks on

_logger = logging.getLogger("aioretry")


class Listening:
    """The command listeners of one client.

    Args:
        listeners: All listeners that it was given.
    """

    def __init__(self, listeners: list[Any]) -> None:
        own = [one for one in listeners if isinstance(one, CommandListener)]
        self.are_any = bool(own)
        self._names = ", ".join(type(one).__name__ for one in own)
        self._lookout = _Lookout(self._tell_of)
        self._told: dict[bool, float] = {}
        """When it was told last of one that took long, and of one that was still there."""

    def show(
        self, call: AttemptCall, body: Mapping[str, Any], connection: Any, request_id: int
    ) -> "ShownCommand":
        """Tell them that a command is about to be sent.

        Args:
            call: The attempt.
            body: What is sent.
            connection: PyMongo's connection that it is sent over.
            request_id: What the message is known by.
        """
        command = ShownCommand(self, call, connection, request_id)
        seen = shown(body, call.command.codec_options, is_sent=False)
        seen["$db"] = call.command.database
        command.begin(seen)
        return command

    def call(self, publish: Callable[[Any], None], event: Any) -> None:
        """Have them called, and tell of it if that takes long."""
        began = time.monotonic()
        self._lookout.begin(began)
        try:
            publish(event)
        finally:
            self._lookout.end()
            took = time.monotonic() - began
            if took > _LONG:
                self._tell_of(took)

    def close(self) -> None:
        """Look no more."""
        self._lookout.close()

    def _tell_of(self, took: float, stack: str = "") -> None:
        now, is_there = time.monotonic(), bool(stack)
        if now - self._told.get(is_there, -_NOT_AGAIN_FOR) < _NOT_AGAIN_FOR:
            return
        self._told[is_there] = now
        _logger.warning(
            "command listeners (%s) have kept the event loop for %.2f s; where one may block, "
            "make the client with listeners_may_block=True (RetryClient)%s",
            *(self._names, took, stack),
        )


class ShownCommand:
    """A command that listeners were shown, until they are told how it ended; once.

    Args:
        listening: The listeners.
        call: The attempt.
        connection: PyMongo's connection.
        request_id: What the message is known by.
    """

    __slots__ = ("_began", "_call", "_connection", "_context", "_listening", "_request_id")

    def __init__(
        self, listening: Listening, call: AttemptCall, connection: Any, request_id: int
    ) -> None:
        self._listening = listening
        self._call = call
        self._connection = connection
        self._request_id = request_id
        self._context = contextvars.copy_context()
        self._began = time.monotonic()

    def begin(self, seen: dict[str, Any]) -> None:
        """Tell that it is about to be sent."""
        self._context.run(self._listening.call, self._started, seen)

    def _started(self, seen: dict[str, Any]) -> None:
        connection, call = self._connection, self._call
        connection.listeners.publish_command_start(
            seen,
            call.command.database,
            self._request_id,
            connection.address,
            connection.server_connection_id,
            call.operation_id,
            connection.service_id,
        )

    def end(self, reply: Mapping[str, Any] | None, error: BaseException | None = None) -> None:
        """Tell how it ended.

        Args:
            reply: What was answered, unless it was an error.
            error: What went wrong.
        """
        if error is None:
            self._context.run(self._listening.call, self._succeeded, reply)
        else:
            self._context.run(self._listening.call, self._failed, _told(error))

    def _succeeded(self, reply: Mapping[str, Any]) -> None:
        publish = self._connection.listeners.publish_command_success
        publish(*self._what(reply), database_name=self._call.command.database)

    def _failed(self, failure: Mapping[str, Any]) -> None:
        publish = self._connection.listeners.publish_command_failure
        publish(*self._what(failure), database_name=self._call.command.database)

    def _what(self, document: Mapping[str, Any]) -> tuple[Any, ...]:
        connection, call = self._connection, self._call
        return (
            timedelta(seconds=time.monotonic() - self._began),
            document,
            call.command.name,
            self._request_id,
            connection.address,
            connection.server_connection_id,
            call.operation_id,
            connection.service_id,
        )


class _Lookout:
    """Looks from a thread at whoever is called on the event loop, and may never return.

    Args:
        tell: Is told for how many seconds that has taken, and where it is.
    """

    def __init__(self, tell: Callable[[float, str], None]) -> None:
        self._tell = tell
        self._began: float | None = None
        self._latest = 0.0
        self._loops_thread = 0
        self._is_looking = False
        self._is_closed = threading.Event()

    def begin(self, now: float) -> None:
        """Take note of a call."""
        self._began = self._latest = now
        if not self._is_looking and not self._is_closed.is_set():
            self._is_looking = True
            self._loops_thread = threading.get_ident()
            thread = threading.Thread(target=self._look, name="aioretry-listeners", daemon=True)
            try:
                detached(thread.start)
            except RuntimeError:  # there is no thread to be had: nobody looks, this time
                self._is_looking = False

    def end(self) -> None:
        """Take note of its end."""
        self._began = None

    def close(self) -> None:
        """Look no more."""
        self._is_closed.set()

    def _look(self) -> None:
        while not self._is_closed.wait(_FOR_EVER / 2):
            began, now = self._began, time.monotonic()
            if began is not None and now - began > _FOR_EVER:
                frame = sys._current_frames().get(self._loops_thread)
                where = "" if frame is None else "".join(traceback.format_stack(frame))
                del frame
                self._tell(now - began, f"; it is there now:\n{where}")
            elif now - self._latest > _LINGER:
                break
        self._is_looking = False


def _told(error: BaseException) -> Mapping[str, Any]:
    """Return what listeners are told of an error, as by PyMongo."""
    if isinstance(error, NotPrimaryError | OperationFailure):
        details: Any = error.details
        return details  # type: ignore[no-any-return]
    kind = type(error).__name__
    return {"errmsg": str(error) or f"operation interrupted by {kind}", "errtype": kind}
