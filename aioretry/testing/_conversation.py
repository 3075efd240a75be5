"""What passes between one client and one server, without any input or output.

Bytes go in on either side; what is to be sent to the other side comes out. Messages that nobody is
interested in are passed on as they arrive, in pieces, undecoded.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aioretry.testing._faults import Fault, FaultKind, FaultList, Request, struck
from aioretry.testing._wire import (
    HEADER_SIZE,
    MORE_TO_COME,
    Header,
    body_of,
    command_name,
    flags_of,
    header_of,
    hello_reply,
    hello_request,
    is_hello,
)

_FLAGS_END: Final = HEADER_SIZE + 4


class HangUp(Exception):  # noqa: N818  # is no error: it is what a fault, or bad input, asks for
    """Both connections are to be closed, and nothing more is to be sent."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A command that waits for its reply."""

    hello: bool
    faults: tuple[Fault, ...]


# Decides on a message whose beginning is in the buffer: whether more bytes are needed for that
# (None), or what to send instead of how many bytes of it. The rest follows unseen.
_Decide = Callable[[Header, bytearray], tuple[int, bytes] | None]


class _Direction:
    """Splits one direction's bytes into messages."""

    def __init__(self, decide: _Decide) -> None:
        self._decide = decide
        self._buffer = bytearray()  # the beginning of a message that is not decided yet
        self._passing = 0  # how many bytes of a message are still to be passed on unseen

    def feed(self, data: bytes) -> bytes:
        """Take bytes in; give what is to be sent for them."""
        if len(data) <= self._passing:
            self._passing -= len(data)
            return data
        out = [data[: self._passing]]
        self._buffer += data[self._passing :]
        self._passing = 0
        while len(self._buffer) >= HEADER_SIZE:
            header = header_of(self._buffer)
            decision = self._decide(header, self._buffer)
            if decision is None:
                break
            taken, sent = decision
            out.append(sent)
            rest = header.length - taken
            out.append(bytes(self._buffer[taken : taken + rest]))
            self._passing = max(0, header.length - len(self._buffer))
            del self._buffer[: header.length]
        return b"".join(out)


class Conversation:
    """One client's connection and the connection to the server that was made for it.

    Args:
        faults: what to do wrong.
        names: what to call each address in hello replies.
    """

    def __init__(self, faults: FaultList, names: Mapping[str, str]) -> None:
        self._faults = faults
        self._names = names
        self._app_name: str | None = None
        # In the order of the requests. A reply answers the first one: its `responseTo` is no help
        # where one hello is answered by a stream of replies, each a response to the one before.
        self._pending: deque[_Pending] = deque()
        self._from_client = _Direction(self._decide_request)
        self._from_server = _Direction(self._decide_reply)

    def from_client(self, data: bytes) -> bytes:
        """Take what the client sent.

        Returns:
            What to send to the server.

        Raises:
            HangUp: close both connections.
            WireError: the client doesn't speak the protocol.
        """
        return self._from_client.feed(data)

    def from_server(self, data: bytes) -> bytes:
        """Take what the server sent.

        Returns:
            What to send to the client.

        Raises:
            HangUp: close both connections.
            WireError: the server doesn't speak the protocol.
        """
        return self._from_server.feed(data)

    def _decide_request(self, header: Header, data: bytearray) -> tuple[int, bytes] | None:
        name = command_name(header, data)
        if name is None:
            return None
        faults = self._faults.naming(name)
        hello = is_hello(name)
        if (hello or faults) and len(data) < header.length:
            return None
        taken, sent = 0, b""
        if hello:
            request = hello_request(data[: header.length])
            self._app_name = request.app_name or self._app_name
            taken, sent = header.length, request.message
        if faults:
            faults = self._matching(faults, name, data[: header.length])
        if not flags_of(header, data) & MORE_TO_COME:
            self._pending.append(_Pending(hello, faults))
        if struck(faults, FaultKind.DROP_REQUEST):
            raise HangUp
        return taken, sent

    def _decide_reply(self, header: Header, data: bytearray) -> tuple[int, bytes] | None:
        if len(data) < min(_FLAGS_END, header.length):
            return None
        if not self._pending:
            raise HangUp  # nobody asked
        pending = self._pending[0]
        if pending.hello and len(data) < header.length:
            return None
        if not flags_of(header, data) & MORE_TO_COME:
            self._pending.popleft()
        if struck(pending.faults, FaultKind.DROP_REPLY):
            raise HangUp
        if pending.hello:
            return header.length, hello_reply(data[: header.length], self._names)
        return 0, b""

    def _matching(
        self, faults: tuple[Fault, ...], name: str, message: bytearray
    ) -> tuple[Fault, ...]:
        request = Request(name, body_of(message), self._app_name)
        matching = tuple(fault for fault in faults if fault.only.matches(request))
        for fault in matching:
            fault.notice()
        return matching
