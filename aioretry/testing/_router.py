"""What stands behind a fake mongos: it answers hello itself and asks the primary for the rest."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson import DatetimeMS, Int64, ObjectId

from aioretry.testing._actions import is_state_change, labels_for
from aioretry.testing._streams import ask, read_message
from aioretry.testing._wire import (
    EXHAUST_ALLOWED,
    HEADER_SIZE,
    LIMITS,
    MORE_TO_COME,
    WireError,
    body_of,
    command_name,
    command_of,
    flags_of,
    header_of,
    is_hello,
    reply_of,
    with_body,
)

Address = tuple[str, int]

_HELLO: Final = {"isMaster": 1, "$db": "admin"}  # every server version knows this name
_PAUSE: Final = 0.02  # seconds between two looks for a primary
_LOOK_EVERY: Final = 0.5  # seconds
_PATIENCE: Final = 20.0  # seconds that a mongos, too, waits for a primary
_HOST_UNREACHABLE: Final = 6
_NO_PRIMARY: Final = 133  # FailedToSatisfyReadPreference


class Shard:
    """The replica set behind fake mongoses, as they see it; shared by their event loops.

    Args:
        servers: host and port of each member.
    """

    def __init__(self, servers: Sequence[Address]) -> None:
        self._servers = servers
        self._primary: Address | None = None  # whoever finds another one says so
        self._wire_version = 0
        self._looked = 0.0  # when, on the monotonic clock
        self._looking: set[asyncio.Task[None]] = set()

    async def wire_version(self) -> int:
        """Give the highest wire version that a server speaks; wait for one that answers."""
        while not self._wire_version:
            await self._look()
            if not self._wire_version:
                await asyncio.sleep(_PAUSE)
        return self._wire_version

    async def find_primary(self) -> Address | None:
        """Give the primary; wait for one, for 20 seconds.

        Returns:
            Its address; None if there was none in time.
        """
        self._look_again()
        deadline = time.monotonic() + _PATIENCE
        while self._primary is None and time.monotonic() < deadline:
            await self._look()
            if self._primary is None:
                await asyncio.sleep(_PAUSE)
        return self._primary

    def forget_primary(self, address: Address) -> None:
        """Look for another primary next time."""
        if self._primary == address:
            self._primary = None

    def _look_again(self) -> None:
        """See, beside what is going on, whether another one was elected, as where one is frozen."""
        if time.monotonic() - self._looked > _LOOK_EVERY:
            self._looked = time.monotonic()
            task = asyncio.get_running_loop().create_task(self._look())
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _look(self) -> None:
        replies = await asyncio.gather(*(ask(*server, _HELLO) for server in self._servers))
        answers = [
            (server, reply) for server, reply in zip(self._servers, replies, strict=True) if reply
        ]
        for _, reply in answers:
            self._wire_version = int(reply.get("maxWireVersion", 0))
        primaries = [answer for answer in answers if answer[1].get("ismaster")]
        if primaries:
            # A deposed one may not know it yet; election ids grow.
            self._primary, _ = max(primaries, key=lambda answer: _election_of(answer[1]))


class Router(asyncio.Transport):
    """The server's end of a client's connection to a fake mongos.

    To the protocol it is the transport of a connection to a server.

    Args:
        protocol: what the answers are given to.
        shard: the replica set.
        process: what identifies the fake mongos.
    """

    def __init__(self, protocol: asyncio.Protocol, shard: Shard, process: ObjectId) -> None:
        super().__init__()
        self._protocol = protocol
        self._shard = shard
        self._process = process
        self._buffer = bytearray()
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: that was all
        self._closing = asyncio.Event()
        self._reading = asyncio.Event()  # whether the protocol takes answers
        self._reading.set()
        self._primary: _Connection | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take what the client sent."""
        self._buffer += data
        while len(self._buffer) >= HEADER_SIZE:
            length = header_of(self._buffer).length
            if len(self._buffer) < length:
                break
            self._messages.put_nowait(bytes(self._buffer[:length]))
            del self._buffer[:length]

    def close(self) -> None:
        """End after all that was written."""
        self._closing.set()
        self._messages.put_nowait(None)

    def abort(self) -> None:
        """End at once."""
        self._closing.set()
        self._task.cancel()

    def is_closing(self) -> bool:
        """Say whether it takes no more."""
        return self._closing.is_set()

    def pause_reading(self) -> None:
        """Give the protocol nothing."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """Give the protocol answers again."""
        self._reading.set()

    async def _run(self) -> None:
        # An error of the protocol: the client, or its server, speaks something else.
        with contextlib.suppress(WireError):
            while (message := await self._messages.get()) is not None:
                await self._serve(message)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._leave_primary()
        self._closing.set()
        self._protocol.connection_lost(None)

    async def _serve(self, message: bytes) -> None:
        name = command_name(header_of(message), message)
        if name is not None and is_hello(name):
            await self._greet(message)
        else:
            await self._route(message)

    async def _greet(self, message: bytes) -> None:
        request = body_of(message)
        streams = bool(flags_of(header_of(message), message) & EXHAUST_ALLOWED)
        seconds = request.get("maxAwaitTimeMS", 0) / 1000
        last = message
        while True:
            if seconds:
                await _wait(self._closing, seconds)
            if self._closing.is_set():
                return
            hello = self._hello(request, await self._shard.wire_version())
            last = reply_of(last, hello, more_to_come=streams and seconds > 0)
            await self._answer(last)
            if not streams or not seconds:
                return

    def _hello(self, request: Mapping[str, Any], wire_version: int) -> dict[str, Any]:
        writable = "isWritablePrimary" if "hello" in request else "ismaster"
        return {
            writable: True,
            "helloOk": True,
            "msg": "isdbgrid",
            "topologyVersion": {"processId": self._process, "counter": Int64(0)},
            **LIMITS,
            "localTime": DatetimeMS(time.time_ns() // 1_000_000),
            "connectionId": 1,
            "maxWireVersion": wire_version,
            "minWireVersion": 0,
            "ok": 1.0,
        }

    async def _route(self, message: bytes) -> None:
        primary = await self._reach_primary()
        if primary is None:
            await self._fail(message, _NO_PRIMARY, "could not find a primary within 20 seconds")
            return
        try:
            primary.writer.write(message)
            if flags_of(header_of(message), message) & MORE_TO_COME:
                return
            while await self._relay(message, await read_message(primary.reader)):
                pass
        except (OSError, EOFError) as exc:
            self._lose_primary(primary.address)
            await self._fail(message, _HOST_UNREACHABLE, f"lost the primary: {type(exc).__name__}")

    async def _relay(self, message: bytes, reply: bytes) -> bool:
        """Pass on a reply, and say whether another one follows."""
        body = body_of(reply)
        if not body.get("ok") and is_state_change(body):
            if self._primary is not None:
                self._lose_primary(self._primary.address)
            await self._fail(message, _HOST_UNREACHABLE, str(body.get("errmsg")))
            return False
        if "topologyVersion" in body:
            del body["topologyVersion"]
            reply = with_body(reply, body)
        await self._answer(reply)
        return bool(flags_of(header_of(reply), reply) & MORE_TO_COME)

    async def _fail(self, message: bytes, code: int, text: str) -> None:
        if flags_of(header_of(message), message) & MORE_TO_COME:
            return
        body: dict[str, Any] = {"ok": 0.0, "errmsg": text, "code": code}
        if code == _HOST_UNREACHABLE and (labels := labels_for(command_of(message))):
            body["errorLabels"] = list(labels)
        await self._answer(reply_of(message, body))

    async def _answer(self, data: bytes) -> None:
        await self._reading.wait()
        self._protocol.data_received(data)

    async def _reach_primary(self) -> "_Connection | None":
        while (address := await self._shard.find_primary()) is not None:
            known = self._primary
            if known is not None and known.address == address and not known.reader.at_eof():
                return known
            self._leave_primary()
            try:
                reader, writer = await asyncio.open_connection(*address)
            except OSError:
                self._shard.forget_primary(address)
            else:
                self._primary = _Connection(address, reader, writer)
                return self._primary
        return None

    def _lose_primary(self, address: Address) -> None:
        self._leave_primary()
        self._shard.forget_primary(address)

    def _leave_primary(self) -> None:
        if self._primary is not None:
            self._primary.writer.transport.abort()
            self._primary = None


class _Connection:
    """A connection to a primary."""

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self.reader = reader
        self.writer = writer


def _election_of(reply: Mapping[str, Any]) -> bytes:
    election = reply.get("electionId")
    return b"" if election is None else bytes(election.binary)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
