"""Events of a change stream, many at once."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import anyio
from bson.timestamp import Timestamp
from pymongo import ReadPreference
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from aioretry import deadline, detached
from aioretry._faces import Collection, Session, settled
from aioretry.streams._changes import Position
from aioretry.streams._errors import lost_position
from aioretry.streams._sources import Source
from aioretry.streams._watching import Stream, opened, where_it_waits

_ENDING = "invalidate"
_AWAIT_MS = 100

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """What one read has found."""

    events: list[Event]
    """In the order of the server."""

    token: Mapping[str, Any] | None
    """Where the next read goes on."""

    is_at_end: bool
    """Whether there was nothing more at the moment."""


class Reader:
    """A change stream from a position on.

    Used with ``async with``. The driver resumes it by itself after one error; whatever it raises
    means to make a new one.

    Args:
        source: What is followed.
        position: Where to begin.
        patience: How long a server may take for one read, in seconds. The first one is the longest:
            the server looks through all that was written since then, to any collection.
        batch_size: How many events the server sends at once.
        after: A time that the server has to know all about before it answers, or None: a primary
            that was just elected may not know yet what was acknowledged by the one before.
    """

    def __init__(
        self,
        source: Source,
        position: Position,
        patience: float,
        batch_size: int = 1000,
        after: Timestamp | None = None,
    ) -> None:
        self._after = after
        self._arguments = {
            **source.watching(),
            "max_await_time_ms": _AWAIT_MS,
            "batch_size": batch_size,
            **start(position),
        }
        self._collection = watched(source)
        self._session: Session | None = None
        self._patience = patience
        self._stream: Stream | None = None
        self._has_ended = threading.Event()
        self._is_reading = False
        # One of its own: it reads nearly all the time, and others share the loop's 40.
        self._thread = anyio.CapacityLimiter(1)

    async def __aenter__(self) -> Self:
        client = self._collection.database.client
        is_after = self._after is not None
        session = await settled(client.start_session(causal_consistency=is_after))
        if self._after is not None:
            session.advance_operation_time(self._after)
        self._session = session
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # A reading that is under way closes the stream itself.
        self._has_ended.set()
        session, self._session = self._session, None
        if session is None:
            return
        if self._is_reading:  # it goes on using the session, so that nobody else may
            await self._interrupt(session)
            return
        with anyio.move_on_after(1.0, shield=True):
            if self._stream is not None:
                stream, self._stream = self._stream, None
                await detached(asyncio.create_task, self._close_in_time(stream))
            await session.end_session()

    async def read(self, most: int, seconds: float) -> Read:
        """Read events until there are so many, or time is over, or there are no more.

        Args:
            most: How many at most.
            seconds: How long at most; a server that does not answer is given some more.

        Raises:
            PositionLostError: The position can't be read from any more.
            PyMongoError: The driver could not resume.
        """
        if self._session is None:
            raise RuntimeError("a Reader is used with `async with`")
        stream, self._stream = self._stream, None
        read = partial(self._read, stream, self._session, most, seconds)
        self._is_reading = True
        try:
            with deadline(seconds + self._patience):
                self._stream, found = await where_it_waits(self._collection, read, self._thread)
        except Exception as exc:  # the reading's, which has ended with it
            self._is_reading = False
            lost = lost_position(exc)
            if lost is None:
                raise
            raise lost from exc
        self._is_reading = False
        return found

    async def _close_in_time(self, stream: Stream) -> None:
        with deadline(1.0):
            await where_it_waits(self._collection, partial(_close, stream), self._thread)

    async def _interrupt(self, session: Session) -> None:
        """Have the server end what was waited for: a thread would hold up the end of a process."""
        kill = {"killSessions": [session.session_id]}
        with contextlib.suppress(PyMongoError), anyio.move_on_after(1.0, shield=True):
            # In its own time: it may be a deadline that has ended the reading.
            await detached(asyncio.create_task, self._command(kill))

    async def _command(self, command: Mapping[str, Any]) -> None:
        await self._collection.database.client.admin.command(dict(command))

    async def _read(
        self, stream: Stream | None, session: Session, most: int, seconds: float
    ) -> tuple[Stream, Read]:
        if stream is None:
            stream = await opened(self._collection, session, **self._arguments)
        try:
            found = await _collect(stream, most, seconds)
        except BaseException:
            await _close(stream)
            raise
        if self._has_ended.is_set():
            await _close(stream)
        return stream, found


async def _collect(stream: Stream, most: int, seconds: float) -> Read:
    events: list[Event] = []
    end = time.monotonic() + seconds
    while len(events) < most and time.monotonic() < end:
        event = await settled(stream.try_next())
        if event is None:
            return Read(events, stream.resume_token, is_at_end=True)
        events.append(event)
        if event["operationType"] == _ENDING:
            break
    return Read(events, stream.resume_token, is_at_end=False)


def watched(source: Source) -> Collection:
    """Return what is watched: as the majority has it, and where that is known first."""
    return source.watched.with_options(
        read_preference=ReadPreference.PRIMARY, read_concern=ReadConcern("majority")
    )


def start(position: Position) -> dict[str, Any]:
    """Return the arguments of `watch` that begin at a position."""
    if position.token is None:
        return {"start_at_operation_time": position.after()}
    return {"resume_after": position.token}


async def _close(stream: Stream) -> None:
    # The server forgets a cursor that nobody asks for, too.
    with contextlib.suppress(Exception):
        await settled(stream.close())
