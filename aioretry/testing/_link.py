"""The two connections of one conversation, on a proxy's event loop."""

import asyncio
import contextlib
import math
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, cast

from aioretry.testing._conversation import (
    Back,
    Conversation,
    Hold,
    Signal,
    Step,
    Trickle,
    Wait,
)
from aioretry.testing._fault import Fault, FaultList
from aioretry.testing._wire import WireError

_SLICE: Final = 0.02  # seconds between two pieces of what trickles
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

Connect = Callable[[asyncio.Protocol], Awaitable[None]]
"""Opens the connection to the server for a protocol; raises OSError if nobody is there."""


class Links:
    """The links of a proxy that have a connection open; of one event loop.

    Args:
        faults: the proxy's faults.
        converse: begins the conversation of a new link.
        connect: opens a link's connection to the server.
    """

    def __init__(
        self, faults: FaultList, converse: Callable[[], Conversation], connect: Connect
    ) -> None:
        self._faults = faults
        self._converse = converse
        self._connect = connect
        self.to_server, self.to_client = Line(faults), Line(faults)
        self._links: set[Link] = set()
        self._news = 0  # how often monitors were to look again
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def news(self) -> int:
        """How often the monitors were told so far."""
        return self._news

    def accept(self) -> asyncio.Protocol:
        """Make the protocol of a new client's connection."""
        return Link(self._converse(), self._connect, self).client

    def add(self, link: "Link") -> bool:
        """Remember a link whose client has just come.

        Returns:
            Whether it may stay.
        """
        self._links.add(link)
        self._empty.clear()
        if self._faults.refuses():
            return False
        self.look_at(link)
        return True

    def discard(self, link: "Link") -> None:
        """Forget a link whose connections are closed."""
        self._links.discard(link)
        if not self._links:
            self._empty.set()

    def look_at_lines(self) -> None:
        """Stop, slow down or resume every link, as the faults say now."""
        for link in tuple(self._links):
            self.look_at(link)

    def look_at(self, link: "Link") -> None:
        """Stop, slow down or resume a link, as the faults say now."""
        partitions = [fault for fault, action in self._faults.partitions if link.is_cut_by(action)]
        for fault in (*partitions, *self._faults.throttles):
            if fault not in link.met:
                link.met.add(fault)
                fault.notice()
                fault.strike()
        link.cut(is_cut=bool(partitions))

    def drop_monitors(self) -> None:
        """Close the connections of all monitors, and of those that are about to become one."""
        self._news += 1
        for link in tuple(self._links):
            if link.is_monitor:
                link.abort()

    async def close(self) -> None:
        """Close every connection at once, and wait until they are closed."""
        for link in tuple(self._links):
            link.abort()
        await self._empty.wait()


class Line:
    """What passes in one direction between all clients and the server.

    Args:
        faults: the proxy's faults.
    """

    def __init__(self, faults: FaultList) -> None:
        self._faults = faults
        self._turn = asyncio.Lock()  # whoever has something to send gets it in the order of asking

    @property
    def is_narrow(self) -> bool:
        """Whether there is a limit to what passes."""
        return self.bytes_per_second < math.inf

    @property
    def bytes_per_second(self) -> float:
        """How much passes; infinite without a limit."""
        return self._faults.bytes_per_second

    async def take(self, size: int) -> None:
        """Wait until so many bytes have had their time on the line."""
        async with self._turn:
            await asyncio.sleep(size / self.bytes_per_second)


