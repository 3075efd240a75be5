"""What stands behind a fake mongos: it answers hello itself and asks the primary for the rest."""

import asyncio
import contextlib
import ssl
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson import DatetimeMS, Int64, ObjectId

from aioretry.testing._actions import is_state_change, labels_for
from aioretry.testing._mongos_fail_points import CONFIGURE, MongosFailPoint
from aioretry.testing._scram import Login
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
    hello_request,
    is_hello,
    reply_of,
    with_body,
)

Address = tuple[str, int]

_HELLO: Final = {"isMaster": 1, "$db": "admin"}  # every server version knows this name
_PAUSE: Final = 0.05  # seconds between two looks at a server while there is no primary
_LOOK_EVERY: Final = 0.5  # seconds between them while there is one
_PATIENCE: Final = 20.0  # seconds that a mongos, too, waits for a primary
_HOST_UNREACHABLE: Final = 6
_NO_PRIMARY: Final = 133  # FailedToSatisfyReadPreference


class Shard:
    """The replica set behind a fake mongos, as it sees it; made and used on its event loop.

    It asks each member again and again, on its own: who is frozen holds up nobody. What one mongos
    meets all hear of: a client's only retry, at the other one, must not meet it again.

    Args:
        servers: host and port of each member.
        shards: the same set as the running mongoses of the cluster see it; this one joins them.
        tls: how to speak to the members; None for connections without.
    """

    def __init__(
        self, servers: Sequence[Address], shards: "list[Shard]", tls: ssl.SSLContext | None
    ) -> None:
        self._shards = shards
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._primary: Address | None = None
        self._election = b""  # the highest so far
        self._wire_version = 0  # the highest so far
        self._losses: Counter[Address] = Counter()
        self._connections: set[_Connection] = set()  # the routers' open ones
        self._heard = asyncio.Event()  # a server has answered
        self._found = asyncio.Event()  # there is a primary
        self._lost = asyncio.Event()  # there is none; looked for at once
        self._watches = [self._loop.create_task(self._watch(server)) for server in servers]
        shards.append(self)

    async def close(self) -> None:
        """Look no more."""
        self._shards.remove(self)
        for watch in self._watches:
            watch.cancel()
        await asyncio.wait(self._watches)

    async def wire_version(self) -> int:
        """Give the highest wire version that a server speaks; wait for one that answers."""
        await self._heard.wait()
        return self._wire_version

    async def find_primary(self) -> Address:
        """Give the primary's address; wait for one."""
        while self._primary is None:
            await self._found.wait()
        return self._primary

    async def connect(self, address: Address) -> "_Connection":
        """Open a connection, which is closed when another server is the primary.

        So a command that waits for a frozen one fails once there is a new one.

        Raises:
            OSError: nobody is there.
        """
        connection = _Connection(address, *await asyncio.open_connection(*address, ssl=self._tls))
        self._connections.add(connection)
        return connection

    def disconnect(self, connection: "_Connection") -> None:
        """Close a connection at once."""
        self._connections.discard(connection)
        connection.writer.transport.abort()

    def lose_primary(self, address: Address) -> None:
        """Let every mongos take this server for the primary only if it says so from now on."""
        self._forget(address)
        for other in tuple(self._shards):
            if other is not self:
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    other._loop.call_soon_threadsafe(other._forget, address)

    def _forget(self, address: Address) -> None:
        self._losses[address] += 1
        if self._primary == address:
            self._primary = None
            self._found.clear()
            self._lost.set()

    async def _watch(self, server: Address) -> None:
        while True:
            losses = self._losses[server]
            reply = await ask(*server, _HELLO, self._tls)
            if reply is not None and losses == self._losses[server]:  # else it may be no news
                self._learn(server, reply)
            if self._primary is None:
                await asyncio.sleep(_PAUSE)
            else:
                await _wait(self._lost, _LOOK_EVERY)

    def _learn(self, server: Address, reply: Mapping[str, Any]) -> None:
        self._wire_version = max(self._wire_version, _wire_version_of(reply))
        self._heard.set()
        election = _election_of(reply)
        if not reply.get("ismaster"):
            if self._primary == server:
                self._forget(server)
        elif election >= self._election:  # a deposed one may not know it yet; election ids grow
            self._primary, self._election = server, election
            self._lost.clear()
            self._found.set()
            for connection in self._connections:
                if connection.address != server:
                    connection.writer.transport.abort()


