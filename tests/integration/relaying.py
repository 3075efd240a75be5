"""Relays of connections to a server, of which some can be cut: as many back ends as one likes."""

import asyncio
import contextlib
import math


class Relay:
    """Listens on a port, and passes on what comes.

    Args:
        host: The server's.
        port: The server's.
    """

    def __init__(self, host, port):
        self._target = host, port
        self._links = []
        self._tasks = set()
        self._server = None
        self._most = math.inf
        self.port = 0
        self.has_cut = 0
        """How many connections were reset while others lived."""

    async def __aenter__(self):
        await self.listen(0)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.cut_all()
        await asyncio.gather(*self._tasks)
        await asyncio.sleep(0)  # the transports close in a turn of their own

    @property
    def address(self):
        """Host and port that it listens on."""
        return f"127.0.0.1:{self.port}"

    async def listen(self, port):
        """Accept connections, from now on or again."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self):
        """Have further connections refused; those that are open stay."""
        self._server.close()

    def at_most(self, most):
        """Accept so many connections in all; end further ones at once."""
        self._most = most

    def cut(self, every):
        """Reset one in so many of the connections that have carried a write; return how many."""
        cut = self._carriers("update")[::every]
        for link in cut:
            link.abort()
        self.has_cut += len(cut)
        return len(cut)

    def cut_all(self):
        """Reset all connections."""
        for link in self._links:
            link.abort()

    def cut_the_one(self, command):
        """Reset the connection that has carried a command."""
        (link,) = self._carriers(command)
        link.abort()

    def carried(self, command):
        """All that the connections have carried which have carried a command."""
        return [link.carried for link in self._carriers(command)]

    def _carriers(self, command):
        name = command.encode() + b"\0"
        return [link for link in self._links if name in link.carried and link.is_open]

    async def _accept(self, reader, writer):
        if len(self._links) >= self._most:
            writer.transport.abort()
            return
        link = _Link(reader, writer, *await asyncio.open_connection(*self._target))
        self._links.append(link)
        for source, sink in (link.reader, link.far_writer), (link.far_reader, link.writer):
            task = asyncio.ensure_future(link.pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class _Link:
    """One connection, and the one that it is passed on by."""

    def __init__(self, reader, writer, far_reader, far_writer):
        self.reader, self.writer = reader, writer
        self.far_reader, self.far_writer = far_reader, far_writer
        self.carried = bytearray()
        self.is_open = True

    async def pass_on(self, source, sink):
        """Pass on all that comes, until one side ends."""
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                self.carried += data
                sink.write(data)
        self.abort()

    def abort(self):
        """Reset both sides."""
        self.is_open = False
        self.writer.transport.abort()
        self.far_writer.transport.abort()