class Link:
    """A client's connection and the connection to the server that is made for it.

    Args:
        conversation: what becomes of the bytes.
        connect: opens the connection to the server.
        links: where this one is as long as one of its connections is open.
    """

    def __init__(self, conversation: Conversation, connect: Connect, links: Links) -> None:
        self.client = Side(self, conversation.from_client, links.to_server)
        self.is_cut_by = conversation.is_cut_by
        self.met: set[Fault] = set()  # those that have struck it
        self._upstream = Side(self, conversation.from_server, links.to_client)
        self._connect = connect
        self._links = links
        self._news = links.news  # what the server says after that is new to the client
        self._is_monitor = False
        self._connecting: asyncio.Task[None] | None = None

    @property
    def is_monitor(self) -> bool:
        """Whether the client watches the server over this connection."""
        return self._is_monitor

    @property
    def _is_connecting(self) -> bool:
        return self._connecting is not None and not self._connecting.done()

    def connected(self, side: "Side") -> None:
        """One side is open; the client's comes first."""
        if side is self.client:
            if self._links.add(self):
                self._connect_to_server()
            else:
                side.reset()
        elif not self.client.is_open and not self.client.is_busy:
            side.abort()
        else:
            self.client.hold_back(is_full=False)

    def send(self, source: "Side", data: bytes) -> None:
        """Send to the side that is not the source."""
        self._other(source).write(data)

    def flow(self, target: "Side", *, is_full: bool) -> None:
        """Stop reading from the other side while this one can't take more, or go on."""
        self._other(target).hold_back(is_full=is_full)

    def cut(self, *, is_cut: bool) -> None:
        """Stop reading from both sides, or go on."""
        self.client.cut(is_cut=is_cut)
        self._upstream.cut(is_cut=is_cut)

    def lost(self, side: "Side") -> None:
        """One side is closed: close the other one, after what is still to be sent to it."""
        nobody_left = not self._other(side).is_open and not self._is_connecting
        if nobody_left or not side.is_busy:
            self.close()

    def idle(self, side: "Side") -> None:
        """One side has done all its steps."""
        if not side.is_open:
            self.close()

    def signal(self, signal: Signal) -> None:
        """Do what a step says."""
        match signal:
            case Signal.HANG_UP:
                self.close()
            case Signal.DROP_MONITORS:
                self._links.drop_monitors()
            case Signal.IS_MEMBER:
                self._links.look_at(self)
            case Signal.IS_MONITOR:
                self._is_monitor = True
                if self._news != self._links.news:  # it would wait for what it has missed
                    self.abort()

    def close(self) -> None:
        """Close both connections, after what was to be sent."""
        self._end(Side.close)

    def abort(self) -> None:
        """Close both connections at once."""
        self._end(Side.abort)

    def _end(self, end: Callable[["Side"], None]) -> None:
        if self._connecting is not None and self._is_connecting:
            self._connecting.cancel()
        for side in (self.client, self._upstream):
            side.give_up()
            end(side)
        self._forget_if_closed()

    def _forget_if_closed(self) -> None:
        sides = (self.client, self._upstream)
        if not self._is_connecting and not any(side.is_open or side.is_busy for side in sides):
            self._links.discard(self)

    def _other(self, side: "Side") -> "Side":
        return self._upstream if side is self.client else self.client

    def _connect_to_server(self) -> None:
        self.client.hold_back(is_full=True)  # nobody is there yet to take what it says
        self._connecting = asyncio.get_running_loop().create_task(self._reach_server())
        self._connecting.add_done_callback(lambda _: self._forget_if_closed())

    async def _reach_server(self) -> None:
        await self.client.until_not_cut()
        try:
            await self._connect(self._upstream)
        except OSError:
            self.close()  # nobody is there