class Router(asyncio.Transport):
    """The server's end of a client's connection to a fake mongos.

    To the protocol it is the transport of a connection to a server.

    Args:
        protocol: what the answers are given to.
        shard: the replica set.
        process: what identifies the fake mongos.
        fail_point: the fake mongos's own.
        login: the client's.
    """

    def __init__(
        self,
        protocol: asyncio.Protocol,
        shard: Shard,
        process: ObjectId,
        fail_point: MongosFailPoint,
        login: Login,
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self._shard = shard
        self._process = process
        self._fail_point = fail_point
        self._login = login
        self._app_name: str | None = None
        self._buffer = bytearray()
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: that was all
        self._is_closing = False
        self._is_answering = False  # in the course of what nobody needs once the client has gone
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
        """End after all that was written has reached the primary, without waiting for answers."""
        self._is_closing = True
        self._messages.put_nowait(None)
        if self._is_answering:
            self._task.cancel()

    def abort(self) -> None:
        """End at once."""
        self._is_closing = True
        self._task.cancel()

    def is_closing(self) -> bool:
        """Say whether it takes no more."""
        return self._is_closing

    def pause_reading(self) -> None:
        """Give the protocol nothing."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """Give the protocol answers again."""
        self._reading.set()

    async def _run(self) -> None:
        # An error of the protocol: the client, or its server, speaks something else.
        with contextlib.suppress(WireError, _HangUpError):
            while (message := await self._messages.get()) is not None:
                await self._serve(message)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._leave_primary()
        self._is_closing = True
        self._protocol.connection_lost(None)

    async def _serve(self, message: bytes) -> None:
        header = header_of(message)
        flags = flags_of(header, message)
        name = command_name(header, message)
        is_greeting = name is not None and is_hello(name)
        primary = None
        answer: Mapping[str, Any] | None = None
        if is_greeting:
            self._app_name = hello_request(message).app_name or self._app_name
        elif name is not None and (refusal := self._login.refusal(name)):
            answer = refusal
        elif name == CONFIGURE:
            answer = self._fail_point.configure(command_of(message))
        else:
            answer = await self._meet_fail_point(message)
            if not answer and name is not None and self._login.has_answer(name):
                answer = self._login.answer(command_of(message))
            primary = None if answer else await self._send(message)
        if flags & MORE_TO_COME or self._is_closing:
            return
        self._is_answering = True
        if is_greeting:
            await self._greet(message, streams=bool(flags & EXHAUST_ALLOWED))
        elif answer is not None:
            await self._answer(reply_of(message, answer))
        elif primary is None:
            text = f"could not find a primary within {_PATIENCE:g} seconds"
            await self._fail(message, _NO_PRIMARY, text)
        else:
            await self._relay_answers(message, primary)
        self._is_answering = False

    async def _meet_fail_point(self, message: bytes) -> Mapping[str, Any] | None:
        """Let a command fail before it is run, as the fail point says; give its answer, if any."""
        if not self._fail_point.is_on:
            return None
        wire_version = await self._shard.wire_version()
        failing = self._fail_point.before_run(message, self._app_name, wire_version)
        if failing is None:
            return None
        await asyncio.sleep(failing.seconds)
        if failing.hangs_up:
            raise _HangUpError
        return failing.error

    async def _greet(self, message: bytes, *, streams: bool) -> None:
        request = body_of(message)
        seconds = _patience_of(request)
        more_to_come = streams and seconds > 0
        last = message
        while (error := await self._meet_fail_point(message)) is None:
            await asyncio.sleep(seconds)
            hello = self._hello(request, await self._shard.wire_version())
            last = reply_of(last, hello, more_to_come=more_to_come)
            await self._answer(last)
            if not more_to_come:
                return
        await self._answer(reply_of(last, error))

    def _hello(self, request: Mapping[str, Any], wire_version: int) -> dict[str, Any]:
        writable = "isWritablePrimary" if "hello" in request else "ismaster"
        return {
            **self._login.greet(request),
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

    async def _send(self, message: bytes) -> "_Connection | None":
        primary = await self._reach_primary()
        if primary is not None:
            primary.writer.write(message)
        return primary

    async def _relay_answers(self, message: bytes, primary: "_Connection") -> None:
        try:
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
        changes = self._fail_point.after_run(message, self._app_name) if body.get("ok") else {}
        if body.pop("topologyVersion", None) or changes:
            reply = with_body(reply, body | changes)
        await self._answer(reply)
        return bool(flags_of(header_of(reply), reply) & MORE_TO_COME)

    async def _fail(self, message: bytes, code: int, text: str) -> None:
        body: dict[str, Any] = {"ok": 0.0, "errmsg": text, "code": code}
        if code == _HOST_UNREACHABLE and (labels := labels_for(command_of(message))):
            body["errorLabels"] = list(labels)
        await self._answer(reply_of(message, body))

    async def _answer(self, data: bytes) -> None:
        await self._reading.wait()
        self._protocol.data_received(data)

    async def _reach_primary(self) -> "_Connection | None":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while True:
                    address = await self._shard.find_primary()
                    known = self._primary
                    if known is not None and known.address == address and known.is_open:
                        return known
                    self._leave_primary()
                    try:
                        self._primary = await self._shard.connect(address)
                    except OSError:
                        self._shard.lose_primary(address)
        return None

    def _lose_primary(self, address: Address) -> None:
        self._leave_primary()
        self._shard.lose_primary(address)

    def _leave_primary(self) -> None:
        if self._primary is not None:
            self._shard.disconnect(self._primary)
            self._primary = None


class _HangUpError(Exception):
    """The client's connection is to be closed."""


class _Connection:
    """A connection to a primary."""

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self.reader = reader
        self.writer = writer

    @property
    def is_open(self) -> bool:
        """Whether neither end is known to have closed it."""
        return not self.reader.at_eof() and not self.writer.transport.is_closing()


def _election_of(reply: Mapping[str, Any]) -> bytes:
    election = reply.get("electionId")
    return election.binary if isinstance(election, ObjectId) else b""


def _wire_version_of(reply: Mapping[str, Any]) -> int:
    version = reply.get("maxWireVersion")
    return version if isinstance(version, int) else 0


def _patience_of(request: Mapping[str, Any]) -> float:
    """How long a hello waits for a change, in seconds."""
    milliseconds = request.get("maxAwaitTimeMS")
    if not isinstance(milliseconds, int) or isinstance(milliseconds, bool):
        return 0.0
    return max(0, milliseconds) / 1000


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
