"""The two connections of one conversation, on a proxy's event loop."""

import asyncio
from collections.abc import Callable
from typing import cast

from aioretry.testing._conversation import Conversation, HangUp
from aioretry.testing._wire import WireError


class Links:
    """The links of a proxy that have a connection open; of one event loop."""

    def __init__(self) -> None:
        self._links: set[Link] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, link: "Link") -> None:
        """Remember a link."""
        self._links.add(link)
        self._empty.clear()

    def discard(self, link: "Link") -> None:
        """Forget a link whose connections are closed."""
        self._links.discard(link)
        if not self._links:
            self._empty.set()

    async def abort(self) -> None:
        """Close every connection at once, and wait until they are closed."""
        for link in tuple(self._links):
            link.abort()
        await self._empty.wait()


class Link:
    """A client's connection and the connection to the server that is made for it.

    Args:
        server: host and port that the server listens on.
        conversation: what becomes of the bytes.
        links: where this one is as long as one of its connections is open.
    """

    def __init__(self, server: tuple[str, int], conversation: Conversation, links: Links) -> None:
        self.client = Side(self, conversation.from_client)
        self._upstream = Side(self, conversation.from_server)
        self._server = server
        self._links = links
        self._early = bytearray()  # what the client sent before the server was there
        self._open: dict[Side, asyncio.Transport] = {}
        self._connecting: asyncio.Task[None] | None = None

    def connected(self, side: "Side", transport: asyncio.Transport) -> None:
        """One side is open; the client's comes first."""
        self._open[side] = transport
        if side is self.client:
            self._links.add(self)
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        elif self.client not in self._open:
            transport.abort()
        elif self._early:
            transport.write(bytes(self._early))
            self._early.clear()

    def send(self, source: "Side", data: bytes) -> None:
        """Send to the side that is not the source."""
        target = self._open.get(self._other(source))
        if target is not None:
            if not target.is_closing():
                target.write(data)
        elif source is self.client:
            self._early += data

    def pause(self, target: "Side", *, paused: bool) -> None:
        """Stop reading from the other side while this one can't take more, or go on."""
        source = self._open.get(self._other(target))
        if source is None or source.is_closing():
            return
        if paused:
            source.pause_reading()
        else:
            source.resume_reading()

    def lost(self, side: "Side") -> None:
        """One side is closed: close the other one."""
        self._open.pop(side, None)
        self.close()
        if not self._open:
            self._links.discard(self)

    def close(self) -> None:
        """Close both connections, after what was to be sent."""
        for transport in tuple(self._open.values()):
            transport.close()
        self._give_up_connecting()

    def abort(self) -> None:
        """Close both connections at once."""
        for transport in tuple(self._open.values()):
            transport.abort()
        self._give_up_connecting()

    def _other(self, side: "Side") -> "Side":
        return self._upstream if side is self.client else self.client

    def _give_up_connecting(self) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self._upstream, *self._server)
        except OSError:
            self.close()  # nobody is there


class Side(asyncio.Protocol):
    """One of the two connections of a link.

    Args:
        link: the link.
        convert: makes of what arrives here what is sent to the other side.
    """

    def __init__(self, link: Link, convert: Callable[[bytes], bytes]) -> None:
        self._link = link
        self._convert = convert

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop: the connection is open."""
        self._link.connected(self, cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        """Called by the event loop: bytes have arrived."""
        try:
            out = self._convert(data)
        except (HangUp, WireError):
            self._link.close()
        else:
            if out:
                self._link.send(self, out)

    def pause_writing(self) -> None:
        """Called by the event loop: the other end is slow."""
        self._link.pause(self, paused=True)

    def resume_writing(self) -> None:
        """Called by the event loop: the other end has caught up."""
        self._link.pause(self, paused=False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # given by the loop
        """Called by the event loop: the connection is closed."""
        self._link.lost(self)