class Side(asyncio.Protocol):
    """One of the two connections of a link.

    Args:
        link: the link.
        convert: makes of what arrives here what is to be done for it.
        line: what it passes on has its time there.
    """

    def __init__(self, link: Link, convert: Callable[[bytes], list[Step]], line: Line) -> None:
        self._link = link
        self._convert = convert
        self._line = line
        self._transport: asyncio.Transport | None = None
        self._is_full = False  # the other side can't take more
        self._not_cut = asyncio.Event()
        self._not_cut.set()
        self._steps: deque[Step] = deque()  # what is to be done after the step that takes time
        self._runner: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether its connection is open."""
        return self._transport is not None

    @property
    def is_cut(self) -> bool:
        """Whether nothing may pass."""
        return not self._not_cut.is_set()

    @property
    def is_busy(self) -> bool:
        """Whether steps are left of what arrived here."""
        return self._runner is not None

    def write(self, data: bytes) -> None:
        """Send."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close it, after what was to be sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close it as if nobody listened."""
        if self._transport is not None:
            connection = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()

    def give_up(self) -> None:
        """Leave what is still to be done."""
        self._steps.clear()
        if self._runner is not None and self._runner is not asyncio.current_task():
            self._runner.cancel()

    def hold_back(self, *, is_full: bool) -> None:
        """Stop reading while the other side can't take more, or go on."""
        self._is_full = is_full
        self._read_or_pause()

    def cut(self, *, is_cut: bool) -> None:
        """Stop reading, and what is to be done, or go on."""
        if is_cut:
            self._not_cut.clear()
        else:
            self._not_cut.set()
        self._read_or_pause()

    async def until_not_cut(self) -> None:
        """Wait until something may pass."""
        await self._not_cut.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop: the connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._link.connected(self)
        self._read_or_pause()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop: bytes have arrived."""
        try:
            steps = self._convert(data)
        except WireError:
            steps = [Signal.HANG_UP]
        self._steps += steps
        if self._runner is None:
            self._go_on()

    def pause_writing(self) -> None:
        """Called by the event loop: the other end is slow."""
        self._link.flow(self, is_full=True)

    def resume_writing(self) -> None:
        """Called by the event loop: the other end has caught up."""
        self._link.flow(self, is_full=False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # given by the loop
        """Called by the event loop: the connection is closed."""
        self._transport = None
        self._link.lost(self)

    def _read_or_pause(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        is_behind = self._line.is_narrow and self.is_busy
        if self._is_full or self.is_cut or is_behind:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _go_on(self) -> None:
        self._do_what_takes_no_time()
        if self._steps:
            self._runner = asyncio.get_running_loop().create_task(self._run())
            self._runner.add_done_callback(self._ran)  # called even if it never began
        if self._line.is_narrow:
            self._read_or_pause()

    def _do_what_takes_no_time(self) -> None:
        while self._steps and not self.is_cut:
            match self._steps[0]:
                case bytes() as data if not self._line.is_narrow:
                    self._link.send(self, data)
                case Back(data):
                    self.write(data)
                case Signal() as signal:
                    self._link.signal(signal)
                case _:
                    return
            if self._steps:  # else all was given up
                self._steps.popleft()

    async def _run(self) -> None:
        while self._steps:
            await self.until_not_cut()
            self._do_what_takes_no_time()
            if self._steps and not self.is_cut:
                await self._take_time(self._steps.popleft())

    def _ran(self, _: asyncio.Task[None]) -> None:
        self._runner = None
        self._go_on()  # with what has arrived since its end
        if self._runner is None:
            self._link.idle(self)

    async def _take_time(self, step: Step) -> None:
        match step:
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Hold(fault):
                await _disarmed(fault)
            case Trickle(data, bytes_per_second):
                await self._trickle(data, bytes_per_second)
            case bytes() as data:
                await self._trickle(data, math.inf)

    async def _trickle(self, data: bytes, bytes_per_second: float) -> None:
        """Send no faster than that, and than the line allows at the time."""
        sent = 0
        while sent < len(data):
            narrowest = min(bytes_per_second, self._line.bytes_per_second)
            size = len(data) if narrowest == math.inf else max(1, int(narrowest * _SLICE))
            piece = data[sent : sent + size]
            await asyncio.sleep(len(piece) / bytes_per_second)
            await self._line.take(len(piece))
            await self.until_not_cut()
            self._link.send(self, piece)
            sent += len(piece)


async def _disarmed(fault: Fault) -> None:
    loop = asyncio.get_running_loop()
    disarmed = asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(disarmed.set)

    fault.call_on_disarm(tell)
    await disarmed.wait()
